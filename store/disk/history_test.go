package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/tier"
)

// TestCase_C69_RebuildEqualsIndex runs random histories with crashes. After each start, what the index tells of and what
// segments alone tell of are the same, and both are what the model says.
func TestCase_C69_RebuildEqualsIndex(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mem := memfs.NewCrashable()
		w := newWorld(quiet{t, rt}, newRandOf(rapid.Uint64().Draw(rt, "seed")))
		w.d = openDriver(w.t, worldOptions(mem))
		defer func() { _ = w.d.Close() }()
		rt.Repeat(map[string]func(*rapid.T){
			"publish": func(rt *rapid.T) { w.publish(rapid.IntRange(1, 12).Draw(rt, "n")) },
			"free": func(rt *rapid.T) {
				for _, x := range w.some(rapid.IntRange(1, 6).Draw(rt, "one in")) {
					w.free(x)
				}
			},
			"bury":    func(rt *rapid.T) { w.bury(w.some(rapid.IntRange(2, 8).Draw(rt, "one in"))) },
			"barrier": func(*rapid.T) { w.barrier() },
			"clean":   func(*rapid.T) { w.clean() },
			"deletes": func(*rapid.T) { // one by one: the journal grows and is compacted
				for _, x := range w.some(2) {
					w.free(x)
					w.barrier()
				}
			},
			"retire": func(rt *rapid.T) { w.retire(rapid.IntRange(0, 3).Draw(rt, "epoch")) },
			"crash": func(rt *rapid.T) {
				percent := rapid.SampledFrom([]int{0, 50, 100}).Draw(rt, "unsynced")
				before := w.state()
				kept := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(uint64(percent), 1))})
				rebuilt := kept.CrashClone(vfs.CrashCloneCfg{})
				if err := w.d.Close(); err != nil {
					rt.Fatal(err)
				}
				if err := rebuilt.RemoveAll("data/index"); err != nil {
					rt.Fatal(err)
				}
				a, b := places(rt, kept), places(rt, rebuilt)
				if !reflect.DeepEqual(a, b) {
					rt.Fatalf("the index has %d regions, the segments %d:\n%v\n%v", len(a), len(b), a, b)
				}
				w.restart(kept, before)
				mem = kept
			},
		})
		if n := len(w.d.journal.files); n > 12 {
			rt.Errorf("%d journal files", n)
		}
	})
}

// quiet logs nothing of a history that passes.
type quiet struct {
	testing.TB
	rt *rapid.T
}

func (q quiet) Helper()                           {}
func (q quiet) Errorf(format string, args ...any) { q.rt.Errorf(format, args...) }
func (q quiet) Fatalf(format string, args ...any) { q.rt.Fatalf(format, args...) }
func (q quiet) Fatal(args ...any)                 { q.rt.Fatal(args...) }

// places is what a directory tells of, without what ended there staying so.
func places(rt *rapid.T, fs memfs.FS) (out []string) {
	fs = fs.CrashClone(vfs.CrashCloneCfg{})
	d, err := New(context.Background(), worldOptions(fs))
	if err != nil {
		rt.Fatal(err)
	}
	defer d.Close()
	err = d.Recover(context.Background(), func(batch []tier.Recovered, owners []tier.Owner) error {
		for i, x := range batch {
			owners[i] = tier.Owner{Extent: 1}
			x.Region.Handle = 0 // of this life
			out = append(out, fmt.Sprintf("%016x %+v", d.segment(batch[i].Region.Handle).number, x))
		}
		return nil
	})
	if err != nil {
		rt.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// restart goes on with what a crash left, after a check of it.
func (w *world) restart(fs memfs.FS, before state) {
	var err error
	if w.d, err = New(context.Background(), worldOptions(fs)); err != nil {
		w.t.Fatal(err)
	}
	told := map[uint64][]tier.Region{}
	err = w.d.Recover(context.Background(), func(batch []tier.Recovered, owners []tier.Owner) error {
		for i, x := range batch {
			id := x.Extent.Seq
			if len(told[id]) > 0 {
				continue // a copy that was being moved: one is enough
			}
			told[id] = append(told[id], x.Region)
			owners[i] = tier.Owner{Shard: 1, Extent: uint32(id)}
			if before.ended[id] {
				w.t.Errorf("extent %d ended and is back", id)
			}
			w.intact(w.d, w.things[id], batch[i], "after the crash")
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	for id, x := range w.things {
		if before.acked[id] && !x.ending && len(told[id]) == 0 {
			w.t.Errorf("extent %d was acknowledged and is gone: %+v", id, w.d.Recovery())
		}
		x.copies = told[id]
		x.acked = len(told[id]) > 0
		x.ending = len(told[id]) == 0
	}
}

// TestTwoOwners: a directory has one owner, and the other is told who.
func TestTwoOwners(t *testing.T) {
	for name, o := range map[string]Options{"memory": worldOptions(memfs.New()), "disk": {Dir: t.TempDir(), CapacityBytes: MinCapacityBytes}} {
		d := openDriver(t, o)
		_, err := New(context.Background(), o)
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("data directory %s is in use by process ", o.Dir)) {
			t.Errorf("%s: the second owner gets %v", name, err)
		}
		if _, err := Check(context.Background(), d.o.FS, o.Dir, CheckOptions{}); !errors.Is(err, ErrInUse) {
			t.Errorf("%s: check beside an owner: %v", name, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if d, err = New(context.Background(), o); err != nil {
			t.Fatalf("%s: after close: %v", name, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
