package core

import (
	"math/rand/v2"
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

// Nobody waits for a disk that takes nothing, and what is under way may never end: who waits is told when it stops, who comes at
// once. What ends after all is told to nobody again.
func TestNobodyWaitsForADiskThatStopped(t *testing.T) {
	w, f := behindWorld(t, Options{})
	for c := range 3 {
		w.publish(f, c, 0, 2)
	}
	deletes := func(c int) Ticket {
		d := Delete{Ticket: w.ticket(), Runs: []Run{chain(f, c, 0, 2)}}
		w.do(d)
		return d.Ticket
	}
	w.do(WriteBehind{Bytes: 1 << 40})
	persist, gone := w.persist(f, 0, 0, 2), deletes(1)
	if len(w.transfers) != 6 || len(w.replies) == 0 {
		t.Fatalf("%d transfers", len(w.transfers))
	}
	for _, ticket := range []Ticket{persist, gone} {
		if r, ok := w.replies[ticket]; ok {
			t.Fatalf("answered while it is being written: %+v", r)
		}
	}
	w.do(TierState{Tier: evict.Disk})
	later := []Ticket{w.persist(f, 0, 0, 2), deletes(2)}
	for i, ticket := range []Ticket{persist, later[0]} {
		for _, res := range w.reply(ticket).Results {
			if show(res) != "refused busy" {
				t.Errorf("persist %d: %s", i, show(res))
			}
		}
	}
	for i, ticket := range []Ticket{gone, later[1]} {
		if why := w.reply(ticket).Reason; why != reason.Busy {
			t.Errorf("delete %d: %v", i, why)
		}
	}
	w.check()
	answered := len(w.replies)
	w.finishTransfers()
	if len(w.replies) != answered || w.tiersOf(f, 0, 1) != "host disk" || w.leading(f, 1, 0, 2)+w.leading(f, 2, 0, 2) != 0 {
		t.Errorf("%d replies more, page 1 in %q", len(w.replies)-answered, w.tiersOf(f, 0, 1))
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

// A Disk that is full takes what is worth more than its next victim, parents with their children: what is worth less stays
// in Host, is counted, and is offered again when it is used. What is to be durable is not judged.
func TestWriteBehindIsJudged(t *testing.T) {
	w, f := behindWorld(t, Options{Policy: newToyPolicy(byDeclared)})
	write := func() {
		w.do(WriteBehind{Bytes: 1 << 40})
		w.finishTransfers()
		w.check()
	}
	publish := func(c, from int, flops ...float64) {
		w.publishView(w.declaring(f, c, from, flops...))
	}
	wantIn := func(what string, want ...string) {
		t.Helper()
		for c, in := range want {
			if got := w.tiersOf(f, c, 0); in != "" && got != in {
				t.Errorf("%s: chain %d in %q, want %q", what, c, got, in)
			}
		}
	}
	w.disk.capacity = 3 * 12288
	for c, flops := range []float64{50, 10, 40} {
		publish(c, 0, flops)
	}
	w.do(WriteBehind{Bytes: 1})
	if len(w.transfers) != 1 || w.transfers[0].Worth != 50 {
		t.Fatalf("not the worthiest first: %+v", w.transfers)
	}
	w.finishTransfers()
	write()
	wantIn("into an empty disk", "host disk", "host disk", "host disk")

	publish(3, 0, 5)
	publish(4, 0, 20)
	write()
	wantIn("against 10", "host disk", "host", "host disk", "host", "host disk")
	if n := w.s.Totals(); n.Tiers[evict.Disk].NotWorth != 1 || n.Behind != 0 {
		t.Errorf("%d not worth it, %d queued", n.Tiers[evict.Disk].NotWorth, n.Behind)
	}
	write()
	wantIn("again", "", "", "", "host", "")

	slot := w.s.index.find(fingerprintOf(testHash(3, 0), w.s.o.FingerprintKey), w.s.families.ids[f])
	w.s.pages.At(slot).declared = 45
	w.do(Touch{Ticket: w.ticket(), Runs: []Run{chain(f, 3, 0, 1)}})
	if w.behindBytes() != 12288 {
		t.Error("what is used is not offered again")
	}
	write()
	wantIn("used", "host disk", "host", "host disk", "host disk", "host")

	// A run goes as one, by its best, and not at all without its beginning.
	publish(5, 0, 1, 2, 60)
	write()
	if w.tiersOf(f, 5, 0) != "host disk" || w.tiersOf(f, 5, 2) != "host disk" {
		t.Errorf("a run with one dear page: %q %q %q", w.tiersOf(f, 5, 0), w.tiersOf(f, 5, 1), w.tiersOf(f, 5, 2))
	}
	publish(6, 0, 1, 2, 3)
	w.do(WriteBehind{Bytes: 1 << 40})
	w.finishTransfer(0, reason.None)
	w.disk.capacity += 12288 // room for its child; without its parent it is not taken
	w.finishTransfers()
	w.check()
	if w.tiersOf(f, 6, 1) != "host" || w.tiersOf(f, 6, 2) != "host" {
		t.Errorf("in %q and %q without what is before", w.tiersOf(f, 6, 1), w.tiersOf(f, 6, 2))
	}

	a := w.persist(f, 6, 0, 3)
	w.finishTransfers()
	if r := w.reply(a); r.Results[0].Outcome != Committed || r.Results[2].Outcome != Committed {
		t.Errorf("durable: %s %s", show(r.Results[0]), show(r.Results[2]))
	}
	w.check()
}

// A path that is longer than what is asked for at a time goes in parts, and is given up when these are refused.
func TestWriteBehindEndsWhereAPathIsRefused(t *testing.T) {
	for _, refused := range []bool{true, false} {
		w, f := behindWorld(t, Options{Policy: newToyPolicy(byDeclared)})
		w.publishView(w.declaring(f, 0, 0, 50))
		w.do(WriteBehind{Bytes: 1 << 40})
		w.finishTransfers()
		if refused {
			w.disk.capacity = 12288
		}
		w.publishView(w.declaring(f, 1, 0, 1, 2, 3, 4, 5))
		for range 20 {
			w.do(WriteBehind{Bytes: 12288})
			w.finishTransfers()
		}
		n, in := w.s.Totals(), "host disk"
		if refused {
			in = "host"
		}
		if n.Behind != 0 || n.Tiers[evict.Disk].NotWorth > 5 || w.tiersOf(f, 1, 4) != in {
			t.Errorf("refused %v: %d queued, %d refused; the last in %q", refused, n.Behind, n.Tiers[evict.Disk].NotWorth, w.tiersOf(f, 1, 4))
		}
		w.check()
	}
}

// A page that is to be durable while it is written behind, and refused, is written all the same.
func TestDurableWaitsForNoJudgement(t *testing.T) {
	w, f := behindWorld(t, Options{Policy: newToyPolicy(byDeclared)})
	w.disk.capacity = 12288
	w.publishView(w.declaring(f, 0, 0, 50))
	w.do(WriteBehind{Bytes: 1 << 40})
	w.finishTransfers()
	w.publishView(w.declaring(f, 1, 0, 5))
	w.do(WriteBehind{Bytes: 1 << 40})
	a := w.persist(f, 1, 0, 1)
	w.finishTransfer(0, reason.None)
	if len(w.transfers) != 1 || w.transfers[0].Worth != evict.MaxScore {
		t.Fatalf("refused and not begun again: %+v", w.transfers)
	}
	w.check()
	w.finishTransfers()
	if r := w.reply(a); r.Results[0].Outcome != Committed || w.tiersOf(f, 1, 0) != "host disk" {
		t.Errorf("%s, in %q", show(r.Results[0]), w.tiersOf(f, 1, 0))
	}
	w.check()

	w.publishView(w.declaring(f, 2, 0, 1))
	w.do(WriteBehind{Bytes: 1 << 40})
	b := w.persist(f, 2, 0, 1)
	w.do(Delete{Ticket: w.ticket(), Runs: []Run{chain(f, 2, 0, 1)}})
	w.finishTransfers()
	if r := w.reply(b); r.Results[0].Outcome != Refused {
		t.Errorf("deleted meanwhile: %s", show(r.Results[0]))
	}
	w.check()
}

// What is read from Disk and worth less than all that Host would drop for it serves its Reads, and goes with them.
func TestPromotionIsJudged(t *testing.T) {
	w, f := behindWorld(t, Options{Policy: newToyPolicy(byDeclared)})
	w.publishView(w.declaring(f, 0, 0, 5, 6))
	w.do(WriteBehind{Bytes: 1 << 40})
	w.finishTransfers()
	w.reclaimAll(evict.Host)
	w.tier.capacity = 3 * 12288
	w.publishView(w.declaring(f, 1, 0, 1, 50, 60))
	for _, want := range []string{"disk", "host disk"} { // the second time what went for the first has left room
		r := w.read(f, 1, LeaseID{}, page.View{}, 0, 0, 2)
		w.promote(r)
		w.finishTransfers()
		if len(w.landed) != 2 || w.landed[0].Err != reason.None || w.landed[1].Err != reason.None {
			t.Fatalf("landed %+v", w.landed)
		}
		w.check()
		w.readDone(r.Ticket)
		w.check()
		if w.tiersOf(f, 0, 0) != want || w.tiersOf(f, 0, 1) != want {
			t.Errorf("in %q and %q, want %q", w.tiersOf(f, 0, 0), w.tiersOf(f, 0, 1), want)
		}
	}
	if n := w.s.Totals().Tiers[evict.Host]; n.NotWorth != 2 || n.Evicted != 2+2 {
		t.Errorf("%d did not stay, %d pages were evicted", n.NotWorth, n.Evicted)
	}
}

// The queue is bounded, reuses its memory, gives the worthiest first, the first queued of those worth the same, and when
// full leaves out what is worth less than its last.
func TestBehindQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	q := behindQueue{max: 100}
	model := map[uint32]behindPage{}
	best := func() (b behindPage) {
		for _, p := range model {
			if b.ref.Slot == 0 || p.worth > b.worth || p.worth == b.worth && p.ref.Slot < b.ref.Slot {
				b = p
			}
		}
		return b
	}
	left := 0
	for i := uint32(1); i <= 20_000; i++ {
		p := behindPage{ref: PageRef{Slot: i}, bytes: uint64(r.IntN(9)), worth: evict.Score(r.IntN(50))}
		before := q.len()
		out, full := q.push(p)
		model[i] = p
		if full != (before == 100) || full != (out.Slot != 0) || full && !q.missed {
			t.Fatalf("page %d into %d: left out %v, %v", i, before, out, full)
		}
		if full {
			if model[out.Slot].worth > p.worth {
				t.Fatalf("%v is left out for %v", model[out.Slot], p)
			}
			left++
			delete(model, out.Slot)
		}
		for r.IntN(100) < 49 && !q.empty() {
			b := best()
			if q.items[0].ref != b.ref || q.items[0].worth != b.worth {
				t.Fatalf("first is %v, want %v", q.items[0], b)
			}
			if r.IntN(3) == 0 {
				b.worth = max(b.worth-evict.Score(r.IntN(20)), 0)
				model[b.ref.Slot] = b
				if first := q.lower(b.worth); first != (best().ref == b.ref) {
					t.Fatalf("%v is first: %v, want %v", b, first, best())
				}
				continue
			}
			q.pop()
			delete(model, b.ref.Slot)
		}
	}
	var bytes uint64
	for _, p := range model {
		bytes += p.bytes
	}
	if q.len() != len(model) || q.bytes != bytes || cap(q.items) > 1000 || left == 0 {
		t.Errorf("%d pages of %d bytes in room for %d, want %d of %d; %d left out", q.len(), q.bytes, cap(q.items), len(model), bytes, left)
	}
}
