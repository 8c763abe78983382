package core

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func behindWorld(t *testing.T, o Options) (*world, page.Family) {
	o.WriteBehind = true
	w := newWorld(t, 1<<30, o)
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	return w, familyIn(st, testGroup)
}

// behindBytes is what the last event asked a WriteBehind for; 0: it did not.
func (w *world) behindBytes() (n uint64) {
	for _, e := range w.effects {
		if b, ok := e.(Behind); ok {
			n = b.Bytes
		}
	}
	return n
}

func TestWriteBehind(t *testing.T) {
	w, f := behindWorld(t, Options{})
	w.publish(f, 0, 0, 4)
	if n := w.behindBytes(); n != 4*12288 {
		t.Errorf("asked for %d bytes", n)
	}
	w.publish(f, 1, 0, 1)
	if n := w.behindBytes(); n != 0 {
		t.Errorf("asked again for %d bytes", n)
	}
	w.do(WriteBehind{Bytes: 2*12288 - 1})
	if len(w.transfers) != 2 || w.behindBytes() != 3*12288 {
		t.Errorf("%d transfers, %d bytes left", len(w.transfers), w.behindBytes())
	}
	w.check()
	w.delete(f, 1, 0, 1)
	w.finishTransfers()
	w.do(WriteBehind{Bytes: 1 << 40})
	if len(w.transfers) != 2 || w.behindBytes() != 0 {
		t.Errorf("%d transfers, %d bytes left", len(w.transfers), w.behindBytes())
	}
	w.finishTransfers()
	w.check()
	w.publish(f, 0, 4, 5)
	w.settleOnDisk(f, 0, 4, 5)
	w.do(WriteBehind{Bytes: 1 << 40}) // it is there already
	if len(w.transfers) != 0 || w.disk.used != 5*12288 {
		t.Errorf("%d transfers, %d bytes on Disk", len(w.transfers), w.disk.used)
	}
	w.check()
}

// Whatever the order of commits, and whatever fell out of the queue, parents go before their children.
func TestWriteBehindWritesParentsFirst(t *testing.T) {
	w, f := behindWorld(t, Options{MaxBehind: 2})
	r := w.begin(w.beginEvent(chain(f, 0, 0, 6), page.View{}))
	for _, i := range []uint32{5, 3, 0, 1, 2, 4} {
		w.commit(f, r.Token, i)
	}
	if n := w.s.Totals(); n.Behind != 2 || n.BehindRefused != 4 {
		t.Fatalf("queued %d, refused %d", n.Behind, n.BehindRefused)
	}
	depth := uint32(0)
	for range 4 { // the budget ends within the ancestors of page 5
		w.do(WriteBehind{Bytes: 2 * 12288})
		for _, tr := range w.transfers {
			if d := w.s.pages.At(w.s.extents.At(tr.Extent).owner).depth; d != depth {
				t.Errorf("depth %d written, want %d", d, depth)
			}
			depth++
		}
		w.finishTransfers()
		w.check()
	}
	if depth != 6 || w.behindBytes() != 0 {
		t.Errorf("%d pages written, %d bytes left", depth, w.behindBytes())
	}
}

func TestWriteBehindLeavesOut(t *testing.T) {
	w, f := behindWorld(t, Options{})
	w.publish(f, 0, 0, 3)
	w.delete(f, 0, 0, 1) // 1 and 2 are orphans
	w.tickUntilQuiet()
	alone := f
	alone.Group = aloneGroup
	w.publish(alone, 1, 0, 1)
	wind := f
	wind.Group = windGroup
	w.publish(wind, 2, 0, 2)
	w.delete(wind, 2, 0, 1)
	hidden := w.beginEvent(chain(f, 3, 0, 1), page.View{})
	hidden.Provenance = 3
	w.publishView(hidden)
	b := w.beginEvent(chain(f, 4, 0, 1), page.View{})
	b.Pages[0].Link = LinkUnknown
	w.publishView(b)
	st := testNamespace(1, 1)
	st.Accepts = []uint64{1<<1 | 1<<2}
	w.do(NamespaceChanged{st})
	w.do(WriteBehind{Bytes: 1 << 40})
	w.finishTransfers()
	for name, want := range map[string]string{
		w.tiersOf(alone, 1, 0): "host disk", w.tiersOf(wind, 2, 1): "host disk", w.tiersOf(f, 4, 0): "host disk",
		w.tiersOf(f, 0, 1): "host", w.tiersOf(f, 3, 0): "host",
	} {
		if name != want {
			t.Errorf("in %q, want %q", name, want)
		}
	}
	if w.disk.used != 3*12288 {
		t.Errorf("%d bytes on Disk", w.disk.used)
	}
	w.check()
}

// Nothing is asked of a disk that takes nothing; when it is back, it catches up with what did not fit the queue either.
func TestWriteBehindCatchesUp(t *testing.T) {
	w, f := behindWorld(t, Options{MaxBehind: 3})
	w.publish(f, 0, 0, 1)
	w.do(WriteBehind{Bytes: 1 << 40})
	w.do(TierState{Tier: evict.Disk})
	w.finishTransfer(0, reason.Busy)
	w.publish(f, 0, 1, 10)
	if w.do(WriteBehind{Bytes: 1 << 40}); w.behindBytes() != 0 || len(w.transfers) != 0 {
		t.Errorf("%d bytes asked for, %d transfers", w.behindBytes(), len(w.transfers))
	}
	w.check()
	w.do(TierState{Tier: evict.Disk, Writable: true})
	if w.behindBytes() == 0 {
		t.Error("the queue is not asked for when the disk is back")
	}
	for range 10 {
		w.do(WriteBehind{Bytes: 1 << 40})
		w.finishTransfers()
		w.advance(2 * time.Second)
	}
	if w.disk.used != 10*12288 || w.s.Totals().Behind != 0 {
		t.Errorf("%d bytes on Disk, %d queued", w.disk.used, w.s.Totals().Behind)
	}
	w.check()
}

// A page that the disk failed to take is tried again when the disk is back.
func TestWriteBehindTriesAgain(t *testing.T) {
	w, f := behindWorld(t, Options{})
	w.publish(f, 0, 0, 1)
	w.do(WriteBehind{Bytes: 1})
	w.finishTransfer(0, reason.Busy)
	w.do(TierState{Tier: evict.Disk})
	w.do(TierState{Tier: evict.Disk, Writable: true})
	if w.behindBytes() != 0 {
		t.Error("asked for what is not queued")
	}
	w.advance(2 * time.Second)
	if w.s.Totals().Behind != 1 {
		t.Fatal("not queued again")
	}
	w.do(WriteBehind{Bytes: 1})
	w.finishTransfers()
	w.advance(2 * time.Second)
	if w.tiersOf(f, 0, 0) != "host disk" || w.s.Totals().Behind != 0 {
		t.Errorf("in %q, %d queued", w.tiersOf(f, 0, 0), w.s.Totals().Behind)
	}
	w.check()
}

// The queue is bounded and reuses its memory.
func TestBehindQueue(t *testing.T) {
	q := behindQueue{max: 100}
	for i := range uint32(100_000) {
		if !q.push(behindPage{ref: PageRef{Slot: i}, bytes: 2}) {
			t.Fatal("full")
		}
		if q.len() == 100 {
			if q.push(behindPage{}) || !q.missed {
				t.Fatal("more than its bound")
			}
			if first := q.items[q.head].ref.Slot; first != i-99 {
				t.Fatalf("first is %d after %d", first, i)
			}
			q.pop()
		}
	}
	if q.len() != 99 || q.bytes != 198 || cap(q.items) > 1000 {
		t.Errorf("%d pages of %d bytes in room for %d", q.len(), q.bytes, cap(q.items))
	}
}
