package core

import (
	"github.com/quire-kv/quire/reason"
)

// An extent that moves counts as used by its transfer: neither its place nor its record goes before TransferDone.
//
//	Move --> Transfer --> TransferDone, alone:           old place freed, new one kept
//	    \                              \ read, or gone:  new place freed, old one kept (and freed if gone and unread)
//	     +-> MoveRefused: open, read, moving, or gone

// move starts to move an extent out of a slab that is being emptied.
func (s *Shard) move(ev *Move) {
	x := s.extentAt(ev.Extent)
	if x == nil || x.state() != extentCommitted || x.users > 0 || x.place() != ev.From {
		s.emit(MoveRefused{ev.Extent})
		return
	}
	x.users++
	x.setMoving(true)
	s.reconsider(x.owner)
	s.nextID++
	s.transfers[s.nextID] = ev.Extent
	st := &s.epochOf(x.owner).state
	s.emit(Transfer{ID: s.nextID, Extent: ev.Extent, Namespace: st.ID, Epoch: st.Epoch, From: ev.From, To: ev.From.Tier})
}

func (s *Shard) transferDone(ev *TransferDone) {
	i, ok := s.transfers[ev.ID]
	if !ok {
		return
	}
	delete(s.transfers, ev.ID)
	x := s.extents.At(i)
	x.setMoving(false)
	landed := ev.Err == reason.None && ev.To != (Place{})
	if landed {
		old := x.place()
		if x.state() == extentCommitted && x.users == 1 && x.setPlace(ev.To) {
			s.emit(Free{old})
		} else {
			s.emit(Free{ev.To})
		}
	}
	if x.state() == extentCommitted {
		x.users--
		s.settle(x.owner)
		return
	}
	s.unuse(i)
}

// corruptFound drops an extent that failed verification, wherever it is now.
func (s *Shard) corruptFound(ev *CorruptFound) {
	x := s.extentAt(ev.Extent)
	if x == nil || x.place() != ev.Place {
		return // gone meanwhile, or moved: its new place was verified on the way
	}
	switch x.state() {
	case extentCommitted:
		slot := x.owner
		p := s.pages.At(slot)
		if !p.has(flagAbsent) {
			p.setCause(OrphanCorrupt) // of its children, if this was the last of it
		}
		s.dropCommitted(ev.Extent, reason.Corrupt)
		s.settle(slot)
		if p.has(flagCommitted) && !p.has(flagComplete) {
			s.watchIncomplete(slot)
		}
	case extentGone:
		s.dropGone(ev.Extent)
	case extentZombie:
		x.setState(extentRotten)
	}
}

// dropGone takes an extent out of the goneSet that keeps it.
func (s *Shard) dropGone(i uint32) {
	g := s.goneOf[i]
	delete(s.goneOf, i)
	for j, x := range g.extents {
		if x == i {
			g.extents = append(g.extents[:j], g.extents[j+1:]...)
			break
		}
	}
	s.extents.At(i).setState(extentRotten)
	s.freeIfUnused(i)
}

// extentAt is the record of a slot that came from outside; nil when there is none.
func (s *Shard) extentAt(i uint32) *extentRecord {
	if i == 0 || i > s.extents.top {
		return nil
	}
	return s.extents.At(i)
}
