package core

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// reclaimAll evicts from a tier whatever may go.
func (w *world) reclaimAll(t evict.Tier) uint64 {
	w.t.Helper()
	w.do(Reclaim{Tier: t, Bytes: 1 << 50})
	return w.reclaimed
}

// promote asks for all parts of a Read in Host.
func (w *world) promote(r Reply) {
	w.t.Helper()
	ev := Promote{Ticket: r.Ticket}
	for _, res := range r.Results {
		for _, p := range res.Parts {
			ev.Extents = append(ev.Extents, p.Extent)
		}
	}
	w.landed = nil
	w.do(ev)
}

// diskWorld has a chain of n pages that are on Disk only.
func diskWorld(t *testing.T, n int) (*world, page.Family) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, n)
	w.settleOnDisk(f, 0, 0, n)
	w.reclaimAll(evict.Host)
	if w.tier.used != 0 || w.disk.used != int64(n)*12288 || w.leading(f, 0, 0, n) != n {
		t.Fatalf("%d and %d bytes, %d of %d pages", w.tier.used, w.disk.used, w.leading(f, 0, 0, n), n)
	}
	w.check()
	return w, f
}

func TestPersist(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 2)
	w.publishView(w.beginEvent(chain(f, 0, 2, 3), page.View{H0: 0, H1: 1, L0: 0, L1: 4}))
	w.publishView(w.beginEvent(chain(f, 0, 2, 3), page.View{H0: 1, H1: 2, L0: 0, L1: 4}))
	a := w.persist(f, 0, 0, 4)
	b := w.persist(f, 0, 1, 2) // waits for the same transfer
	if len(w.transfers) != 4 || w.transfers[0].To != evict.Disk || w.transfers[0].Into == w.transfers[0].Extent ||
		len(w.transfers[0].Lineage) != 1 || w.transfers[0].Lineage[0] != 1 {
		t.Fatalf("transfers: %+v", w.transfers)
	}
	w.check()
	w.finishTransfer(1, reason.None)
	if r := w.reply(b); r.Results[0].Outcome != Committed {
		t.Errorf("one page: %s", show(r.Results[0]))
	}
	w.finishTransfer(2, reason.Busy)
	w.finishTransfers()
	r := w.reply(a)
	for i, want := range []string{"committed", "committed", "refused busy", "refused absent"} {
		if got := show(r.Results[i]); got != want {
			t.Errorf("page %d: %s, want %s", i, got, want)
		}
	}
	w.check()
	w.settleOnDisk(f, 0, 0, 3)
	if c := w.persist(f, 0, 0, 3); w.reply(c).Results[2].Outcome != Committed || len(w.transfers) != 0 {
		t.Errorf("again: %s", show(w.reply(c).Results[2]))
	}
	u := w.s.Usage(nil)[0]
	if n := w.s.Totals(); u.Extents != 8 || u.Charged != uint64(w.tier.used) || u.Bytes != 2*u.Charged ||
		n.Tiers[evict.Disk].Extents != 4 || n.Tiers[evict.Disk].Bytes != uint64(w.disk.used) {
		t.Errorf("usage %+v, %+v", u, n.Tiers)
	}
	w.do(TierState{Tier: evict.Disk})
	w.publish(f, 0, 3, 4)
	if c := w.persist(f, 0, 3, 4); show(w.reply(c).Results[0]) != "refused busy" {
		t.Errorf("a disk that takes nothing: %s", show(w.reply(c).Results[0]))
	}
	if c := w.persist(page.Family{}, 0, 0, 1); w.reply(c).Reason != reason.Absent {
		t.Errorf("no such namespace: %v", w.reply(c).Reason)
	}
	w.check()
}

func TestReadPrefersHost(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	w.settleOnDisk(f, 0, 0, 1)
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	if parts := r.Results[0].Parts; len(parts) != 1 || parts[0].Place.Tier != evict.Host {
		t.Errorf("parts %+v", parts)
	}
	w.readDone(r.Ticket)
	w.reclaimAll(evict.Host)
	r = w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	if parts := r.Results[0].Parts; len(parts) != 1 || parts[0].Place.Tier != evict.Disk {
		t.Errorf("parts %+v", parts)
	}
	w.readDone(r.Ticket)
	w.check()
}

func TestPromote(t *testing.T) {
	w, f := diskWorld(t, 3)
	a, b := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 3), w.read(f, 1, LeaseID{}, page.View{}, 0, 2, 3)
	c := w.read(f, 1, LeaseID{}, page.View{}, 0, 2, 3)
	w.promote(a)
	w.promote(b)
	w.promote(c)
	if len(w.transfers) != 3 || len(w.landed) != 0 {
		t.Fatalf("%d transfers, %d landed", len(w.transfers), len(w.landed))
	}
	w.readDone(c.Ticket)
	w.check()
	w.finishTransfer(2, reason.None) // both that are open and wait for page 2
	if len(w.landed) != 2 || w.landed[0].Ticket != a.Ticket || w.landed[1].Ticket != b.Ticket ||
		w.landed[0].Copy != w.landed[1].Copy || w.landed[0].Place.Tier != evict.Host || w.landed[0].Extent != a.Results[2].Parts[0].Extent {
		t.Fatalf("landed %+v", w.landed)
	}
	w.check()
	w.finishTransfer(0, reason.Corrupt)
	if n := len(w.landed); n != 3 || w.landed[2].Err != reason.Corrupt {
		t.Errorf("landed %+v", w.landed)
	}
	w.promote(b) // it is there now
	if len(w.landed) != 1 || w.landed[0].Err != reason.None || len(w.transfers) != 1 {
		t.Errorf("landed %+v", w.landed)
	}
	w.do(Promote{Ticket: b.Ticket, Extents: []uint32{a.Results[0].Parts[0].Extent, 9999}})
	w.do(Promote{Ticket: 77777, Extents: []uint32{1}})
	for _, l := range w.landed[1:] {
		if l.Err != reason.Absent {
			t.Errorf("what was not pinned: %+v", l)
		}
	}
	if len(w.landed) != 4 {
		t.Errorf("%d answers", len(w.landed))
	}
	// The page in Host is pinned by two Reads: evicted, its place goes with the last.
	w.reclaimAll(evict.Host)
	w.readDone(b.Ticket)
	if w.tier.used != 12288 {
		t.Errorf("%d bytes in Host while it is read", w.tier.used)
	}
	w.readDone(a.Ticket)
	w.finishTransfers()
	w.check()
	if w.tiersOf(f, 0, 0) != "disk" || w.tiersOf(f, 0, 1) != "host disk" || w.tiersOf(f, 0, 2) != "disk" {
		t.Errorf("%q %q %q", w.tiersOf(f, 0, 0), w.tiersOf(f, 0, 1), w.tiersOf(f, 0, 2))
	}
	w.do(TierState{Tier: evict.Host})
	a = w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	w.promote(a)
	if len(w.landed) != 1 || w.landed[0].Err != reason.Busy {
		t.Errorf("into a tier that takes nothing: %+v", w.landed)
	}
	w.readDone(a.Ticket)
	w.check()
}

// A lease keeps pages that were deleted readable, also those on Disk only: a copy is made for each Read.
func TestPromoteOfWhatIsGone(t *testing.T) {
	w, f := diskWorld(t, 1)
	l := w.lookup(f, 1, 0, 0, 0, 1)
	w.delete(f, 0, 0, 1)
	r := w.read(f, 1, l.Lease, page.View{}, 0, 0, 1)
	w.promote(r)
	again := w.read(f, 1, l.Lease, page.View{}, 0, 0, 1)
	w.do(Promote{Ticket: again.Ticket, Extents: []uint32{again.Results[0].Parts[0].Extent}})
	if len(w.transfers) != 1 {
		t.Fatalf("%d transfers", len(w.transfers))
	}
	w.check()
	w.do(Release{Principal: 1, Lease: l.Lease})
	w.finishTransfers()
	if len(w.landed) != 2 || w.landed[0].Err != reason.None || w.leading(f, 0, 0, 1) != 0 {
		t.Fatalf("landed %+v", w.landed)
	}
	w.check()
	w.readDone(r.Ticket)
	w.readDone(again.Ticket)
	if w.tier.used+w.disk.used != 0 {
		t.Errorf("%d and %d bytes kept", w.tier.used, w.disk.used)
	}
	w.check()
}

func TestEvictionByTier(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 4)
	w.settleOnDisk(f, 0, 0, 3)
	// Page 3 is in Host only and has no child: the last copy may go. The others have one on Disk.
	if got := w.reclaimAll(evict.Host); got != 4*12288 || w.leading(f, 0, 0, 4) != 3 || w.s.Totals().Evicted != 1 {
		t.Errorf("%d bytes, %d pages lead, %d evicted", got, w.leading(f, 0, 0, 4), w.s.Totals().Evicted)
	}
	w.check()
	w.publish(f, 0, 3, 4) // in Host only, on parents that are on Disk only
	if got := w.reclaimAll(evict.Disk); got != 0 || w.leading(f, 0, 0, 4) != 4 {
		t.Errorf("the last copy of a parent was evicted: %d bytes", got)
	}
	w.check()
	w.settleOnDisk(f, 0, 3, 4)
	if got := w.reclaimAll(evict.Disk); got != 12288 || w.tiersOf(f, 0, 3) != "host" || w.leading(f, 0, 0, 4) != 4 {
		t.Errorf("%d bytes, page 3 in %q", got, w.tiersOf(f, 0, 3))
	}
	w.check()
	w.reclaimAll(evict.Host)
	w.reclaimAll(evict.Disk)
	if w.tier.used+w.disk.used != 0 || w.s.Totals().Pages != 0 {
		t.Errorf("%d and %d bytes left", w.tier.used, w.disk.used)
	}
	w.check()
}

func TestReclaimClean(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 10) // in Host only, and older
	w.now = w.now.Add(time.Minute)
	w.publish(f, 1, 0, 10)
	w.settleOnDisk(f, 1, 0, 8)
	w.do(Reclaim{Tier: evict.Host, Bytes: 3 * 12288, Clean: true})
	if w.reclaimed != 0 { // its end is not on Disk and lies on the rest
		t.Errorf("%d bytes, with pages above that are not on disk", w.reclaimed)
	}
	w.settleOnDisk(f, 1, 8, 10)
	w.do(Reclaim{Tier: evict.Host, Bytes: 3 * 12288, Clean: true})
	if w.reclaimed != 3*12288 || w.tiersOf(f, 1, 6) != "host disk" || w.tiersOf(f, 1, 7) != "disk" {
		t.Errorf("%d bytes, page 6 in %q", w.reclaimed, w.tiersOf(f, 1, 6))
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 1 << 40, Clean: true})
	if w.leading(f, 0, 0, 10) != 10 || w.leading(f, 1, 0, 10) != 10 || w.tier.used != 10*12288 {
		t.Errorf("%d bytes left in Host", w.tier.used)
	}
	w.check()
}

// A page of several extents leaves a tier whole; what was only there is lost, and the rest is incomplete.
func TestEvictionOfHalfCopiedPage(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	upper, lower := page.View{H0: 0, H1: 1, L0: 0, L1: 4}, page.View{H0: 1, H1: 2, L0: 0, L1: 4}
	w.publishView(w.beginEvent(chain(f, 0, 0, 1), upper))
	w.settleOnDisk(f, 0, 0, 1)
	w.publishView(w.beginEvent(chain(f, 0, 0, 1), lower))
	w.advance(100 * time.Second)
	w.do(Reclaim{Tier: evict.Host, Bytes: 1, Clean: true})
	if w.reclaimed != 0 {
		t.Error("what is only half on Disk is not clean")
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 1})
	if w.reclaimed != 2*8192 || w.leading(f, 0, 0, 1) != 0 || w.readReason(f, 1, LeaseID{}, upper, 0, 0) != reason.None {
		t.Errorf("%d bytes, %v", w.reclaimed, w.readReason(f, 1, LeaseID{}, upper, 0, 0))
	}
	w.check()
	w.advance(61 * time.Second)
	if level, ok := w.s.WaterLevel(w.now, evict.Disk); !ok || level >= 0 {
		t.Errorf("half a page that nobody completes is worth %v", level)
	}
	w.check()
}

func TestMoveOnDisk(t *testing.T) {
	w, f := diskWorld(t, 3)
	leaf, root := w.copyOf(f, 0, 2, evict.Disk), w.copyOf(f, 0, 0, evict.Disk)
	place := func(x uint32) Place { return w.s.extents.At(x).place() }
	w.do(Move{Extent: root, From: place(root), Drop: 1e9}) // no leaf: worth keeping whatever its score
	if len(w.transfers) != 1 || w.transfers[0].Into != root || w.transfers[0].To != evict.Disk {
		t.Fatalf("transfers %+v", w.transfers)
	}
	w.finishTransfers()
	w.check()
	w.do(Move{Extent: leaf, From: place(leaf)}) // the zero Drop: only what is doomed
	if len(w.transfers) != 1 {
		t.Fatalf("transfers %+v", w.transfers)
	}
	w.finishTransfers()
	w.do(Move{Extent: leaf, From: place(leaf), Drop: 1})
	if len(w.transfers) != 0 || w.disk.used != 2*12288 || w.leading(f, 0, 0, 3) != 2 {
		t.Errorf("%d transfers, %d bytes on Disk", len(w.transfers), w.disk.used)
	}
	for _, e := range w.effects {
		if _, refused := e.(MoveRefused); refused {
			t.Error("dropped, and refused")
		}
	}
	w.check()
}

// copyOf is the record of the only extent of a page in a tier.
func (w *world) copyOf(f page.Family, c, d int, t evict.Tier) uint32 {
	for _, p := range w.s.Explain(w.now, w.wall, &page.Key{Family: f, Hash: mustHash(testHash(c, d))}).Parts {
		if p.Place.Tier == t {
			return p.Extent
		}
	}
	return 0
}

func TestCorruptCopy(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 2)
	w.settleOnDisk(f, 0, 0, 2)
	for _, tier := range []evict.Tier{evict.Host, evict.Disk} {
		x := w.copyOf(f, 0, 0, tier)
		w.do(CorruptFound{x, w.s.extents.At(x).place()})
		w.check()
		if want := map[evict.Tier]int{evict.Host: 2, evict.Disk: 0}[tier]; w.leading(f, 0, 0, 2) != want {
			t.Errorf("%v copy corrupt: %d pages lead, want %d", tier, w.leading(f, 0, 0, 2), want)
		}
	}
	if n := w.s.Totals(); n.Removed[reason.Corrupt] != 2 || w.s.Usage(nil)[0].Orphans[OrphanCorrupt] != 1 {
		t.Errorf("removed %v", n.Removed)
	}
	// The source of a copy under way turns out corrupt.
	w.publish(f, 1, 0, 1)
	ticket := w.persist(f, 1, 0, 1)
	x := w.copyOf(f, 1, 0, evict.Host)
	w.do(CorruptFound{x, w.s.extents.At(x).place()})
	w.check()
	w.finishTransfers()
	if show(w.reply(ticket).Results[0]) != "refused absent" || w.leading(f, 1, 0, 1) != 0 {
		t.Errorf("persist: %s", show(w.reply(ticket).Results[0]))
	}
	w.check()
}

// A lease pins the tiers it was charged for: a copy that a Read brings to Host later may go.
func TestLeaseOfWhatIsOnDisk(t *testing.T) {
	limits := Limits{Capacity: [evict.NumTiers]uint64{evict.Host: 2 * 12288, evict.Disk: 1 << 30}}
	w := newWorld(t, 2*12288, Options{Ledger: NewLedger(limits)})
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	f := familyIn(st, testGroup)
	for d := range 6 {
		w.publish(f, 0, d, d+1)
		w.settleOnDisk(f, 0, d, d+1)
		w.reclaimAll(evict.Host)
	}
	l := w.lookup(f, 1, 0, 0, 0, 6)
	if l.Covered[0] != 6 {
		t.Fatalf("covered %d: charged for more than Disk", l.Covered[0])
	}
	for d := 5; d >= 0; d-- { // each pushes another out of Host
		r := w.read(f, 1, l.Lease, page.View{}, 0, d, d+1)
		w.promote(r)
		w.finishTransfers()
		if len(w.landed) != 1 || w.landed[0].Err != reason.None {
			t.Fatalf("page %d: %+v", d, w.landed)
		}
		w.readDone(r.Ticket)
		w.check()
	}
	if got := w.reclaimAll(evict.Disk); got != 0 {
		t.Errorf("%d bytes evicted from under a lease", got)
	}
	w.check()
}

// What a lease was charged for stays where it was; of what it was not charged for, the last copy stays.
func TestLeasePinsTiers(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	l := w.lookup(f, 1, 0, 0, 0, 1)
	w.settleOnDisk(f, 0, 0, 1)
	if w.reclaimAll(evict.Host) != 0 || w.tiersOf(f, 0, 0) != "host disk" {
		t.Errorf("in %q", w.tiersOf(f, 0, 0))
	}
	if w.reclaimAll(evict.Disk) != 12288 || w.tiersOf(f, 0, 0) != "host" {
		t.Errorf("in %q", w.tiersOf(f, 0, 0))
	}
	w.settleOnDisk(f, 0, 0, 1)
	x := w.copyOf(f, 0, 0, evict.Host)
	w.do(CorruptFound{x, w.s.extents.At(x).place()})
	if w.reclaimAll(evict.Disk) != 0 || w.readReason(f, 1, l.Lease, page.View{}, 0, 0) != reason.None {
		t.Errorf("the last copy went from under a lease: in %q", w.tiersOf(f, 0, 0))
	}
	w.check()
	w.do(Release{Principal: 1, Lease: l.Lease})
	if w.reclaimAll(evict.Disk) != 12288 {
		t.Error("held after the last lease")
	}
	w.check()
}

// Copies that were listed are held where they were, or not at all.
func TestScanAndHold(t *testing.T) {
	w, f := diskWorld(t, 5)
	var all []Stored
	for next := uint32(1); next != 0; {
		next, all = w.s.Scan(evict.Disk, next, 2, all)
	}
	if _, host := w.s.Scan(evict.Host, 0, 1000, nil); len(all) != 5 || len(host) != 0 {
		t.Fatalf("listed %d and %d copies", len(all), len(host))
	}
	w.do(Move{Extent: all[0].Extent, From: all[0].Place})
	w.finishTransfers()
	h := Hold{Ticket: w.ticket(), Copies: append(all, Stored{Extent: 9999})}
	w.do(h)
	for i, res := range w.reply(h.Ticket).Results {
		if held := i >= 1 && i < 5; held != (res.Outcome == OK) {
			t.Errorf("copy %d: %s", i, show(res))
		}
	}
	w.check()
	w.delete(f, 0, 0, 5)
	if w.disk.used != 4*12288 {
		t.Errorf("%d bytes while four copies are held", w.disk.used)
	}
	w.do(ReadDone{h.Ticket})
	if w.disk.used != 0 {
		t.Errorf("%d bytes held after", w.disk.used)
	}
	w.check()
}

// A quota bounds what is stored, however many copies there are.
func TestQuotaCountsAnExtentOnce(t *testing.T) {
	w := newWorld(t, 1<<30, Options{})
	st := testNamespace(1, 1)
	st.Quota = 4 * 12288
	w.do(NamespaceChanged{st})
	f := familyIn(st, testGroup)
	w.publish(f, 0, 0, 2)
	w.settleOnDisk(f, 0, 0, 2)
	w.publish(f, 0, 2, 4)
	w.reclaimAll(evict.Host)
	for _, want := range []string{"refused quota_exceeded", "granted h[0,2) l[0,4)"} {
		r := w.begin(w.beginEvent(chain(f, 1, 0, 3), page.View{}))
		if got := show(r.Results[2]); got != want && got != "refused quota_exceeded" {
			t.Errorf("%s, want %s", got, want)
		}
		if r.Token != (Token{}) {
			w.do(Abort{Token: r.Token})
		}
		w.delete(f, 0, 0, 4)
	}
	w.check()
}

// Records are made room for where a page is worth least, in whatever tier it is.
func TestRoomForRecords(t *testing.T) {
	w := newWorld(t, 1<<30, Options{Ledger: NewLedger(Limits{Pages: 6, Extents: 8})})
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	f := familyIn(st, testGroup)
	for c := range 6 {
		w.now = w.now.Add(time.Second)
		w.publish(f, c, 0, 1)
		if c < 2 {
			w.settleOnDisk(f, c, 0, 1)
		}
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 2 * 12288, Clean: true})
	w.publish(f, 6, 0, 1) // the oldest page goes, which is on Disk only
	for c, want := range []string{"", "disk", "host", "host", "host", "host", "host"} {
		if got := w.tiersOf(f, c, 0); got != want {
			t.Errorf("page %d in %q, want %q", c, got, want)
		}
	}
	w.settleOnDisk(f, 6, 0, 1)
	w.settleOnDisk(f, 5, 0, 1)
	w.settleOnDisk(f, 4, 0, 1) // no record is left: the oldest goes
	if w.tiersOf(f, 1, 0) != "" || w.tiersOf(f, 4, 0) != "host disk" || w.leading(f, 2, 0, 1) != 1 {
		t.Errorf("pages 1, 2, 4 in %q, %q, %q", w.tiersOf(f, 1, 0), w.tiersOf(f, 2, 0), w.tiersOf(f, 4, 0))
	}
	w.check()
}
