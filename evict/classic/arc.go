package classic

import "github.com/quire-kv/quire/evict"

// arc is two lists by last use, of pages used once (T1) and more often (T2), and the tags that left each (B1, B2).
type arc struct {
	*table
	capacity int
	target   float64 // p: wanted size of T1
	lists    [2]queue
	left     [2]*ghosts
}

// NewARC shifts room between pages used once and pages used more often, to where what it threw out is missed (Megiddo
// and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003). The store picks a victim before the page
// that comes is told, so what a ghost teaches counts from the next victim on. A list gives its oldest page that is
// evictable; when it has none, the other does.
func NewARC(capacity int) *Policy {
	return newPolicy(func(t *table) rule {
		c := max(1, capacity)
		return &arc{table: t, capacity: c, left: [2]*ghosts{newGhosts(c), newGhosts(2 * c)}}
	})
}

func (a *arc) insert(r evict.Ref) {
	p := a.at(r)
	b1, b2 := a.left[0], a.left[1]
	switch {
	case b1.has(p.tag):
		a.target = min(float64(a.capacity), a.target+max(1, float64(b2.len())/float64(b1.len())))
		b1.take(p.tag)
		p.part = 1
	case b2.has(p.tag):
		a.target = max(0, a.target-max(1, float64(b1.len())/float64(b2.len())))
		b2.take(p.tag)
		p.part = 1
	}
	a.lists[p.part].put(r, p.last, p.evictable)
	b1.trim(max(0, a.capacity-a.lists[0].len()))
	b2.trim(max(0, 2*a.capacity-a.lists[0].len()-a.lists[1].len()-b1.len()))
}

func (a *arc) touch(r evict.Ref) {
	p := a.at(r)
	a.lists[p.part].drop(r)
	p.part = 1 // edge puts it in
}

func (a *arc) edge(r evict.Ref) {
	p := a.at(r)
	a.lists[p.part].put(r, p.last, p.evictable)
}

func (a *arc) remove(r evict.Ref, evicted bool) {
	p := a.at(r)
	a.lists[p.part].drop(r)
	if evicted {
		a.left[p.part].add(p.tag)
	}
}

func (a *arc) victim(float64) evict.Ref {
	t1, t2 := a.lists[0].free.first(), a.lists[1].free.first()
	if t1 != 0 && (t2 == 0 || float64(a.lists[0].len()) > a.target) {
		return t1
	}
	return t2
}

func (a *arc) footprint() uint64 {
	return a.lists[0].footprint() + a.lists[1].footprint() + a.left[0].footprint() + a.left[1].footprint()
}
