package core

import (
	"math/bits"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// newPage files an empty record; 0 when there is no room for one. It must get an extent, or go by settle.
func (s *Shard) newPage(fp fingerprint, family uint32) uint32 {
	if !s.o.Ledger.takeRecords(1, 0) {
		return 0
	}
	i := s.pages.take(func(p *pageRecord) uint32 { return p.parent })
	if i == 0 {
		s.o.Ledger.giveRecords(1, 0)
		return 0
	}
	p := s.pages.At(i)
	*p = pageRecord{fp: fp, family: family, gen: p.gen + 1, flags: flagUnknown | flagAbsent}
	p.setCause(OrphanAborted)
	s.families.retain(family)
	if !s.index.insert(i) {
		s.unfile(i)
		return 0
	}
	return i
}

// freePage takes an empty record that nobody names out of the index.
func (s *Shard) freePage(i uint32) {
	s.index.remove(i)
	s.unfile(i)
}

func (s *Shard) unfile(i uint32) {
	p := s.pages.At(i)
	s.families.release(p.family)
	*p = pageRecord{gen: p.gen + 1, parent: s.pages.free}
	s.pages.give(i)
	s.o.Ledger.giveRecords(1, 0)
}

// tierSet is a bit per tier.
type tierSet uint8

func (t tierSet) has(x evict.Tier) bool { return t>>x&1 != 0 }

// tally is what a walk over the extents of a page finds.
type tally struct {
	open, committed  int  // extents; copies of one count once
	accepted, hidden bool // has a committed extent of that kind
	moving           bool // a copy of it moves or is being made
	cells            int  // committed
	bytes            uint64
	lineage          uint16

	near pageFlags // flagNear: where it has an extent of any state
	in   tierSet   // where it has committed copies
	sole tierSet   // where it has the only copy of an extent
	last tierSet   // where it has a copy of an extent of which no lower tier has one
}

func (s *Shard) tally(p *pageRecord, ep *epoch) (t tally) {
	var view page.View // of the extent whose copies are being counted
	var copies tierSet // of it
	for i := p.extents; i != 0; i = s.extents.At(i).next {
		x := s.extents.At(i)
		t.near |= nearIn(x.tier())
		switch x.state() {
		case extentOpen:
			t.open++
			continue
		case extentLanding:
			t.moving = true
			continue
		}
		t.moving = t.moving || x.moving()
		if x.view == view {
			copies |= 1 << x.tier()
			continue
		}
		t.addCopies(copies)
		view, copies = x.view, 1<<x.tier()
		if t.committed++; t.committed == 1 {
			t.lineage = x.lineage
		} else if x.lineage != t.lineage {
			t.lineage = mixedLineage
		}
		ok := ep.lineages.accepted(x.lineage)
		t.accepted, t.hidden = t.accepted || ok, t.hidden || !ok
		t.cells += x.view.Cells() // committed extents are disjoint
		t.bytes += x.held()
	}
	t.addCopies(copies)
	return t
}

// addCopies adds the tiers that one extent is in.
func (t *tally) addCopies(copies tierSet) {
	t.in |= copies
	if copies&(copies-1) == 0 {
		t.sole |= copies
	}
	if copies != 0 {
		t.last |= 1 << (bits.Len8(uint8(copies)) - 1)
	}
}

// settle computes anew all that follows from a page's extents, its pins and its parent, and passes it on to the
// parent's counters, the orphan counts and the policy. It is called after every change of a page and is the only
// place where these change. A record that holds nothing and is named by nobody goes.
func (s *Shard) settle(i uint32) {
	p := s.pages.At(i)
	f := s.families.at(p.family)
	t := s.tally(p, f.ep)
	before := *p
	full := f.geo.Full()

	p.lineage = t.lineage
	p.flags = p.flags&^flagNear | t.near
	p.set(flagOpen, t.open > 0)
	p.set(flagCommitted, t.committed > 0)
	p.set(flagComplete, t.committed > 0 && t.cells == full.Cells())
	p.set(flagAbsent, t.open == 0 && !t.accepted)
	switch {
	case !p.has(flagAbsent) || !t.hidden:
	case !before.has(flagAbsent):
		p.setCause(OrphanHidden)
	case !before.has(flagCommitted): // it was restored so
		s.setCause(i, OrphanHidden)
	}
	if t.committed == 0 {
		p.expiry, p.declared = 0, 0
		p.set(flagGivenUp|flagQueued, false)
	}
	if p.has(flagComplete) || !p.has(flagHeld) {
		delete(s.groups, i)
	}
	s.settleParent(p, &before)
	s.settleNear(p.flags, before.flags)
	s.settleCounts(f.ep, p, &before) // by the cause that the page had, before it takes over its parent's
	s.settleOrphan(p, &f.geo)
	if (before.flags^p.flags)&(flagAbsent|flagOrphan) != 0 && p.live > 0 && !s.restoring {
		s.sweep.request() // the children find out as it walks them
	}
	s.settlePolicy(i, p, f, &t, &before)
	if !p.has(flagHeld|flagPinned) && p.children == 0 {
		parent := p.parent
		s.freePage(i)
		s.unname(parent)
	}
}

// settleParent tells the parent where this child is.
func (s *Shard) settleParent(p, before *pageRecord) {
	if (p.flags^before.flags)&(flagHeld|flagNear) != 0 && p.parent != 0 {
		s.countChild(p.parent, before.flags, p.flags)
	}
}

// settleNear counts the page in the tiers where it has extents.
func (s *Shard) settleNear(now, before pageFlags) {
	for t := firstNear; t < evict.NumTiers; t++ {
		if in := now & nearIn(t); in != before&nearIn(t) {
			step(&s.near[t], in != 0)
		}
	}
}

func (s *Shard) settleCounts(ep *epoch, p, before *pageRecord) {
	if now := p.has(flagCommitted); now != before.has(flagCommitted) {
		step(&ep.pages, now)
		step(&s.totals.Pages, now)
	}
	if now := p.flags & flagHeld; (now == flagOpen) != (before.flags&flagHeld == flagOpen) {
		step(&s.openOnly, now == flagOpen)
	}
	if now := p.has(flagAbsent); now != before.has(flagAbsent) && p.live > 0 {
		s.countOrphans(ep, p, int64(p.live), now)
	}
}

func step(n *uint64, up bool) {
	if up {
		*n++
	} else {
		*n--
	}
}

// settlePolicy keeps the policy's view equal to ours.
func (s *Shard) settlePolicy(i uint32, p *pageRecord, f *family, t *tally, before *pageRecord) {
	ref := evict.Ref(i)
	if t.committed == 0 {
		if before.has(flagCommitted) {
			s.o.Policy.Remove(seconds(s.now), ref, s.evicting)
		}
		return
	}
	s.o.Policy.Insert(seconds(s.now), ref, s.attrs(p, f, t))
	s.settleEvictable(i, p, t)
}

// adviseRun passes on what a client says of pages; slot 0 is none.
func (s *Shard) adviseRun(slots []uint32, h evict.Hint) {
	if h == (evict.Hint{}) {
		return
	}
	for _, i := range slots {
		if i != 0 {
			s.advise(i, h)
		}
	}
}

// advise passes on what a client says of a page that is committed.
func (s *Shard) advise(i uint32, h evict.Hint) {
	p := s.pages.At(i)
	if h == (evict.Hint{}) || !p.has(flagCommitted) {
		return
	}
	f := s.families.at(p.family)
	t := s.tally(p, f.ep)
	a := s.attrs(p, f, &t)
	a.Hint = h
	s.o.Policy.Insert(seconds(s.now), evict.Ref(i), a)
}

// reconsider is settle where only the children or the pins of a page changed.
func (s *Shard) reconsider(i uint32) {
	if p := s.pages.At(i); p.has(flagCommitted) {
		t := s.tally(p, s.epochOf(i))
		s.settleEvictable(i, p, &t)
	}
}

func (s *Shard) settleEvictable(i uint32, p *pageRecord, t *tally) {
	from := s.evictable(i, p, t)
	for tier := range evict.NumTiers {
		s.o.Policy.SetEvictable(evict.Ref(i), tier, from.has(tier))
	}
}

// evictable says from which tiers a page may go, as the contract of evict.Policy has it.
func (s *Shard) evictable(i uint32, p *pageRecord, t *tally) tierSet {
	if !p.has(flagCommitted) || p.has(flagOpen|flagGuarded) || t.moving {
		return 0
	}
	from := t.in
	if p.live > 0 || p.has(flagPinned) {
		from &^= t.sole
	}
	for tier := range evict.NumTiers {
		children := p.live
		if tier >= firstNear {
			children = p.near[tier-firstNear]
		}
		if children > 0 || p.has(flagPinned) && s.pins[i].bytes[tier] > 0 {
			from &^= 1 << tier
		}
	}
	return from
}

func (s *Shard) attrs(p *pageRecord, f *family, t *tally) evict.Attrs {
	a := evict.Attrs{
		Bytes: t.bytes, Declared: float64(p.declared), Tokens: f.geo.Tokens, Depth: p.depth,
		Tenant: f.ep.state.Tenant, Share: evict.Share(f.ep.account.share.Load()), Parent: evict.Ref(p.parent), KeyTag: p.fp.hi,
		Doomed: p.has(flagOrphan) || t.hidden || p.expired(s.wall) || p.has(flagGivenUp) && !p.has(flagComplete),
	}
	if f.geo.FLOPs != nil {
		start := uint64(p.depth) * uint64(f.geo.Tokens)
		a.FLOPs = f.geo.FLOPs(start, start+uint64(f.geo.Tokens))
	}
	return a
}

// end ends the life of what is committed of a page, all copies: hidden and announced now. Bytes that leases hold stay
// readable under these; the others are free as soon as no one reads them. Grants in flight are not touched.
func (s *Shard) end(i uint32, why reason.Reason, cause OrphanCause) (held uint64) {
	p := s.pages.At(i)
	s.unpinOperators(i)
	var g *goneSet
	if p.has(flagPinned) {
		g = s.moveToGone(i)
	}
	for _, x := range s.committedOf(p) {
		held += s.extents.At(x).held()
		if g == nil {
			s.dropCommitted(x, why)
			continue
		}
		s.giveUpCopies(x)
		s.announce(x, true, why)
		s.uncount(x)
		s.detach(x, extentGone)
		g.extents = append(g.extents, x)
		s.goneOf[x] = g
	}
	s.setCause(i, cause)
	p.gen++
	s.settle(i)
	return held
}

// committedOf lists the committed copies of a page, those of one extent together, in scratch memory.
func (s *Shard) committedOf(p *pageRecord) []uint32 {
	s.listed = s.listed[:0]
	for x := p.extents; x != 0; x = s.extents.At(x).next {
		if s.extents.At(x).state() == extentCommitted {
			s.listed = append(s.listed, x)
		}
	}
	return s.listed
}

// stands says whether a page may be built on: an extent of it is open, or committed and accepted, in time.
func (s *Shard) stands(i uint32) bool {
	p := s.pages.At(i)
	if p.has(flagOpen) {
		return true
	}
	if !p.has(flagCommitted) || p.expired(s.wall) {
		return false
	}
	t := s.tally(p, s.epochOf(i))
	return t.accepted
}

// slotsOf finds the records of a run's hashes; 0 where there is none. The result is scratch.
func (s *Shard) slotsOf(r *Run, family uint32, hashBytes int) []uint32 {
	n := len(r.Hashes) / hashBytes
	s.slots, s.fps = s.slots[:0], s.fps[:0]
	for i := range n {
		s.fps = append(s.fps, fingerprintOf(r.Hashes[i*hashBytes:][:hashBytes], s.o.FingerprintKey))
	}
	var found [probeBatch]uint32
	for at := 0; at < n; at += probeBatch {
		k := min(n-at, probeBatch)
		if family != 0 {
			s.index.findBatch(s.fps[at:at+k], family, &found)
		}
		s.slots = append(s.slots, found[:k]...)
	}
	return s.slots
}

// touchRun records a use of pages. One that is not on Disk may be worth it now.
func (s *Shard) touchRun(slots []uint32) {
	for _, i := range slots {
		if i == 0 {
			continue
		}
		if p := s.pages.At(i); p.has(flagCommitted) {
			s.o.Policy.Touch(seconds(s.now), evict.Ref(i))
			if s.o.WriteBehind && !p.has(flagQueued|nearIn(evict.Disk)) {
				s.queueBehind(i)
			}
		}
	}
}

// hashAt copies the i-th hash of a run.
func hashAt(r *Run, i, hashBytes int) page.Hash {
	h, _ := page.MakeHash(r.Hashes[i*hashBytes:][:hashBytes]) // the length was checked with the run
	return h
}
