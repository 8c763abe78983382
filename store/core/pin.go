package core

import (
	"slices"

	"github.com/quire-kv/quire/reason"
)

// pin keeps pages from eviction in an operator's name, or lets them go. Pins have no end but Unpin and the end of the
// page: unlike leases they do not keep what is deleted.
func (s *Shard) pin(ev *Pin) {
	l := s.operatorOf(ev.Principal)
	r := Reply{Ticket: ev.Ticket}
	for n := range ev.Runs {
		r.Reason = s.eachPage(&ev.Runs[n], &r.Results, func(i uint32) Result { return s.pinOne(l, i, ev.Unpin) })
	}
	if len(l.at) == 0 {
		s.operators = slices.DeleteFunc(s.operators, func(x *lease) bool { return x == l })
	}
	s.emit(r)
}

// operatorOf is the record of a principal's pins.
func (s *Shard) operatorOf(by Principal) *lease {
	for _, l := range s.operators {
		if l.principal == by {
			return l
		}
	}
	l := s.newLease(by, 0)
	l.id = LeaseID{1} // not among the leases; never looked up
	s.operators = append(s.operators, l)
	return l
}

func (s *Shard) pinOne(l *lease, i uint32, unpin bool) Result {
	p := s.pages.At(i)
	ref := p.ref(i)
	if at, ok := l.at[pageKey{p.family, p.fp}]; ok && unpin { // also what is no longer served
		s.letGo(l, at)
		return Result{Outcome: OK, Ref: ref}
	}
	switch {
	case !p.has(flagCommitted):
		return Result{Outcome: Miss, Reason: reason.Absent}
	case p.expired(s.wall):
		return Result{Outcome: Miss, Reason: reason.Expired}
	case !unpin && !s.hold(l, i):
		return Result{Outcome: Refused, Reason: reason.Busy, Ref: ref}
	}
	return Result{Outcome: OK, Ref: ref}
}

// unpinOperators drops the operators' pins of a page whose life ends.
func (s *Shard) unpinOperators(i uint32) {
	p := s.pages.At(i)
	if !p.has(flagPinned) {
		return
	}
	key := pageKey{p.family, p.fp}
	kept := s.operators[:0]
	for _, l := range s.operators {
		if at, ok := l.at[key]; ok {
			s.letGo(l, at)
		}
		if len(l.at) > 0 {
			kept = append(kept, l)
		}
	}
	clear(s.operators[len(kept):])
	s.operators = kept
}
