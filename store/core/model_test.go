package core

import (
	"fmt"
	"slices"
	"sort"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// model is a plainly dumb shard: maps, sets of cells, and everything recomputed whenever it is asked for. It never
// chooses victims or rectangles; it says whether those chosen were right.
type model struct {
	st    NamespaceState // the namespace's current life
	pages map[mkey]*mpage
	pubs  map[Token]*mpub
	held  map[Principal]*mlease // operators' pins
	lease map[LeaseID]*mlease
	gone  []*mlife // ends of lives that are still pinned
	limit Limits
}

// mkey is page d of chain c in a group.
type mkey struct {
	group page.GroupID
	c, d  int
}

// mask is a set of the eight cells of a page of testGeometry.
type mask uint8

const wholeMask mask = 0xff

func maskOf(v page.View) (m mask) {
	if v == (page.View{}) {
		return wholeMask
	}
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			m |= 1 << (h*4 + l)
		}
	}
	return m
}

func (e *mextent) String() string {
	return fmt.Sprintf("%08b %v %v open %v", e.cells, e.lineage, e.places, e.pub != nil)
}

type lineageSet map[uint16]bool

func (s lineageSet) add(o lineageSet) {
	for p := range o {
		s[p] = true
	}
}

// mextent is committed, or open (then all grants of one page of one publication together).
type mextent struct {
	cells   mask
	lineage lineageSet
	places  []Place // of copies, each in a tier of its own
	pub     *mpub   // open
}

// in is the copy in a tier.
func (e *mextent) in(t evict.Tier) (p Place, ok bool) {
	for _, p := range e.places {
		if p.Tier == t {
			return p, true
		}
	}
	return p, false
}

// drop removes the copy at a place.
func (e *mextent) drop(at Place) (found bool) {
	n := len(e.places)
	e.places = slices.DeleteFunc(e.places, func(p Place) bool { return p == at })
	return len(e.places) < n
}

type mpage struct {
	parent *mkey
	known  bool // the parent, or that there is none
	ext    []*mextent
	expiry clock.Wall
	life   *mlife
}

// mlife is what leases pin.
type mlife struct {
	key    mkey
	pins   int
	payer  payer
	bytes  tierBytes
	gone   []*mextent // after the end
	ended  bool
	expiry clock.Wall
}

type mlease struct {
	by      payer
	until   clock.Instant
	entries map[mkey]*mlife
}

type mpub struct {
	by     payer
	until  clock.Instant
	asking bool               // not answered yet
	pages  map[uint32]*mgrant // granted and neither committed nor given up
	done   map[uint32]Outcome // the others
}

type mgrant struct {
	key    mkey
	ext    *mextent
	expiry clock.Wall
	prov   uint16
}

func newModel(st NamespaceState, l Limits) *model {
	return &model{st: st, limit: l, pages: map[mkey]*mpage{}, pubs: map[Token]*mpub{},
		held: map[Principal]*mlease{}, lease: map[LeaseID]*mlease{}}
}

func (m *model) accepted(e *mextent) bool {
	for p := range e.lineage {
		if !accepts1(m.st.Accepts, p) {
			return false
		}
	}
	return true
}

// cells of a page by what they are.
func (m *model) cells(p *mpage) (accepted, hidden, open mask) {
	if p == nil {
		return 0, 0, 0
	}
	for _, e := range p.ext {
		switch {
		case e.pub != nil:
			open |= e.cells
		case m.accepted(e):
			accepted |= e.cells
		default:
			hidden |= e.cells
		}
	}
	return accepted, hidden, open
}

func (p *mpage) committed() bool {
	for _, e := range p.ext {
		if e.pub == nil {
			return true
		}
	}
	return false
}

// served says why view v of extents would not be served.
func (m *model) served(ext []*mextent, expiry, wall clock.Wall, v page.View) reason.Reason {
	accepted, hidden, _ := m.cells(&mpage{ext: ext})
	want := maskOf(v)
	switch {
	case accepted|hidden == 0:
		return reason.Absent
	case expiry != 0 && wall >= expiry:
		return reason.Expired
	case accepted&want == want:
		return reason.None
	case (accepted|hidden)&want == want:
		return reason.Provenance
	}
	return reason.Incomplete
}

func (m *model) servedKey(k mkey, wall clock.Wall, v page.View) reason.Reason {
	p := m.pages[k]
	if p == nil {
		return reason.Absent
	}
	return m.served(p.ext, p.expiry, wall, v)
}

// stands: may be built on.
func (m *model) stands(k mkey, wall clock.Wall) bool {
	p := m.pages[k]
	accepted, _, open := m.cells(p)
	return open != 0 || accepted != 0 && (p.expiry == 0 || wall < p.expiry)
}

func (m *model) hasLiveChild(k mkey) bool {
	for _, p := range m.pages {
		if p.parent != nil && *p.parent == k && len(p.ext) > 0 {
			return true
		}
	}
	return false
}

func (m *model) named(k mkey) bool {
	for _, p := range m.pages {
		if p.parent != nil && *p.parent == k {
			return true
		}
	}
	return false
}

// orphan: what it stands on is gone.
func (m *model) orphan(k mkey) bool {
	p := m.pages[k]
	if p.parent == nil || m.st.Groups[k.group].Parents != ParentPrefix || len(p.ext) == 0 {
		return false
	}
	accepted, _, open := m.cells(m.pages[*p.parent])
	return accepted|open == 0 || m.orphan(*p.parent)
}

func (m *model) doomed(k mkey, wall clock.Wall) bool {
	_, hidden, _ := m.cells(m.pages[k])
	return hidden != 0 || m.orphan(k) || m.pages[k].expiry != 0 && wall >= m.pages[k].expiry
}

// gc forgets records that hold nothing and are named by nobody.
func (m *model) gc() {
	for again := true; again; {
		again = false
		for k, p := range m.pages {
			if len(p.ext) == 0 && p.life.pins == 0 && !m.named(k) {
				delete(m.pages, k)
				again = true
			}
		}
	}
}

func (m *model) page(k mkey) *mpage {
	if m.pages[k] == nil {
		m.pages[k] = &mpage{life: &mlife{key: k}}
	}
	return m.pages[k]
}

// ---- publishing

// expect is what a Begin must answer for one page; granted pages tell which cells.
type expect struct {
	outcome Outcome
	why     reason.Reason
	cells   mask
}

// begin decides a batch one page at a time. full says for which pages the shard had no record left: it may have none,
// but then none for what comes after either.
func (m *model) begin(b *Begin, keys []mkey, wall clock.Wall, pub *mpub, full func(i int) bool) []expect {
	var out []expect
	closed := false
	for i, k := range keys {
		e := m.beginPage(b, i, keys, k, wall, pub)
		if closed && e.why == reason.ParentMissing {
			e.why = reason.Busy // the tail of a run that was cut short
		}
		if closed = closed || e.outcome == Granted && full(i); closed && e.outcome == Granted {
			m.giveUp(pub, uint32(i))
			e = expect{outcome: Refused, why: reason.Busy}
		}
		if e.outcome != Granted {
			pub.done[uint32(i)] = e.outcome
		}
		out = append(out, e)
		m.gc()
	}
	return out
}

func (m *model) beginPage(b *Begin, i int, keys []mkey, k mkey, wall clock.Wall, pub *mpub) expect {
	pg := &b.Pages[i]
	if pg.PayloadBytes != cellsOf(testGeometry(), pg.View) {
		return expect{outcome: Refused, why: reason.SizeMismatch}
	}
	if pg.Expiry != 0 && wall >= pg.Expiry {
		return expect{outcome: Refused, why: reason.Expired}
	}
	if p := m.pages[k]; p != nil && p.committed() && p.expiry != 0 && wall >= p.expiry {
		m.end(k)
		m.gc()
	}
	parent, known, why := m.parent(b, i, keys, wall)
	if why != reason.None {
		return expect{outcome: Refused, why: why}
	}
	if p := m.pages[k]; p != nil {
		if known && p.known && !samePtr(p.parent, parent) || known && !p.known && parent != nil && m.descends(*parent, k) {
			return expect{outcome: Refused, why: reason.ParentConflict}
		}
		if known && !p.known {
			p.parent, p.known = parent, true
		}
		if !known && len(p.ext) == 0 && p.parent != nil && !m.stands(*p.parent, wall) {
			p.parent, p.known = nil, false
		}
	}
	accepted, _, open := m.cells(m.pages[k])
	want := maskOf(pg.View)
	switch free := want &^ accepted &^ open; {
	case want&^accepted == 0:
		return expect{outcome: Present}
	case free == 0:
		return expect{outcome: Refused, why: reason.Held}
	default:
		fresh := m.pages[k] == nil
		p := m.page(k)
		if fresh {
			p.parent, p.known = parent, known
		}
		e := &mextent{cells: free, pub: pub, lineage: m.lineage(p, b.Provenance)}
		p.ext = append(p.ext, e)
		pub.pages[uint32(i)] = &mgrant{key: k, ext: e, expiry: pg.Expiry, prov: b.Provenance}
		return expect{outcome: Granted, cells: free}
	}
}

func samePtr(a, b *mkey) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }

func (m *model) descends(k, root mkey) bool {
	for {
		if k == root {
			return true
		}
		p := m.pages[k]
		if p == nil || p.parent == nil {
			return false
		}
		k = *p.parent
	}
}

func (m *model) parent(b *Begin, i int, keys []mkey, wall clock.Wall) (parent *mkey, known bool, why reason.Reason) {
	rule := m.st.Groups[keys[i].group].Parents
	link := b.Pages[i].Link
	var k mkey
	switch {
	case rule == ParentNone || link == LinkUnknown || link == LinkPrevious && i == 0:
		return nil, false, reason.None
	case link == LinkRoot:
		return nil, true, reason.None
	case link == LinkPrevious:
		if k = keys[i-1]; k == keys[i] {
			return nil, false, reason.None
		}
	default:
		if k = m.named32(keys[i].group, b.Pages[i].Parent); k == keys[i] {
			return nil, false, reason.ParentConflict
		}
	}
	if m.stands(k, wall) {
		return &k, true, reason.None
	}
	if rule == ParentWindow {
		return nil, false, reason.None
	}
	return nil, false, reason.ParentMissing
}

// named32 reads the key back from a test hash.
func (m *model) named32(g page.GroupID, h page.Hash) mkey {
	b := h.Bytes()
	return mkey{g, int(b[20]), int(b[24])}
}

func (m *model) lineage(p *mpage, prov uint16) lineageSet {
	l := lineageSet{prov: true}
	if p.parent != nil && m.pages[*p.parent] != nil {
		for _, e := range m.pages[*p.parent].ext {
			if e.pub != nil || m.accepted(e) {
				l.add(e.lineage)
			}
		}
	}
	return l
}

// commit says what must come of one page; on Committed its grants wait for their announcements.
func (m *model) commit(pub *mpub, i uint32) (expect, *mgrant) {
	g := pub.pages[i]
	if g == nil {
		switch o, ok := pub.done[i]; {
		case !ok:
			return expect{outcome: Refused, why: reason.InvalidSpec}, nil
		case o == Refused:
			return expect{outcome: Refused, why: reason.Aborted}, nil
		default:
			return expect{outcome: o}, nil
		}
	}
	p := m.pages[g.key]
	accepted, _, _ := m.cells(p)
	g.ext.lineage.add(m.lineage(p, g.prov))
	why := reason.None
	if accepted&g.ext.cells != 0 {
		why = reason.LostRace
	} else if !m.accepted(g.ext) {
		why = reason.Provenance
	}
	if why != reason.None {
		m.giveUp(pub, i)
		return expect{outcome: Refused, why: why}, nil
	}
	m.unopen(pub, i, Committed)
	if g.expiry != 0 && (p.expiry == 0 || g.expiry < p.expiry) {
		p.expiry = g.expiry
	}
	return expect{outcome: Committed}, g
}

// unopen takes the grants of a page off it.
func (m *model) unopen(pub *mpub, i uint32, o Outcome) {
	g := pub.pages[i]
	p := m.pages[g.key]
	for j, e := range p.ext {
		if e == g.ext {
			p.ext = append(p.ext[:j:j], p.ext[j+1:]...)
			break
		}
	}
	delete(pub.pages, i)
	pub.done[i] = o
}

func (m *model) giveUp(pub *mpub, i uint32) { m.unopen(pub, i, Refused) }

func (m *model) giveUpAll(pub *mpub) {
	for i := range pub.pages {
		m.giveUp(pub, i)
	}
}

// ---- ends of lives

// end hides what is committed of a page; bytes that leases pin go to their life.
func (m *model) end(k mkey) {
	p := m.pages[k]
	for by, l := range m.held {
		if l.entries[k] == p.life {
			m.letGo(l, k)
		}
		if len(l.entries) == 0 {
			delete(m.held, by)
		}
	}
	var open []*mextent
	for _, e := range p.ext {
		if e.pub != nil {
			open = append(open, e)
		} else if p.life.pins > 0 {
			p.life.gone = append(p.life.gone, e)
		}
	}
	if p.life.pins > 0 {
		p.life.ended, p.life.expiry = true, p.expiry
		m.gone = append(m.gone, p.life)
	}
	p.ext, p.life, p.expiry = open, &mlife{key: k}, 0
}

// drop removes one copy of a committed extent.
func (m *model) drop(k mkey, at Place) error {
	p := m.pages[k]
	if p != nil {
		for j, e := range p.ext {
			if e.pub == nil && e.drop(at) {
				if len(e.places) == 0 {
					p.ext = append(p.ext[:j:j], p.ext[j+1:]...)
				}
				if !p.committed() {
					p.expiry = 0
				}
				return nil
			}
		}
	}
	return fmt.Errorf("no extent of %v at %v", k, at)
}

// ---- leases

func (m *model) charged(t int, match func(*mlife) bool) (n uint64) {
	for _, p := range m.pages {
		if p.life.pins > 0 && match(p.life) {
			n += p.life.bytes[t]
		}
	}
	for _, l := range m.gone {
		if match(l) {
			n += l.bytes[t]
		}
	}
	return n
}

// hold pins a page for l if the budgets of all tiers it is in allow.
func (m *model) hold(l *mlease, k mkey) bool {
	p := m.pages[k]
	if l.entries[k] == p.life {
		return true
	}
	if p.life.pins == 0 {
		var bytes tierBytes
		for _, e := range p.ext {
			for _, at := range e.places {
				bytes[at.Tier] += roundUp(uint64(at.Bytes))
			}
		}
		for t := range bytes {
			capacity := float64(m.limit.Capacity[t])
			over := func(share float64, match func(*mlife) bool) bool {
				return bytes[t] > 0 && capacity > 0 && float64(m.charged(t, match)+bytes[t]) > share*capacity
			}
			if over(1./2, func(*mlife) bool { return true }) ||
				over(1./4, func(x *mlife) bool { return x.payer.principal == l.by.principal }) ||
				l.by.session != 0 && over(1./8, func(x *mlife) bool { return x.payer.session == l.by.session }) {
				return false
			}
		}
		p.life.payer, p.life.bytes = l.by, bytes
	}
	p.life.pins++
	l.entries[k] = p.life
	return true
}

func (m *model) letGo(l *mlease, k mkey) {
	life := l.entries[k]
	if life == nil {
		return
	}
	delete(l.entries, k)
	if life.pins--; life.pins == 0 && life.ended {
		for j, x := range m.gone {
			if x == life {
				m.gone = append(m.gone[:j], m.gone[j+1:]...)
				break
			}
		}
	}
}

func (m *model) endLease(id LeaseID) {
	l := m.lease[id]
	for k := range l.entries {
		m.letGo(l, k)
	}
	delete(m.lease, id)
}

// expire ends what time has ended.
func (m *model) expire(now clock.Instant) {
	for id, l := range m.lease {
		if l.until <= now {
			m.endLease(id)
		}
	}
	for t, p := range m.pubs {
		if p.until <= now {
			m.giveUpAll(p)
			delete(m.pubs, t)
		}
	}
	m.gc()
}

func (m *model) sessionGone(s Session) {
	for id, l := range m.lease {
		if l.by.session == s {
			m.endLease(id)
		}
	}
	for t, p := range m.pubs {
		if p.by.session == s {
			m.giveUpAll(p)
			delete(m.pubs, t)
		}
	}
	m.gc()
}

// closeEmpty ends publications with nothing left to write.
func (m *model) closeEmpty() {
	for t, p := range m.pubs {
		if len(p.pages) == 0 && !p.asking {
			delete(m.pubs, t)
		}
	}
	m.gc()
}

// tokens in a fixed order, for choices that rapid can replay.
func (m *model) tokens() []Token {
	var ts []Token
	for t, p := range m.pubs {
		if !p.asking {
			ts = append(ts, t)
		}
	}
	sort.Slice(ts, func(i, j int) bool { return ts[i].Seq < ts[j].Seq })
	return ts
}

func (m *model) leaseIDs() []LeaseID {
	var ids []LeaseID
	for id := range m.lease {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return string(ids[i][:]) < string(ids[j][:]) })
	return ids
}
