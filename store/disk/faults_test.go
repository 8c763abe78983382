package disk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/tier"
)

func isIndex(name string) bool { return strings.Contains(name, "/"+indexName) }

// faultyFS fails changes: the kth, or all from the kth on until healed.
type faultyFS struct {
	mu      sync.Mutex
	n, k    int
	lasting bool
	err     error
	hit     errorfs.Op
}

func (f *faultyFS) inject(op errorfs.Op) error {
	changes := op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose || op.Kind == errorfs.OpOpen
	if !changes || f.lasting && (!takesSpace(op.Kind) || isIndex(op.Path)) {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	if f.k == 0 || f.n != f.k && !(f.lasting && f.n > f.k) {
		return nil
	}
	if f.n == f.k {
		f.hit = op
	}
	return f.err
}

func takesSpace(k errorfs.OpKind) bool {
	return k == errorfs.OpCreate || k == errorfs.OpOpen || k == errorfs.OpFilePreallocate || k == errorfs.OpFileWrite || k == errorfs.OpFileWriteAt
}

func (f *faultyFS) operations() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

func (f *faultyFS) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.k = 0
}

// TestFaultAtEveryOperation: EIO at every change once, and ENOSPC from every change on, save those of the index, whose end
// is final. What was acknowledged stays readable and survives; what ended does not come back; the tier takes writes again
// by itself, unless a sync failed, or the index.
func TestFaultAtEveryOperation(t *testing.T) {
	if inChild(t) {
		return
	}
	rng := newRand(t)
	seed := rng.Uint64()
	for err, lasting := range map[error]bool{syscall.EIO: false, syscall.ENOSPC: true} {
		t.Run(fmt.Sprintf("%v/lasting=%v", err, lasting), func(t *testing.T) {
			fatal := 0
			step := 1
			if lasting {
				step = 3
			}
			if testing.Short() {
				step *= 7
			}
			for k := 1; ; k += step {
				f := &faultyFS{k: k, err: err, lasting: lasting}
				done, wasFatal := runWithFault(t, f, seed)
				if wasFatal {
					fatal++
				}
				if done || t.Failed() {
					t.Logf("%d operations, %d of them fatal", k-1, fatal)
					break
				}
			}
			if fatal == 0 && !lasting && !testing.Short() {
				t.Error("none was fatal")
			}
		})
	}
}

func runWithFault(t *testing.T, f *faultyFS, seed uint64) (done, fatal bool) {
	mem := memfs.NewCrashable()
	manual := clock.NewManual(time.Unix(1_000_000, 0))
	o := worldOptions(errorfs.Wrap(mem, errorfs.InjectorFunc(f.inject)))
	o.Clock = manual
	w := newWorld(t, newRandOf(seed))
	w.faults = true
	var err error
	if w.d, err = New(context.Background(), o); err != nil {
		if !errors.Is(err, f.err) {
			t.Fatalf("operation %d: %v", f.k, err)
		}
		return false, false
	}
	if err := w.d.Recover(context.Background(), own); err != nil {
		_ = w.d.Close() // the index is broken
		if !errors.Is(err, f.err) {
			t.Fatalf("operation %d: %v", f.k, err)
		}
		return false, false
	}
	opened := f.operations()
	w.script()
	done = f.operations() < f.k
	what := fmt.Sprintf("operation %d (kind %d of %s at %d)", f.k, f.hit.Kind, f.hit.Path, f.hit.Offset)
	f.heal()
	fatal = w.d.failed() != nil
	for range 10 {
		manual.Advance(lastProbe)
		w.barrier()
	}
	w.faults = fatal
	if u := w.d.Usage(); u.Writable == fatal || (u.Trouble == "") == fatal {
		t.Errorf("%s: fatal is %v, usage %+v", what, fatal, u)
	}
	indexed := isIndex(f.hit.Path)
	if sync := f.hit.Kind == errorfs.OpFileSync || f.hit.Kind == errorfs.OpFileSyncData; fatal != sync && f.k > opened && !done && !indexed {
		t.Errorf("%s: fatal is %v", what, fatal)
	}
	w.readAll(what)
	if !fatal {
		w.publish(3)
		w.barrier()
	}
	before := w.state()
	if err := w.d.Close(); err != nil && !indexed {
		t.Errorf("%s: close: %v", what, err)
	}
	w.verify(mem.CrashClone(vfs.CrashCloneCfg{}), before, what)
	mem = mem.CrashClone(vfs.CrashCloneCfg{})
	if err := mem.RemoveAll("data/index"); err != nil {
		t.Error(err)
	}
	w.verify(mem, before, what+", index lost")
	return done, fatal
}

// readAll reads what is live back from the tier that runs.
func (w *world) readAll(what string) {
	w.t.Helper()
	for _, id := range w.order {
		if x := w.things[id]; x.acked && len(x.copies) > 0 {
			c := tier.Recovered{Region: x.copies[0], DeclaredFLOPs: float64(id), Note: *x.note()}
			c.Key.Epoch = x.epoch
			w.intact(w.d, x, c, what)
		}
	}
}
