package pebbleregistry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/namespace"
)

// script is changes by whose number a state of the registry is known: after change i, n holds i and k(i%3) too.
const scriptSteps = 12

func runScript(b *Backend, acknowledged func(step int)) error {
	for step := 1; step <= scriptSteps; step++ {
		value := []byte(fmt.Sprint(step))
		_, err := b.Write(context.Background(), namespace.Revision(step-1), [][]byte{{}}, []namespace.Record{
			{Key: []byte("n"), Value: value}, {Key: fmt.Append(nil, "k", step%3), Value: value},
		})
		if err != nil {
			return err
		}
		acknowledged(step)
	}
	return nil
}

// stateAfter is the plain model of the script.
func stateAfter(step int) map[string]string {
	m := map[string]string{}
	for i := 1; i <= step; i++ {
		m["n"], m[fmt.Sprint("k", i%3)] = fmt.Sprint(i), fmt.Sprint(i)
	}
	return m
}

// TestCrashAtEveryWrite takes a crash image before each write operation of a run, with none, some or all of what was
// not synced, and reopens it: what was acknowledged is there, the change under way is there whole or not at all.
func TestCrashAtEveryWrite(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for k, finished := 0, false; !finished; k++ {
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex // guards all below: Pebble writes from several goroutines
		ops, done := 0, 0
		var images []*vfs.MemFS
		atImage := 0
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if ops++; ops == k+1 {
				atImage = done
				for _, percent := range []int{0, 50, 100} {
					images = append(images, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}))
				}
			}
			return nil
		}))
		b, err := Open(dir, Options{FS: fs})
		if err == nil {
			err = errors.Join(runScript(b, func(step int) { mu.Lock(); done = step; mu.Unlock() }), b.Close())
		}
		if err != nil {
			t.Fatalf("crash at %d: the run itself: %v", k, err)
		}
		if finished = len(images) == 0; finished && k < 2*scriptSteps {
			t.Errorf("%d write operations: the images are not taken where the script writes", k)
		}
		for i, image := range images {
			after := openAt(t, image)
			_, at, err := after.Read(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if step := int(at); step < atImage || step > atImage+1 {
				t.Errorf("crash at %d, image %d: revision %d, acknowledged %d", k, i, step, atImage)
			} else if got := all(t, after); !maps.Equal(got, stateAfter(step)) {
				t.Errorf("crash at %d, image %d: %v is torn", k, i, got)
			}
			put(t, after, "after", "crash")
			if err := after.Close(); err != nil {
				t.Errorf("crash at %d, image %d: close: %v", k, i, err)
			}
		}
	}
}

// failingDisk marks the process that TestDiskFailsAtEveryWrite runs in: Pebble leaves goroutines behind on a disk that
// failed, and there nobody counts them.
const failingDisk = "QUIRE_TEST_FAILING_DISK"

// TestDiskFailsAtEveryWrite makes every write operation from the k-th on fail. The change under way has an unknown
// outcome, later ones say that the disk failed, reads go on, and reopening finds a whole state.
func TestDiskFailsAtEveryWrite(t *testing.T) {
	if os.Getenv(failingDisk) == "" {
		child := exec.Command(os.Args[0], "-test.run=^TestDiskFailsAtEveryWrite$")
		child.Env = append(os.Environ(), failingDisk+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for k, finished := int32(0), false; !finished; k++ {
		mem := vfs.NewCrashableMem()
		var ops atomic.Int32
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && ops.Add(1) > k {
				return errorfs.ErrInjected
			}
			return nil
		}))
		done := 0
		b, err := Open(dir, Options{FS: fs})
		if err == nil {
			err = runScript(b, func(step int) { done = step })
			if got := all(t, b); !maps.Equal(got, stateAfter(done)) {
				t.Errorf("failure at %d: reads give %v after step %d", k, got, done)
			}
			if err != nil {
				if !errors.Is(err, namespace.ErrOutcomeUnknown) && !errors.Is(err, ErrBroken) {
					t.Errorf("failure at %d: %v", k, err)
				}
				if _, err := tryPut(b, "later", "1"); !errors.Is(err, ErrBroken) {
					t.Errorf("failure at %d: a later write: %v", k, err)
				}
			}
			_ = b.Close() // may or may not be able to
		}
		finished = err == nil
		after := openAt(t, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})) // a restart: the lock went with the process
		if got := all(t, after); !maps.Equal(got, stateAfter(done)) && !maps.Equal(got, stateAfter(done+1)) {
			t.Errorf("failure at %d: %v after step %d", k, got, done)
		}
		_ = after.Close()
	}
}
