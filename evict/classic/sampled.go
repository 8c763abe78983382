package classic

import "github.com/quire-kv/quire/evict"

// sampled is what policies share whose order changes with time: they look at some pages and take the worst.
type sampled struct {
	*table
	pool pool
	seed uint64
	some []evict.Ref
}

func (s *sampled) insert(evict.Ref)           {}
func (s *sampled) touch(evict.Ref)            {}
func (s *sampled) edge(r evict.Ref)           { s.pool.set(r, s.at(r).evictable) }
func (s *sampled) remove(r evict.Ref, _ bool) { s.pool.set(r, false) }
func (s *sampled) footprint() uint64          { return s.pool.footprint() }

func (s *sampled) draw() []evict.Ref {
	s.some = s.pool.sample(mix(s.seed)+s.clock*samples, s.some[:0])
	return s.some
}

// least is the page of the lowest value, of equals the one used longest ago; 0 of none.
func (s *sampled) least(of []evict.Ref, value func(p *page) float64) (least evict.Ref) {
	var low rank
	for _, r := range of {
		p := s.at(r)
		if k := (rank{value(p), p.last}); least == 0 || k.less(low) {
			least, low = r, k
		}
	}
	return least
}

// leastAge keeps ages above 0: seconds.
const leastAge = 1e-3

type costAge struct{ sampled }

// NewCostAge evicts, of 64 sampled pages, the one with the least cost / (size x time since its last use): the benefit of
// the log-structured file system's cleaner turned round (Rosenblum and Ousterhout, ACM TOCS 1992), and Hyperbolic
// caching without counts (Blankstein, Sen, Freedman, USENIX ATC 2017).
func NewCostAge(seed uint64) *Policy {
	return newPolicy(func(t *table) rule { return &costAge{sampled{table: t, seed: seed}} })
}

func (c *costAge) victim(now float64) evict.Ref {
	return c.least(c.draw(), func(p *page) float64 { return density(p) / max(now-p.used, leastAge) })
}
