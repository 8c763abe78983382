package classic

import "github.com/quire-kv/quire/evict"

// ordered is a rule that is one order of all pages.
type ordered struct {
	*table
	free order
	key  func(p *page) rank
}

func (o *ordered) insert(evict.Ref)           {}
func (o *ordered) touch(evict.Ref)            {}
func (o *ordered) remove(r evict.Ref, _ bool) { o.free.set(r, false, rank{}) }
func (o *ordered) victim(float64) evict.Ref   { return o.free.first() }
func (o *ordered) footprint() uint64          { return o.free.footprint() }

func (o *ordered) edge(r evict.Ref) {
	p := o.at(r)
	o.free.set(r, p.evictable, o.key(p))
}

// NewFIFO evicts the page that came first.
func NewFIFO() *Policy {
	return newPolicy(func(t *table) rule {
		return &ordered{table: t, key: func(p *page) rank { return rank{b: p.entered} }}
	})
}

// NewLFU evicts the page with the fewest uses since it came, of equals the one used longest ago. Counts are not aged and
// end with the page's stay.
func NewLFU() *Policy {
	return newPolicy(func(t *table) rule {
		return &ordered{table: t, key: func(p *page) rank { return rank{a: float64(p.uses), b: p.last} }}
	})
}

// gdsf is GreedyDual-Size with frequency.
type gdsf struct {
	ordered
	priority []float64 // of each ref, as of its last use
	clock    float64   // L: the priority of the last victim
}

// NewGDSF evicts the page with the least L + uses x cost / size, where L is the priority of the last victim (Cherkasova,
// "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1, 1998; GreedyDual-Size:
// Cao and Irani, USITS 1997). Cost is the FLOPs of recomputing the page; where they are not known, 1.
func NewGDSF() *Policy {
	return newPolicy(func(t *table) rule {
		g := &gdsf{}
		g.table = t
		return g
	})
}

func (g *gdsf) price(r evict.Ref) {
	for int(r) >= len(g.priority) {
		g.priority = append(g.priority, 0)
	}
	p := g.at(r)
	g.priority[r] = g.clock + float64(p.uses)*density(p)
}

func (g *gdsf) insert(r evict.Ref) { g.price(r) }
func (g *gdsf) touch(r evict.Ref)  { g.price(r) }

func (g *gdsf) edge(r evict.Ref) {
	p := g.at(r)
	g.free.set(r, p.evictable, rank{g.priority[r], p.last})
}

func (g *gdsf) remove(r evict.Ref, evicted bool) {
	if evicted {
		g.clock = max(g.clock, g.priority[r])
	}
	g.ordered.remove(r, evicted)
}

// density is what a page costs to recompute for each byte.
func density(p *page) float64 {
	cost := p.flops
	if cost <= 0 {
		cost = 1
	}
	return cost / float64(max(p.bytes, 1))
}
