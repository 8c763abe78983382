package tiertest

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/quire-kv/quire/store/tier"
)

// testFaultAtEveryCall runs one script with a fault at every kth call of each kind: the tier stays exact and whole.
func testFaultAtEveryCall(t *testing.T, h Harness) {
	const step = 3
	for _, f := range []struct {
		call Call
		err  error
	}{{CallAlloc, tier.ErrFull}, {CallAlloc, tier.ErrDegraded}, {CallWrite, syscall.EIO}, {CallRead, syscall.EIO}} {
		for k := 1; k <= scriptCalls; k += step {
			t.Run(fmt.Sprintf("%d/%v/%d", f.call, f.err, k), func(t *testing.T) { runScript(t, h, FailAt(f.call, k, f.err), f.err) })
		}
	}
}

// scriptCalls is how many allocations, writes and reads runScript makes.
const scriptCalls = 24

func runScript(t *testing.T, h Harness, p Plan, injected error) {
	var faulty *Faulty
	below := h.New
	h.New = func(t testing.TB, capacity int64) tier.Driver {
		faulty = Inject(below(t, capacity), p)
		return faulty
	}
	r := newRig(t, h)
	r.transient = false
	var live []held
	failures := 0
	for i := range uint64(scriptCalls) {
		reg, err := r.d.Alloc(mixed(40_000), tier.Owner{Extent: uint32(i)})
		if err != nil {
			failures += countInjected(t, err, injected, h.Transient)
			if u := r.usage(); errors.Is(err, tier.ErrDegraded) && u.Writable {
				t.Errorf("degraded, and usage says writable")
			}
			continue
		}
		x := held{Region: reg, class: mixed(40_000), owner: tier.Owner{Extent: uint32(i)}, seed: i}
		for _, op := range []tier.Op{r.writing(x), {Region: reg, Memory: make([]byte, reg.Bytes)}} {
			err := r.transfer(op)
			if err == nil {
				continue
			}
			failures += countInjected(t, err, injected, false)
			if again := r.transfer(op); again != nil {
				t.Fatalf("transfer after a fault: %v", again)
			}
		}
		live = append(live, x)
	}
	if failures == 0 {
		t.Errorf("the fault was not seen")
	}
	if u := r.usage(); u.Live != int64(len(live))*40_000 || !u.Writable {
		t.Errorf("usage %+v with %d regions live", u, len(live))
	}
	for _, x := range live {
		r.free(x)
	}
	if u := r.usage(); u.Live != 0 {
		t.Errorf("%d bytes live in the end", u.Live)
	}
}

func countInjected(t *testing.T, err, injected error, transient bool) int {
	t.Helper()
	if !errors.Is(err, injected) && !(transient && errors.Is(err, tier.ErrFull)) {
		t.Fatalf("%v, injected was %v", err, injected)
	}
	return 1
}
