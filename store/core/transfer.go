package core

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
)

// transfer is a copy of bytes under way: into a place of the same tier for the same record (a move), or into another
// tier for a record of its own (a copy). It uses the place it reads, and a copy's record, so neither goes before
// TransferDone.
//
//	Move --> Transfer --> TransferDone, alone:           old place freed, new one kept
//	    |\                             \ read, or gone:  new place freed, old one kept (and freed if gone and unread)
//	    | +-> MoveRefused: open, read, moving, or gone
//	    +---> Free: worth less than Drop, and evictable
//
//	Promote, Persist, WriteBehind --> Transfer --> TransferDone, source still there: the copy is committed
//	                                                           \ dropped, deleted, or Passing: only for those who wait in
//	                                                             Host, then freed
type transfer struct {
	id         uint64
	from, into uint32 // extents; equal for a move
	to         evict.Tier
	worth      evict.Score // of what it brings: it takes the place only of what scores no more
	landings   []landing
	persists   []persisting
	deletes    []*delayed
}

// landing is an extent that a Read waits for.
type landing struct {
	ticket Ticket
	extent uint32 // as its Promote named it
}

// copying finds the copy of an extent that is being made in a tier.
type copying struct {
	from uint32
	to   evict.Tier
}

// move starts to move an extent out of a slab or segment that is being emptied, or evicts it.
func (s *Shard) move(ev *Move) {
	x := s.extentAt(ev.Extent)
	if x == nil || x.state() != extentCommitted || x.users > 0 || x.place() != ev.From {
		s.emit(MoveRefused{ev.Extent})
		return
	}
	if score, ok := s.worthLess(x.owner, ev.From.Tier, ev.Drop); ok {
		s.evictFrom(x.owner, ev.From.Tier, score)
		return
	}
	x.setMoving(true)
	s.startTransfer(ev.Extent, ev.Extent, ev.From.Tier, evict.MaxScore)
}

// worthLess says whether a page may be evicted from a tier and scores below level there.
func (s *Shard) worthLess(i uint32, t evict.Tier, level evict.Score) (score evict.Score, ok bool) {
	p := s.pages.At(i)
	f := s.families.at(p.family)
	c := s.tally(p, f.ep)
	if !s.evictable(i, p, &c).has(t) || !s.mayGo(claim{}, t, i) {
		return 0, false
	}
	score = s.o.Policy.Worth(seconds(s.now), evict.Ref(i), t, s.attrs(p, f, &c))
	return score, score < level
}

// startTransfer emits the Transfer of extent from, which is listed or detached.
func (s *Shard) startTransfer(from, into uint32, to evict.Tier, worth evict.Score) *transfer {
	s.nextID++
	t := &transfer{id: s.nextID, from: from, into: into, to: to, worth: worth}
	s.transfers[t.id] = t
	s.copies[copying{from, to}] = t
	x := s.extents.At(from)
	x.users++
	e := Transfer{ID: t.id, Extent: from, Into: into, From: x.place(), To: to, Worth: worth}
	ep := (*epoch)(nil)
	if x.listed() {
		ep, e.Expiry = s.epochOf(x.owner), s.pages.At(x.owner).expiry
		s.settle(x.owner)
	} else {
		ep = s.families.at(x.owner).ep
		if g := s.goneOf[from]; g != nil {
			e.Expiry = g.expiry
		}
	}
	e.Namespace, e.Epoch, e.Lineage = ep.state.ID, ep.state.Epoch, ep.lineages.all[x.lineage].members
	s.emit(e)
	return t
}

// startCopy begins a copy of an extent in another tier, or finds the one that is being made: nil and Busy when there is
// no record for it, the tier takes no bytes, or the extent has too many users. worth is MaxScore where the copy is not
// judged.
func (s *Shard) startCopy(from uint32, to evict.Tier, worth evict.Score) (*transfer, reason.Reason) {
	x := s.extents.At(from)
	if x.listed() { // any copy will do
		for j := s.pages.At(x.owner).extents; j != 0; j = s.extents.At(j).next {
			if y := s.extents.At(j); y.state() == extentCommitted && y.view == x.view {
				if t := s.copies[copying{j, to}]; t != nil {
					return t, reason.None
				}
			}
		}
	} else if t := s.copies[copying{from, to}]; t != nil {
		return t, reason.None
	}
	if s.readOnly[to] || x.users >= maxUsers {
		return nil, reason.Busy
	}
	if !s.o.Ledger.room(0, 1) {
		s.roomForCopy(x)
	}
	into := s.takeExtent()
	if into == 0 {
		return nil, reason.Busy
	}
	c := s.extents.At(into)
	*c = extentRecord{owner: x.owner, view: x.view, bytes: x.bytes, lineage: x.lineage, where: uint32(to), users: 1}
	c.setSpare(true)
	var ep *epoch
	if x.listed() {
		ep = s.epochOf(x.owner)
		c.setState(extentLanding)
		s.list(into)
	} else {
		ep = s.families.at(x.owner).ep
		c.setState(extentZombie)
		s.families.retain(x.owner)
	}
	ep.bytes[to] += c.held()
	s.o.Ledger.takeBytes(ep.account, to, c.held(), c.listed(), false, false)
	if c.listed() {
		s.live[to] += c.held()
	}
	ep.lineages.retain(x.lineage)
	return s.startTransfer(from, into, to, worth), reason.None
}

// roomForCopy evicts until there is a record for a copy of x; its page stays.
func (s *Shard) roomForCopy(x *extentRecord) {
	if !x.listed() {
		s.roomFor(s.families.at(x.owner).ep.state.Tenant, 0, 1, nil)
		return
	}
	guarded := [1]uint32{x.owner}
	s.roomFor(s.epochOf(x.owner).state.Tenant, 0, 1, guarded[:])
}

// giveUpCopies makes the copies of a listed extent that are under way stand on their own: when they come, they serve
// who waits for them and are freed.
func (s *Shard) giveUpCopies(from uint32) {
	for to := range evict.NumTiers {
		if t := s.copies[copying{from, to}]; t != nil && s.extents.At(t.into).state() == extentLanding {
			s.detach(t.into, extentZombie)
		}
	}
}

func (s *Shard) transferDone(ev *TransferDone) {
	t := s.transfers[ev.ID]
	if t == nil {
		return
	}
	delete(s.transfers, ev.ID)
	delete(s.copies, copying{t.from, t.to})
	slot := uint32(0)
	if x := s.extents.At(t.from); x.listed() {
		slot = x.owner
	}
	if t.from == t.into {
		s.moved(t, ev)
	} else {
		s.landed(t, ev)
	}
	s.unuse(t.from)
	if slot != 0 {
		s.settle(slot)
	}
	for _, d := range t.deletes {
		d.waits--
		d.answer(s)
	}
}

// moved puts an extent in its new place if nobody else uses the old one.
func (s *Shard) moved(t *transfer, ev *TransferDone) {
	x := s.extents.At(t.from)
	x.setMoving(false)
	if ev.Err != reason.None || ev.To == (Place{}) {
		return
	}
	if old := x.place(); x.state() == extentCommitted && x.users == 1 && ev.To.Tier == t.to && x.setPlace(ev.To) {
		s.emit(Free{old})
	} else {
		s.emit(Free{ev.To})
	}
}

// landed files a copy, or lets it go, and tells all who wait for it.
func (s *Shard) landed(t *transfer, ev *TransferDone) {
	c := s.extents.At(t.into)
	why := ev.Err
	switch {
	case why != reason.None:
	case ev.To == (Place{}):
		why = reason.Busy
	case ev.To.Tier != t.to || !c.setPlace(ev.To):
		s.emit(Free{ev.To})
		why = reason.Busy
	}
	stays := reason.Absent
	if c.state() == extentLanding {
		if why == reason.None && !ev.Passing && s.epochOf(c.owner).state.Life != Retired {
			stays = reason.None
			c.setState(extentCommitted)
			s.count(t.into)
			s.announce(t.into, false, reason.None)
		} else {
			s.detach(t.into, extentZombie)
		}
	}
	for _, w := range t.landings {
		s.land(w, t.into, why)
	}
	if why != reason.None {
		stays = why
	}
	s.unuse(t.into)
	if why == reason.NotWorth || ev.Passing {
		s.totals.Tiers[t.to].NotWorth++
	}
	if why == reason.NotWorth && t.worth < evict.MaxScore && len(t.persists) > 0 && s.extents.At(t.from).state() == extentCommitted {
		again, no := s.startCopy(t.from, t.to, evict.MaxScore) // what is to be durable is not judged
		if again != nil {
			again.persists = append(again.persists, t.persists...)
			return
		}
		stays = no
	}
	for _, w := range t.persists {
		s.persisted(w, stays)
	}
}

// promote makes copies in Host of what a Read pinned elsewhere. They are judged as one, by the best page: in place of what is
// worth more they serve the Read, and do not stay.
func (s *Shard) promote(ev *Promote) {
	pinned := s.reads[ev.Ticket]
	worth := evict.Score(0)
	for _, i := range pinned {
		if x := s.extents.At(i); x.tier() != evict.Host && x.listed() {
			worth = max(worth, s.worthIn(x.owner, evict.Host))
		}
	}
	at := 0
	for _, i := range ev.Extents {
		w := landing{ev.Ticket, i}
		found := false
		for range pinned { // mostly in the order of the Read
			if found = pinned[at] == i; found {
				break
			}
			at = (at + 1) % len(pinned)
		}
		if found {
			s.promoteOne(w, worth)
		} else {
			s.emit(Landed{Ticket: ev.Ticket, Extent: i, Err: reason.Absent})
		}
	}
}

func (s *Shard) promoteOne(w landing, worth evict.Score) {
	x := s.extents.At(w.extent)
	copied := uint32(0)
	switch {
	case x.tier() == evict.Host:
		copied = w.extent
	case x.listed():
		copied = s.copyIn(w.extent, evict.Host)
	}
	if copied != 0 {
		s.land(w, copied, reason.None)
		return
	}
	if !x.listed() {
		worth = evict.MaxScore // it comes for the Read alone
	}
	t, why := s.startCopy(w.extent, evict.Host, worth)
	if t == nil {
		s.land(w, 0, why)
		return
	}
	t.landings = append(t.landings, w)
}

// land answers a Promote for one extent, unless its Read is over. The copy is pinned with what the Read pinned before.
func (s *Shard) land(w landing, copied uint32, why reason.Reason) {
	pinned, open := s.reads[w.ticket]
	if !open {
		return
	}
	e := Landed{Ticket: w.ticket, Extent: w.extent, Err: why}
	switch {
	case why != reason.None:
	case s.extents.At(copied).users >= maxUsers:
		e.Err = reason.Busy
	default:
		x := s.extents.At(copied)
		x.users++
		s.reads[w.ticket] = append(pinned, copied)
		e.Copy, e.Place = copied, x.place()
	}
	s.emit(e)
}

// corruptFound drops a copy that failed verification, wherever it is now.
func (s *Shard) corruptFound(ev *CorruptFound) {
	x := s.extentAt(ev.Extent)
	if x == nil || x.place() != ev.Place || ev.Place == (Place{}) {
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
