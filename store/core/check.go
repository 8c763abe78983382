package core

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/quire-kv/quire/evict"
)

// Check verifies all invariants against a recount (tests, simulator). Not beside other methods: it counts in maps and
// is slow.
func (s *Shard) Check() error {
	c := &checker{s: s, refs: map[uint32]uint32{}, lineages: map[*epoch]map[uint16]uint32{}, epochs: map[*epoch]*epoch{},
		children: map[uint32]uint32{}, live: map[uint32]uint32{}, near: map[uint32][2]uint32{}, users: map[uint32]uint16{},
		held: map[uint32]uint32{}, landing: map[uint32]bool{}}
	defer runtime.KeepAlive(s)
	return errors.Join(c.countReaders(), c.countPages(), c.checkPages(), c.checkExtents(), c.checkLeases(),
		c.checkPublications(), c.checkFamilies(), c.checkEpochs(), c.checkPools(), s.index.check(s))
}

type checker struct {
	s        *Shard
	refs     map[uint32]uint32 // by family
	lineages map[*epoch]map[uint16]uint32
	epochs   map[*epoch]*epoch // recounted
	children map[uint32]uint32
	live     map[uint32]uint32
	near     map[uint32][2]uint32
	users    map[uint32]uint16 // by extent
	landing  map[uint32]bool   // extents that a transfer will own
	tiers    [evict.NumTiers]uint64
	bytes    tierBytes              // of listed extents
	in       [evict.NumTiers]uint64 // pages with such
	held     map[uint32]uint32      // by slot: pins
	listed   uint32                 // extents found in pages
	detached uint32
	openOnly uint64
}

func (c *checker) epoch(ep *epoch) *epoch {
	if c.epochs[ep] == nil {
		c.epochs[ep] = &epoch{}
	}
	return c.epochs[ep]
}

func (c *checker) lineage(ep *epoch, h uint16) {
	if c.lineages[ep] == nil {
		c.lineages[ep] = map[uint16]uint32{}
	}
	c.lineages[ep][h]++
}

func (c *checker) countReaders() error {
	for _, used := range c.s.reads {
		for _, x := range used {
			c.users[x]++
		}
	}
	for id, t := range c.s.transfers {
		c.users[t.from]++
		if t.id != id || c.s.copies[copying{t.from, t.to}] != t {
			return fmt.Errorf("transfer %d is not found by its source", id)
		}
		if t.from == t.into {
			if !c.s.extents.At(t.from).moving() {
				return fmt.Errorf("extent %d is in transfer and not marked", t.from)
			}
			continue
		}
		c.users[t.into]++
		c.landing[t.into] = true
		from, into := c.s.extents.At(t.from), c.s.extents.At(t.into)
		if from.view != into.view || into.tier() != t.to || into.place() != (Place{}) ||
			into.state() == extentLanding && (from.state() != extentCommitted || from.owner != into.owner) {
			return fmt.Errorf("transfer %d: copy %+v does not fit its source %+v", id, into, from)
		}
	}
	if len(c.s.copies) != len(c.s.transfers) {
		return fmt.Errorf("%d transfers, %d found by their source", len(c.s.transfers), len(c.s.copies))
	}
	return nil
}

// countPages counts what others should know of each page.
func (c *checker) countPages() error {
	s := c.s
	for i := uint32(1); i <= s.pages.top; i++ {
		p := s.pages.At(i)
		if p.family == 0 {
			continue
		}
		c.refs[p.family]++
		if p.parent != 0 {
			if q := s.pages.At(p.parent); q.family == 0 || q.family != p.family {
				return fmt.Errorf("page %d: parent %d is free or of another family", i, p.parent)
			}
			c.children[p.parent]++
			if p.has(flagHeld) {
				c.live[p.parent]++
			}
			near := c.near[p.parent]
			for n := range near {
				if p.has(nearIn(firstNear + evict.Tier(n))) {
					near[n]++
				}
			}
			c.near[p.parent] = near
		}
	}
	return nil
}

func (c *checker) checkPages() error {
	s := c.s
	for i := uint32(1); i <= s.pages.top; i++ {
		p := s.pages.At(i)
		if p.family == 0 {
			continue
		}
		if err := c.checkPage(i, p); err != nil {
			return fmt.Errorf("page %d (flags %b): %w", i, p.flags, err)
		}
	}
	return nil
}

func (c *checker) checkPage(i uint32, p *pageRecord) error {
	s := c.s
	f := s.families.at(p.family)
	t := s.tally(p, f.ep)
	n := c.epoch(f.ep)
	if p.children != c.children[i] || p.live != c.live[i] || p.near != c.near[i] {
		return fmt.Errorf("children %d live %d near %d, counted %d %d %d", p.children, p.live, p.near, c.children[i], c.live[i], c.near[i])
	}
	for tier := range evict.NumTiers {
		if t.near&nearIn(tier) != 0 {
			c.in[tier]++
		}
	}
	if p.flags&flagNear != t.near || p.has(flagGuarded|flagSettled) || p.has(flagQueued) && t.committed == 0 {
		return fmt.Errorf("near %b, or a flag is left", t.near)
	}
	if !p.has(flagHeld|flagPinned) && p.children == 0 {
		return errors.New("holds nothing and is named by nobody")
	}
	full := f.geo.Full()
	if p.has(flagCommitted) != (t.committed > 0) || p.has(flagOpen) != (t.open > 0) || p.lineage != t.lineage ||
		p.has(flagComplete) != (t.committed > 0 && t.cells == full.Cells()) {
		return fmt.Errorf("does not fit its extents %+v", t)
	}
	if p.has(flagUnknown) && p.parent != 0 {
		return errors.New("unknown parent, and a parent")
	}
	if resting := s.sweep.cursor == 0 && !s.sweep.again; resting && !s.restoring {
		if p.has(flagAbsent) != (t.open == 0 && !t.accepted) {
			return errors.New("absent flag is stale")
		}
		orphan := p.parent != 0 && f.geo.Parents == ParentPrefix && p.has(flagHeld) &&
			s.pages.At(p.parent).has(flagAbsent|flagOrphan)
		if p.has(flagOrphan) != orphan {
			return fmt.Errorf("orphan flag should be %v", orphan)
		}
	}
	if p.has(flagAbsent) {
		n.orphans[p.cause()] += uint64(p.live)
	}
	if t.committed > 0 {
		n.pages++
	} else if t.open > 0 {
		c.openOnly++
	}
	if _, ok := s.pins[i]; ok != p.has(flagPinned) {
		return errors.New("pinned flag is wrong")
	}
	if p.has(flagOpen) != (len(s.open[i]) > 0) {
		return errors.New("writers of an open page are not noted, or noted without grants")
	}
	if err := c.checkList(i, p, f, n); err != nil {
		return err
	}
	charged := 0
	for _, x := range s.committedOf(p) {
		if !s.extents.At(x).spare() {
			charged++
		}
	}
	if charged != t.committed {
		return fmt.Errorf("%d extents, %d are charged", t.committed, charged)
	}
	return nil
}

// checkList verifies the extents of a page: in order, inside the page, committed ones disjoint but for copies, which stand
// together in tiers of their own, and open ones.
func (c *checker) checkList(i uint32, p *pageRecord, f *family, n *epoch) error {
	s := c.s
	var seen []*extentRecord
	full := f.geo.Full()
	for j := p.extents; j != 0; j = s.extents.At(j).next {
		x := s.extents.At(j)
		c.listed++
		st := x.state()
		if x.owner != i || !x.listed() {
			return fmt.Errorf("extent %d: owner %d state %d", j, x.owner, st)
		}
		if x.view.Empty() || !full.Contains(x.view) {
			return fmt.Errorf("extent %d: view %v", j, x.view)
		}
		if (st == extentCommitted) != (x.place() != (Place{})) && st != extentOpen || (st == extentLanding) != c.landing[j] {
			return fmt.Errorf("extent %d: state %d at %v", j, st, x.place())
		}
		if len(seen) > 0 && x.before(seen[len(seen)-1]) {
			return fmt.Errorf("extent %d: out of order", j)
		}
		if err := c.checkCopies(x, seen); err != nil {
			return err
		}
		seen = append(seen, x)
		if st == extentCommitted {
			n.extents++
			c.tiers[x.tier()]++
		}
		c.account(n, x)
		c.bytes[x.tier()] += x.held()
		c.lineage(f.ep, x.lineage)
	}
	return nil
}

// checkCopies holds one extent against those before it in its page.
func (c *checker) checkCopies(x *extentRecord, before []*extentRecord) error {
	charged := !x.spare()
	apart := false // an extent of another view stands between
	for n := len(before) - 1; n >= 0; n-- {
		y := before[n]
		switch {
		case (x.state() == extentOpen) != (y.state() == extentOpen):
			continue
		case x.state() == extentOpen || x.view != y.view:
			if !x.view.Intersect(y.view).Empty() {
				return fmt.Errorf("extents %v and %v overlap", x.view, y.view)
			}
			apart = true
		case x.tier() == y.tier() || x.lineage != y.lineage || x.bytes != y.bytes || apart:
			return fmt.Errorf("copies of %v in %v and %v do not fit", x.view, x.tier(), y.tier())
		case charged && !y.spare():
			return fmt.Errorf("two copies of %v are charged", x.view)
		}
	}
	return nil
}

func (c *checker) account(n *epoch, x *extentRecord) {
	n.bytes[x.tier()] += x.held()
	if !x.spare() {
		n.charged += x.held()
	}
}

func (c *checker) checkExtents() error {
	s := c.s
	for i := uint32(1); i <= s.extents.top; i++ {
		x := s.extents.At(i)
		if x.state() == extentFree {
			continue
		}
		if x.users != c.users[i] {
			return fmt.Errorf("extent %d: users %d, counted %d", i, x.users, c.users[i])
		}
		if x.listed() {
			continue
		}
		c.detached++
		if x.users == 0 && x.state() != extentGone {
			return fmt.Errorf("extent %d: detached, unused and not freed", i)
		}
		if (x.state() == extentGone) != (s.goneOf[i] != nil) {
			return fmt.Errorf("extent %d: gone without a set, or in one without being gone", i)
		}
		ep := s.families.at(x.owner).ep
		c.refs[x.owner]++
		c.account(c.epoch(ep), x)
		c.lineage(ep, x.lineage)
	}
	if c.listed+c.detached != s.extents.used {
		return fmt.Errorf("extents: %d listed, %d detached, %d in use", c.listed, c.detached, s.extents.used)
	}
	return nil
}

func (c *checker) checkLeases() error {
	s := c.s
	gone := map[PageRef]uint32{}
	entries := 0
	visit := func(l *lease) error {
		live := 0
		for at, e := range l.pages {
			if e.ref == (PageRef{}) {
				continue
			}
			live++
			c.refs[e.key.family]++
			if l.at[e.key] != int32(at) {
				return fmt.Errorf("lease %x: entry %d is not found", l.id, at)
			}
			if s.gone[e.ref] != nil {
				gone[e.ref]++
			} else if s.pages.At(e.ref.Slot).gen != e.ref.Gen {
				return fmt.Errorf("lease %x: page %v is neither live nor gone", l.id, e.ref)
			} else {
				c.held[e.ref.Slot]++
			}
		}
		if entries += live; live != len(l.at) || live == 0 {
			return fmt.Errorf("lease %x: %d entries, %d keys", l.id, live, len(l.at))
		}
		return nil
	}
	leases := 0
	for n := s.tenures.first; n != nil; n = n.next {
		if n.lease == nil {
			continue
		}
		leases++
		if s.leases[n.lease.id] != n.lease || n.until <= s.now {
			return fmt.Errorf("lease %x is lost or over", n.lease.id)
		}
		if err := visit(n.lease); err != nil {
			return err
		}
	}
	for _, l := range s.operators {
		if err := visit(l); err != nil {
			return err
		}
	}
	if leases != len(s.leases) || leases != s.tenures.leases || entries != s.pinned || len(gone) != len(s.gone) {
		return fmt.Errorf("leases %d of %d (%d), entries %d of %d, gone sets %d of %d",
			leases, len(s.leases), s.tenures.leases, entries, s.pinned, len(gone), len(s.gone))
	}
	return c.checkPins(gone)
}

func (c *checker) checkPins(gone map[PageRef]uint32) error {
	s := c.s
	for slot, n := range s.pins { // order does not matter: any difference is an error
		if n.leases != c.held[slot] {
			return fmt.Errorf("page %d: %d leases, counted %d", slot, n.leases, c.held[slot])
		}
		c.epoch(s.epochOf(slot)).pinned += n.bytes.sum()
	}
	for ref, g := range s.gone {
		if g.leases != gone[ref] {
			return fmt.Errorf("gone %v: %d leases, counted %d", ref, g.leases, gone[ref])
		}
		c.epoch(s.families.at(g.key.family).ep).pinned += g.bytes.sum()
	}
	if len(s.pins) != len(c.held) {
		return fmt.Errorf("%d pins, counted %d", len(s.pins), len(c.held))
	}
	return nil
}

func (c *checker) checkPublications() error {
	s := c.s
	pubs, pages := 0, 0
	for n := s.tenures.first; n != nil; n = n.next {
		pub := n.pub
		if pub == nil {
			continue
		}
		pubs++
		c.refs[pub.family]++
		open := 0
		for i := range pub.pages {
			pp := &pub.pages[i]
			if (pp.outcome == Granted) != (len(pp.grants) > 0) {
				return fmt.Errorf("publication %d page %d: outcome %d with %d grants", pub.seq, i, pp.outcome, len(pp.grants))
			}
			if pp.outcome == Granted {
				open++
			}
			for _, x := range pp.grants {
				if e := s.extents.At(x); e.state() != extentOpen || e.owner != pp.slot {
					return fmt.Errorf("publication %d page %d: grant %d is not open", pub.seq, i, x)
				}
			}
		}
		if pages += open; open != pub.openNow || s.pubs[pub.token] != pub {
			return fmt.Errorf("publication %d: %d pages open, counted %d", pub.seq, pub.openNow, open)
		}
	}
	noted := 0
	for _, list := range s.open {
		noted += len(list)
	}
	if pubs != len(s.pubs) || pubs != s.tenures.pubs || noted != pages {
		return fmt.Errorf("publications %d of %d (%d), open pages %d of %d", pubs, len(s.pubs), s.tenures.pubs, noted, pages)
	}
	return nil
}

func (c *checker) checkFamilies() error {
	t := &c.s.families
	live := 0
	for h := range t.all {
		if t.all[h].refs != c.refs[uint32(h)] {
			return fmt.Errorf("family %d: %d references, counted %d", h, t.all[h].refs, c.refs[uint32(h)])
		}
		if t.all[h].refs > 0 {
			live++
			c.epoch(t.all[h].ep).families++
			if t.ids[t.all[h].key] != uint32(h) {
				return fmt.Errorf("family %d is not found", h)
			}
		}
	}
	if live != len(t.ids) || live+len(t.free) != len(t.all)-1 {
		return fmt.Errorf("families: %d live, %d found, %d free of %d", live, len(t.ids), len(t.free), len(t.all)-1)
	}
	return nil
}

func (c *checker) checkEpochs() error {
	var pages, extents uint64
	for i, ep := range c.s.epochs.order {
		n := c.epoch(ep)
		if ep.pages != n.pages || ep.extents != n.extents || ep.bytes != n.bytes || ep.charged != n.charged || ep.pinned != n.pinned ||
			ep.orphans != n.orphans || ep.families != n.families {
			return fmt.Errorf("epoch %d: pages %d extents %d bytes %d charged %d pinned %d orphans %v families %d, counted %d %d %d %d %d %v %d", i,
				ep.pages, ep.extents, ep.bytes, ep.charged, ep.pinned, ep.orphans, ep.families,
				n.pages, n.extents, n.bytes, n.charged, n.pinned, n.orphans, n.families)
		}
		pages, extents = pages+ep.pages, extents+ep.extents
		for h := range ep.lineages.all {
			if ep.lineages.all[h].refs != c.lineages[ep][uint16(h)] {
				return fmt.Errorf("epoch %d: lineage %d has %d references, counted %d", i, h, ep.lineages.all[h].refs, c.lineages[ep][uint16(h)])
			}
		}
	}
	for t := range c.tiers {
		if c.s.totals.Tiers[t].Extents != c.tiers[t] {
			return fmt.Errorf("%v: %d extents, counted %d", evict.Tier(t), c.s.totals.Tiers[t].Extents, c.tiers[t])
		}
	}
	if c.s.live != c.bytes || c.s.near != c.in {
		return fmt.Errorf("%d bytes of %d pages are live, counted %d of %d", c.s.live, c.s.near, c.bytes, c.in)
	}
	if t := c.s.totals; t.Pages != pages || t.Extents != extents || c.s.openOnly != c.openOnly {
		return fmt.Errorf("totals: pages %d extents %d open %d, counted %d %d %d", t.Pages, t.Extents, c.s.openOnly, pages, extents, c.openOnly)
	}
	return nil
}

func (c *checker) checkPools() error {
	s := c.s
	free := uint32(0)
	for i := s.pages.free; i != 0; i = s.pages.At(i).parent {
		if free++; s.pages.At(i).family != 0 || free > s.pages.top {
			return fmt.Errorf("page %d is free and in use", i)
		}
	}
	if free+s.pages.used != s.pages.top {
		return fmt.Errorf("pages: %d free, %d used of %d", free, s.pages.used, s.pages.top)
	}
	free = 0
	for i := s.extents.free; i != 0; i = s.extents.At(i).next {
		if free++; s.extents.At(i).state() != extentFree || free > s.extents.top {
			return fmt.Errorf("extent %d is free and in use", i)
		}
	}
	if free+s.extents.used != s.extents.top {
		return fmt.Errorf("extents: %d free, %d used of %d", free, s.extents.used, s.extents.top)
	}
	return nil
}

// check verifies that exactly the records in use are found.
func (x *index) check(s *Shard) error {
	cells := 0
	for n := range x.used {
		used := 0
		for _, cell := range x.segment(uint32(n)) {
			if cell != 0 {
				used++
			}
		}
		if used != int(x.used[n]) {
			return fmt.Errorf("segment %d: %d cells in use, counted %d", n, x.used[n], used)
		}
		cells += used
	}
	for i := uint32(1); i <= s.pages.top; i++ {
		if p := s.pages.At(i); p.family != 0 && x.find(p.fp, p.family) != i {
			return fmt.Errorf("page %d is not found in the index", i)
		}
	}
	if cells != int(s.pages.used) {
		return fmt.Errorf("index holds %d pages of %d", cells, s.pages.used)
	}
	return nil
}

// recountInto adds to l what this shard should have taken from its ledger.
func (s *Shard) recountInto(l *Ledger) {
	l.takeRecords(uint64(s.pages.used), uint64(s.extents.used))
	for _, ep := range s.epochs.order {
		l.account(ep.state.Tenant)
	}
	for i := uint32(1); i <= s.extents.top; i++ {
		if x := s.extents.At(i); x.state() != extentFree {
			ep := (*epoch)(nil)
			if x.listed() {
				ep = s.epochOf(x.owner)
			} else {
				ep = s.families.at(x.owner).ep
			}
			l.takeBytes(l.tenants.of(ep.state.Tenant), x.tier(), x.held(), x.listed(), !x.spare(), false)
		}
	}
	for slot, n := range s.pins {
		l.takePin(n.payer, l.tenants.of(s.epochOf(slot).state.Tenant), n.bytes)
	}
	for _, g := range s.gone {
		l.takePin(g.payer, l.tenants.of(s.families.at(g.key.family).ep.state.Tenant), g.bytes)
	}
}
