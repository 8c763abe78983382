package classic

import "github.com/quire-kv/quire/evict"

// s3fifo is three queues:
//
//	new ──> small ──used twice more──> main <──used──┐
//	          │                          │ └─────────┘ again, one use less
//	          └── ghost: tags ───────────┼──> main, when it comes again
//	                                     └──> gone
type s3fifo struct {
	*table
	parts  [2]queue // small, main
	target int      // of small
	ghost  *ghosts
}

const (
	s3Small = iota
	s3Main

	s3MostUses  = 3  // counted of one page
	s3SmallPart = 10 // small is a tenth
)

// NewS3FIFO has a small queue of a tenth of the cache for pages that come, a main queue for those that were used more
// than once there or came back soon, and remembers as many tags as main has pages (Yang, Zhang, Qiu, Yue, Rashmi,
// "FIFO Queues are All You Need for Cache Eviction", SOSP 2023). A queue gives its oldest page that is evictable; when
// it has none, the other does.
func NewS3FIFO(capacity int) *Policy {
	return newPolicy(func(t *table) rule {
		target := max(1, capacity/s3SmallPart)
		return &s3fifo{table: t, target: target, ghost: newGhosts(max(1, capacity-target))}
	})
}

func (s *s3fifo) insert(r evict.Ref) {
	p := s.at(r)
	p.uses = 0
	part := uint8(s3Small)
	if s.ghost.take(p.tag) {
		part = s3Main
	}
	s.move(s.parts[:], r, part)
}

func (s *s3fifo) touch(r evict.Ref) {
	p := s.at(r)
	p.uses = min(p.uses, s3MostUses)
}

func (s *s3fifo) edge(r evict.Ref) {
	p := s.at(r)
	s.parts[p.part].put(r, p.entered, p.evictable)
}

func (s *s3fifo) remove(r evict.Ref, evicted bool) {
	p := s.at(r)
	s.parts[p.part].drop(r)
	if evicted && p.part == s3Small {
		s.ghost.add(p.tag)
	}
}

func (s *s3fifo) victim(float64) evict.Ref {
	for {
		small, main := s.parts[s3Small].free.first(), s.parts[s3Main].free.first()
		switch {
		case small != 0 && (main == 0 || s.parts[s3Small].len() >= s.target):
			p := s.at(small)
			if p.uses <= 1 {
				return small
			}
			p.uses = 0
			s.move(s.parts[:], small, s3Main)
		case main != 0:
			p := s.at(main)
			if p.uses == 0 {
				return main
			}
			p.uses--
			s.move(s.parts[:], main, s3Main)
		default:
			return 0
		}
	}
}

func (s *s3fifo) footprint() uint64 {
	return s.parts[0].footprint() + s.parts[1].footprint() + s.ghost.footprint()
}
