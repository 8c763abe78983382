package core

import "github.com/quire-kv/quire/evict"

// A publication enters a full tier only in place of what scores no more than it does:
//
//	Begin ──grants──> Alloc{Worth: the best of the run} ──no place──> Reclaim{Judge, Worth}
//	                                                       \ the next victim scores more: Reclaimed{NotWorth}
//	Policy.Pass <──over── publication <── the rest of the run, refused whole <── Allocated{Err: NotWorth}
//
// A run is judged as one, so that no page of it is kept without those before it, and what is refused is always its tail.

// offer is what a policy may know of a page that is granted and not committed: judged by what it saves, even where it
// would be doomed for now.
func (s *Shard) offer(pp *pubPage) evict.Attrs {
	p := s.pages.At(pp.slot)
	f := s.families.at(p.family)
	t := s.tally(p, f.ep)
	for _, x := range pp.grants {
		t.bytes += s.extents.At(x).held()
	}
	a := s.attrs(p, f, &t)
	a.Declared, a.Doomed = max(a.Declared, float64(pp.declared)), false
	return a
}

// worthOf is the score of the best page that a publication was granted.
func (s *Shard) worthOf(pub *publication) (best evict.Score) {
	first := true
	for i := range pub.pages {
		if pp := &pub.pages[i]; pp.outcome == Granted {
			a := s.offer(pp)
			a.Hint = pub.hint
			if w := s.o.Policy.Worth(seconds(s.now), 0, s.o.Tier, a); first || w > best {
				best, first = w, false
			}
		}
	}
	return best
}

// pass notes a page of a run that is not taken, before it is given up.
func (s *Shard) pass(pub *publication, i int) {
	a := s.offer(&pub.pages[i])
	a.Hint = pub.hint
	if len(pub.passed) > 0 && a.Parent == pub.passing {
		a.Parent = 0 // the page before
	}
	above := PageRef{}
	if a.Parent != 0 {
		above = s.pages.At(uint32(a.Parent)).ref(uint32(a.Parent))
	}
	pub.passing = evict.Ref(pub.pages[i].slot)
	pub.passed, pub.above = append(pub.passed, a), append(pub.above, above)
}

// passOn tells the policy of the pages that were not taken, once the publication is over: what they follow may be a page
// of it that was, and the policy knows that since it was committed.
func (s *Shard) passOn(pub *publication) {
	if len(pub.passed) == 0 {
		return
	}
	for i := range pub.passed {
		if p := s.pages.At(pub.above[i].Slot); p.gen != pub.above[i].Gen || !p.has(flagCommitted) {
			pub.passed[i].Parent = 0 // it never came, or is gone
		}
	}
	s.o.Policy.Pass(seconds(s.now), pub.passed)
	pub.passed, pub.above = nil, nil
}
