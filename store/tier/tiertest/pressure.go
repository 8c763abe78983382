package tiertest

import (
	"errors"
	"testing"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

func testFullThenFree(t *testing.T, h Harness) {
	r := newRig(t, h)
	all := r.fill(mixed(60_000), 1)
	if u := r.usage(); u.Live < u.Capacity/2 {
		t.Fatalf("full at %d of %d bytes", u.Live, u.Capacity)
	}
	for i := range 3 {
		r.free(all[i*len(all)/3])
		all[i*len(all)/3] = r.must(mixed(60_000), 9_000+uint64(i))
		if !h.Transient {
			if _, err := r.try(mixed(60_000), 0); !errors.Is(err, tier.ErrFull) {
				t.Fatalf("alloc in a full tier: %v", err)
			}
		}
	}
	for _, x := range all {
		r.check(x)
	}
}

// testTenTimes writes ten times the capacity and frees the oldest when there is no room.
func testTenTimes(t *testing.T, h Harness) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	r := newRig(t, h)
	sizes := []int64{70_000, 70_000, 4_096, 300_000, 70_000, 1}
	var fifo []held
	var written int64
	for i := uint64(0); written < 10*h.CapacityBytes; i++ {
		c := mixed(sizes[i%uint64(len(sizes))])
		x, err := r.try(c, i)
		for errors.Is(err, tier.ErrFull) {
			if len(fifo) == 0 {
				t.Fatalf("an empty tier has no room for %d bytes: %+v", c.Bytes, r.usage())
			}
			r.free(fifo[0])
			fifo = fifo[1:]
			x, err = r.try(c, i)
		}
		if err != nil {
			t.Fatalf("alloc: %v", err)
		}
		fifo = append(fifo, x)
		written += c.Bytes
	}
	for _, x := range fifo {
		r.check(x)
	}
}

// testClassesDoNotMix holds that a slab serves one class at a time.
func testClassesDoNotMix(t *testing.T, h Harness) {
	r := newRig(t, h)
	classes := []tier.Class{
		mixed(20_000), private(1, 1, 20_000), private(1, 2, 20_000), private(2, 1, 20_000), private(1, 1, 40_000),
	}
	serves := map[uint32]tier.Class{}
	var live []held
	for i := range uint64(100) {
		x := r.must(classes[i%uint64(len(classes))], i)
		if c, ok := serves[x.Handle]; ok && c != x.class {
			t.Fatalf("slab %d serves %+v and %+v", x.Handle, c, x.class)
		}
		serves[x.Handle] = x.class
		live = append(live, x)
	}
	for _, x := range live {
		r.check(x)
	}
}

// testReturnsToEmpty fills the tier with one class after the other: what one gives back, the next can have.
func testReturnsToEmpty(t *testing.T, h Harness) {
	r := newRig(t, h)
	for i, c := range []tier.Class{mixed(4_096), private(1, 1, 90_000), mixed(h.CapacityBytes / 4), private(2, page.Epoch(7), 4_096), mixed(200_000)} {
		all := r.fill(c, uint64(i)<<20)
		if u := r.usage(); u.Live < u.Capacity/3 {
			t.Fatalf("round %d (%d bytes): full at %d of %d bytes", i, c.Bytes, u.Live, u.Capacity)
		}
		for _, x := range all {
			r.free(x)
		}
		if u := r.usage(); u.Live != 0 {
			t.Fatalf("round %d: %d bytes live in an empty tier", i, u.Live)
		}
	}
}

func index(all []held) map[place]held {
	live := make(map[place]held, len(all))
	for _, x := range all {
		live[placeOf(x.Region)] = x
	}
	return live
}

// thin frees all but one region in n.
func (r *rig) thin(all []held, n int) []held {
	r.t.Helper()
	var kept []held
	for i, x := range all {
		if i%n == 0 {
			kept = append(kept, x)
		} else {
			r.free(x)
		}
	}
	return kept
}

func testCompact(t *testing.T, h Harness) {
	r := newRig(t, h)
	if slab, residents := r.d.Compact(nil); slab != 0 && len(residents) > 0 {
		t.Fatalf("compact of an empty tier names residents of slab %d", slab)
	}
	all := r.fill(mixed(30_000), 1)
	if slab, _ := r.d.Compact(nil); slab != 0 {
		t.Fatalf("compact of a full tier names slab %d", slab)
	}
	live := index(r.thin(all, 8))
	rounds := 0
	for r.empty(live) {
		if rounds++; rounds > len(all) {
			t.Fatalf("slabs are emptied without end: %d regions moved in %d rounds", len(live), rounds)
		}
	}
	for _, x := range live {
		r.check(x)
	}
}

// testCompactPromisesOnce picks slabs one after the other before anything moves: what lives in all of them together
// has room in the others.
func testCompactPromisesOnce(t *testing.T, h Harness) {
	r := newRig(t, h)
	r.thin(r.fill(mixed(30_000), 1), 3)
	owed := 0
	for range 1_000 {
		slab, residents := r.d.Compact(nil)
		if slab == 0 {
			break
		}
		owed += len(residents)
	}
	if got := len(r.fill(mixed(30_000), 1<<32)); got < owed && !h.Transient {
		t.Errorf("%d regions are to move, there is room for %d", owed, got)
	}
}

// testCompactFeedsAnotherClass: one class holds all memory, sparsely; another gets what it needs without one more
// region being given up.
func testCompactFeedsAnotherClass(t *testing.T, h Harness) {
	r := newRig(t, h)
	all := r.fill(mixed(30_000), 1)
	live := index(r.thin(all, 8))
	for i := range uint64(2) {
		c := mixed(h.CapacityBytes / 4)
		_, err := r.try(c, 1<<40+i)
		for errors.Is(err, tier.ErrFull) {
			if !r.empty(live) {
				t.Fatalf("no room for %d bytes and nothing to empty: %+v", c.Bytes, r.usage())
			}
			_, err = r.try(c, 1<<40+i)
		}
		if err != nil {
			t.Fatalf("alloc: %v", err)
		}
	}
	for _, x := range live {
		r.check(x)
	}
}

func testKeep(t *testing.T, h Harness) {
	r := newRig(t, h)
	all := r.fill(mixed(30_000), 1)
	kept := r.thin(all, 8)
	var slab uint32
	for residents := []tier.Resident(nil); len(residents) == 0; {
		if slab, residents = r.d.Compact(residents); slab == 0 {
			t.Skip("the tier never needs to empty a slab")
		}
	}
	r.d.Keep(slab)
	r.d.Keep(slab) // twice is once
	r.d.Keep(1 << 30)
	again := r.fill(mixed(30_000), 1<<32)
	if got, want := len(kept)+len(again), len(all); !h.Transient && got < want {
		t.Errorf("%d regions fit after keep, %d before", got, want)
	}
	reused := false
	for _, x := range again {
		reused = reused || x.Handle == slab
	}
	if !reused && !h.Transient {
		t.Errorf("slab %d was kept and is not allocated from", slab)
	}
	for _, x := range append(kept, again...) {
		r.check(x)
	}
}
