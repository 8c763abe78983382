package core

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// What was deleted is readable until the last of its leases lets go, not the first.
func TestGoneUntilTheLastLease(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	a, b := w.lookup(f, 1, 0, 0, 0, 1), w.lookup(f, 2, 0, 0, 0, 1)
	w.delete(f, 0, 0, 1)
	w.do(Release{Principal: 1, Lease: a.Lease})
	w.check()
	if why := w.readReason(f, 2, b.Lease, page.View{}, 0, 0); why != reason.None {
		t.Errorf("the second lease: %v", why)
	}
	w.do(Release{Principal: 2, Lease: b.Lease})
	if w.tier.used != 0 {
		t.Errorf("%d bytes held after the last lease", w.tier.used)
	}
	w.check()
}

// A record that stays for its children lives several lives; leases read theirs.
func TestLivesOfOneRecord(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 2)
	var leases []LeaseID
	var places []Place
	for range 3 {
		r := w.lookup(f, 1, 0, 0, 0, 1)
		leases = append(leases, r.Lease)
		res := w.read(f, 1, r.Lease, page.View{}, 0, 0, 1)
		places = append(places, res.Results[0].Parts[0].Place)
		w.readDone(res.Ticket)
		w.delete(f, 0, 0, 1)
		w.publish(f, 0, 0, 1)
		w.check()
	}
	for i, l := range leases {
		r := w.read(f, 1, l, page.View{}, 0, 0, 1)
		if r.Results[0].Outcome != OK || r.Results[0].Parts[0].Place != places[i] {
			t.Errorf("life %d: %s", i, show(r.Results[0]))
		}
		w.readDone(r.Ticket)
	}
	for i := range leases {
		w.do(Release{Principal: 1, Lease: leases[i]})
		w.check()
	}
	if w.tier.used != 2*12288 {
		t.Errorf("%d bytes held", w.tier.used)
	}
	if _, _, _, ok := w.s.PlaceOf(PageRef{1, 1}); ok {
		t.Error("a life that is over has a place")
	}
}

func TestCorruptUnderALeaseOfADeletedPage(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	for r := range 2 { // two extents
		w.publishView(w.beginEvent(chain(f, 0, 0, 1), page.View{H0: uint16(r), H1: uint16(r + 1), L0: 0, L1: 4}))
	}
	l := w.lookup(f, 1, 0, 0, 0, 1)
	reading := w.read(f, 1, l.Lease, page.View{}, 0, 0, 1)
	w.delete(f, 0, 0, 1)
	bad := reading.Results[0].Parts[1]
	w.do(CorruptFound{bad.Extent, bad.Place})
	w.check()
	if why := w.readReason(f, 1, l.Lease, page.View{}, 0, 0); why != reason.Incomplete {
		t.Errorf("with one half corrupt: %v", why)
	}
	if why := w.readReason(f, 1, l.Lease, page.View{H0: 0, H1: 1, L0: 0, L1: 4}, 0, 0); why != reason.None {
		t.Errorf("the other half: %v", why)
	}
	if why := w.s.Servable(f.Namespace, 1, reading.Results[0].Parts); why != reason.Corrupt {
		t.Errorf("servable: %v", why)
	}
	w.readDone(reading.Ticket)
	w.do(Release{Principal: 1, Lease: l.Lease})
	if w.tier.used != 0 {
		t.Errorf("%d bytes held", w.tier.used)
	}
	w.check()
}

func TestSoonerExpiryHolds(t *testing.T) {
	for _, order := range [][2]int{{10, 20}, {20, 10}, {0, 10}, {10, 0}} {
		w, f := newTestWorld(t, 1<<30)
		for r, life := range order {
			b := w.beginEvent(chain(f, 0, 0, 1), page.View{H0: uint16(r), H1: uint16(r + 1), L0: 0, L1: 4})
			if life > 0 {
				b.Pages[0].Expiry = w.wall + clock.Wall(life)
			}
			w.publishView(b)
		}
		w.advance(9 * time.Second)
		before := w.leading(f, 0, 0, 1)
		w.advance(time.Second)
		if after := w.leading(f, 0, 0, 1); before != 1 || after != 0 {
			t.Errorf("%v: %d before ten seconds, %d after", order, before, after)
		}
		w.check()
	}
}

// Pins do not end by time, do not keep what is deleted, and leave no trace when they go.
func TestPins(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 3)
	pin := func(by Principal, from, to int, unpin bool) []Result {
		p := Pin{Ticket: w.ticket(), Principal: by, Runs: []Run{chain(f, 0, from, to)}, Unpin: unpin}
		w.do(p)
		w.check()
		return w.reply(p.Ticket).Results
	}
	if r := pin(1, 0, 4, false); r[2].Outcome != OK || r[3].Reason != reason.Absent {
		t.Errorf("pin: %s; %s", show(r[2]), show(r[3]))
	}
	pin(2, 2, 3, false)
	w.advance(time.Hour)
	w.do(Reclaim{Tier: evict.Host, Bytes: 1})
	if w.reclaimed != 0 {
		t.Error("a pinned page was evicted")
	}
	w.delete(f, 0, 2, 3)
	w.check()
	if w.tier.used != 2*12288 {
		t.Errorf("%d bytes held: pins keep what is deleted", w.tier.used)
	}
	for range 500 { // churn
		pin(1, 0, 2, true)
		pin(1, 0, 2, false)
	}
	if n := len(w.s.operators[0].pages); n > 100 {
		t.Errorf("%d entries for two pins", n)
	}
	pin(1, 0, 2, true)
	pin(1, 0, 2, true)
	if len(w.s.operators) != 0 || w.s.Totals().PinnedBytes != 0 {
		t.Errorf("left: %d operators, %d bytes pinned", len(w.s.operators), w.s.Totals().PinnedBytes)
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 1 << 30})
	if w.tier.used != 0 {
		t.Errorf("%d bytes left", w.tier.used)
	}
	w.check()
}

// A place that cannot be one of this extent is given back, and counts as none.
func TestPlacesThatDoNotFit(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.holdAlloc = true
	b := w.beginEvent(chain(f, 0, 0, 2), page.View{})
	w.do(b)
	good, _ := w.tier.alloc(evict.Host, w.allocs[0].Items[0].Bytes)
	bad, _ := w.tier.alloc(evict.Host, 4096)
	w.do(Allocated{ID: w.allocs[0].ID, Places: []Place{good, bad}})
	r := w.reply(b.Ticket)
	if r.Results[0].Outcome != Granted || r.Results[1].Reason != reason.Busy || w.tier.live[bad] {
		t.Errorf("%s; %s", show(r.Results[0]), show(r.Results[1]))
	}
	w.do(Allocated{ID: 999}) // never asked
	w.allocs = nil
	w.check()
}

// What the records and headers cannot hold is refused, however it is asked for.
func TestLimitsOfAPage(t *testing.T) {
	w := newWorld(t, 1<<40, Options{})
	st := testNamespace(1, 1)
	st.Groups[page.GroupID{50}] = Geometry{Heads: 8, Layers: 80, CellBytes: 1 << 27, Tokens: 1, Grade: page.Elements}
	st.Groups[page.GroupID{51}] = Geometry{Heads: 1, Layers: 600, CellBytes: 16, Tokens: 1, Grade: page.Elements}
	w.do(NamespaceChanged{st})
	huge := w.beginEvent(chain(familyIn(st, page.GroupID{50}), 0, 0, 1), page.View{})
	huge.Pages[0].PayloadBytes = 8 * 80 << 27
	if r := w.begin(huge); r.Results[0].Reason != reason.LimitExceeded {
		t.Errorf("an extent of 80 GiB: %s", show(r.Results[0]))
	}
	f := familyIn(st, page.GroupID{51})
	layers := func(from, to int) Begin {
		v := page.View{H0: 0, H1: 1, L0: uint16(from), L1: uint16(to)}
		b := w.beginEvent(chain(f, 0, 0, 1), v)
		b.Pages[0].PayloadBytes = page.PayloadBytes(v, 16)
		return b
	}
	n := 0
	for ; n < 300; n++ { // every other layer: as many holes as extents
		r := w.begin(layers(2*n, 2*n+1))
		if r.Token == (Token{}) {
			if r.Results[0].Reason != reason.LimitExceeded {
				t.Errorf("extent %d: %s", n, show(r.Results[0]))
			}
			break
		}
		w.commit(f, r.Token, 0)
		w.settleOnDisk(f, 0, 0, 1) // copies do not count
	}
	if n != page.MaxRects-1 {
		t.Errorf("%d extents in one page, want %d", n, page.MaxRects-1)
	}
	if r := w.begin(layers(0, 600)); r.Results[0].Reason != reason.LimitExceeded {
		t.Errorf("all holes at once: %s", show(r.Results[0]))
	}
	w.check()
}

// The time in which a page must become whole begins with its last commit.
func TestEachCommitOfAnIncompletePageGivesTime(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	for l := range uint16(2) {
		w.publishView(w.beginEvent(chain(f, 0, 0, 1), page.View{H0: 0, H1: 1, L0: l, L1: l + 1}))
		w.advance(50 * time.Second)
	}
	if level, _ := w.s.WaterLevel(w.now, evict.Host); level < 0 {
		t.Error("given up 50 s after its last commit")
	}
	w.advance(11 * time.Second)
	if level, _ := w.s.WaterLevel(w.now, evict.Host); level >= 0 {
		t.Error("not given up 61 s after its last commit")
	}
	if n := len(w.s.incomplete.newest); n != 0 {
		t.Errorf("%d pages are still watched", n)
	}
	w.check()
}

// A publication's own renewals and ends.
func TestPublicationLease(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	token := w.begin(w.beginEvent(chain(f, 0, 0, 2), page.View{})).Token
	renew := func(by Principal, tk Token) Reply {
		r := Renew{Ticket: w.ticket(), Principal: by, Token: tk, TTL: 10 * time.Second}
		w.do(r)
		return w.reply(r.Ticket)
	}
	w.advance(9 * time.Second)
	if r := renew(1, token); r.TTL != 10*time.Second {
		t.Errorf("renewal: %+v", r)
	}
	if r := renew(2, token); r.Reason != reason.StaleToken {
		t.Errorf("by another: %v", r.Reason)
	}
	w.advance(9 * time.Second)
	if r := w.commit(f, token, 5, 0); r.Results[0].Reason != reason.InvalidSpec || r.Results[1].Outcome != Committed {
		t.Errorf("%s; %s", show(r.Results[0]), show(r.Results[1]))
	}
	w.do(Abort{Token: token, Pages: []uint32{1, 1, 0, 77}})
	if r := renew(1, token); r.Reason != reason.StaleToken || w.leading(f, 0, 0, 2) != 1 {
		t.Errorf("after all of it is committed or given up: %v", r.Reason)
	}
	w.check()
}

// A session that ends while places are asked for: its writer is told, the places come back.
func TestSessionEndsWhileAsking(t *testing.T) {
	for _, how := range []string{"session", "retire"} {
		w, f := newTestWorld(t, 1<<30)
		w.holdAlloc = true
		b := w.beginEvent(chain(f, 0, 0, 2), page.View{})
		b.Session = 4
		w.do(b)
		want := reason.Aborted
		if how == "session" {
			w.do(SessionGone{4})
		} else {
			st := testNamespace(1, 1)
			st.Life, want = Retired, reason.Retired
			w.do(NamespaceChanged{st})
		}
		if r := w.reply(b.Ticket); r.Reason != want || r.Results[1].Reason != want || r.Token != (Token{}) {
			t.Errorf("%s: %+v", how, r)
		}
		w.answer(w.allocs[0], 2)
		if w.tier.used != 0 || w.s.Totals().Publications != 0 {
			t.Errorf("%s: %d bytes held", how, w.tier.used)
		}
		w.allocs = nil
		w.check()
	}
}

// One Read may name a page very often: the count of users cannot run over.
func TestReadNamesAPageTooOften(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	r := Read{Ticket: w.ticket(), Principal: 1, Run: Run{Family: f}}
	for range maxUsers + 10 {
		r.Run.Hashes = append(r.Run.Hashes, testHash(0, 0)...)
	}
	w.do(r)
	res := w.reply(r.Ticket).Results
	if res[maxUsers-1].Outcome != OK || res[maxUsers].Reason != reason.Busy {
		t.Errorf("%s; %s", show(res[maxUsers-1]), show(res[maxUsers]))
	}
	w.check()
	w.readDone(r.Ticket)
	w.do(Reclaim{Tier: evict.Host, Bytes: 1})
	if w.tier.used != 0 {
		t.Errorf("%d bytes held", w.tier.used)
	}
	w.check()
}
