package core

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// The driver of the model test: random events to a shard over a fake tier and to the model beside it.
type driver struct {
	t     *rapid.T
	w     *world
	m     *model
	event Event
	added []Announce // of the current event
	first bool       // no victim yet in the current event
	rest  bool       // the sweep rested before the current event
	ended map[Place]bool
	open  []Ticket       // reads
	asked []asked        // Begins whose Alloc is held back
	begun func([]Result) // lets the model decide the Begin under way
}

// asked is a Begin that waits for its places.
type asked struct {
	ticket Ticket
	alloc  Alloc
	keys   []mkey
	want   []expect
	pub    *mpub
	name   Token // its key in model.pubs while it has no token
}

var modelGroups = []page.GroupID{testGroup, aloneGroup, windGroup}

const (
	modelChains = 2
	modelDepth  = 5
	modelTier   = 14 * 12288 // bytes: fewer than the pages there could be
	modelDisk   = 10 * 12288
)

func newDriver(t *rapid.T) *driver {
	limits := Limits{Capacity: [evict.NumTiers]uint64{evict.Host: modelTier, evict.Disk: modelDisk}, Pages: 14, Extents: 30}
	d := &driver{t: t, ended: map[Place]bool{}}
	policy := evict.Policy(evict.NewLRU(256))
	if rapid.Bool().Draw(t, "vbr") {
		policy = evict.NewVBR(256, 1)
	}
	d.w = newWorld(t, modelTier, Options{Ledger: NewLedger(limits), SweepRecords: 8, Policy: policy, WriteBehind: true, MaxBehind: 5})
	d.w.disk.capacity = modelDisk
	d.m = newModel(testNamespace(1, 1), limits)
	d.w.onEffect = d.observe
	d.do(NamespaceChanged{d.m.st})
	return d
}

func (d *driver) do(ev Event) {
	d.t.Helper()
	d.prepare(ev)
	d.w.do(ev)
}

// prepare prepares for one event.
func (d *driver) prepare(ev Event) {
	d.added, d.event, d.first = d.added[:0], ev, true
	d.rest = d.w.s.sweep.cursor == 0 && !d.w.s.sweep.again
	d.m.expire(d.w.now)
}

// observe holds announcements against the model: removals are applied as they are told, additions are for commit.
func (d *driver) observe(e Effect) {
	if a, ok := e.(Alloc); ok && d.begun != nil {
		d.begun(d.w.s.allocs[a.ID].results) // what is evicted to make room comes after the grants
	}
	if tr, ok := e.(Transfer); ok {
		if _, ok := d.event.(WriteBehind); ok {
			d.written(tr)
		}
	}
	a, ok := e.(Announce)
	if !ok || a.Family.Epoch != d.m.st.Epoch {
		return
	}
	if !a.Removed {
		d.added = append(d.added, a)
		return
	}
	if d.ended[a.Place] {
		return // another extent of a page that ended with the first
	}
	k, found := d.find(a.Place)
	if found && a.Why != reason.Corrupt && a.Why != reason.Provenance {
		for _, e := range d.m.pages[k].ext {
			for _, at := range e.places {
				if a.Why != reason.None || at.Tier == a.Place.Tier {
					d.ended[at] = true
				}
			}
		}
	}
	if !found {
		d.t.Fatalf("removal of an extent at %v that the model does not know (%v)", a.Place, a.Why)
	}
	switch a.Why {
	case reason.None:
		d.evicted(k, a.Place.Tier)
	case reason.Expired:
		if p := d.m.pages[k]; p.expiry == 0 || d.w.wall < p.expiry {
			d.t.Fatalf("%v expired before its time", k)
		}
		d.m.end(k)
	case reason.Absent:
		if _, ok := d.event.(Delete); !ok {
			d.t.Fatalf("%v deleted by %T", k, d.event)
		}
		d.m.end(k)
	case reason.Corrupt, reason.Provenance:
		if err := d.m.drop(k, a.Place); err != nil {
			d.t.Fatalf("%v", err)
		}
	default:
		d.t.Fatalf("%v removed: %v", k, a.Why)
	}
}

// find is the page that has a committed extent at p, or had one until this very event.
func (d *driver) find(p Place) (mkey, bool) {
	for k, pg := range d.m.pages {
		for _, e := range pg.ext {
			if slices.Contains(e.places, p) {
				return k, true
			}
		}
	}
	return mkey{}, false
}

func (d *driver) evicted(k mkey, t evict.Tier) {
	if !d.m.evictable(k, t, d.copiedTo) {
		d.t.Fatalf("%v was evicted from %v and is no leaf, or held", k, t)
	}
	r, reclaim := d.event.(Reclaim)
	if d.first && d.rest && reclaim && !r.Clean && !d.m.doomed(k, d.w.wall) {
		for other := range d.m.pages {
			if _, h, _ := d.m.cells(d.m.pages[other]); (h != 0 || d.m.orphan(other)) && d.m.evictable(other, t, d.copiedTo) {
				d.t.Fatalf("%v was evicted from %v before %v, which is doomed", k, t, other)
			}
		}
	}
	if r.Clean {
		for _, e := range d.m.pages[k].ext {
			if _, ok := e.in(evict.Disk); !ok {
				d.t.Fatalf("%v is not on Disk, and was evicted as clean", k)
			}
		}
	}
	d.first = false
	d.m.evict(k, t)
	d.m.gc()
}

// copiedTo lists where copies of a page are under way to; for a move, its own tier.
func (d *driver) copiedTo(k mkey) (to []evict.Tier) {
	for _, tr := range d.w.transfers {
		if x, ok := d.find(tr.From); ok && x == k {
			to = append(to, tr.To)
		}
	}
	return to
}

// ---- draws

func (d *driver) int(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(d.t, name) }

func (d *driver) chance(name string, percent int) bool { return d.int(name, 0, 99) < percent }

func (d *driver) group() page.GroupID { return modelGroups[d.int("group", 0, len(modelGroups)-1)] }

func (d *driver) view() page.View {
	return []page.View{{}, {}, {}, {H0: 0, H1: 1, L0: 0, L1: 4}, {H0: 1, H1: 2, L0: 0, L1: 4}, {H0: 0, H1: 2, L0: 1, L1: 3},
		{H0: 0, H1: 1, L0: 0, L1: 1}, {H0: 0, H1: 2, L0: 2, L1: 4}}[d.int("view", 0, 7)]
}

// run is a stretch of a chain in the current life.
func (d *driver) run() (Run, []mkey) {
	g, c := d.group(), d.int("chain", 0, modelChains-1)
	from := d.int("from", 0, modelDepth-1)
	to := d.int("to", from+1, modelDepth)
	var keys []mkey
	for i := from; i < to; i++ {
		keys = append(keys, mkey{g, c, i})
	}
	return chain(familyIn(d.m.st, g), c, from, to), keys
}

func (d *driver) principal() Principal { return Principal(d.int("principal", 1, 2)) }
func (d *driver) session() Session     { return Session(d.int("session", 0, 2)) }

// ---- events

func (d *driver) beginBatch() {
	run, keys := d.run()
	b := Begin{Ticket: d.w.ticket(), Principal: d.principal(), Session: d.session(), Run: run, ProvBytes: 40,
		Provenance: uint16(d.int("provenance", 1, 3)), TTL: time.Duration(d.int("ttl", 1, 20)) * time.Second}
	if d.chance("twice", 10) { // the last page twice
		keys = append(keys, keys[len(keys)-1])
		b.Run.Hashes = append(b.Run.Hashes, b.Run.Hashes[len(b.Run.Hashes)-testHashBytes:]...)
	}
	v := d.view()
	for i, k := range keys {
		pg := BeginPage{Link: LinkPrevious, View: v, PayloadBytes: cellsOf(testGeometry(), v)}
		switch {
		case i == 0 && k.d == 0:
			pg.Link = LinkRoot
		case i == 0:
			pg.Link, pg.Parent = LinkHash, mustHash(testHash(k.c, k.d-1))
		}
		switch d.int("odd", 0, 19) {
		case 0:
			pg.PayloadBytes++
		case 1:
			pg.Link = LinkUnknown
		case 2:
			pg.Link, pg.Parent = LinkHash, mustHash(testHash(k.c, d.int("parent", 0, modelDepth-1)))
		case 3:
			pg.Expiry = d.w.wall + clock.Wall(d.int("life", 0, 30))
		}
		b.Pages = append(b.Pages, pg)
	}
	pub := &mpub{by: payer{b.Principal, b.Session}, pages: map[uint32]*mgrant{}, done: map[uint32]Outcome{}}
	var want []expect
	d.begun = func(got []Result) {
		full := func(i int) bool { return got[i].Reason == reason.Busy }
		want, d.begun = d.m.begin(&b, keys, d.w.wall, pub, full), nil
		for i, e := range want {
			if e.outcome != got[i].Outcome || e.why != got[i].Reason {
				d.t.Fatalf("begin page %d %v: got %s, want %v %v", i, keys[i], show(got[i]), outcomeNames[e.outcome], e.why)
			}
		}
	}
	d.w.holdAlloc = d.chance("hold", 20)
	d.do(b)
	d.w.holdAlloc = false
	if len(d.w.allocs) > 0 {
		q := asked{b.Ticket, d.w.allocs[0], keys, want, pub, Token{Boot: [16]byte{1}, Seq: uint64(b.Ticket)}}
		d.w.allocs, d.asked = nil, append(d.asked, q)
		pub.until, pub.asking = never, true
		d.m.pubs[q.name] = pub
		d.m.gc()
		return
	}
	r := d.w.reply(b.Ticket)
	if !accepts1(d.m.st.Accepts, b.Provenance) || d.w.s.readOnly[evict.Host] {
		if r.Reason != reason.Provenance && r.Reason != reason.Busy || r.Token != (Token{}) {
			d.t.Fatalf("begin: %v", r.Reason)
		}
		d.begun = nil
		return
	}
	if d.begun != nil { // nothing was granted
		d.begun(r.Results)
	}
	pub.until = r.Until
	d.expectBegin(keys, want, pub, r)
}

// answer lets one Begin that waits have some of its places.
func (d *driver) answer() {
	if len(d.asked) == 0 {
		return
	}
	i := d.int("asked", 0, len(d.asked)-1)
	q := d.asked[i]
	d.asked = slices.Delete(d.asked, i, i+1)
	d.prepare(Tick{}) // time acts before the places come
	pub := d.m.pubs[q.name]
	delete(d.m.pubs, q.name)
	d.w.effects = d.w.effects[:0]
	d.w.answer(q.alloc, d.int("places", 0, len(q.alloc.Items)))
	r := d.w.reply(q.ticket)
	if pub == nil { // its session or its namespace ended meanwhile
		if r.Reason != reason.Aborted && r.Reason != reason.Retired {
			d.t.Fatalf("begin that was ended: %v", r.Reason)
		}
		return
	}
	for i := range q.want {
		if q.want[i].outcome == Granted && pub.pages[uint32(i)] == nil { // deleted meanwhile
			q.want[i] = expect{outcome: Refused, why: reason.Aborted}
		}
	}
	pub.asking, pub.until = false, r.Until
	d.expectBegin(q.keys, q.want, pub, r)
}

func (d *driver) expectBegin(keys []mkey, want []expect, pub *mpub, r Reply) {
	short := false
	for i, e := range want {
		got := r.Results[i]
		if e.outcome == Granted && got.Outcome == Refused && got.Reason == reason.Busy {
			short = true
			d.m.giveUp(pub, uint32(i))
			continue
		}
		if short && got.Outcome == Granted {
			d.t.Fatalf("page %d granted behind one for which there was no room", i)
		}
		if e.outcome != got.Outcome || e.why != got.Reason {
			d.t.Fatalf("begin page %d %v: got %s, want %v %v; all %+v, want %+v", i, keys[i], show(got), outcomeNames[e.outcome], e.why, r.Results, want)
		}
		var cells mask
		for _, g := range got.Grants {
			if cells&maskOf(g.View) != 0 || !d.w.tier.live[g.Place] {
				d.t.Fatalf("begin page %d: grants %s overlap or have no place", i, show(got))
			}
			cells |= maskOf(g.View)
		}
		if cells != e.cells {
			d.t.Fatalf("begin page %d: granted %08b, want %08b", i, cells, e.cells)
		}
	}
	if (len(pub.pages) > 0) != (r.Token != Token{}) {
		d.t.Fatalf("begin: %d pages granted, token %v", len(pub.pages), r.Token)
	}
	if len(pub.pages) > 0 {
		d.m.pubs[r.Token] = pub
	}
	d.m.gc()
}

func (d *driver) commitSome() {
	ts := d.m.tokens()
	if len(ts) == 0 {
		return
	}
	t := ts[d.int("pub", 0, len(ts)-1)]
	pub := d.m.pubs[t]
	pages := rapid.SliceOfN(rapid.Uint32Range(0, uint32(len(pub.pages)+len(pub.done))), 1, 4).Draw(d.t, "pages")
	if d.chance("all", 60) {
		pages = pages[:0]
		for i := range uint32(len(pub.pages) + len(pub.done)) {
			pages = append(pages, i)
		}
	}
	c := d.w.commitEvent(familyIn(d.m.st, testGroup), pub.by.principal, t, pages...)
	if d.chance("stranger", 5) {
		c.Principal = 9
	}
	d.do(c)
	r := d.w.reply(c.Ticket)
	if d.m.pubs[t] == nil || c.Principal == 9 {
		if r.Reason != reason.StaleToken {
			d.t.Fatalf("commit with a stale token: %v", r.Reason)
		}
		return
	}
	added := slices.Clone(d.added)
	for j, i := range pages {
		e, g := d.m.commit(pub, i)
		if got := r.Results[j]; e.outcome != got.Outcome || e.why != got.Reason {
			d.t.Fatalf("commit of page %d: got %s, want %v %v", i, show(got), outcomeNames[e.outcome], e.why)
		}
		if g == nil {
			continue
		}
		for n := 0; g.ext.cells != 0; n++ {
			if n == len(added) {
				d.t.Fatalf("commit of %v: cells %08b were not announced", g.key, g.ext.cells)
			}
			if a := added[n]; d.keyOf(a) == g.key && maskOf(a.View)&^g.ext.cells == 0 {
				g.ext.cells &^= maskOf(a.View)
				p := d.m.page(g.key)
				p.ext = append(p.ext, &mextent{cells: maskOf(a.View), places: []Place{a.Place}, lineage: g.ext.lineage})
				added = slices.Delete(added, n, n+1)
				n--
			}
		}
	}
	if len(added) > 0 {
		d.t.Fatalf("announced and not committed: %v", added)
	}
	d.m.closeEmpty()
}

// keyOf finds the page that an announcement is about by its record.
func (d *driver) keyOf(a Announce) mkey {
	s := d.w.s
	for _, g := range modelGroups {
		for c := range modelChains {
			for i := range modelDepth {
				f := familyIn(d.m.st, g)
				if a.Family == f && s.index.find(fingerprintOf(testHash(c, i), s.o.FingerprintKey), s.families.ids[f]) == a.Ref.Slot {
					return mkey{g, c, i}
				}
			}
		}
	}
	return mkey{}
}

func (d *driver) abortSome() {
	ts := d.m.tokens()
	if len(ts) == 0 {
		return
	}
	t := ts[d.int("pub", 0, len(ts)-1)]
	var pages []uint32
	if d.chance("some", 50) {
		pages = []uint32{uint32(d.int("page", 0, 5))}
	}
	d.do(Abort{Token: t, Pages: pages})
	if pub := d.m.pubs[t]; pub != nil {
		for i := range pub.pages {
			if pages == nil || pages[0] == i {
				d.m.giveUp(pub, i)
			}
		}
	}
	d.m.closeEmpty()
}

func (d *driver) lookup() {
	run, keys := d.run()
	v := d.view()
	l := Lookup{Ticket: d.w.ticket(), Principal: d.principal(), Session: d.session(), Runs: []Run{run}, View: v,
		TTL: time.Duration(d.int("ttl", 1, 20)) * time.Second, Link: d.chance("link", 20)}
	d.do(l)
	if l.Link {
		for i := 1; i < len(keys); i++ {
			p := d.m.pages[keys[i]]
			if p != nil && !p.known && d.m.pages[keys[i-1]] != nil && d.m.st.Groups[keys[i].group].Parents != ParentNone &&
				!d.m.descends(keys[i-1], keys[i]) {
				p.parent, p.known = &keys[i-1], true
			}
		}
	}
	r := d.w.reply(l.Ticket)
	mine := &mlease{by: payer{l.Principal, l.Session}, until: r.Until, entries: map[mkey]*mlife{}}
	leading, covered, fits := 0, 0, true
	for i, k := range keys {
		why := d.m.servedKey(k, d.w.wall, v)
		if got := r.Results[i]; (got.Outcome == OK) != (why == reason.None) || got.Reason != why {
			d.t.Fatalf("lookup of %v: got %s, want %v", k, show(got), why)
		}
		if why == reason.None && leading == i {
			leading++
			if fits = fits && d.m.hold(mine, k); fits {
				covered++
			}
		}
	}
	if int(r.Leading[0]) != leading || int(r.Covered[0]) != covered || (covered > 0) != (r.Lease != LeaseID{}) {
		d.t.Fatalf("lookup: leading %d covered %d, want %d %d", r.Leading[0], r.Covered[0], leading, covered)
	}
	if covered > 0 {
		d.m.lease[r.Lease] = mine
	}
}

// compare holds every answer about every page against the model.
func (d *driver) compare() {
	d.m.expire(d.w.now)
	if n := d.w.s.tenures.due(d.w.now); n != nil { // the shard acts on time in its Steps only
		d.do(Tick{})
	}
	d.w.check()
	v := d.view()
	for _, g := range modelGroups {
		for c := range modelChains {
			for _, v := range []page.View{{}, v} {
				r := chain(familyIn(d.m.st, g), c, 0, modelDepth)
				bits := make([]byte, 2)
				leading, hits, _ := d.w.s.Exists(d.w.wall, &r, v, bits, 3)
				wantLeading, wantHits := modelDepth, 0
				for i := range modelDepth {
					hit := d.m.servedKey(mkey{g, c, i}, d.w.wall, v) == reason.None
					if hit {
						wantHits++
					} else {
						wantLeading = min(wantLeading, i)
					}
					if got := bits[(3+i)>>3]>>((3+i)&7)&1 == 1; got != hit {
						k := page.Key{Family: r.Family, Hash: mustHash(testHash(c, i))}
						d.t.Fatalf("exists %v view %v: got %v, want %v; shard %+v, model %+v", mkey{g, c, i}, v, got, hit,
							d.w.s.Explain(d.w.now, d.w.wall, &k), d.m.pages[mkey{g, c, i}])
					}
				}
				if leading != wantLeading || hits != wantHits {
					d.t.Fatalf("exists: leading %d hits %d, want %d %d", leading, hits, wantLeading, wantHits)
				}
			}
		}
	}
	d.compareCounts()
}

func (d *driver) compareCounts() {
	var pages, extents, open uint64
	for _, p := range d.m.pages {
		if p.committed() {
			pages++
		}
		for _, e := range p.ext {
			extents += uint64(len(e.places))
		}
		if !p.committed() && len(p.ext) > 0 {
			open++
		}
	}
	for _, u := range d.w.s.Usage(nil) {
		if u.Epoch == d.m.st.Epoch && (u.Pages != pages || u.Extents != extents) {
			d.t.Fatalf("usage: %d pages %d extents, want %d %d", u.Pages, u.Extents, pages, extents)
		}
	}
	t := d.w.s.Totals()
	if int(t.ReadLeases) != len(d.m.lease) || int(t.Publications) != len(d.m.pubs) {
		d.t.Fatalf("%d leases and %d publications, want %d and %d", t.ReadLeases, t.Publications, len(d.m.lease), len(d.m.pubs))
	}
}

func TestShardAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(rt)
		ops := []struct {
			name   string
			weight int
			run    func()
		}{
			{"begin", 20, d.beginBatch}, {"commit", 18, d.commitSome}, {"abort", 3, d.abortSome},
			{"answer", 6, d.answer},
			{"lookup", 8, d.lookup}, {"release", 5, d.release}, {"renew", 2, d.renew},
			{"read", 8, d.read}, {"read done", 8, d.readDone}, {"delete", 4, d.deleteRun}, {"pin", 3, d.pinRun},
			{"waive", 3, d.waive}, {"retire", 1, d.retire}, {"corrupt", 3, d.corrupt}, {"move", 4, d.move},
			{"move done", 12, d.finishMove}, {"advance", 5, d.advance},
			{"tick", 6, func() { d.do(Tick{}) }},
			{"touch", 2, func() { r, _ := d.run(); d.do(Touch{Ticket: d.w.ticket(), Runs: []Run{r}}) }},
			{"reclaim", 5, func() {
				d.do(Reclaim{Tier: evict.Tier(d.int("tier", 1, 2)), Bytes: uint64(d.int("need", 1, 40000)), Clean: d.chance("clean", 30)})
			}},
			{"persist", 6, d.persist}, {"promote", 6, d.promote}, {"restart", 1, d.restart},
			{"write behind", 5, func() { d.do(WriteBehind{Bytes: uint64(d.int("bytes", 1, 50000))}) }},
			{"session", 1, func() { s := Session(d.int("session", 1, 2)); d.do(SessionGone{s}); d.m.sessionGone(s) }},
			{"tier", 2, func() { d.do(TierState{evict.Tier(d.int("tier", 1, 2)), d.chance("writable", 80)}) }},
		}
		total := 0
		for _, o := range ops {
			total += o.weight
		}
		for range d.int("steps", 1, 200) {
			n := d.int("op", 0, total-1)
			for _, o := range ops {
				if n -= o.weight; n < 0 {
					rt.Logf("op %s", o.name)
					o.run()
					break
				}
			}
			d.compare()
		}
	})
}
