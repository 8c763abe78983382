package tiertest_test

import (
	"errors"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/tier"
	"github.com/quire-kv/quire/store/tier/tiertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaulty(t *testing.T) {
	d, err := host.New(host.Options{CapacityBytes: host.MinCapacityBytes})
	if err != nil {
		t.Fatal(err)
	}
	f := tiertest.Inject(d, tiertest.FailFrom(tiertest.CallAlloc, 2, tier.ErrDegraded))
	defer f.Close()
	r, err := f.Alloc(tier.Class{Bytes: 100}, tier.Owner{})
	if err != nil || !f.Usage().Writable {
		t.Fatalf("first alloc: %v", err)
	}
	for range 2 {
		if _, err := f.Alloc(tier.Class{Bytes: 100}, tier.Owner{}); !errors.Is(err, tier.ErrDegraded) || f.Usage().Writable {
			t.Fatalf("later alloc: %v, usage %+v", err, f.Usage())
		}
	}
	f.SetPlan(tiertest.FailAt(tiertest.CallWrite, 1, syscall.EIO))
	if n := f.Calls(tiertest.CallAlloc); n != 3 || !f.Usage().Writable {
		t.Errorf("%d allocs, usage %+v", n, f.Usage())
	}
	done := make(chan error)
	for _, want := range []error{syscall.EIO, nil} {
		f.Submit([]tier.Op{{Region: r, Memory: []byte{1, 2, 3, 4}, Write: true, Done: func(err error) { done <- err }}})
		if err := <-done; err != want {
			t.Errorf("write: %v, want %v", err, want)
		}
		torn := [4]byte{1, 2}
		if want == nil {
			torn = [4]byte{1, 2, 3, 4}
		}
		if got := [4]byte(r.Memory[:4]); got != torn {
			t.Errorf("the region holds %v, want %v", got, torn)
		}
	}
}
