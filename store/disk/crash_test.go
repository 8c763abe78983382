package disk

import (
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/internal/memfs"
)

// TestCrashAtEveryOperation crashes before every file system operation that changes something, with parts of what was not
// synced lost, and opens what is left: with its index, and without.
func TestCrashAtEveryOperation(t *testing.T) {
	rng := newRand(t)
	mem := memfs.NewCrashable()
	w := newWorld(t, rng)
	every := 1
	if testing.Short() {
		every = 10
	}
	var mu sync.Mutex
	k, on := 0, true
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if k++; k%every != 0 || !on || t.Failed() {
			return nil
		}
		before := w.state()
		seed := uint64(k)
		clone := func() memfs.FS {
			return mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[k%3], RNG: rand.New(rand.NewPCG(seed, 1))})
		}
		kept, rebuilt := clone(), clone()
		what := fmt.Sprintf("crash before operation %d (kind %d of %s at %d)", k, op.Kind, path.Base(op.Path), op.Offset)
		w.verify(kept, before, what)
		if err := rebuilt.RemoveAll("data/index"); err != nil {
			t.Error(err)
		}
		w.verify(rebuilt, before, what+", index lost")
		return nil
	}))
	w.d = openDriver(t, worldOptions(fs))
	w.script()
	mu.Lock()
	on = false
	mu.Unlock()
	if err := w.d.Close(); err != nil {
		t.Fatal(err)
	}
	before := w.state()
	w.verify(mem.CrashClone(vfs.CrashCloneCfg{}), before, "after close")
	t.Logf("%d operations", k)
	if k < 300 {
		t.Errorf("only %d operations: the script does too little", k)
	}
}
