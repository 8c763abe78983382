package disk

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/tier"
)

// silentWorld is a driver with some extents over a disk that can be stopped.
func silentWorld(t *testing.T, readers int) (*world, *memfs.Gate, *clock.Manual) {
	g := memfs.NewGate(memfs.New())
	o := worldOptions(g)
	now := clock.NewManual(time.Unix(1_000_000, 0))
	o.Clock, o.Patience, o.BatchBytes, o.Readers = now, time.Minute, 1, readers
	w := newWorld(t, newRand(t))
	w.d = openDriver(t, o)
	t.Cleanup(func() {
		g.Resume()
		if err := w.d.Close(); err != nil {
			t.Error(err)
		}
	})
	w.publish(3)
	return w, g, now
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// start submits the write of a new extent and answers where its end is told.
func (w *world) start() (region tier.Region, done chan error) {
	w.t.Helper()
	w.next++
	x := &thing{id: w.next, epoch: w.epochs[0], bytes: 5_000}
	r, err := w.d.Alloc(tier.Class{Bytes: int64(x.bytes)}, tier.Owner{Shard: 1, Extent: uint32(x.id)})
	if err != nil {
		w.t.Fatal(err)
	}
	done = make(chan error, 1)
	w.d.Submit([]tier.Op{{Region: r, Memory: x.region(w.t), Write: true, Note: x.note(), Done: func(err error) { done <- err }}})
	return r, done
}

func (w *world) awaitBarrier() chan error {
	done := make(chan error, 1)
	w.d.Barrier(func(err error) { done <- err })
	return done
}

// A write that takes no end holds up nothing else: what waits behind it, and what comes, is refused once it is late. When it
// has ended, however that may be, all goes on.
func TestAWriteThatTakesNoEnd(t *testing.T) {
	w, g, now := silentWorld(t, 1)
	g.Stop(memfs.Changes)
	_, first := w.start()
	await(t, "it is held", func() bool { return g.Held() == 1 })
	second, behind := w.start()
	barrier := w.awaitBarrier()
	now.Advance(time.Minute - 1)
	if u := w.d.Usage(); !u.Writable || len(behind)+len(barrier) != 0 {
		t.Errorf("refused too early: %+v", u)
	}
	now.Advance(1)
	for what, done := range map[string]chan error{"a write": behind, "a barrier": barrier, "another barrier": w.awaitBarrier()} {
		if err := <-done; !errors.Is(err, tier.ErrDegraded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.d.Free(second)
	if u := w.d.Usage(); u.Writable || u.Trouble == "" {
		t.Errorf("%+v", u)
	}
	if _, err := w.d.Alloc(tier.Class{Bytes: 5000}, tier.Owner{Shard: 1, Extent: 1}); !errors.Is(err, tier.ErrDegraded) {
		t.Errorf("alloc: %v", err)
	}
	w.readAll("meanwhile")
	now.Advance(time.Hour)
	w.d.mu.Lock()
	waits := len(w.d.writer.wants.ops) + len(w.d.writer.wants.barriers)
	w.d.mu.Unlock()
	if waits != 0 || len(first) != 0 {
		t.Errorf("%d wait still", waits)
	}
	g.Resume()
	if err := <-first; err != nil {
		t.Errorf("the write that took so long: %v", err)
	}
	w.barrier()
	if u := w.d.Usage(); !u.Writable || u.Trouble != "" {
		t.Errorf("%+v", u)
	}
	w.publish(3)
	w.readAll("after it")
}

// What makes progress is not late, however long all of it takes.
func TestASlowDiskIsNotLate(t *testing.T) {
	w, g, now := silentWorld(t, 1)
	w.d.mu.Lock()
	w.d.seal(w.d.hot)
	w.d.mu.Unlock()
	g.Stop(func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData })
	_, done := w.start() // into a new segment: its file and its directory are synced
	syncs := 0
	for ; len(done) == 0; syncs++ {
		await(t, "a sync, or the end", func() bool { return g.Held() == 1 || len(done) == 1 })
		now.Advance(time.Minute - 1)
		if u := w.d.Usage(); !u.Writable {
			t.Fatalf("after %d syncs: %+v", syncs, u)
		}
		g.Step()
	}
	if err := <-done; err != nil || syncs < 2 {
		t.Errorf("%d syncs: %v", syncs, err)
	}
}

// Reads likewise: as long as none of them ends, no more are taken.
func TestReadsThatTakeNoEnd(t *testing.T) {
	w, g, now := silentWorld(t, 1)
	g.Stop(memfs.Reads)
	read := func() chan error {
		done := make(chan error, 1)
		r := w.things[w.order[0]].copies[0]
		w.d.Submit([]tier.Op{{Region: r, Memory: make([]byte, r.Bytes), Done: func(err error) { done <- err }}})
		return done
	}
	first := read()
	await(t, "it is held", func() bool { return g.Held() == 1 })
	behind := read()
	now.Advance(time.Minute)
	for what, done := range map[string]chan error{"one behind it": behind, "one that comes": read()} {
		if err := <-done; !errors.Is(err, tier.ErrDegraded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if u := w.d.Usage(); !u.Writable || u.Trouble == "" {
		t.Errorf("%+v", u)
	}
	w.publish(2) // writes are another matter
	g.Resume()
	if err := <-first; err != nil {
		t.Errorf("the read that took so long: %v", err)
	}
	w.readAll("after it")
	if u := w.d.Usage(); u.Trouble != "" {
		t.Errorf("%+v", u)
	}
}

// One read that takes no end is that read's trouble, as long as there is another reader.
func TestOneReadThatTakesNoEnd(t *testing.T) {
	w, g, now := silentWorld(t, 2)
	g.Stop(memfs.Reads)
	r := w.things[w.order[0]].copies[0]
	done := make(chan error, 1)
	w.d.Submit([]tier.Op{{Region: r, Memory: make([]byte, r.Bytes), Done: func(err error) { done <- err }}})
	await(t, "it is held", func() bool { return g.Held() == 1 })
	g.Stop(func(errorfs.Op) bool { return false }) // what is held stays so
	now.Advance(time.Hour)
	w.readAll("meanwhile")
	if u := w.d.Usage(); u.Trouble != "" || len(done) != 0 {
		t.Errorf("%+v", u)
	}
	g.Resume()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
