package classic

import (
	"math/bits"

	"github.com/quire-kv/quire/evict"
)

// lhd learns, for pages of one class and age, how many hits they bring for the time that they still stay.
type lhd struct {
	sampled
	shift   int // of ages: uses of the whole cache >> shift
	period  int // uses between two looks at what was learned
	events  int
	classes [lhdClasses]lhdClass
	past    []uint64 // of each ref: its age at the last hit; lhdNever: none
}

type lhdClass struct{ hits, ends, density [lhdAges]float64 }

const (
	lhdClasses  = 16
	lhdAges     = 512
	lhdDecay    = 0.9
	lhdNever    = 1 << 62
	lhdExplorer = 64 // every so manieth page is not evicted before it is old, so that long reuse is seen
)

// NewLHD evicts, of 64 sampled pages, the one with the least hit density: the expected hits of a page of its class and age
// over the time that it is expected to stay (Beckmann, Chen, Cidon, "LHD: Improving Cache Hit Rate by Maximizing Hit
// Density", NSDI 2018). Classes are the logarithm of a page's last two ages at a hit. Ages count uses of the cache, in
// 512 steps that together span 16 times its pages.
func NewLHD(capacity int, seed uint64) *Policy {
	return newPolicy(func(t *table) rule {
		span := 16 * uint64(max(1, capacity)) / lhdAges
		l := &lhd{sampled: sampled{table: t, seed: seed}, shift: bits.Len64(span), period: max(1024, capacity)}
		for c := range l.classes {
			for a := range lhdAges {
				l.classes[c].density[a] = 1 / float64(a+1) // LRU until something was seen
			}
		}
		return l
	})
}

func (l *lhd) age(p *page) uint64 { return (l.clock - p.last) >> l.shift }

func (l *lhd) class(r evict.Ref) *lhdClass {
	return &l.classes[max(0, lhdClasses-1-bits.Len64(l.past[r]))]
}

func (l *lhd) insert(r evict.Ref) {
	for int(r) >= len(l.past) {
		l.past = append(l.past, 0)
	}
	l.past[r] = lhdNever
	l.at(r).marked = mix(l.seed^l.at(r).tag)%lhdExplorer == 0
	l.event()
}

func (l *lhd) touch(r evict.Ref) {
	age := l.age(l.at(r))
	l.class(r).hits[min(age, lhdAges-1)]++
	before := l.past[r]
	if before >= lhdNever/2 { // its first hit
		before = age
	}
	l.past[r] = age + before
	l.event()
}

func (l *lhd) remove(r evict.Ref, evicted bool) {
	if evicted {
		l.class(r).ends[min(l.age(l.at(r)), lhdAges-1)]++
	}
	l.sampled.remove(r, evicted)
}

func (l *lhd) victim(float64) evict.Ref {
	return l.victimOf(l.draw())
}

func (l *lhd) victimOf(some []evict.Ref) (least evict.Ref) {
	var low rank
	for _, r := range some {
		p := l.at(r)
		age := min(l.age(p), lhdAges-1)
		k := rank{l.class(r).density[age], p.last}
		if p.marked && age < lhdAges-1 {
			k.a++ // behind all that are none
		}
		if least == 0 || k.less(low) {
			least, low = r, k
		}
	}
	return least
}

// event counts a use; after a period the densities are computed anew and the past fades.
func (l *lhd) event() {
	if l.events++; l.events < l.period {
		return
	}
	l.events = 0
	for c := range l.classes {
		l.classes[c].learn()
	}
}

// learn computes, from the oldest age on, hits still to come over time still to stay.
func (c *lhdClass) learn() {
	var hits, all, stay float64
	for a := lhdAges - 1; a >= 0; a-- {
		hits += c.hits[a]
		all += c.hits[a] + c.ends[a]
		if stay += all; stay > 0 {
			c.density[a] = hits / stay
		}
		c.hits[a] *= lhdDecay
		c.ends[a] *= lhdDecay
	}
}

func (l *lhd) footprint() uint64 {
	return l.sampled.footprint() + uint64(cap(l.past))*8 + lhdClasses*lhdAges*3*8
}
