package core

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// fatalist is what *testing.T and *rapid.T share.
type fatalist interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// fakeTier hands out places of which no two are ever the same, and knows what is read and written.
type fakeTier struct {
	t        fatalist
	capacity int64
	used     int64
	next     int64
	live     map[Place]bool
	readers  map[Place]int // reads and transfers under way
}

func newFakeTier(t fatalist, capacity int64) *fakeTier {
	return &fakeTier{t: t, capacity: capacity, live: map[Place]bool{}, readers: map[Place]int{}}
}

func (f *fakeTier) alloc(t evict.Tier, bytes int64) (Place, bool) {
	held := int64(roundUp(uint64(bytes)))
	if f.used+held > f.capacity {
		return Place{}, false
	}
	p := Place{Tier: t, Handle: uint32(1 + f.next>>30), Offset: f.next & (1<<30 - 1), Bytes: bytes}
	f.next += held
	f.used += held
	f.live[p] = true
	return p, true
}

func (f *fakeTier) free(p Place) {
	f.t.Helper()
	switch {
	case !f.live[p]:
		f.t.Fatalf("free of %v, which is not live", p)
	case f.readers[p] > 0:
		f.t.Fatalf("free of %v while %d read it", p, f.readers[p])
	}
	delete(f.live, p)
	f.used -= int64(roundUp(uint64(p.Bytes)))
}

func (f *fakeTier) use(p Place, by int) {
	f.t.Helper()
	if !f.live[p] {
		f.t.Fatalf("use of %v, which is not live", p)
	}
	if f.readers[p] += by; f.readers[p] == 0 {
		delete(f.readers, p)
	}
}

// world runs one shard over a fakeTier, and another for Disk, as the runtime would.
type world struct {
	t     fatalist
	s     *Shard
	tier  *fakeTier
	disk  *fakeTier
	now   clock.Instant
	wall  clock.Wall
	ticks Ticket

	replies   map[Ticket]Reply
	landed    []Landed
	reading   map[Ticket][]Place
	effects   []Effect // of the last do, Steps that followed from it included
	holdAlloc bool     // keep Allocs in allocs instead of answering
	allocs    []Alloc
	transfers []Transfer
	restored  []uint32
	behind    bool // asked for a WriteBehind
	reclaimed uint64
	notWorth  bool // of the last Reclaim
	wake      clock.Instant
	onEffect  func(Effect)
	makeRoom  func(Reclaim) (freed uint64, notWorth bool)
}

func newWorld(t fatalist, capacity int64, o Options) *world {
	if o.Policy == nil {
		o.Policy = evict.NewLRU(1 << 16)
	}
	if o.Ledger == nil {
		o.Ledger = NewLedger(Limits{Pages: 4096, Extents: 8192})
	}
	o.Boot = [16]byte{0xb0}
	o.Policy = witnessOf(t, o.Policy)
	w := &world{
		t: t, s: New(o), tier: newFakeTier(t, capacity), disk: newFakeTier(t, 1<<40), wall: 1000, wake: never,
		replies: map[Ticket]Reply{}, reading: map[Ticket][]Place{},
	}
	w.makeRoom = w.reclaim
	return w
}

// at is the tier of a place.
func (w *world) at(t evict.Tier) *fakeTier {
	if t == evict.Disk {
		return w.disk
	}
	return w.tier
}

func (w *world) ticket() Ticket { w.ticks++; return w.ticks }

// do applies ev and carries out the effects, as far as the test does not hold them.
func (w *world) do(ev Event) {
	w.t.Helper()
	w.effects = w.effects[:0]
	w.step(ev)
}

func (w *world) step(ev Event) {
	w.t.Helper()
	r, reclaims := ev.(Reclaim)
	var before *guarantees
	if reclaims {
		before = w.guarantees(r)
	}
	out := w.s.Step(w.now, w.wall, ev, nil)
	if reclaims {
		w.checkEvictions(r, before, out)
	}
	w.effects = append(w.effects, out...)
	for _, e := range out {
		w.carryOut(e)
	}
}

func (w *world) carryOut(e Effect) {
	w.t.Helper()
	if w.onEffect != nil {
		w.onEffect(e)
	}
	switch e := e.(type) {
	case Reply:
		if _, twice := w.replies[e.Ticket]; twice {
			w.t.Fatalf("ticket %d answered twice", e.Ticket)
		}
		w.replies[e.Ticket] = e
		for _, r := range e.Results {
			for _, p := range r.Parts {
				w.at(p.Place.Tier).use(p.Place, 1)
				w.reading[e.Ticket] = append(w.reading[e.Ticket], p.Place)
			}
		}
	case Landed:
		if w.landed = append(w.landed, e); e.Err == reason.None {
			w.at(e.Place.Tier).use(e.Place, 1)
			w.reading[e.Ticket] = append(w.reading[e.Ticket], e.Place)
		}
	case Restored:
		w.restored = slices.Clone(e.Extents)
	case Behind:
		w.behind = true
	case Free:
		w.at(e.Place.Tier).free(e.Place)
	case Alloc:
		if w.holdAlloc {
			w.allocs = append(w.allocs, e)
			return
		}
		w.answer(e, len(e.Items))
	case Transfer:
		w.at(e.From.Tier).use(e.From, 1)
		w.transfers = append(w.transfers, e)
	case Reclaimed:
		w.reclaimed, w.notWorth = e.Bytes, e.NotWorth
	case Wake:
		w.wake = e.At
	}
}

// answer gives an Alloc at most n places, making room once for each that does not fit.
func (w *world) answer(a Alloc, n int) {
	w.t.Helper()
	done := Allocated{ID: a.ID}
	for _, item := range a.Items[:n] {
		p, ok := w.tier.alloc(a.Tier, item.Bytes)
		if !ok {
			notWorth := w.roomFor(Reclaim{Tier: a.Tier, Bytes: roundUp(uint64(item.Bytes)), Tenant: a.Tenant, Judge: true, Worth: a.Worth})
			if p, ok = w.tier.alloc(a.Tier, item.Bytes); !ok {
				if notWorth {
					done.Err = reason.NotWorth
				}
				break
			}
		}
		done.Places = append(done.Places, p)
	}
	w.step(done)
}

// roomFor makes room as the runtime does: first of what is beyond guarantees, then of the tenant's own.
func (w *world) roomFor(r Reclaim) (notWorth bool) {
	w.t.Helper()
	for _, r.Own = range []bool{false, true} {
		freed, no := w.makeRoom(r)
		if freed > 0 {
			return false
		}
		notWorth = notWorth || no
	}
	return notWorth
}

func (w *world) reclaim(r Reclaim) (freed uint64, notWorth bool) {
	w.t.Helper()
	w.step(r)
	return w.reclaimed, w.notWorth
}

// finishTransfer ends one that is under way as the runtime does; NotWorth, of one to Host, is that it does not stay there.
func (w *world) finishTransfer(i int, err reason.Reason) {
	w.t.Helper()
	tr := w.transfers[i]
	w.transfers = append(w.transfers[:i], w.transfers[i+1:]...)
	w.at(tr.From.Tier).use(tr.From, -1)
	done := TransferDone{ID: tr.ID, Err: err}
	if err == reason.NotWorth && tr.To == evict.Host {
		done.Err, done.Passing = reason.None, tr.From.Tier != evict.Host
	}
	switch {
	case done.Err != reason.None:
	case tr.To == evict.Disk && tr.Worth < evict.MaxScore && !w.s.Follows(tr.ID):
		done.Err = reason.NotWorth
	default:
		w.place(&done, tr)
	}
	w.do(done)
}

// place finds a place for what a transfer brings.
func (w *world) place(done *TransferDone, tr Transfer) {
	w.t.Helper()
	p, ok := w.at(tr.To).alloc(tr.To, tr.From.Bytes)
	r := Reclaim{Tier: tr.To, Bytes: roundUp(uint64(tr.From.Bytes)), Judge: true, Worth: tr.Worth}
	for !ok && tr.To != tr.From.Tier {
		r.Tenant = w.s.epochs.byKey[epochKey{tr.Namespace, tr.Epoch}].state.Tenant
		notWorth := w.roomFor(r)
		if p, ok = w.at(tr.To).alloc(tr.To, tr.From.Bytes); ok || !notWorth {
			break
		}
		if tr.To == evict.Disk {
			done.Err = reason.NotWorth
			return
		}
		done.Passing, r.Judge = true, false
	}
	if done.To = p; !ok {
		done.Err, done.Passing = reason.Busy, false
	}
}

// finishTransfers ends all that are under way, well.
func (w *world) finishTransfers() {
	w.t.Helper()
	for len(w.transfers) > 0 {
		w.finishTransfer(0, reason.None)
	}
}

func (w *world) readDone(t Ticket) {
	w.t.Helper()
	for _, p := range w.reading[t] {
		w.at(p.Tier).use(p, -1)
	}
	delete(w.reading, t)
	w.do(ReadDone{Ticket: t})
}

// reply is the answer to a ticket.
func (w *world) reply(t Ticket) Reply {
	w.t.Helper()
	r, ok := w.replies[t]
	if !ok {
		w.t.Fatalf("ticket %d is not answered", t)
	}
	return r
}

// advance moves both clocks and ticks as often as it is asked to.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(d)
	w.wall = 1000 + clock.Wall(time.Duration(w.now)/time.Second)
	w.tickUntilQuiet()
}

func (w *world) tickUntilQuiet() {
	w.t.Helper()
	for range 10000 {
		w.wake = never
		w.do(Tick{})
		if w.wake > w.now {
			return
		}
	}
	w.t.Fatalf("the shard never comes to rest")
}

// check verifies shard, ledger and tier against each other.
func (w *world) check() {
	w.t.Helper()
	if err := w.s.Check(); err != nil {
		w.t.Fatalf("check: %v", err)
	}
	if err := w.s.o.Ledger.Check(w.s); err != nil {
		w.t.Fatalf("check: %v", err)
	}
	if err := w.checkLeaves(); err != nil {
		w.t.Fatalf("check: %v", err)
	}
	if len(w.s.allocs) > 0 || len(w.transfers) > 0 { // places on their way
		return
	}
	var bytes tierBytes
	for _, u := range w.s.Usage(nil) {
		for t, n := range u.Tiers {
			bytes[t] += n
		}
	}
	if want := (tierBytes{evict.Host: uint64(w.tier.used), evict.Disk: uint64(w.disk.used)}); bytes != want {
		w.t.Fatalf("the shard accounts for %d bytes, the tiers hold %d", bytes, want)
	}
}

// ---- what tests publish

const testHashBytes = 32

var (
	testGroup  = page.GroupID{1}
	aloneGroup = page.GroupID{2} // ParentNone
	windGroup  = page.GroupID{3} // ParentWindow
	wholeGroup = page.GroupID{4} // cannot be cut
)

// testGeometry is 2 heads by 4 layers of 1,000 bytes: a whole page holds 8,000 bytes and a header page.
func testGeometry() Geometry {
	return Geometry{Heads: 2, Layers: 4, CellBytes: 1000, Tokens: 16, Grade: page.Elements}
}

func testNamespace(id byte, e page.Epoch) NamespaceState {
	alone, wind, whole := testGeometry(), testGeometry(), testGeometry()
	alone.Parents, wind.Parents, whole.Grade = ParentNone, ParentWindow, page.Whole
	return NamespaceState{
		ID: page.NamespaceID{id}, Epoch: e, Life: Active, Tenant: 1, HashBytes: testHashBytes,
		Groups:  map[page.GroupID]Geometry{testGroup: testGeometry(), aloneGroup: alone, windGroup: wind, wholeGroup: whole},
		Accepts: []uint64{1<<1 | 1<<2 | 1<<3},
	}
}

func familyIn(st NamespaceState, g page.GroupID) page.Family {
	return page.Family{Namespace: st.ID, Epoch: st.Epoch, Group: g}
}

// testHash names page d of chain c.
func testHash(c, d int) []byte {
	h := make([]byte, testHashBytes)
	copy(h, "test hash of a page, chain, depth")
	binary.LittleEndian.PutUint32(h[20:], uint32(c))
	binary.LittleEndian.PutUint32(h[24:], uint32(d))
	return h
}

func mustHash(b []byte) page.Hash {
	h, err := page.MakeHash(b)
	if err != nil {
		panic(err)
	}
	return h
}

// chain is pages [from, to) of chain c.
func chain(f page.Family, c, from, to int) Run {
	r := Run{Family: f}
	for d := from; d < to; d++ {
		r.Hashes = append(r.Hashes, testHash(c, d)...)
	}
	return r
}

func cellsOf(g Geometry, v page.View) uint64 {
	if v == (page.View{}) {
		v = g.Full()
	}
	return page.PayloadBytes(v, g.CellBytes)
}

// beginEvent publishes a run with one view; the first page is a root, or names the page before it.
func (w *world) beginEvent(r Run, v page.View) Begin {
	b := Begin{Ticket: w.ticket(), Principal: 1, Run: r, Provenance: 1, ProvBytes: 40, TTL: 10 * time.Second}
	for i := range len(r.Hashes) / testHashBytes {
		pg := BeginPage{Link: LinkPrevious, View: v, PayloadBytes: cellsOf(testGeometry(), v)}
		h := r.Hashes[i*testHashBytes:][:testHashBytes]
		if d := binary.LittleEndian.Uint32(h[24:]); i == 0 && d == 0 {
			pg.Link = LinkRoot
		} else if i == 0 {
			pg.Link, pg.Parent = LinkHash, mustHash(testHash(int(binary.LittleEndian.Uint32(h[20:])), int(d)-1))
		}
		b.Pages = append(b.Pages, pg)
	}
	return b
}

func (w *world) begin(b Begin) Reply {
	w.t.Helper()
	w.do(b)
	if w.holdAlloc {
		return w.replies[b.Ticket]
	}
	return w.reply(b.Ticket)
}

func (w *world) commitEvent(f page.Family, by Principal, t Token, pages ...uint32) Commit {
	return Commit{Ticket: w.ticket(), Principal: by, Namespace: f.Namespace, Epoch: f.Epoch, Token: t, Pages: pages}
}

func (w *world) commit(f page.Family, t Token, pages ...uint32) Reply {
	w.t.Helper()
	c := w.commitEvent(f, 1, t, pages...)
	w.do(c)
	return w.reply(c.Ticket)
}

// publish begins and commits whole pages, all of which must be granted.
func (w *world) publish(f page.Family, c, from, to int) {
	w.t.Helper()
	w.publishView(w.beginEvent(chain(f, c, from, to), page.View{}))
}

func (w *world) publishView(b Begin) {
	w.t.Helper()
	r := w.begin(b)
	var pages []uint32
	for i, res := range r.Results {
		if res.Outcome != Granted {
			w.t.Fatalf("page %d: %s", i, show(res))
		}
		pages = append(pages, uint32(i))
	}
	for _, res := range w.commit(b.Run.Family, r.Token, pages...).Results {
		if res.Outcome != Committed {
			w.t.Fatalf("commit: %s", show(res))
		}
	}
}

// leading is how many pages of a chain exist, whole, from the first on.
func (w *world) leading(f page.Family, c, from, to int) int {
	w.t.Helper()
	r := chain(f, c, from, to)
	n, _, _ := w.s.Exists(w.wall, &r, page.View{}, make([]byte, (to-from+7)/8), 0)
	return n
}

func (w *world) lookup(f page.Family, by Principal, session Session, c, from, to int) Reply {
	w.t.Helper()
	l := Lookup{Ticket: w.ticket(), Principal: by, Session: session, Runs: []Run{chain(f, c, from, to)}, TTL: 10 * time.Second}
	w.do(l)
	return w.reply(l.Ticket)
}

func (w *world) read(f page.Family, by Principal, l LeaseID, v page.View, c, from, to int) Reply {
	w.t.Helper()
	r := Read{Ticket: w.ticket(), Principal: by, Run: chain(f, c, from, to), View: v, Lease: l}
	w.do(r)
	return w.reply(r.Ticket)
}

// readReason reads one page and lets go of it at once.
func (w *world) readReason(f page.Family, by Principal, l LeaseID, v page.View, c, d int) reason.Reason {
	w.t.Helper()
	r := w.read(f, by, l, v, c, d, d+1)
	w.readDone(r.Ticket)
	return r.Results[0].Reason
}

func (w *world) delete(f page.Family, c, from, to int) Reply {
	w.t.Helper()
	d := Delete{Ticket: w.ticket(), Runs: []Run{chain(f, c, from, to)}}
	w.do(d)
	return w.reply(d.Ticket)
}

// persist asks for pages of a chain on Disk; the Reply may come later.
func (w *world) persist(f page.Family, c, from, to int) Ticket {
	w.t.Helper()
	p := Persist{Ticket: w.ticket(), Run: chain(f, c, from, to)}
	w.do(p)
	return p.Ticket
}

// settleOnDisk brings pages of a chain to Disk at once.
func (w *world) settleOnDisk(f page.Family, c, from, to int) {
	w.t.Helper()
	t := w.persist(f, c, from, to)
	w.finishTransfers()
	for i, res := range w.reply(t).Results {
		if res.Outcome != Committed {
			w.t.Fatalf("persist of page %d: %s", i, show(res))
		}
	}
}

// tiersOf names the tiers in which a page has copies.
func (w *world) tiersOf(f page.Family, c, d int) string {
	var in [evict.NumTiers]bool
	for _, p := range w.s.Explain(w.now, w.wall, &page.Key{Family: f, Hash: mustHash(testHash(c, d))}).Parts {
		in[p.Place.Tier] = true
	}
	s := ""
	for t := range evict.NumTiers {
		if in[t] {
			s += " " + t.String()
		}
	}
	return strings.TrimSpace(s)
}

var outcomeNames = []string{"?", "ok", "granted", "present", "committed", "miss", "refused"}

// show prints a result for scripts and failures.
func show(r Result) string {
	s := outcomeNames[r.Outcome]
	if r.Reason != reason.None {
		s += " " + r.Reason.String()
	}
	for _, g := range r.Grants {
		s += fmt.Sprintf(" %v", g.View)
	}
	for _, p := range r.Parts {
		s += fmt.Sprintf(" %v", p.Take)
		if !p.Accepted {
			s += "!"
		}
	}
	return s
}

func newTestWorld(t *testing.T, capacity int64) (*world, page.Family) {
	w := newWorld(t, capacity, Options{})
	st := testNamespace(1, 1)
	w.do(NamespaceChanged{st})
	return w, familyIn(st, testGroup)
}
