package core

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func TestCase_C63_AnotherShapeClosesTheHole(t *testing.T) {
	w, f := tensorWorld(t, false)
	for r := range 5 {
		w.publishView(w.rankBegin(f, 0, r, 8, 1))
	}
	used := w.tier.used
	var wrote uint64
	for r := range 4 {
		res := w.begin(w.rankBegin(f, 0, r, 4, 2))
		if r < 2 {
			if res.Results[0].Outcome != Present {
				t.Fatalf("rank %d: %s", r, show(res.Results[0]))
			}
			continue
		}
		for _, g := range res.Results[0].Grants {
			wrote += page.PayloadBytes(g.View, 1000)
		}
		w.commit(f, res.Token, 0)
	}
	if wrote != 3*4*1000 {
		t.Errorf("%d bytes written, want the three heads that were missing", wrote)
	}
	if w.tier.used <= used {
		t.Error("nothing was stored")
	}
	for _, n := range []int{1, 2, 4, 8} {
		for r := range n {
			res := w.read(f, 1, LeaseID{}, rankView(r, n), 0, 0, 1)
			cells := 0
			for _, p := range res.Results[0].Parts {
				cells += p.Take.Cells()
			}
			if res.Results[0].Outcome != OK || cells != rankView(r, n).Cells() {
				t.Errorf("rank %d of %d: %s", r, n, show(res.Results[0]))
			}
			w.readDone(res.Ticket)
		}
	}
	w.check()
}

func TestCase_C66_EndedWaiverHidesWhatCameThroughIt(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	st := testNamespace(1, 1)
	accept := func(bits uint64) {
		st.Accepts = []uint64{bits}
		w.do(NamespaceChanged{st})
	}
	begin := func(c, from, to int, prov uint16) {
		b := w.beginEvent(chain(f, c, from, to), page.View{})
		b.Provenance = prov
		w.publishView(b)
	}
	begin(0, 0, 2, 1) // its own provenance
	begin(0, 2, 3, 2) // through the waiver
	begin(0, 3, 5, 1) // its own, computed on top
	begin(1, 0, 2, 1) // another chain
	accept(1 << 1)    // the waiver ends
	if n := w.leading(f, 0, 0, 5); n != 2 {
		t.Errorf("%d pages lead, want 2", n)
	}
	for d := 2; d < 5; d++ {
		if why := w.readReason(f, 1, LeaseID{}, page.View{}, 0, d); why != reason.Provenance {
			t.Errorf("page %d: %v", d, why)
		}
	}
	if n := w.leading(f, 1, 0, 2); n != 2 {
		t.Errorf("the other chain: %d", n)
	}
	w.tickUntilQuiet()
	w.check()

	accept(1<<1 | 1<<2) // it is granted again: all is back
	if n := w.leading(f, 0, 0, 5); n != 5 {
		t.Errorf("%d pages lead with the waiver back, want 5", n)
	}
	accept(1 << 1)
	w.advance(2 * time.Second) // the sweep pauses between passes
	used := w.tier.used
	b := w.beginEvent(chain(f, 0, 2, 5), page.View{})
	w.publishView(b) // afresh, under the parent that stands
	if n := w.leading(f, 0, 0, 5); n != 5 || w.tier.used != used {
		t.Errorf("published afresh: %d pages lead, %d bytes, were %d", n, w.tier.used, used)
	}
	accept(1<<1 | 1<<2)
	if n := w.leading(f, 0, 0, 5); n != 5 {
		t.Errorf("%d pages lead after the waiver came back again", n)
	}
	w.advance(2 * time.Second)
	w.check()

	// What is hidden is evicted before what is not, however recently it was used.
	begin(2, 0, 1, 2)
	accept(1 << 1)
	w.advance(2 * time.Second)
	w.do(Reclaim{Tier: evict.Host, Bytes: 1})
	if w.leading(f, 0, 0, 5) != 5 || w.leading(f, 1, 0, 2) != 2 || w.s.Totals().Pages != 7 {
		t.Errorf("something else than the hidden page was evicted: %+v", w.s.Totals())
	}
	w.check()
}

// A read under way when the waiver ends does not get its OK; neither does a commit on top of what is hidden now.
func TestCase_C66_InFlight(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	st := testNamespace(1, 1)
	b := w.beginEvent(chain(f, 0, 0, 1), page.View{})
	b.Provenance = 2
	w.publishView(b)
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	child := w.begin(w.beginEvent(chain(f, 0, 1, 2), page.View{}))
	if why := w.s.Servable(st.ID, 1, r.Results[0].Parts); why != reason.None {
		t.Errorf("servable: %v", why)
	}
	st.Accepts = []uint64{1 << 1}
	w.do(NamespaceChanged{st})
	if why := w.s.Servable(st.ID, 1, r.Results[0].Parts); why != reason.Provenance {
		t.Errorf("servable after the waiver: %v", why)
	}
	if c := w.commit(f, child.Token, 0); c.Results[0].Outcome != Refused || c.Results[0].Reason != reason.Provenance {
		t.Errorf("commit on top of what is hidden: %s", show(c.Results[0]))
	}
	w.check()
}

func TestCase_C67_RetireThenOpenAgain(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 50)
	live := w.begin(w.beginEvent(chain(f, 1, 0, 2), page.View{}))
	lease := w.lookup(f, 1, 0, 0, 0, 10)
	reading := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	st := testNamespace(1, 1)
	st.Life = Retired
	w.do(NamespaceChanged{st})
	if w.leading(f, 0, 0, 50) != 0 || w.readReason(f, 1, lease.Lease, page.View{}, 0, 0) != reason.Retired {
		t.Error("served after retirement")
	}
	if why := w.s.Servable(st.ID, 1, reading.Results[0].Parts); why != reason.Retired {
		t.Errorf("OK trailer after retirement: %v", why)
	}
	if r := w.commit(f, live.Token, 0, 1); r.Reason != reason.Retired {
		t.Errorf("commit: %v", r.Reason)
	}
	if r := w.begin(w.beginEvent(chain(f, 2, 0, 1), page.View{})); r.Reason != reason.Retired || r.Results[0].Outcome != Refused {
		t.Errorf("begin: %v", r.Reason)
	}
	re := Renew{Ticket: w.ticket(), Principal: 1, Lease: lease.Lease}
	w.do(re)
	if r := w.reply(re.Ticket); r.Reason != reason.LeaseExpired {
		t.Errorf("renew: %v", r.Reason)
	}
	// The bytes are not reclaimed yet; the same spec lives again.
	w.do(NamespaceChanged{testNamespace(1, 2)})
	g := familyIn(testNamespace(1, 2), testGroup)
	if n := w.leading(g, 0, 0, 50); n != 0 || w.tier.used == 0 {
		t.Errorf("%d old pages are hits in the new life", n)
	}
	w.publish(g, 0, 0, 3)
	st.Life = Active // an event that comes late does not bring it back
	w.do(NamespaceChanged{st})
	w.tickUntilQuiet()
	if n := w.leading(f, 0, 0, 50); n != 0 {
		t.Errorf("%d pages came back", n)
	}
	w.readDone(reading.Ticket)
	if n := w.leading(g, 0, 0, 3); n != 3 || w.tier.used != 3*12288 {
		t.Errorf("new life: %d pages, %d bytes in the tier", n, w.tier.used)
	}
	w.check()
}

// Strict: all extents of a page come from one writer group; elsewhere each rectangle, which holds all components of its
// cells, comes whole from one extent.
func TestCase_C77_WritersAreNotMixed(t *testing.T) {
	t.Run("strict", func(t *testing.T) {
		w, f := tensorWorld(t, true)
		w.publishView(w.rankBegin(f, 0, 0, 2, 1))
		other := w.begin(w.rankBegin(f, 1, 0, 2, 1)) // group 1 is still at work, elsewhere
		if r := w.begin(w.rankBegin(f, 0, 1, 2, 2)); r.Results[0].Reason != reason.Held {
			t.Errorf("another group while the first is at work: %s", show(r.Results[0]))
		}
		w.do(Abort{Token: other.Token})
		r := w.begin(w.rankBegin(f, 0, 1, 2, 2))
		if r.Results[0].Outcome != Granted {
			t.Fatalf("another group once the first is gone: %s", show(r.Results[0]))
		}
		w.commit(f, r.Token, 0)
		run := chain(f, 0, 0, 1)
		if _, hits, _ := w.s.Exists(w.wall, &run, rankView(0, 2), make([]byte, 1), 0); hits != 0 {
			t.Error("the half of the group that is gone is still served")
		}
		w.publishView(w.rankBegin(f, 0, 0, 2, 2))
		if n := w.leading(f, 0, 0, 1); n != 1 {
			t.Error("not whole from one group")
		}
		if r := w.begin(w.rankBegin(f, 0, 0, 1, 3)); r.Results[0].Outcome != Present {
			t.Errorf("a whole page of another group: %s", show(r.Results[0]))
		}
		w.check()
	})
	t.Run("one extent a rectangle", func(t *testing.T) {
		w, f := tensorWorld(t, false)
		for r := range 8 {
			w.publishView(w.rankBegin(f, 0, (r*3)%8, 8, byte(r)))
		}
		res := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
		seen := map[uint32]bool{}
		for i, p := range res.Results[0].Parts {
			if seen[p.Extent] || p.Take != rankView(i, 8) {
				t.Errorf("part %d: %v of extent %d", i, p.Take, p.Extent)
			}
			seen[p.Extent] = true
		}
	})
}

func TestCase_C78_ALeaseCoversThePrefixThatFits(t *testing.T) {
	const pageBytes = 12288
	w := newWorld(t, 64*pageBytes, Options{Ledger: NewLedger(Limits{Capacity: [evict.NumTiers]uint64{evict.Host: 64 * pageBytes}})})
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	f := familyIn(st, testGroup)
	w.publish(f, 0, 0, 60)
	for i, c := range []struct {
		by      Principal
		session Session
		want    uint32
	}{{1, 1, 8}, {1, 2, 8}, {2, 0, 16}, {3, 0, 8}, {4, 0, 0}} {
		from := []int{0, 8, 8, 24, 40}[i] // pages that are not pinned, so that each is charged
		r := w.lookup(f, c.by, c.session, 0, from, 60)
		if r.Leading[0] != uint32(60-from) || r.Covered[0] != c.want {
			t.Errorf("principal %d session %d: covers %d of %d, want %d", c.by, c.session, r.Covered[0], r.Leading[0], c.want)
		}
		if i == 1 { // eighth by eighth; then a quarter, and what is left of the half
			w.do(Release{Principal: 1, Lease: r.Lease})
		}
		if (r.Lease == LeaseID{}) != (c.want == 0) || (r.Reason == reason.Busy) != (c.want == 0) {
			t.Errorf("principal %d: lease %x, %v", c.by, r.Lease, r.Reason)
		}
		w.check()
	}
	// Others can still publish: half of the tier is never pinned.
	w.publish(f, 1, 0, 20)
	if n := w.leading(f, 0, 0, 60); n != 44 {
		t.Errorf("%d pages of the leased chain left, want 44", n)
	}
	w.check()
}

func TestCase_C80_AllLeasedIsBusy(t *testing.T) {
	const pageBytes = 12288
	w := newWorld(t, 20*pageBytes, Options{Ledger: NewLedger(Limits{
		Capacity: [evict.NumTiers]uint64{evict.Host: 20 * pageBytes}, TierShare: 1, PrincipalShare: 1, SessionShare: 1,
	})})
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	f := familyIn(st, testGroup)
	w.publish(f, 0, 0, 20)
	lease := w.lookup(f, 1, 0, 0, 0, 10)
	pin := Pin{Ticket: w.ticket(), Principal: 2, Runs: []Run{chain(f, 0, 19, 20)}} // freezes its ancestors by position
	w.do(pin)
	if _, ok := w.s.WaterLevel(w.now, evict.Host); ok {
		t.Error("there is a water level where nothing is evictable")
	}
	r := w.begin(w.beginEvent(chain(f, 1, 0, 2), page.View{}))
	if r.Results[0].Reason != reason.Busy || r.Token != (Token{}) || w.reclaimed != 0 {
		t.Errorf("begin in a full tier: %s", show(r.Results[0]))
	}
	if n := w.leading(f, 0, 0, 20); n != 20 {
		t.Errorf("%d pages left", n)
	}
	w.check()
	w.do(Release{Principal: 1, Lease: lease.Lease})
	if r := w.begin(w.beginEvent(chain(f, 1, 0, 2), page.View{})); r.Results[0].Reason != reason.Busy {
		t.Errorf("the leaf is pinned, its ancestors stand: %s", show(r.Results[0]))
	}
	pin.Ticket, pin.Unpin = w.ticket(), true
	w.do(pin)
	w.publish(f, 1, 0, 2)
	if n := w.leading(f, 0, 0, 20); n != 18 {
		t.Errorf("%d pages left, want 18", n)
	}
	w.check()
}
