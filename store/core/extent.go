package core

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// newExtent lists an open extent of view v on the page at slot and charges its bytes, within the tenant's quota if
// bounded; it takes over the reference to lineage. 0 when there is no record for it (Busy), or no quota.
func (s *Shard) newExtent(slot uint32, v page.View, t evict.Tier, bytes uint32, lineage uint16, bounded bool) (uint32, reason.Reason) {
	ep := s.epochOf(slot)
	if !s.o.Ledger.takeBytes(ep.account, t, roundUp(uint64(bytes)), true, true, bounded) {
		return 0, reason.QuotaExceeded
	}
	i := s.takeExtent()
	if i == 0 {
		s.o.Ledger.endLive(ep.account, t, roundUp(uint64(bytes)))
		s.o.Ledger.giveBytes(ep.account, t, roundUp(uint64(bytes)), true)
		return 0, reason.Busy
	}
	x := s.extents.At(i)
	*x = extentRecord{owner: slot, view: v, bytes: bytes, lineage: lineage, where: uint32(t)}
	x.setState(extentOpen)
	s.list(i)
	ep.bytes[t] += x.held()
	ep.charged += x.held()
	s.live[t] += x.held()
	return i, reason.None
}

// takeExtent takes a record, within the bounds of the node.
func (s *Shard) takeExtent() uint32 {
	if !s.o.Ledger.takeRecords(0, 1) {
		return 0
	}
	i := s.extents.take(func(x *extentRecord) uint32 { return x.next })
	if i == 0 {
		s.o.Ledger.giveRecords(0, 1)
	}
	return i
}

// list puts an extent in its place among those of its page.
func (s *Shard) list(i uint32) {
	x := s.extents.At(i)
	link := &s.pages.At(x.owner).extents
	for *link != 0 && s.extents.At(*link).before(x) {
		link = &s.extents.At(*link).next
	}
	x.next, *link = *link, i
}

// before is the order in a page: of views, then of tiers.
func (x *extentRecord) before(y *extentRecord) bool {
	switch a, b := x.view, y.view; {
	case a.H0 != b.H0:
		return a.H0 < b.H0
	case a.L0 != b.L0:
		return a.L0 < b.L0
	}
	return x.tier() < y.tier()
}

// unlist takes an extent out of its page's list. The caller settles the page.
func (s *Shard) unlist(i uint32) {
	x := s.extents.At(i)
	link := &s.pages.At(x.owner).extents
	for *link != i {
		link = &s.extents.At(*link).next
	}
	*link, x.next = x.next, 0
}

// dropOpen undoes a grant: its place is free at once, since only its writer knows of it. The caller settles the page.
func (s *Shard) dropOpen(i uint32) {
	s.detach(i, extentZombie)
	s.freeIfUnused(i)
}

// dropCommitted hides a copy: announced now, its place free once no one reads it. Copies that are being made of it are
// given up. The caller settles the page.
func (s *Shard) dropCommitted(i uint32, why reason.Reason) {
	s.giveUpCopies(i)
	s.announce(i, true, why)
	s.uncount(i)
	to := extentZombie
	if why == reason.Corrupt {
		to = extentRotten
	}
	s.detach(i, to)
	s.freeIfUnused(i)
}

// count puts a copy that was committed into the counters; uncount takes it out.
func (s *Shard) count(i uint32) {
	x := s.extents.At(i)
	s.epochOf(x.owner).extents++
	s.totals.Extents++
	s.totals.Tiers[x.tier()].Extents++
}

func (s *Shard) uncount(i uint32) {
	x := s.extents.At(i)
	s.epochOf(x.owner).extents--
	s.totals.Extents--
	s.totals.Tiers[x.tier()].Extents--
}

// detach makes an extent stand on its own: it keeps its family for the accounts until it is freed. Another copy is
// charged in its stead.
func (s *Shard) detach(i uint32, to extentState) {
	x := s.extents.At(i)
	if !x.spare() && x.state() == extentCommitted {
		if other := s.otherCopy(i); other != 0 {
			s.extents.At(other).setSpare(false)
			x.setSpare(true)
		}
	}
	family := s.pages.At(x.owner).family
	s.unlist(i)
	s.o.Ledger.endLive(s.families.at(family).ep.account, x.tier(), x.held())
	s.live[x.tier()] -= x.held()
	s.families.retain(family)
	x.owner = family
	x.setState(to)
}

// otherCopy is another committed copy of a listed extent, the one of the dearest tier; 0: there is none.
func (s *Shard) otherCopy(i uint32) uint32 {
	x := s.extents.At(i)
	for j := s.pages.At(x.owner).extents; j != 0; j = s.extents.At(j).next {
		if y := s.extents.At(j); j != i && y.state() == extentCommitted && y.view == x.view {
			return j
		}
	}
	return 0
}

// copyIn is the committed copy in tier t of a listed extent, itself included; 0: there is none.
func (s *Shard) copyIn(i uint32, t evict.Tier) uint32 {
	x := s.extents.At(i)
	for j := s.pages.At(x.owner).extents; j != 0; j = s.extents.At(j).next {
		if y := s.extents.At(j); y.state() == extentCommitted && y.view == x.view && y.tier() == t {
			return j
		}
	}
	return 0
}

// freeIfUnused gives the place and the record of a detached extent back unless something still reads it.
func (s *Shard) freeIfUnused(i uint32) {
	x := s.extents.At(i)
	if x.users > 0 || x.state() == extentGone {
		return
	}
	if p := x.place(); p != (Place{}) {
		s.emit(Free{p})
	}
	ep := s.families.at(x.owner).ep
	ep.bytes[x.tier()] -= x.held()
	if !x.spare() {
		ep.charged -= x.held()
	}
	s.o.Ledger.giveBytes(ep.account, x.tier(), x.held(), !x.spare())
	ep.lineages.release(x.lineage)
	s.families.release(x.owner)
	*x = extentRecord{next: s.extents.free}
	s.extents.give(i)
	s.o.Ledger.giveRecords(0, 1)
}

// unuse ends one use of an extent's place.
func (s *Shard) unuse(i uint32) {
	x := s.extents.At(i)
	x.users--
	if st := x.state(); st == extentZombie || st == extentRotten {
		s.freeIfUnused(i)
	}
}

func (s *Shard) epochOf(slot uint32) *epoch { return s.families.at(s.pages.At(slot).family).ep }

// announce tells of a copy that is there now, or is about to go.
func (s *Shard) announce(i uint32, removed bool, why reason.Reason) {
	x := s.extents.At(i)
	p := s.pages.At(x.owner)
	s.nextSeq++
	s.emit(Announce{
		Seq: s.nextSeq, Ref: p.ref(x.owner), Family: s.families.at(p.family).key,
		Place: x.place(), View: x.view, Removed: removed, Why: why,
	})
	if removed && why != reason.None && (why == reason.Corrupt || s.otherCopy(i) == 0) {
		s.totals.Removed[why]++
	}
}
