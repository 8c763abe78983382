package namespace_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ( // who calls in these tests
	operator = namespace.Principal{Name: "op", Role: namespace.RoleOperator}
	engine   = namespace.Principal{Name: "vllm-0", Tenant: "acme", Role: namespace.RoleEngine}
	reader   = namespace.Principal{Name: "eyes", Tenant: "acme", Role: namespace.RoleReadOnly}
	stranger = namespace.Principal{Name: "other-0", Tenant: "other", Role: namespace.RoleEngine}
)

// wallClock stands still until it is moved.
type wallClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *wallClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *wallClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// newRegistry is one over memory, at a time that stands still.
func newRegistry(t testing.TB) (*namespace.Registry, *wallClock) {
	t.Helper()
	clock := &wallClock{t: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	return registryOver(t, memregistry.New(), clock), clock
}

func registryOver(t testing.TB, b namespace.Backend, clock *wallClock) *namespace.Registry {
	t.Helper()
	r, err := namespace.NewRegistry(context.Background(), b, namespace.Options{Now: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func open(t testing.TB, r *namespace.Registry, by namespace.Principal, s *namespace.Spec) namespace.Opened {
	t.Helper()
	o, err := r.Open(context.Background(), by, "", s)
	if err != nil {
		t.Fatalf("open for %s: %v", by.Tenant, err)
	}
	return o
}

// must fails the test on an error of a change.
func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
