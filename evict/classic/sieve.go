package classic

import "github.com/quire-kv/quire/evict"

// sieve keeps pages in the order in which they came. A hand moves from old to new, and round again:
//
//	old  [ ] [v] [ ] [v] [x] [ ]  new      v: visited, loses its mark when the hand passes
//	              ^ hand                   x: not evictable, keeps it
type sieve struct {
	*table
	links                []sieveLink
	oldest, newest, hand evict.Ref
	free                 int // evictable
}

type sieveLink struct {
	older, newer evict.Ref
	free         bool
}

// NewSIEVE evicts the first page that was not used since the hand last passed it (Zhang et al., "SIEVE is Simpler than
// LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024). The hand steps over pages that are not
// evictable and leaves their marks.
func NewSIEVE() *Policy { return newPolicy(func(t *table) rule { return &sieve{table: t} }) }

func (s *sieve) insert(r evict.Ref) {
	for int(r) >= len(s.links) {
		s.links = append(s.links, sieveLink{})
	}
	s.links[r] = sieveLink{older: s.newest}
	if s.newest != 0 {
		s.links[s.newest].newer = r
	} else {
		s.oldest = r
	}
	s.newest = r
}

func (s *sieve) touch(r evict.Ref) { s.at(r).marked = true }

func (s *sieve) edge(r evict.Ref) {
	if now := s.at(r).evictable; now != s.links[r].free {
		if s.links[r].free = now; now {
			s.free++
		} else {
			s.free--
		}
	}
}

func (s *sieve) remove(r evict.Ref, _ bool) {
	l := s.links[r]
	if l.free {
		s.free--
	}
	if s.hand == r {
		s.hand = l.newer
	}
	if l.older != 0 {
		s.links[l.older].newer = l.newer
	} else {
		s.oldest = l.newer
	}
	if l.newer != 0 {
		s.links[l.newer].older = l.older
	} else {
		s.newest = l.older
	}
	s.links[r] = sieveLink{}
}

func (s *sieve) victim(float64) evict.Ref {
	if s.free == 0 {
		return 0
	}
	for { // twice round at most: the first time takes all marks
		if s.hand == 0 {
			s.hand = s.oldest
		}
		p := s.at(s.hand)
		if p.evictable && !p.marked {
			return s.hand
		}
		if p.evictable {
			p.marked = false
		}
		s.hand = s.links[s.hand].newer
	}
}

func (s *sieve) footprint() uint64 { return uint64(cap(s.links)) * 12 }
