package core

import (
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func TestRecordSizes(t *testing.T) {
	if n := unsafe.Sizeof(pageRecord{}); n != 64 {
		t.Errorf("pageRecord is %d bytes, want 64", n)
	}
	if n := unsafe.Sizeof(extentRecord{}); n != 32 {
		t.Errorf("extentRecord is %d bytes, want 32", n)
	}
	if o := unsafe.Offsetof(pageRecord{}.lineage); o != 60 {
		t.Errorf("lineage at %d, want 60", o)
	}
	if o := unsafe.Offsetof(extentRecord{}.where); o != 16 {
		t.Errorf("where at %d, want 16", o)
	}
}

func TestExtentPlaceRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Place{
			Tier: evict.Tier(rapid.IntRange(0, 2).Draw(t, "tier")), Handle: rapid.Uint32Range(1, maxHandle).Draw(t, "handle"),
			Offset: int64(rapid.Uint32().Draw(t, "offset")) << regionAlignShift, Bytes: int64(rapid.Uint32Range(1, 1<<32-1).Draw(t, "bytes")),
		}
		x := extentRecord{bytes: uint32(p.Bytes)}
		x.setState(extentGone)
		x.setMoving(true)
		if !x.setPlace(p) || x.place() != p || x.state() != extentGone || !x.moving() {
			t.Fatalf("%+v came back as %+v, state %d", p, x.place(), x.state())
		}
		x.setMoving(false)
		x.setState(extentOpen)
		if x.place() != p || x.moving() {
			t.Fatalf("%+v came back as %+v", p, x.place())
		}
		x.clearPlace()
		if x.place() != (Place{}) || x.state() != extentOpen || x.tier() != p.Tier {
			t.Fatalf("cleared: %+v", x.place())
		}
	})
	for name, p := range map[string]Place{
		"no handle": {Bytes: 1}, "large handle": {Handle: maxHandle + 1, Bytes: 1}, "odd offset": {Handle: 1, Offset: 1, Bytes: 1},
		"negative": {Handle: 1, Offset: -4096, Bytes: 1}, "other size": {Handle: 1, Bytes: 2}, "no such tier": {Tier: 3, Handle: 1, Bytes: 1},
		"far": {Handle: 1, Offset: 1 << 44, Bytes: 1},
	} {
		if x := (extentRecord{bytes: 1}); x.setPlace(p) {
			t.Errorf("%s: taken", name)
		}
	}
}

// testIndex files records by number, in families by their low bit.
func testIndex(pages int) (recordPool[pageRecord], index) {
	pool := newRecordPool[pageRecord](uint64(pages), maxPages)
	for i := range uint32(pages) {
		p := pool.At(i + 1)
		*p = pageRecord{fp: fingerprintOf(binary.LittleEndian.AppendUint32(nil, i/2), 7), family: 1 + i&1}
	}
	return pool, newIndex(pool.array)
}

func findOne(x *index, p *pageRecord) uint32 {
	var slots [probeBatch]uint32
	x.findBatch([]fingerprint{p.fp}, p.family, &slots)
	return slots[0]
}

func TestIndexAgainstMap(t *testing.T) {
	const n = 12000 // several segments
	pool, x := testIndex(n)
	in := make([]bool, n+1)
	rnd := uint32(1)
	for step := range 60000 {
		rnd = rnd*1664525 + 1013904223
		slot := rnd>>8%n + 1
		if in[slot] {
			x.remove(slot)
		} else if !x.insert(slot) {
			t.Fatal("insert refused")
		}
		in[slot] = !in[slot]
		for _, probe := range []uint32{slot, (rnd>>3)%n + 1} {
			want := uint32(0)
			if in[probe] {
				want = probe
			}
			p := pool.At(probe)
			if a, b := x.find(p.fp, p.family), findOne(&x, p); a != want || b != want {
				t.Fatalf("step %d: slot %d found as %d and %d, want %d", step, probe, a, b, want)
			}
		}
	}
	if len(x.used) < 2 {
		t.Error("no segment was split")
	}
	for slot := uint32(1); slot <= n; slot++ {
		p := pool.At(slot)
		if got := x.find(p.fp, p.family); (got == slot) != in[slot] || got != 0 && got != slot {
			t.Fatalf("slot %d: found %d, in %v", slot, got, in[slot])
		}
	}
}

// Keys that share their first maxDirDepth bits cannot be split: the segment fills up whole, then refuses, and still answers.
func TestIndexSegmentThatCannotBeSplit(t *testing.T) {
	const n = segmentCells + 1
	pool := newRecordPool[pageRecord](n, maxPages)
	x := newIndex(pool.array)
	x.local[0] = maxDirDepth // as after that many splits
	for i := uint32(1); i <= n; i++ {
		*pool.At(i) = pageRecord{fp: fingerprint{lo: 5, hi: uint64(i)}, family: 1} // one home, one tag
		if got := x.insert(i); got != (i <= segmentCells) {
			t.Fatalf("insert %d: %v", i, got)
		}
	}
	for _, i := range []uint32{1, 7, segmentCells} {
		if p := pool.At(i); x.find(p.fp, 1) != i || findOne(&x, p) != i {
			t.Errorf("%d is not found", i)
		}
	}
	if p := pool.At(n); x.find(p.fp, 1) != 0 || findOne(&x, p) != 0 {
		t.Error("found what was refused")
	}
	x.remove(7)
	if p := pool.At(7); x.find(p.fp, 1) != 0 || x.find(pool.At(8).fp, 1) != 8 || !x.insert(7) || x.find(p.fp, 1) != 7 {
		t.Error("remove and insert in a full segment")
	}
}

// A million pages are found as a thousand are: the same, and without an allocation. Growth never moves a record.
func TestCase_C30_ExistsIsTheSameAtAnySize(t *testing.T) {
	sizes := []int{1000, 200_000}
	if !testing.Short() {
		sizes = append(sizes, 1_000_000)
	}
	for _, n := range sizes {
		pool := newRecordPool[pageRecord](uint64(n), maxPages)
		x := newIndex(pool.array)
		for i := range uint32(n) {
			*pool.At(i + 1) = pageRecord{fp: fingerprintOf(binary.LittleEndian.AppendUint32(nil, i), 7), family: 1}
			if !x.insert(i + 1) {
				t.Fatal("insert refused")
			}
		}
		longest := 0
		for s := range x.used {
			run := 0
			for _, c := range slices.Concat(x.segment(uint32(s)), x.segment(uint32(s))) {
				if run++; c == 0 {
					run = 0
				}
				longest = max(longest, run)
			}
			if x.used[s] > segmentFull {
				t.Fatalf("segment of %d cells in use", x.used[s])
			}
		}
		if perPage := float64(x.bytes()) / float64(n); n > 100_000 && perPage > 11 {
			t.Errorf("%d pages: %.1f bytes of index a page", n, perPage)
		}
		t.Logf("%d pages: %d segments, longest run of cells %d", n, len(x.used), longest)
		if longest > 1500 {
			t.Errorf("%d pages: a probe may look at %d cells", n, longest)
		}
	}
}

func TestExistsAllocatesNothing(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 500)
	runs := []Run{chain(f, 0, 0, 128), chain(f, 0, 400, 600), chain(f, 3, 0, 1000)}
	bits := make([]byte, 1000)
	for i := range runs {
		for _, v := range []page.View{{}, {H0: 1, H1: 2, L0: 0, L1: 2}} {
			if n := testing.AllocsPerRun(20, func() { w.s.Exists(1000, &runs[i], v, bits, 5) }); n != 0 {
				t.Errorf("run %d view %v: %v allocations", i, v, n)
			}
		}
	}
	// An incomplete page looks at its extents, and does not allocate either.
	w.publishView(w.beginEvent(chain(f, 9, 0, 64), page.View{H0: 0, H1: 1, L0: 0, L1: 4}))
	r := chain(f, 9, 0, 64)
	if n := testing.AllocsPerRun(20, func() { w.s.Exists(1000, &r, page.View{}, bits, 0) }); n != 0 {
		t.Errorf("incomplete pages: %v allocations", n)
	}
}

func TestExistsReasons(t *testing.T) {
	w, f := newTestWorld(t, 1<<20)
	w.publish(f, 0, 0, 2)
	bits := make([]byte, 8)
	for name, c := range map[string]struct {
		run  Run
		view page.View
		want reason.Reason
	}{
		"unknown namespace": {chain(page.Family{Namespace: page.NamespaceID{9}, Epoch: 1, Group: testGroup}, 0, 0, 2), page.View{}, reason.Absent},
		"earlier epoch":     {chain(page.Family{Namespace: f.Namespace, Epoch: 0, Group: testGroup}, 0, 0, 2), page.View{}, reason.StaleEpoch},
		"later epoch":       {chain(page.Family{Namespace: f.Namespace, Epoch: 2, Group: testGroup}, 0, 0, 2), page.View{}, reason.Absent},
		"unknown group":     {chain(page.Family{Namespace: f.Namespace, Epoch: 1, Group: page.GroupID{77}}, 0, 0, 2), page.View{}, reason.Absent},
		"view outside":      {chain(f, 0, 0, 2), page.View{H0: 0, H1: 3, L0: 0, L1: 1}, reason.InvalidView},
		"empty view":        {chain(f, 0, 0, 2), page.View{H0: 1, H1: 1, L0: 0, L1: 1}, reason.InvalidView},
		"half a hash":       {Run{f, make([]byte, 33)}, page.View{}, reason.InvalidSpec},
	} {
		if _, hits, why := w.s.Exists(1000, &c.run, c.view, bits, 0); hits != 0 || why != c.want {
			t.Errorf("%s: %d hits, %v, want %v", name, hits, why, c.want)
		}
	}
}
