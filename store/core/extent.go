package core

import (
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// newExtent lists an open extent of view v on the page at slot, in order of view, and charges its bytes. 0 when there
// is no record for it.
func (s *Shard) newExtent(slot uint32, v page.View, bytes uint32, lineage uint16) uint32 {
	if !s.o.Ledger.takeRecords(0, 1) {
		return 0
	}
	i := s.extents.take(func(x *extentRecord) uint32 { return x.next })
	if i == 0 {
		s.o.Ledger.giveRecords(0, 1)
		return 0
	}
	x := s.extents.At(i)
	*x = extentRecord{owner: slot, view: v, bytes: bytes, lineage: lineage, where: uint32(s.o.Tier)}
	x.setState(extentOpen)
	link := &s.pages.At(slot).extents
	for *link != 0 && viewLess(s.extents.At(*link).view, v) {
		link = &s.extents.At(*link).next
	}
	x.next, *link = *link, i
	s.epochOf(slot).bytes += x.held()
	return i
}

func viewLess(a, b page.View) bool { return a.H0 < b.H0 || a.H0 == b.H0 && a.L0 < b.L0 }

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

// dropCommitted hides an extent: announced now, its place free once no one reads it. The caller settles the page.
func (s *Shard) dropCommitted(i uint32, why reason.Reason) {
	s.announce(i, true, why)
	s.uncount(i)
	to := extentZombie
	if why == reason.Corrupt {
		to = extentRotten
	}
	s.detach(i, to)
	s.freeIfUnused(i)
}

// uncount takes a committed extent out of the counters of its epoch.
func (s *Shard) uncount(i uint32) {
	ep := s.epochOf(s.extents.At(i).owner)
	ep.extents--
	s.totals.Extents--
}

// detach makes an extent stand on its own: it keeps its family for the accounts until it is freed.
func (s *Shard) detach(i uint32, to extentState) {
	x := s.extents.At(i)
	family := s.pages.At(x.owner).family
	s.unlist(i)
	s.families.retain(family)
	x.owner = family
	x.setState(to)
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
	ep.bytes -= x.held()
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

func (s *Shard) announce(i uint32, removed bool, why reason.Reason) {
	x := s.extents.At(i)
	p := s.pages.At(x.owner)
	s.nextSeq++
	s.emit(Announce{
		Seq: s.nextSeq, Ref: p.ref(x.owner), Family: s.families.at(p.family).key,
		Place: x.place(), View: x.view, Removed: removed, Why: why,
	})
	if removed && why != reason.None {
		s.totals.Removed[why]++
	}
}
