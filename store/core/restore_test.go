package core

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// keptPage is page d of chain c as a disk tier kept it.
func (w *world) keptPage(f page.Family, c, d int, v page.View) RestoredExtent {
	if v == (page.View{}) {
		g := testGeometry()
		v = g.Full()
	}
	e := RestoredExtent{Family: f, Hash: mustHash(testHash(c, d)), Link: LinkRoot, View: v, Lineage: []uint16{1}}
	if d > 0 {
		e.Link, e.Parent = LinkHash, mustHash(testHash(c, d-1))
	}
	e.Place, _ = w.disk.alloc(evict.Disk, page.RegionBytes(v, 1000, 40))
	return e
}

// restore files what a disk kept and frees what is refused.
func (w *world) restore(kept ...RestoredExtent) []uint32 {
	w.t.Helper()
	w.do(Restore{Extents: kept})
	for i, x := range w.restored {
		if x == 0 && w.disk.live[kept[i].Place] {
			w.disk.free(kept[i].Place)
		}
	}
	if err := w.s.Check(); err != nil {
		w.t.Fatalf("check: %v", err)
	}
	return w.restored
}

func (w *world) settle() {
	w.t.Helper()
	w.do(Settle{})
	w.check()
}

// Whatever the order, chains are whole after a restart, with the depths and orphans that follow from parents.
func TestRestoreInAnyOrder(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		w, f := newTestWorld(t, 1<<30)
		var kept []RestoredExtent
		for d := range 30 {
			for c := range 4 {
				if c != 3 || d != 10 { // page 10 of chain 3 was lost
					kept = append(kept, w.keptPage(f, c, d, page.View{}))
				}
			}
		}
		rnd.Shuffle(len(kept), func(i, j int) { kept[i], kept[j] = kept[j], kept[i] })
		for len(kept) > 0 {
			n := 1 + rnd.IntN(len(kept))
			for i, x := range w.restore(kept[:n]...) {
				if x == 0 {
					t.Fatalf("seed %d: %v refused", seed, kept[i].Place)
				}
			}
			kept = kept[n:]
		}
		w.settle()
		for c, want := range []int{30, 30, 30, 10} {
			if n := w.leading(f, c, 0, 30); n != want {
				t.Errorf("seed %d: %d pages of chain %d lead, want %d", seed, n, c, want)
			}
			for d := range 30 {
				e := w.s.Explain(w.now, w.wall, &page.Key{Family: f, Hash: mustHash(testHash(c, d))})
				depth := d
				if c == 3 && d >= 10 { // of what is below the lost page nobody knows where it stands
					depth -= 10
				}
				if e.Depth != uint32(depth) || e.Orphan != (c == 3 && d > 10) {
					t.Errorf("seed %d: page %d.%d depth %d, orphan %v", seed, c, d, e.Depth, e.Orphan)
				}
			}
		}
		if u, n := w.s.Usage(nil)[0], w.s.Totals(); u.Orphans[OrphanLost] != 1 || n.Orphaned[OrphanLost] != 1 || n.Orphaned[OrphanAborted] != 0 ||
			n.OrphanedBytes != [NumOrphanCauses]uint64{OrphanLost: 19 * 12288} {
			t.Errorf("seed %d: orphans %v, since start %v, %v bytes", seed, u.Orphans, n.Orphaned, n.OrphanedBytes)
		}
		w.do(Reclaim{Tier: evict.Disk, Bytes: 19 * 12288}) // the orphans go first
		if w.s.Totals().Pages != 100 || w.leading(f, 3, 0, 30) != 10 {
			t.Errorf("seed %d: %d pages left", seed, w.s.Totals().Pages)
		}
		w.check()
		w.publish(f, 3, 10, 30)
		w.tickUntilQuiet()
		w.check()
		if n := w.leading(f, 3, 0, 30); n != 30 {
			t.Errorf("seed %d: %d pages lead after they came back", seed, n)
		}
	}
}

// Pages whose ancestor is there and may not be used, and those whose ancestor was deleted before all was filed, are orphans
// for that cause; only what nobody finds is lost.
func TestRestoreTellsWhyPagesAreOrphans(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	st := testNamespace(1, 1)
	st.Accepts = []uint64{1<<1 | 1<<2}
	w.do(NamespaceChanged{st})
	var kept []RestoredExtent
	for c := range 4 {
		for d := range 5 {
			if c == 3 && d == 2 {
				continue // it was lost
			}
			kept = append(kept, w.keptPage(f, c, d, page.View{}))
			if c == 1 && d == 1 {
				kept[len(kept)-1].Lineage = []uint16{3} // accepted no more
			}
		}
	}
	if slices.Contains(w.restore(kept...), 0) {
		t.Fatal("refused")
	}
	w.delete(f, 2, 0, 1)
	w.settle()
	var want, bytes [NumOrphanCauses]uint64
	for c, below := range map[OrphanCause]uint64{OrphanHidden: 3, OrphanDeleted: 4, OrphanLost: 2} {
		want[c], bytes[c] = 1, below*12288
	}
	n, now := w.s.Totals(), w.s.Usage(nil)[0].Orphans
	if n.Orphaned != want || n.OrphanedBytes != bytes || now != want {
		t.Errorf("orphans %v, since start %v, %v bytes; want %v and %v", now, n.Orphaned, n.OrphanedBytes, want, bytes)
	}
}

func TestRestoreRefuses(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	retired, strict := testNamespace(2, 1), testNamespace(3, 1)
	retired.Life, strict.Strict = Retired, true
	w.do(NamespaceChanged{retired})
	w.do(NamespaceChanged{testNamespace(4, 2)})
	w.do(NamespaceChanged{strict})
	upper := page.View{H0: 0, H1: 1, L0: 0, L1: 4}
	w.publish(f, 8, 0, 1)
	x := w.restore(w.keptPage(f, 9, 0, upper), w.keptPage(f, 9, 1, page.View{}), w.keptPage(f, 9, 2, upper))
	if slices.Contains(x, 0) {
		t.Fatalf("refused %v", x)
	}
	uppers := page.RegionBytes(upper, 1000, 40)
	of := func(st NamespaceState) func(*RestoredExtent) {
		return func(e *RestoredExtent) { e.Family = familyIn(st, testGroup) }
	}
	for name, c := range map[string]struct {
		c, d int
		edit func(*RestoredExtent)
	}{
		"unknown namespace":     {0, 0, of(testNamespace(5, 1))},
		"retired":               {0, 0, of(retired)},
		"an earlier life":       {0, 0, of(testNamespace(4, 1))},
		"unknown group":         {0, 0, func(e *RestoredExtent) { e.Family.Group = page.GroupID{99} }},
		"view outside":          {0, 0, func(e *RestoredExtent) { e.View.H1 = 3 }},
		"cut of whole":          {0, 0, func(e *RestoredExtent) { e.Family.Group, e.View, e.Place.Bytes = wholeGroup, upper, uppers }},
		"part of a strict page": {0, 0, func(e *RestoredExtent) { e.Family, e.View, e.Place.Bytes = familyIn(strict, testGroup), upper, uppers }},
		"bytes":                 {0, 0, func(e *RestoredExtent) { e.Place.Bytes += 8 }},
		"too few bytes":         {0, 0, func(e *RestoredExtent) { e.Place.Bytes -= 4096 }},
		"too many bytes":        {0, 0, func(e *RestoredExtent) { e.Place.Bytes += 1 << 20 }},
		"negative bytes":        {0, 0, func(e *RestoredExtent) { e.Place.Bytes -= 1 << 40 }},
		"no place":              {0, 0, func(e *RestoredExtent) { e.Place.Handle = 0 }},
		"in memory":             {0, 0, func(e *RestoredExtent) { e.Place.Tier = evict.Host }},
		"no lineage":            {0, 0, func(e *RestoredExtent) { e.Lineage = nil }},
		"hash of another size":  {0, 0, func(e *RestoredExtent) { e.Hash = mustHash(testHash(0, 0)[:16]) }},
		"expired":               {0, 0, func(e *RestoredExtent) { e.Expiry = w.wall }},
		"its own parent":        {0, 3, func(e *RestoredExtent) { e.Parent = e.Hash }},
		"another parent": {9, 1, func(e *RestoredExtent) {
			e.Hash, e.View, e.Place.Bytes, e.Parent = mustHash(testHash(9, 2)), page.View{H0: 1, H1: 2, L0: 0, L1: 4}, uppers, mustHash(testHash(7, 7))
		}},
		"of no parent": {9, 2, func(e *RestoredExtent) {
			e.View, e.Place.Bytes, e.Link = page.View{H0: 1, H1: 2, L0: 0, L1: 4}, uppers, LinkRoot
		}},
		"overlap":             {9, 0, func(*RestoredExtent) {}},
		"the same again":      {9, 1, func(*RestoredExtent) {}},
		"published meanwhile": {8, 0, func(*RestoredExtent) {}},
	} {
		e := w.keptPage(f, c.c, c.d, page.View{})
		at := e.Place
		c.edit(&e)
		w.do(Restore{Extents: []RestoredExtent{e}})
		if w.restored[0] != 0 {
			t.Errorf("%s: taken", name)
		}
		w.disk.free(at)
		w.check()
	}
	w.settle()
	if n := w.s.Totals(); n.Pages != 4 || n.Placeholders != 0 {
		t.Errorf("%d pages, %d placeholders", n.Pages, n.Placeholders)
	}
	bounded := newWorld(t, 1<<30, Options{Ledger: NewLedger(Limits{Pages: 3, Extents: 2})})
	bounded.do(NamespaceChanged{testNamespace(1, 1)})
	x = bounded.restore(bounded.keptPage(f, 0, 1, page.View{}), bounded.keptPage(f, 1, 1, page.View{}),
		bounded.keptPage(f, 0, 0, page.View{}), bounded.keptPage(f, 2, 0, page.View{}))
	if x[0] == 0 || x[1] != 0 || x[2] == 0 || x[3] != 0 {
		t.Errorf("with records for three pages of two extents: %v", x)
	}
	bounded.settle()
}

// Links that go round in a circle, of pages of different times, are cut.
func TestRestoreCutsCircles(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	var kept []RestoredExtent
	for d := range 5 {
		e := w.keptPage(f, 0, d, page.View{})
		e.Link, e.Parent = LinkHash, mustHash(testHash(0, (d+4)%5))
		kept = append(kept, e, w.keptPage(f, 1, d, page.View{}))
	}
	kept[2*4+1].Parent = mustHash(testHash(0, 2)) // a branch
	for i, x := range w.restore(kept...) {
		if x == 0 {
			t.Errorf("page %d is refused", i)
		}
	}
	b := w.beginEvent(chain(f, 2, 0, 1), page.View{}) // the circle is still closed
	b.Pages[0].Link, b.Pages[0].Parent = LinkHash, mustHash(testHash(0, 0))
	w.publishView(b)
	w.settle()
	if got := w.reclaimAll(evict.Disk); got < 5*12288 { // all but what the page in memory stands on
		t.Errorf("%d bytes evicted", got)
	}
	w.reclaimAll(evict.Host)
	w.reclaimAll(evict.Disk)
	if n := w.s.Totals(); n.Pages != 0 || n.Placeholders != 0 {
		t.Errorf("%d pages and %d placeholders left", n.Pages, n.Placeholders)
	}
	w.check()
}

// What a page is goes with it: expiry, lineage, the sooner of two.
func TestRestoredPagesAreAsTheyWere(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	upper, lower := page.View{H0: 0, H1: 1, L0: 0, L1: 4}, page.View{H0: 1, H1: 2, L0: 0, L1: 4}
	a, b, c := w.keptPage(f, 0, 0, upper), w.keptPage(f, 0, 0, lower), w.keptPage(f, 1, 0, page.View{})
	half := w.keptPage(f, 2, 0, upper)
	a.Expiry, b.Expiry, c.Lineage = w.wall+50, w.wall+30, []uint16{3, 1}
	w.restore(a, b, c, half)
	w.settle()
	st := testNamespace(1, 1)
	st.Accepts = []uint64{1<<1 | 1<<2}
	w.do(NamespaceChanged{st})
	if why := w.readReason(f, 1, LeaseID{}, page.View{}, 1, 0); why != reason.Provenance {
		t.Errorf("of a provenance that is accepted no more: %v", why)
	}
	if w.leading(f, 0, 0, 1) != 1 {
		t.Error("two halves are no page")
	}
	w.advance(30 * time.Second)
	if w.leading(f, 0, 0, 1) != 0 || w.s.Totals().Removed[reason.Expired] != 2 {
		t.Error("the sooner expiry does not hold")
	}
	w.advance(31 * time.Second)
	w.do(Reclaim{Tier: evict.Disk, Bytes: 2 * 12288})
	if w.disk.used != 0 { // hidden, and incomplete for too long
		t.Errorf("%d bytes left", w.disk.used)
	}
	w.check()
}

// The policy takes restored pages in the order they came.
func TestRestoreKeepsOrder(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	var kept []RestoredExtent
	for _, c := range []int{3, 1, 4, 0, 2} {
		kept = append(kept, w.keptPage(f, c, 1, page.View{}), w.keptPage(f, c, 0, page.View{}))
	}
	w.restore(kept...)
	w.settle()
	for _, c := range []int{3, 1, 4, 0, 2} {
		w.do(Reclaim{Tier: evict.Disk, Bytes: 2 * 12288})
		if w.tiersOf(f, c, 0) != "" || w.tiersOf(f, c, 1) != "" {
			t.Errorf("chain %d is not the next to go", c)
		}
	}
	w.check()
}

// restart ends the process and starts it anew: what was in memory or under way is lost, what was on Disk is filed again.
func (w *world) restart(namespaces ...NamespaceState) {
	w.t.Helper()
	kept := w.kept()
	w.reboot(NewLedger(w.s.o.Ledger.limits), w.tier.renewed(), w.disk.renewed(), kept, namespaces...)
	w.check()
}

// renewed is an empty tier in which no place is like one before.
func (f *fakeTier) renewed() *fakeTier {
	fresh := newFakeTier(f.t, f.capacity)
	fresh.next = f.next
	return fresh
}

// reboot starts a new shard over tiers, of which disk has nothing but what is kept.
func (w *world) reboot(ledger *Ledger, memory, disk *fakeTier, kept []RestoredExtent, namespaces ...NamespaceState) {
	w.t.Helper()
	o := w.s.o
	o.Ledger, o.Policy = ledger, witnessOf(w.t, evict.NewLRU(1<<12))
	o.Boot[1]++
	for _, ep := range w.s.epochs.order {
		namespaces = append(namespaces, ep.state)
	}
	w.s, w.tier, w.disk = New(o), memory, disk
	w.transfers, w.allocs, w.landed, w.reading = nil, nil, nil, map[Ticket][]Place{}
	w.wake = never
	for _, st := range namespaces {
		w.do(NamespaceChanged{st})
	}
	for _, e := range kept {
		disk.live[e.Place] = true
		disk.used += int64(roundUp(uint64(e.Place.Bytes)))
	}
	w.restore(kept...)
	w.do(Settle{})
	if err := w.s.Check(); err != nil {
		w.t.Fatalf("check: %v", err)
	}
}

// kept is what the simulated disk holds of a shard, as its notes and headers have it.
func (w *world) kept() (all []RestoredExtent) {
	var copies []Stored
	for next := uint32(1); next != 0; {
		next, copies = w.s.Scan(evict.Disk, next, 100, copies)
	}
	for _, c := range copies {
		x := w.s.extents.At(c.Extent)
		p := w.s.pages.At(x.owner)
		f := w.s.families.at(p.family)
		e := RestoredExtent{
			Place: c.Place, Family: f.key, Hash: w.hashOf(p), View: x.view, Declared: float64(p.declared), Expiry: p.expiry,
			Lineage: append([]uint16(nil), f.ep.lineages.all[x.lineage].members...), Link: LinkUnknown,
		}
		switch {
		case p.parent != 0:
			e.Link, e.Parent = LinkHash, w.hashOf(w.s.pages.At(p.parent))
		case !p.has(flagUnknown):
			e.Link = LinkRoot
		}
		all = append(all, e)
	}
	return all
}

// hashOf finds the hash of a test page by its record.
func (w *world) hashOf(p *pageRecord) page.Hash {
	for c := range 12 {
		for d := range 120 {
			if fingerprintOf(testHash(c, d), w.s.o.FingerprintKey) == p.fp {
				return mustHash(testHash(c, d))
			}
		}
	}
	w.t.Fatalf("a page that no test published")
	return page.Hash{}
}
