package core

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// tensorGroup has 8 kv heads: what eight ranks of a TP8 group cut a page into.
var tensorGroup = page.GroupID{8}

func tensorWorld(t *testing.T, strict bool) (*world, page.Family) {
	w := newWorld(t, 1<<30, Options{})
	st := testNamespace(1, 1)
	st.Strict = strict
	g := testGeometry()
	g.Heads = 8
	st.Groups[tensorGroup] = g
	w.do(NamespaceChanged{st})
	return w, familyIn(st, tensorGroup)
}

// rankView is what rank r of n holds of 8 heads.
func rankView(r, n int) page.View {
	return page.View{H0: uint16(r * 8 / n), H1: uint16((r + 1) * 8 / n), L0: 0, L1: 4}
}

// rankBegin publishes page d of chain 0 as rank r of n of a writer group.
func (w *world) rankBegin(f page.Family, d, r, n int, group byte) Begin {
	v := rankView(r, n)
	b := w.beginEvent(chain(f, 0, d, d+1), v)
	b.WriterGroup = [16]byte{group}
	b.Pages[0].PayloadBytes = page.PayloadBytes(v, 1000)
	return b
}

func TestCase_C10_ManyWritersOneCopy(t *testing.T) {
	for _, writers := range []int{2, 8, 64} {
		w, f := newTestWorld(t, 1<<30)
		var winner Token
		for i := range writers {
			r := w.begin(w.beginEvent(chain(f, 0, 0, 4), page.View{}))
			for d, res := range r.Results {
				if i == 0 && res.Outcome != Granted || i > 0 && (res.Outcome != Refused || res.Reason != reason.Held) {
					t.Fatalf("writer %d page %d: %s", i, d, show(res))
				}
			}
			if i == 0 {
				winner = r.Token
			}
			if n := w.leading(f, 0, 0, 4); n != 0 {
				t.Fatalf("%d pages visible before commit", n)
			}
		}
		w.commit(f, winner, 0, 1, 2, 3)
		for range writers - 1 {
			r := w.begin(w.beginEvent(chain(f, 0, 0, 4), page.View{}))
			if r.Results[3].Outcome != Present || r.Token != (Token{}) {
				t.Fatalf("after the commit: %s", show(r.Results[3]))
			}
		}
		if u := w.s.Usage(nil); u[0].Pages != 4 || u[0].Extents != 4 || w.tier.used != int64(u[0].Bytes) {
			t.Errorf("%d writers: stored %+v, tier %d", writers, u, w.tier.used)
		}
		w.check()
	}
}

// Ranks of one group write their slices at once: readers see each rank's slice, and the page only when all are there.
func TestCase_C10_ReadersSeeWholePages(t *testing.T) {
	w, f := tensorWorld(t, false)
	for r := range 8 {
		if n := w.leading(f, 0, 0, 1); n != 0 {
			t.Fatalf("whole with %d of 8 ranks", r)
		}
		if why := w.readReason(f, 1, LeaseID{}, page.View{}, 0, 0); r > 0 && why != reason.Incomplete || r == 0 && why != reason.Absent {
			t.Fatalf("read with %d of 8 ranks: %v", r, why)
		}
		w.publishView(w.rankBegin(f, 0, r, 8, 1))
	}
	if n := w.leading(f, 0, 0, 1); n != 1 {
		t.Error("not whole with all ranks")
	}
	w.check()
}

func TestCase_C12_PausedWriterIsFenced(t *testing.T) {
	for _, how := range []string{"time", "session", "abort", "delete"} {
		w, f := newTestWorld(t, 1<<20)
		b := w.beginEvent(chain(f, 0, 0, 2), page.View{})
		b.Session = 5
		paused := w.begin(b).Token
		switch how {
		case "time":
			w.advance(10 * time.Second)
		case "session":
			w.do(SessionGone{5})
		case "abort":
			w.do(Abort{Token: paused})
		case "delete":
			w.delete(f, 0, 0, 2)
		}
		if how != "time" {
			if rv, ok := w.effects[0].(Revoke); !ok || rv.Token != paused {
				t.Errorf("%s: first effect %+v, want Revoke before Free", how, w.effects[0])
			}
		}
		if w.tier.used != 0 {
			t.Errorf("%s: %d bytes held", how, w.tier.used)
		}
		other := w.begin(w.beginEvent(chain(f, 0, 0, 2), page.View{}))
		if other.Results[0].Outcome != Granted || other.Token == paused {
			t.Fatalf("%s: %s", how, show(other.Results[0]))
		}
		if r := w.commit(f, paused, 0, 1); r.Reason != reason.StaleToken || len(r.Results) != 0 {
			t.Errorf("%s: stale commit: %v", how, r.Reason)
		}
		if n := w.leading(f, 0, 0, 2); n != 0 {
			t.Errorf("%s: a stale token committed %d pages", how, n)
		}
		if r := w.commit(f, other.Token, 0, 1); r.Results[1].Outcome != Committed {
			t.Errorf("%s: %s", how, show(r.Results[1]))
		}
		w.check()
	}
}

func TestCase_C13_CommitTwice(t *testing.T) {
	w, f := newTestWorld(t, 1<<20)
	token := w.begin(w.beginEvent(chain(f, 0, 0, 3), page.View{})).Token
	first := w.commit(f, token, 0, 1)
	used := w.tier.used
	again := w.commit(f, token, 1, 0, 1)
	if again.Results[0].Ref != first.Results[1].Ref || again.Results[1].Outcome != Committed || again.Results[2].Outcome != Committed {
		t.Errorf("twice: %s %s", show(again.Results[0]), show(again.Results[1]))
	}
	if u := w.s.Usage(nil)[0]; u.Pages != 2 || w.s.Totals().CommittedPages != 2 || w.tier.used != used {
		t.Errorf("accounted twice: %+v", u)
	}
	w.commit(f, token, 2)
	if r := w.commit(f, token, 0, 1, 2); r.Reason != reason.StaleToken {
		t.Errorf("after the last page: %v", r.Reason) // the runtime compares digests from here
	}
	w.check()
}

func TestCase_C15_NoHoleInsideAPrefix(t *testing.T) {
	const pageBytes = 12288
	t.Run("room is made", func(t *testing.T) {
		w, f := newTestWorld(t, 10*pageBytes)
		w.publish(f, 0, 0, 10)
		w.publish(f, 1, 0, 4)
		if n := w.leading(f, 0, 0, 10); n != 6 {
			t.Errorf("%d pages of the old chain left, want its prefix of 6", n)
		}
		w.check()
	})
	t.Run("no place", func(t *testing.T) {
		for have := range 6 {
			w, f := newTestWorld(t, 10*pageBytes)
			w.holdAlloc = true
			w.do(w.beginEvent(chain(f, 0, 0, 5), page.View{}))
			w.holdAlloc = false
			w.answer(w.allocs[0], min(have, 5))
			r := w.reply(1)
			for i, res := range r.Results {
				if i < have && res.Outcome != Granted || i >= have && (res.Outcome != Refused || res.Reason != reason.Busy) {
					t.Errorf("%d places, page %d: %s", have, i, show(res))
				}
			}
			if (r.Token != Token{}) != (have > 0) || w.tier.used != int64(have*pageBytes) {
				t.Errorf("%d places: token %v, %d bytes", have, r.Token, w.tier.used)
			}
			w.allocs = nil
			w.check()
		}
	})
	t.Run("tier fails", func(t *testing.T) {
		w, f := newTestWorld(t, 10*pageBytes)
		w.holdAlloc = true
		w.do(w.beginEvent(chain(f, 0, 0, 2), page.View{}))
		w.do(Allocated{ID: w.allocs[0].ID, Err: reason.Unsupported})
		if r := w.reply(1); r.Results[1].Reason != reason.Unsupported || r.Token != (Token{}) {
			t.Errorf("%s", show(r.Results[1]))
		}
		w.check()
	})
	t.Run("half a page fits", func(t *testing.T) { // two grants of one page, one place
		w, f := newTestWorld(t, 1<<20)
		w.publishView(w.beginEvent(chain(f, 0, 0, 1), page.View{H0: 0, H1: 2, L0: 1, L1: 2}))
		w.holdAlloc = true
		b := w.beginEvent(chain(f, 0, 0, 3), page.View{})
		w.do(b)
		if n := len(w.allocs[0].Items); n != 4 {
			t.Fatalf("%d items", n)
		}
		w.answer(w.allocs[0], 1)
		r := w.reply(b.Ticket)
		for i, res := range r.Results {
			if res.Outcome != Refused || res.Reason != reason.Busy {
				t.Errorf("page %d: %s", i, show(res))
			}
		}
		w.check()
	})
	t.Run("no record", func(t *testing.T) {
		w := newWorld(t, 1<<30, Options{Ledger: NewLedger(Limits{Pages: 6, Extents: 100})})
		st := testNamespace(1, 1)
		w.do(NamespaceChanged{st})
		f := familyIn(st, testGroup)
		w.publish(f, 0, 0, 6)
		w.lookup(f, 1, 0, 0, 0, 4) // the first four may not go
		r := w.begin(w.beginEvent(chain(f, 1, 0, 4), page.View{}))
		got := ""
		for _, res := range r.Results {
			got += show(res) + "; "
		}
		const granted = "granted h[0,2) l[0,4); "
		if want := granted + granted + "refused busy; refused busy; "; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		w.check()
	})
}

func TestCase_C20_ProbesDoNotStopEviction(t *testing.T) {
	w, f := newTestWorld(t, 1<<20)
	w.publish(f, 0, 0, 20)
	w.publish(f, 1, 0, 20)
	level, _ := w.s.WaterLevel(w.now, evict.Host)
	for range 500 {
		w.now = w.now.Add(time.Millisecond)
		w.leading(f, 0, 0, 20)
		w.leading(f, 1, 0, 20)
	}
	if now, ok := w.s.WaterLevel(w.now, evict.Host); !ok || now != level {
		t.Errorf("probes moved the water level from %v to %v", level, now)
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 30 * 12288})
	if w.reclaimed < 30*12288 || w.tier.used > 10*12288 {
		t.Errorf("reclaimed %d, %d still held", w.reclaimed, w.tier.used)
	}
	w.check()
}

func TestCase_C21_ForgottenLeasesEnd(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 10)
	for i := range 50 {
		w.lookup(f, Principal(1+i%3), Session(i%5), 0, 0, 1+i%10)
	}
	w.check()
	w.do(SessionGone{3})
	if n := w.s.Totals().ReadLeases; n != 40 {
		t.Errorf("%d leases after a session of ten ended", n)
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 1 << 40})
	if n := w.leading(f, 0, 0, 10); n != 10 {
		t.Fatalf("%d of 10 leased pages left", n)
	}
	if w.wake == never {
		t.Fatal("no Wake for the end of the leases")
	}
	w.now = w.wake
	w.tickUntilQuiet()
	if n := w.s.Totals(); n.ReadLeases != 0 || n.PinnedBytes != 0 || n.LeaseTTLEnded != 40 {
		t.Errorf("after their time: %+v", n)
	}
	w.do(Reclaim{Tier: evict.Host, Bytes: 1 << 40})
	if w.tier.used != 0 {
		t.Errorf("%d bytes not evictable", w.tier.used)
	}
	w.check()
}

// A reader that dies in mid-read holds its place until the runtime says ReadDone, and nothing else.
func TestCase_C21_ReaderKilledInMidRead(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 1)
	r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 1)
	w.do(Reclaim{Tier: evict.Host, Bytes: 1})
	if w.tier.used == 0 || w.leading(f, 0, 0, 1) != 0 {
		t.Error("the place was freed under its reader, or the page is still there")
	}
	w.check()
	w.readDone(r.Ticket)
	if w.tier.used != 0 {
		t.Errorf("%d bytes held after the last reader", w.tier.used)
	}
	w.check()
}

func TestCase_C22_DeletedDoesNotComeBack(t *testing.T) {
	t.Run("while it is moved", func(t *testing.T) {
		w, f := newTestWorld(t, 1<<20)
		w.publish(f, 0, 0, 1)
		x := w.s.pages.At(1).extents
		w.do(Move{Extent: x, From: w.s.extents.At(x).place()})
		w.delete(f, 0, 0, 1)
		w.finishTransfer(0, reason.None)
		if n := w.leading(f, 0, 0, 1); n != 0 || w.tier.used != 0 {
			t.Errorf("%d pages, %d bytes", n, w.tier.used)
		}
		w.check()
	})
	t.Run("while it is published", func(t *testing.T) {
		w, f := newTestWorld(t, 1<<20)
		token := w.begin(w.beginEvent(chain(f, 0, 0, 2), page.View{})).Token
		w.commit(f, token, 0)
		w.delete(f, 0, 0, 2)
		if r := w.commit(f, token, 0, 1); r.Reason != reason.StaleToken {
			t.Errorf("commit: %v", r.Reason)
		}
		if n := w.leading(f, 0, 0, 2); n != 0 || w.tier.used != 0 {
			t.Errorf("%d pages, %d bytes", n, w.tier.used)
		}
		w.check()
	})
	t.Run("while places are asked for", func(t *testing.T) {
		w, f := newTestWorld(t, 1<<20)
		w.holdAlloc = true
		b := w.beginEvent(chain(f, 0, 0, 3), page.View{})
		w.do(b)
		w.holdAlloc = false
		w.delete(f, 0, 1, 2)
		w.answer(w.allocs[0], 3)
		r := w.reply(b.Ticket)
		if r.Results[0].Outcome != Granted || r.Results[1].Reason != reason.Aborted || r.Results[2].Outcome != Granted {
			t.Errorf("%s; %s; %s", show(r.Results[0]), show(r.Results[1]), show(r.Results[2]))
		}
		w.allocs = nil
		w.check()
	})
}

func TestCase_C23_PurgeWhileLeasedThenPublishAgain(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 3)
	old := w.lookup(f, 1, 0, 0, 0, 3)
	w.delete(f, 0, 0, 3)
	if n := w.leading(f, 0, 0, 3); n != 0 {
		t.Fatalf("%d deleted pages", n)
	}
	w.publish(f, 0, 0, 3)
	fresh := w.lookup(f, 1, 0, 0, 0, 3)
	w.check()
	a := w.read(f, 1, old.Lease, page.View{}, 0, 1, 2)
	b := w.read(f, 1, fresh.Lease, page.View{}, 0, 1, 2)
	if a.Results[0].Outcome != OK || b.Results[0].Outcome != OK || a.Results[0].Parts[0].Place == b.Results[0].Parts[0].Place {
		t.Errorf("old lease: %s, new lease: %s", show(a.Results[0]), show(b.Results[0]))
	}
	w.readDone(a.Ticket)
	w.readDone(b.Ticket)
	if why := w.readReason(f, 2, old.Lease, page.View{}, 0, 1); why != reason.LeaseExpired {
		t.Errorf("another's lease: %v", why)
	}
	w.do(Release{Principal: 1, Lease: old.Lease})
	if w.tier.used != 3*12288 {
		t.Errorf("%d bytes held, want the new three pages", w.tier.used)
	}
	if why := w.readReason(f, 1, old.Lease, page.View{}, 0, 1); why != reason.LeaseExpired {
		t.Errorf("released lease: %v", why)
	}
	w.check()

	// The same by a new life of the namespace: the old lease ends with its life.
	st := testNamespace(1, 1)
	st.Life = Retired
	w.do(NamespaceChanged{st})
	w.do(NamespaceChanged{testNamespace(1, 2)})
	g := familyIn(testNamespace(1, 2), testGroup)
	w.publish(g, 0, 0, 3)
	if w.leading(g, 0, 0, 3) != 3 || w.leading(f, 0, 0, 3) != 0 || w.s.Totals().ReadLeases != 0 {
		t.Error("the new life is not readable, or the old one is")
	}
	w.tickUntilQuiet()
	w.check()
	if w.tier.used != 3*12288 {
		t.Errorf("%d bytes held after the sweep", w.tier.used)
	}
}

func TestCase_C27_WhatSurvivesOfAChainIsAPrefix(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 100)
	for want := 99; want >= 0; want -= 9 {
		w.now = w.now.Add(time.Second)
		w.read(f, 1, LeaseID{}, page.View{}, 0, want-want/2, want) // uses that are no prefix
		for w.s.Totals().Pages > uint64(want) {
			w.do(Reclaim{Tier: evict.Host, Bytes: 1})
		}
		if n := w.leading(f, 0, 0, 100); n != want {
			t.Fatalf("%d pages left, of which %d lead", want, n)
		}
		w.check()
	}
}

func TestCase_C29_QuotaRefusesTheTail(t *testing.T) {
	const pageBytes = 12288
	for _, quota := range []uint64{0, 1, pageBytes - 1, pageBytes, 5*pageBytes + 1, 100 * pageBytes} {
		w := newWorld(t, 10*pageBytes, Options{})
		st := testNamespace(1, 1)
		st.Quota = quota
		w.do(NamespaceChanged{st})
		f := familyIn(st, testGroup)
		fits := 8
		if quota > 0 {
			fits = min(8, int(quota/pageBytes))
		}
		for round := range 3 { // no oscillation: the answer stays
			r := w.begin(w.beginEvent(chain(f, 0, 0, 8), page.View{}))
			var granted []uint32
			for i, res := range r.Results {
				switch {
				case i < fits && round == 0 && res.Outcome == Granted:
					granted = append(granted, uint32(i))
				case i < fits && round > 0 && res.Outcome == Present:
				case i >= fits && res.Outcome == Refused && res.Reason == reason.QuotaExceeded:
				default:
					t.Errorf("quota %d round %d page %d: %s", quota, round, i, show(res))
				}
			}
			if len(granted) > 0 {
				w.commit(f, r.Token, granted...)
			}
			if n := w.leading(f, 0, 0, 8); n != fits {
				t.Errorf("quota %d: %d pages, want %d", quota, n, fits)
			}
			w.check()
		}
		if u := w.s.Usage(nil); quota > 0 && len(u) > 0 && u[0].Bytes > quota {
			t.Errorf("quota %d: %d bytes held", quota, u[0].Bytes)
		}
	}
}

func TestCase_C41_AllRanksGetOneAnswer(t *testing.T) {
	w, f := tensorWorld(t, false)
	for r := range 5 {
		w.publishView(w.rankBegin(f, 0, r, 8, 1))
	}
	for range 8 { // every rank asks for the page
		if n := w.leading(f, 0, 0, 1); n != 0 {
			t.Fatal("a rank was told that the page is there")
		}
	}
	run := chain(f, 0, 0, 1)
	for r := range 8 {
		if n, _, _ := w.s.Exists(w.wall, &run, rankView(r, 8), make([]byte, 1), 0); n != map[bool]int{true: 1}[r < 5] {
			t.Errorf("rank %d of 8, by view: %d", r, n)
		}
		if r < 4 {
			if n, _, _ := w.s.Exists(w.wall, &run, rankView(r, 4), make([]byte, 1), 0); n != map[bool]int{true: 1}[r < 2] {
				t.Errorf("rank %d of 4, by view: %d", r, n)
			}
		}
	}
	w.advance(59 * time.Second)
	w.publish(smallGroup(f), 5, 0, 1)
	if level, _ := w.s.WaterLevel(w.now, evict.Host); level < 0 {
		t.Error("doomed before its time")
	}
	w.advance(2 * time.Second)
	if level, _ := w.s.WaterLevel(w.now, evict.Host); level >= 0 {
		t.Error("an incomplete page is not evicted first after its time")
	}
	w.check()
}

// smallGroup is testGroup of the same namespace.
func smallGroup(f page.Family) page.Family { f.Group = testGroup; return f }
