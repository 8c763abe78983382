package memregistry_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/namespace/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(t testing.TB) registrytest.Backend {
		b := memregistry.New()
		t.Cleanup(func() { _ = b.Close() })
		return registrytest.Backend{Backend: b}
	})
}
