package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// A grant that waits holds its parent: the parent is no leaf, however long it takes.
func TestGrantHoldsItsParent(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	token := w.begin(w.beginEvent(chain(f, 0, 1, 2), page.View{})).Token
	w.do(Reclaim{Tier: evict.Host, Bytes: 1 << 30})
	if w.reclaimed != 0 || w.leading(f, 0, 0, 1) != 1 {
		t.Errorf("%d bytes reclaimed from under a grant", w.reclaimed)
	}
	w.do(Abort{Token: token})
	w.do(Reclaim{Tier: evict.Host, Bytes: 1 << 30})
	if w.tier.used != 0 {
		t.Errorf("%d bytes left", w.tier.used)
	}
	w.check()
}

func TestCorruptIsGoneAndPublishableAgain(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 3)
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 1, 2)
	part := r.Results[0].Parts[0]
	w.do(CorruptFound{part.Extent, part.Place})
	if why := w.s.Servable(f.Namespace, 1, r.Results[0].Parts); why != reason.Corrupt {
		t.Errorf("servable: %v", why)
	}
	if n := w.leading(f, 0, 0, 3); n != 1 {
		t.Errorf("%d pages lead", n)
	}
	if u := w.s.Usage(nil)[0]; u.Orphans[OrphanCorrupt] != 1 {
		t.Errorf("orphans %v", u.Orphans)
	}
	w.readDone(r.Ticket)
	w.do(CorruptFound{part.Extent, part.Place}) // told twice
	w.check()
	b := w.beginEvent(chain(f, 0, 0, 3), page.View{})
	res := w.begin(b)
	if res.Results[0].Outcome != Present || res.Results[1].Outcome != Granted || res.Results[2].Outcome != Present {
		t.Fatalf("%s; %s; %s", show(res.Results[0]), show(res.Results[1]), show(res.Results[2]))
	}
	w.commit(f, res.Token, 1)
	w.tickUntilQuiet()
	if n := w.leading(f, 0, 0, 3); n != 3 || w.s.Usage(nil)[0].Orphans != [NumOrphanCauses]uint64{} {
		t.Errorf("%d pages lead after the parent came back", n)
	}
	w.check()
}

// The bytes of all that follows a page that went are counted once, by what took it; what eviction takes leaves none.
func TestOrphanedBytes(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	want := [NumOrphanCauses]uint64{}
	check := func(after string) {
		t.Helper()
		w.advance(2 * time.Second)
		if got := w.s.Totals().OrphanedBytes; got != want {
			t.Errorf("%s: %v, want %v", after, got, want)
		}
		w.check()
	}
	w.publish(f, 0, 0, 6)
	w.publish(f, 1, 0, 6)
	w.settleOnDisk(f, 1, 0, 6)
	w.do(Reclaim{Tier: evict.Host, Bytes: 2 * 12288})
	check("eviction")
	w.delete(f, 1, 1, 2)
	want[OrphanDeleted] = uint64(w.tier.used+w.disk.used) - w.held(f, 0, 6) - w.held(f, 1, 1)
	check("delete")
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	w.readDone(r.Ticket)
	w.do(CorruptFound{r.Results[0].Parts[0].Extent, r.Results[0].Parts[0].Place})
	want[OrphanCorrupt] = w.held(f, 0, 6) - w.held(f, 0, 1)
	check("corruption")
	w.reclaimAll(evict.Host)
	w.reclaimAll(evict.Disk)
	check("eviction of all")
}

// held is the bytes of the first pages of a chain, of all copies.
func (w *world) held(f page.Family, c, to int) (n uint64) {
	for d := range to {
		if i := w.s.index.find(fingerprintOf(testHash(c, d), w.s.o.FingerprintKey), w.s.families.ids[f]); i != 0 {
			n += w.s.pageBytes(w.s.pages.At(i)).sum()
		}
	}
	return n
}

// Orphans go first, the deepest before the others, and whatever order their records stand in.
func TestOrphansAreEvictedFirst(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 10)
	w.now = w.now.Add(time.Hour)
	w.publish(f, 1, 0, 10)
	w.delete(f, 1, 3, 4)
	for range 12 {
		w.advance(2 * time.Second)
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 6 * 12288})
	if a, b, n := w.leading(f, 0, 0, 10), w.leading(f, 1, 0, 10), w.s.Totals().Pages; a != 10 || b != 3 || n != 13 {
		t.Errorf("%d and %d pages lead, %d in all; want 10, 3, 13", a, b, n)
	}
	if w.s.Totals().Placeholders != 0 {
		t.Errorf("%d placeholders left", w.s.Totals().Placeholders)
	}
	w.check()
}

func TestExpiry(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	b := w.beginEvent(chain(f, 0, 0, 3), page.View{})
	b.Pages[1].Expiry = w.wall + 30
	w.publishView(b)
	w.advance(29 * time.Second)
	if n := w.leading(f, 0, 0, 3); n != 3 {
		t.Errorf("%d pages lead in time", n)
	}
	lease := w.lookup(f, 1, 0, 0, 1, 2)
	w.now = w.now.Add(time.Second)
	w.wall++
	if n := w.leading(f, 0, 0, 3); n != 1 {
		t.Errorf("%d pages lead when the time is over, before any Tick", n)
	}
	if why := w.readReason(f, 1, lease.Lease, page.View{}, 0, 1); why != reason.Expired {
		t.Errorf("under a lease: %v", why)
	}
	if w.wake > w.now {
		t.Errorf("no Wake for the expiry: %d, now %d", w.wake, w.now)
	}
	w.advance(15 * time.Second)
	if w.tier.used != 2*12288 || w.s.Totals().Removed[reason.Expired] != 1 {
		t.Errorf("%d bytes held after the sweep", w.tier.used)
	}
	w.check()
}

func TestRefusalsOfBegin(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	st := testNamespace(1, 1)
	whole := familyIn(st, wholeGroup)
	w.publish(f, 0, 0, 3)
	one := func(f page.Family, change func(*Begin)) Result {
		b := w.beginEvent(chain(f, 7, 0, 1), page.View{})
		change(&b)
		r := w.begin(b)
		if r.Token != (Token{}) {
			w.do(Abort{Token: r.Token})
		}
		return r.Results[0]
	}
	for name, c := range map[string]struct {
		f    page.Family
		edit func(*Begin)
		want reason.Reason
	}{
		"size":         {f, func(b *Begin) { b.Pages[0].PayloadBytes-- }, reason.SizeMismatch},
		"view outside": {f, func(b *Begin) { b.Pages[0].View = page.View{H0: 0, H1: 1, L0: 3, L1: 5} }, reason.InvalidView},
		"cut of whole": {whole, func(b *Begin) { b.Pages[0].View = page.View{H0: 0, H1: 1, L0: 0, L1: 4} }, reason.InvalidView},
		"provenance":   {f, func(b *Begin) { b.Provenance = 9 }, reason.Provenance},
		"provenance 0": {f, func(b *Begin) { b.Provenance = 0 }, reason.Provenance},
		"expired":      {f, func(b *Begin) { b.Pages[0].Expiry = w.wall }, reason.Expired},
		"parent":       {f, func(b *Begin) { b.Pages[0].Link, b.Pages[0].Parent = LinkHash, mustHash(testHash(5, 5)) }, reason.ParentMissing},
		"itself":       {f, func(b *Begin) { b.Pages[0].Link, b.Pages[0].Parent = LinkHash, mustHash(testHash(7, 0)) }, reason.ParentConflict},
		"another parent": {f, func(b *Begin) {
			b.Run = chain(f, 0, 2, 3)
			b.Pages[0].Link, b.Pages[0].Parent = LinkHash, mustHash(testHash(0, 0))
		}, reason.ParentConflict},
		"unknown namespace": {page.Family{Namespace: page.NamespaceID{9}, Epoch: 1, Group: testGroup}, func(*Begin) {}, reason.Absent},
		"unknown group":     {page.Family{Namespace: f.Namespace, Epoch: 1}, func(*Begin) {}, reason.Absent},
		"counts":            {f, func(b *Begin) { b.Run = chain(f, 7, 0, 2) }, reason.InvalidSpec},
	} {
		if r := one(c.f, c.edit); r.Outcome != Refused || r.Reason != c.want {
			t.Errorf("%s: %s, want %v", name, show(r), c.want)
		} else if name == "parent" && r.Ancestor != mustHash(testHash(5, 5)) {
			t.Errorf("%s: the ancestor is not named", name)
		}
	}
	w.do(TierState{evict.Host, false})
	if r := one(f, func(*Begin) {}); r.Reason != reason.Busy {
		t.Errorf("read-only tier: %s", show(r))
	}
	w.do(TierState{evict.Host, true})
	st.Life = Draining
	live := w.begin(w.beginEvent(chain(f, 8, 0, 1), page.View{}))
	w.do(NamespaceChanged{st})
	if r := one(f, func(*Begin) {}); r.Reason != reason.Draining {
		t.Errorf("draining: %s", show(r))
	}
	if r := w.commit(f, live.Token, 0); r.Results[0].Outcome != Committed || w.leading(f, 0, 0, 3) != 3 {
		t.Errorf("a live publication of a draining namespace: %s", show(r.Results[0]))
	}
	w.check()
}

func TestBoundsOfLeasesAndPublications(t *testing.T) {
	w := newWorld(t, 1<<30, Options{MaxLeases: 2, MaxPublications: 2, MaxLeaseTTL: time.Minute, MaxLeaseAge: 2 * time.Minute})
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	f := familyIn(st, testGroup)
	w.publish(f, 0, 0, 1)
	l := w.lookup(f, 1, 0, 0, 0, 1)
	w.lookup(f, 1, 0, 0, 0, 1)
	if r := w.lookup(f, 1, 0, 0, 0, 1); r.Reason != reason.Busy || r.Lease != (LeaseID{}) || r.Leading[0] != 1 {
		t.Errorf("a third lease: %v %v", r.Reason, r.Leading)
	}
	for c := 1; c <= 3; c++ {
		if r := w.begin(w.beginEvent(chain(f, c, 0, 1), page.View{})); (r.Reason == reason.Busy) != (c == 3) {
			t.Errorf("publication %d: %v", c, r.Reason)
		}
	}
	renew := func(ttl time.Duration) Reply {
		r := Renew{Ticket: w.ticket(), Principal: 1, Lease: l.Lease, TTL: ttl}
		w.do(r)
		return w.reply(r.Ticket)
	}
	if r := renew(time.Hour); r.TTL != time.Minute {
		t.Errorf("renewed for %v", r.TTL)
	}
	if r := renew(0); r.TTL != time.Minute { // as long as was asked for: never shorter than it is
		t.Errorf("renewed without a time for %v", r.TTL)
	}
	for range 3 {
		w.advance(30 * time.Second)
		renew(time.Minute)
	}
	if r := renew(time.Minute); r.TTL != 30*time.Second {
		t.Errorf("renewed near its greatest age for %v", r.TTL)
	}
	w.advance(30 * time.Second)
	if r := renew(time.Minute); r.Reason != reason.LeaseExpired {
		t.Errorf("renewed beyond its age: %v", r.Reason)
	}
	w.check()
}

func TestMoves(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	x := w.s.pages.At(1).extents
	at := func() Place { return w.s.extents.At(x).place() }
	refused := func(name string, e uint32, from Place) {
		t.Helper()
		w.do(Move{Extent: e, From: from})
		if _, ok := w.effects[0].(MoveRefused); !ok {
			t.Errorf("%s: %+v", name, w.effects)
		}
	}
	refused("no such extent", 99, at())
	refused("another place", x, Place{Tier: evict.Host, Handle: 9, Bytes: at().Bytes})
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	refused("being read", x, at())
	w.readDone(r.Ticket)

	from := at()
	w.do(Move{Extent: x, From: from})
	refused("moving already", x, from)
	w.do(Reclaim{Tier: evict.Host, Bytes: 1})
	if w.reclaimed != 0 {
		t.Error("evicted while it moves")
	}
	w.finishTransfer(0, reason.None)
	if at() == from || w.tier.live[from] {
		t.Error("not moved, or the old place is kept")
	}
	w.check()

	from = at()
	w.do(Move{Extent: x, From: from})
	r = w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1) // a reader comes during the transfer
	w.finishTransfer(0, reason.None)
	if at() != from || len(w.tier.live) != 1 {
		t.Error("the place moved under its reader")
	}
	w.readDone(r.Ticket)
	w.do(Move{Extent: x, From: from})
	w.finishTransfer(0, reason.Corrupt) // the driver failed
	if at() != from {
		t.Error("moved by a transfer that failed")
	}
	l := w.lookup(f, 1, 0, 0, 0, 1) // a lease pins the extent, not its place
	w.do(Move{Extent: x, From: from})
	w.finishTransfer(0, reason.None)
	if at() == from || w.readReason(f, 1, l.Lease, page.View{}, 0, 0) != reason.None {
		t.Error("a leased extent does not move, or is not readable after")
	}
	w.check()
}

func TestExplainAndInspect(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 2)
	l := w.lookup(f, 3, 9, 0, 0, 1)
	open := w.begin(w.beginEvent(chain(f, 0, 2, 3), page.View{}))
	key := func(d int) *page.Key { return &page.Key{Family: f, Hash: mustHash(testHash(0, d))} }
	e := w.s.Explain(w.now, w.wall, key(0))
	if !e.Known || !e.Served || !e.Complete || e.Pins != 1 || e.Children != 1 || len(e.Parts) != 1 || e.Parent != (PageRef{}) {
		t.Errorf("page 0: %+v", e)
	}
	if e := w.s.Explain(w.now, w.wall, key(1)); e.Depth != 1 || e.Parent.Slot == 0 {
		t.Errorf("page 1: %+v", e)
	}
	if e := w.s.Explain(w.now, w.wall, key(2)); !e.Known || e.Served || e.Open != 1 || e.Reason != reason.Absent {
		t.Errorf("page 2: %+v", e)
	}
	if e := w.s.Explain(w.now, w.wall, key(3)); e.Known || e.Reason != reason.Absent {
		t.Errorf("page 3: %+v", e)
	}
	p, v, g, ok := w.s.PlaceOf(e.Ref)
	if !ok || p != e.Parts[0].Place || v != e.Parts[0].View || g != f {
		t.Errorf("place of page 0: %v %v %v", p, v, ok)
	}
	if _, _, _, ok := w.s.PlaceOf(PageRef{e.Ref.Slot, e.Ref.Gen + 1}); ok {
		t.Error("place of an earlier life")
	}
	infos := w.s.Leases(w.now, nil)
	if len(infos) != 2 || infos[0].Lease != l.Lease || infos[0].Pages != 1 || infos[0].Bytes != 12288 || infos[0].Session != 9 ||
		!infos[1].Publish || infos[1].Token != open.Token || infos[1].Bytes != 12288 || infos[1].Remaining != 10*time.Second {
		t.Errorf("leases: %+v", infos)
	}
	if n := w.s.Totals(); n.Pages != 2 || n.Placeholders != 0 || n.Publications != 1 || n.Granted != 3 || n.MetadataBytes == 0 {
		t.Errorf("totals: %+v", n)
	}
}

func TestLedgerIsAllOrNothing(t *testing.T) {
	l := NewLedger(Limits{Pages: 2, Extents: 3, Capacity: [evict.NumTiers]uint64{evict.Host: 800}})
	if l.takeRecords(3, 0) || l.takeRecords(1, 4) || !l.takeRecords(2, 3) || l.takeRecords(0, 1) {
		t.Error("records")
	}
	l.giveRecords(2, 3)
	b := func(n uint64) tierBytes { return tierBytes{evict.Host: n} }
	a, c, of := payer{1, 1}, payer{1, 2}, l.account(7)
	for i, step := range []struct {
		p    payer
		n    uint64
		want bool
	}{{a, 101, false}, {a, 100, true}, {a, 1, false}, {c, 100, true}, {payer{1, 0}, 1, false}, {payer{2, 0}, 200, true}, {payer{3, 0}, 1, false}} {
		if got := l.takePin(step.p, of, b(step.n)); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
	l.givePin(a, of, b(100))
	l.givePin(c, of, b(100))
	l.givePin(payer{2, 0}, of, b(200))
	l.giveAccount(7, of)
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	w, f := newTestWorld(t, 1<<20)
	w.publish(f, 0, 0, 1)
	if err := w.s.o.Ledger.Check(); err == nil {
		t.Error("a ledger whose shard is left out passes its check")
	}
}

func TestFamiliesAndEpochsAreForgotten(t *testing.T) {
	w := newWorld(t, 1<<30, Options{})
	for e := page.Epoch(1); e <= maxRetired+50; e++ {
		st := testNamespace(1, e)
		w.do(NamespaceChanged{st})
		if e%100 == 1 {
			for s := range 3 {
				f := familyIn(st, testGroup)
				f.Scope[0] = byte(s)
				w.publish(f, 0, 0, 2)
			}
		}
		st.Life = Retired
		w.do(NamespaceChanged{st})
	}
	w.advance(5 * time.Second)
	w.do(NamespaceChanged{testNamespace(2, 1)})
	if n := len(w.s.epochs.order); n > maxRetired+1 {
		t.Errorf("%d epochs kept", n)
	}
	if n := len(w.s.families.ids); n != 0 || w.tier.used != 0 {
		t.Errorf("%d families and %d bytes kept", n, w.tier.used)
	}
	r := chain(familyIn(testNamespace(1, 3), testGroup), 0, 0, 1)
	if _, _, why := w.s.Exists(w.wall, &r, page.View{}, make([]byte, 1), 0); why != reason.StaleEpoch {
		t.Errorf("a forgotten life: %v", why)
	}
	w.check()
}

func TestLineageTableIsBoundedAndShared(t *testing.T) {
	var table lineageTable
	accepts := []uint64{^uint64(0)}
	a := table.hold([]uint16{3, 1, 3}, accepts)
	if b := table.hold([]uint16{1, 3}, accepts); b != a || !table.accepted(a) {
		t.Errorf("one set, handles %d and %d", a, b)
	}
	if table.rejudge([]uint64{1 << 1}); table.accepted(a) {
		t.Error("accepted without all members")
	}
	table.release(a)
	table.release(a)
	for i := range maxLineages {
		if table.hold([]uint16{uint16(i)}, accepts) == 0 {
			t.Fatalf("full at %d", i)
		}
	}
	if table.hold([]uint16{5, 6}, accepts) != 0 {
		t.Error("beyond its bound")
	}
	if h := table.hold([]uint16{7}, accepts); h == 0 || h == mixedLineage {
		t.Errorf("a set that is there: %d", h)
	}
	if fmt.Sprint(table.all[a].members) != "[0]" {
		t.Error("a free handle was not used again")
	}
}

// One request is one use of a page, however it comes by it.
func TestOneRequestIsOneUse(t *testing.T) {
	for name, c := range map[string]struct {
		request func(w *world, f page.Family)
		uses    int
	}{
		"fetch":                     {func(w *world, f page.Family) { w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 3) }, 1},
		"lookup with lease":         {func(w *world, f page.Family) { w.lookup(f, 1, 0, 0, 0, 3) }, 1},
		"lookup with lease & fetch": {func(w *world, f page.Family) { w.read(f, 1, w.lookup(f, 1, 0, 0, 0, 3).Lease, page.View{}, 0, 0, 3) }, 1},
		"two fetches without lease": {func(w *world, f page.Family) {
			w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 3)
			w.read(f, 2, LeaseID{}, page.View{}, 0, 0, 3)
		}, 2},
		"touch":         {func(w *world, f page.Family) { w.do(Touch{Ticket: w.ticket(), Runs: []Run{chain(f, 0, 0, 3)}}) }, 1},
		"publish again": {func(w *world, f page.Family) { w.begin(w.beginEvent(chain(f, 0, 0, 3), page.View{})) }, 0},
		"stat": {func(w *world, f page.Family) {
			w.do(Read{Ticket: w.ticket(), Run: chain(f, 0, 0, 3), NoTouch: true, AnyView: true})
		}, 0},
		"ranks that read under one lease": {func(w *world, f page.Family) {
			l := w.lookup(f, 1, 0, 0, 0, 3).Lease
			for rank := range uint16(2) {
				w.read(f, 1, l, page.View{H0: rank, H1: rank + 1, L1: testGeometry().Layers}, 0, 0, 3)
			}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := newTestWorld(t, 1<<30)
			w.publish(f, 0, 0, 3)
			c.request(w, f)
			p := w.s.o.Policy.(*witness)
			for ref := evict.Ref(1); ref <= 3; ref++ {
				if n := p.touches[ref]; n != c.uses {
					t.Errorf("page %d: %d uses, want %d", ref, n, c.uses)
				}
			}
			w.check()
		})
	}
}
