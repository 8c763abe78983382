package classic

import "github.com/quire-kv/quire/evict"

// marconi is recency, until the first page had to go; then uses are noted until there are marconiWindow times as many as
// before, and what came is replayed with each alpha. The best is kept for good.
//
//	fill ──first victim──> note, alpha 0 ──window full──> replay each alpha ──> the best
type marconi struct {
	sampled
	alpha    float64
	capacity int
	notes    []note
	window   int // notes after which alpha is chosen; 0: no page had to go yet
	chosen   bool
}

// note is one use of one page.
type note struct {
	tag, parent uint64
	used, flops float64
	bytes       uint64
}

const (
	marconiWindow = 8       // the paper: 5 to 15 times
	marconiNotes  = 1 << 21 // at most, 80 MiB
)

// alphas that are tried.
func alphas() []float64 { return []float64{0, 0.05, 0.1, 0.2, 0.5, 1, 2, 5} }

// NewMarconi evicts, of 64 sampled pages, the one with the least recency + alpha x FLOP efficiency, each scaled to [0, 1]
// over the sample. Recency is one over the time since the last use, efficiency the FLOPs of recomputing the page for each
// byte; alpha is found by replaying what came after the cache was full. It is the score of Pan et al., "Marconi: Prefix
// Caching for the Era of Hybrid LLMs", MLSys 2025, on pages of one size; of the paper's candidates, nodes with at most
// one child, only leaves can go.
func NewMarconi(capacity int, seed uint64) *Policy {
	return newPolicy(func(t *table) rule { return &marconi{sampled: sampled{table: t, seed: seed}, capacity: capacity} })
}

// newMarconi is the score alone, alpha given.
func newMarconi(alpha float64, seed uint64) *Policy {
	return newPolicy(func(t *table) rule {
		return &marconi{sampled: sampled{table: t, seed: seed}, alpha: alpha, chosen: true}
	})
}

func (m *marconi) insert(r evict.Ref) { m.note(m.at(r), m.at(r).used) }
func (m *marconi) touch(r evict.Ref)  { m.note(m.at(r), m.now) }

func (m *marconi) note(p *page, now float64) {
	if m.chosen {
		return
	}
	m.notes = append(m.notes, note{p.tag, p.parent, now, p.flops, p.bytes})
	if len(m.notes) == m.window || len(m.notes) == marconiNotes {
		m.choose()
	}
}

func (m *marconi) victim(now float64) evict.Ref {
	if m.window == 0 {
		m.window = (1 + marconiWindow) * len(m.notes)
	}
	some := m.draw()
	recency := func(p *page) float64 { return 1 / max(now-p.used, leastAge) }
	recent, efficient := m.unit(some, recency), m.unit(some, density)
	return m.least(some, func(p *page) float64 { return recent(recency(p)) + m.alpha*efficient(density(p)) })
}

// unit scales a value to [0, 1] over some pages; where all are equal, to 0.
func (m *marconi) unit(some []evict.Ref, value func(p *page) float64) func(float64) float64 {
	low, high := 0.0, 0.0
	for i, r := range some {
		v := value(m.at(r))
		if i == 0 || v < low {
			low = v
		}
		if i == 0 || v > high {
			high = v
		}
	}
	if high == low {
		return func(float64) float64 { return 0 }
	}
	return func(v float64) float64 { return (v - low) / (high - low) }
}

// choose takes the alpha that would have saved most.
func (m *marconi) choose() {
	most := -1.0
	for _, alpha := range alphas() {
		if saved := tryOn(m.notes, newMarconi(alpha, m.seed), m.capacity); saved > most {
			m.alpha, most = alpha, saved
		}
	}
	m.chosen, m.notes = true, nil
}

func (m *marconi) footprint() uint64 { return m.sampled.footprint() + uint64(cap(m.notes))*40 }

// tryOn is what a policy would have saved on what was noted, in a cache of its own: notes of one path, each the parent
// of the next, are one request.
func tryOn(notes []note, p *Policy, capacity int) (saved float64) {
	s := small{policy: p, capacity: capacity, pages: map[uint64]*smallPage{}, next: 1}
	for len(notes) > 0 {
		n := 1
		for n < len(notes) && notes[n].parent == notes[n-1].tag && notes[n].used == notes[n-1].used {
			n++
		}
		saved += s.request(notes[:n])
		notes = notes[n:]
	}
	return saved
}

// small is a cache of pages in a tree, to try a policy on.
type small struct {
	policy   *Policy
	capacity int
	pages    map[uint64]*smallPage
	tags     []uint64 // of each ref from 1
	free     []evict.Ref
	next     evict.Ref
}

type smallPage struct {
	ref      evict.Ref
	parent   uint64
	children int
	using    bool
}

func (s *small) request(path []note) (saved float64) {
	whole := true
	for i := range path {
		n := &path[i]
		if g := s.pages[n.tag]; g != nil {
			if whole {
				saved += n.flops
			}
			g.using = true
			s.edge(n.tag)
			s.policy.Touch(n.used, g.ref)
		} else if whole = false; !s.take(n) {
			break
		}
	}
	for i := range path {
		if g := s.pages[path[i].tag]; g != nil {
			g.using = false
			s.edge(path[i].tag)
		}
	}
	return saved
}

func (s *small) take(n *note) bool {
	if len(s.pages) >= s.capacity {
		v := s.policy.Victims(n.used, evict.Host, 0, nil, nil)
		if len(v) == 0 {
			return false
		}
		tag := s.tags[v[0].Ref-1]
		parent := s.pages[tag].parent
		delete(s.pages, tag)
		s.policy.Remove(n.used, v[0].Ref, true)
		s.free = append(s.free, v[0].Ref)
		s.child(parent, -1)
	}
	g := &smallPage{ref: s.next, parent: n.parent, using: true}
	if last := len(s.free) - 1; last >= 0 {
		g.ref, s.free = s.free[last], s.free[:last]
		s.tags[g.ref-1] = n.tag
	} else {
		s.next++
		s.tags = append(s.tags, n.tag)
	}
	s.pages[n.tag] = g
	s.policy.Insert(n.used, g.ref, evict.Attrs{Bytes: n.bytes, FLOPs: n.flops, KeyTag: n.tag})
	s.child(n.parent, 1)
	return true
}

func (s *small) child(parent uint64, change int) {
	if g := s.pages[parent]; g != nil {
		g.children += change
		s.edge(parent)
	}
}

func (s *small) edge(tag uint64) {
	g := s.pages[tag]
	s.policy.SetEvictable(g.ref, evict.Host, g.children == 0 && !g.using)
}
