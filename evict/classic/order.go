package classic

import "github.com/quire-kv/quire/evict"

// rank orders pages: by a, then by b. The least goes first.
type rank struct {
	a float64
	b uint64
}

func (x rank) less(y rank) bool { return x.a < y.a || x.a == y.a && x.b < y.b }

// order is a set of pages of which the least is always at hand: a heap that knows where each page is. Every call is
// O(log n). The zero value is empty.
type order struct {
	heap []ranked
	at   []int32 // of each ref: its place in the heap, from 1; 0: not in it
}

type ranked struct {
	rank rank
	ref  evict.Ref
}

func (o *order) len() int { return len(o.heap) }

// first is the least page, 0 of none.
func (o *order) first() evict.Ref {
	if len(o.heap) == 0 {
		return 0
	}
	return o.heap[0].ref
}

// set puts r in at a rank, moves it there, or takes it out.
func (o *order) set(r evict.Ref, in bool, k rank) {
	for int(r) >= len(o.at) {
		o.at = append(o.at, 0)
	}
	i := int(o.at[r]) - 1
	switch {
	case in && i < 0:
		o.heap = append(o.heap, ranked{k, r})
		o.at[r] = int32(len(o.heap))
		o.up(len(o.heap) - 1)
	case in:
		o.heap[i].rank = k
		o.fix(i)
	case i >= 0:
		last := len(o.heap) - 1
		o.swap(i, last)
		o.heap = o.heap[:last]
		o.at[r] = 0
		if i < last {
			o.fix(i)
		}
	}
}

func (o *order) fix(i int) {
	if !o.up(i) {
		o.down(i)
	}
}

func (o *order) up(i int) (moved bool) {
	for i > 0 && o.heap[i].rank.less(o.heap[(i-1)/2].rank) {
		o.swap(i, (i-1)/2)
		i, moved = (i-1)/2, true
	}
	return moved
}

func (o *order) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(o.heap); c++ {
			if o.heap[c].rank.less(o.heap[least].rank) {
				least = c
			}
		}
		if least == i {
			return
		}
		o.swap(i, least)
		i = least
	}
}

func (o *order) swap(i, j int) {
	o.heap[i], o.heap[j] = o.heap[j], o.heap[i]
	o.at[o.heap[i].ref], o.at[o.heap[j].ref] = int32(i+1), int32(j+1)
}

func (o *order) footprint() uint64 { return uint64(cap(o.heap))*24 + uint64(cap(o.at))*4 }

// queue is one queue of a policy: all its pages, and those that may go, by the time they entered or were used.
type queue struct{ all, free order }

func (q *queue) len() int { return q.all.len() }

// put puts r in, or moves it.
func (q *queue) put(r evict.Ref, k uint64, evictable bool) {
	q.all.set(r, true, rank{b: k})
	q.free.set(r, evictable, rank{b: k})
}

func (q *queue) drop(r evict.Ref) {
	q.all.set(r, false, rank{})
	q.free.set(r, false, rank{})
}

func (q *queue) footprint() uint64 { return q.all.footprint() + q.free.footprint() }

// move puts r at the end of one of the parts of a policy's cache.
func (t *table) move(parts []queue, r evict.Ref, part uint8) {
	p := t.at(r)
	parts[p.part].drop(r)
	t.clock++
	p.part, p.entered = part, t.clock
	parts[part].put(r, p.entered, p.evictable)
}

// pool is a set of pages to sample from. The zero value is empty.
type pool struct {
	refs []evict.Ref
	at   []int32 // place from 1
}

func (p *pool) set(r evict.Ref, in bool) {
	for int(r) >= len(p.at) {
		p.at = append(p.at, 0)
	}
	i := int(p.at[r]) - 1
	switch {
	case in && i < 0:
		p.refs = append(p.refs, r)
		p.at[r] = int32(len(p.refs))
	case !in && i >= 0:
		last := p.refs[len(p.refs)-1]
		p.refs[i], p.at[last] = last, int32(i+1)
		p.refs = p.refs[:len(p.refs)-1]
		p.at[r] = 0
	}
}

// samples is how many pages a policy looks at that cannot keep all in order.
const samples = 64

// sample gives all pages, or as many as samples with repetition, chosen by the seed.
func (p *pool) sample(seed uint64, dst []evict.Ref) []evict.Ref {
	if len(p.refs) <= samples {
		return append(dst, p.refs...)
	}
	for i := range uint64(samples) {
		dst = append(dst, p.refs[mix(seed+i)%uint64(len(p.refs))])
	}
	return dst
}

func (p *pool) footprint() uint64 { return uint64(cap(p.refs))*4 + uint64(cap(p.at))*4 }

// ghosts remembers the last so many tags that were put in, first in first out.
type ghosts struct {
	most  int
	ring  []uint64          // in order; tags that were taken out stay until they come to the front
	seen  map[uint64]uint64 // tag to its number
	first uint64            // number of ring[0]
	next  uint64
}

func newGhosts(most int) *ghosts { return &ghosts{most: most, seen: map[uint64]uint64{}} }

func (g *ghosts) len() int { return len(g.seen) }

func (g *ghosts) has(tag uint64) bool { _, ok := g.seen[tag]; return ok }

func (g *ghosts) add(tag uint64) {
	g.seen[tag] = g.next
	g.ring = append(g.ring, tag)
	g.next++
	g.trim(g.most)
	if len(g.ring) > 2*g.most+samples {
		g.pack()
	}
}

// pack drops the tags that were taken out.
func (g *ghosts) pack() {
	var live []uint64
	for i, tag := range g.ring {
		if n, ok := g.seen[tag]; ok && n == g.first+uint64(i) {
			live = append(live, tag)
		}
	}
	g.ring, g.first, g.next = live, 0, uint64(len(live))
	for i, tag := range live {
		g.seen[tag] = uint64(i)
	}
}

func (g *ghosts) take(tag uint64) bool {
	_, ok := g.seen[tag]
	delete(g.seen, tag)
	return ok
}

// trim drops the oldest until no more than most are left.
func (g *ghosts) trim(most int) {
	for len(g.ring) > 0 {
		n, ok := g.seen[g.ring[0]]
		live := ok && n == g.first
		if live && len(g.seen) <= most {
			return
		}
		if live {
			delete(g.seen, g.ring[0])
		}
		g.ring = g.ring[1:]
		g.first++
	}
}

func (g *ghosts) footprint() uint64 { return uint64(cap(g.ring))*8 + uint64(len(g.seen))*32 }

// mix spreads a number over 64 bits, one to one (the finisher of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
