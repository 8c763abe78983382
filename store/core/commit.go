package core

import "github.com/quire-kv/quire/reason"

// commit makes pages visible, each whole: all its grants in one step.
func (s *Shard) commit(ev *Commit) {
	if _, why := s.epochs.open(ev.Namespace, ev.Epoch); why != reason.None {
		s.replyPublish(Reply{Ticket: ev.Ticket, Reason: why})
		return
	}
	pub := s.livePublication(ev.Token, ev.Principal)
	if pub == nil || pub.ep.state.ID != ev.Namespace || pub.ep.state.Epoch != ev.Epoch {
		s.replyPublish(Reply{Ticket: ev.Ticket, Reason: reason.StaleToken})
		return
	}
	r := Reply{Ticket: ev.Ticket, Token: ev.Token, At: s.now, Results: make([]Result, len(ev.Pages))}
	for j, i := range ev.Pages {
		r.Results[j] = s.commitPage(pub, i)
	}
	if pub.openNow == 0 {
		s.closePublication(pub)
	} else {
		r.Until, r.TTL = pub.until, pub.until.Sub(s.now)
	}
	s.replyPublish(r)
}

func (s *Shard) commitPage(pub *publication, i uint32) Result {
	if int(i) >= len(pub.pages) {
		return Result{Outcome: Refused, Reason: reason.InvalidSpec}
	}
	pp := &pub.pages[i]
	switch pp.outcome {
	case Granted:
	case Committed, Present:
		return Result{Outcome: pp.outcome, Ref: pp.ref}
	default:
		return Result{Outcome: Refused, Reason: reason.Aborted}
	}
	why := s.lostRace(pub.ep, pp)
	if why == reason.None {
		why = s.settleLineages(pub, pp)
	}
	if why != reason.None {
		s.revoke(pub, []uint32{i})
		return Result{Outcome: Refused, Reason: why}
	}
	return s.commitGrants(pub, int(i))
}

// lostRace says whether an accepted extent lies under a grant: one that was hidden when the grant was made and has
// been accepted again since. The first committed stays.
func (s *Shard) lostRace(ep *epoch, pp *pubPage) reason.Reason {
	for x := s.pages.At(pp.slot).extents; x != 0; x = s.extents.At(x).next {
		e := s.extents.At(x)
		if e.state() == extentCommitted && ep.lineages.accepted(e.lineage) && s.overlapsGrant(pp, x) {
			return reason.LostRace
		}
	}
	return reason.None
}

func (s *Shard) overlapsGrant(pp *pubPage, x uint32) bool {
	for _, g := range pp.grants {
		if !s.extents.At(g).view.Intersect(s.extents.At(x).view).Empty() {
			return true
		}
	}
	return false
}

// settleLineages fixes what the extents of a page rest on: what was known at the grant and what its parent is now.
func (s *Shard) settleLineages(pub *publication, pp *pubPage) reason.Reason {
	t := &pub.ep.lineages
	parent := s.pages.At(pp.slot).parent
	for _, x := range pp.grants {
		e := s.extents.At(x)
		h := s.lineageFor(pub.ep, pub.prov, parent, e.lineage)
		if h == 0 {
			return reason.LimitExceeded
		}
		t.release(e.lineage)
		e.lineage = h
		if !t.accepted(h) {
			return reason.Provenance
		}
	}
	return reason.None
}

func (s *Shard) commitGrants(pub *publication, i int) Result {
	pp := &pub.pages[i]
	p := s.pages.At(pp.slot)
	for _, x := range s.committedOf(p) { // hidden extents make room
		if s.overlapsGrant(pp, x) {
			s.dropCommitted(x, reason.Provenance)
			s.settle(pp.slot) // its expiry goes with the last of them
		}
	}
	s.forgetOpen(pub, i)
	for _, x := range pp.grants {
		s.extents.At(x).setState(extentCommitted)
		s.count(x)
		s.announce(x, false, reason.None)
	}
	if pp.expiry != 0 && (p.expiry == 0 || pp.expiry < p.expiry) {
		p.expiry = pp.expiry // the sooner of its writers'
		s.sweep.noteExpiry(p.expiry)
	}
	p.declared = max(p.declared, pp.declared)
	p.set(flagGivenUp, false)
	pp.outcome, pp.grants = Committed, nil
	pub.openNow--
	s.totals.CommittedPages++
	s.settle(pp.slot)
	s.advise(pp.slot, pub.hint)
	if !p.has(flagComplete) {
		s.watchIncomplete(pp.slot)
	}
	s.queueBehind(pp.slot)
	pp.ref = p.ref(pp.slot)
	return Result{Outcome: Committed, Ref: pp.ref}
}
