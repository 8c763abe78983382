package replay

import (
	"container/heap"

	"github.com/quire-kv/quire/evict"
)

// FeasibleBelady is a schedule that knows the future and keeps prefixes whole: of the pages that may go, and the page
// that comes, the one whose next use is farthest away is not kept. A parent is used whenever a child of it is, so the
// farthest use is always that of a leaf, and the order of prefixes never stands in the way. It is a lower bound of what
// is possible, and serves most pages of all (Belady 1966); where pages cost differently, others may save more.
func FeasibleBelady(w *Workload, costs []float64, capacity int) Result {
	b := newBelady(w)
	r, err := Replay(w, costs, b, capacity, Options{Served: b.served, Untold: true, singly: true})
	if err != nil {
		panic(err) // it picks what it was told to be evictable
	}
	r.Policy = "belady"
	return r
}

// belady is the policy: each page's score is how soon it is used next.
type belady struct {
	uses    [][]int32 // requests that use each page, in order; those that are over are taken off
	byTag   map[uint64]int32
	request int32
	slots   []beladySlot
	heap    byNextUse
}

type beladySlot struct {
	page      int32
	evictable bool
}

var _ evict.Policy = (*belady)(nil)

func newBelady(w *Workload) *belady {
	b := &belady{uses: make([][]int32, w.Pages()), byTag: make(map[uint64]int32, w.Pages()), slots: make([]beladySlot, 1)}
	counts := make([]int32, w.Pages())
	for i := range w.Requests {
		for _, p := range w.Requests[i].Pages {
			counts[p]++
		}
	}
	all := make([]int32, w.Accesses())
	for p, n := range counts {
		b.uses[p], all = all[:0:n], all[n:]
		b.byTag[mix(uint64(p)+1)] = int32(p)
	}
	for i := range w.Requests {
		for _, p := range w.Requests[i].Pages {
			b.uses[p] = append(b.uses[p], int32(i))
		}
	}
	return b
}

// served learns which request is under way.
func (b *belady) served(request, _ int) { b.request = int32(request) }

const never = 1 << 30

func (b *belady) next(p int32) int32 {
	u := b.uses[p]
	for len(u) > 0 && u[0] <= b.request {
		u = u[1:]
	}
	b.uses[p] = u
	if len(u) == 0 {
		return never
	}
	return u[0]
}

func (b *belady) Insert(_ float64, r evict.Ref, a evict.Attrs) {
	for int(r) >= len(b.slots) {
		b.slots = append(b.slots, beladySlot{})
	}
	b.slots[r] = beladySlot{page: b.byTag[a.KeyTag]}
}

func (b *belady) Remove(_ float64, r evict.Ref, _ bool) { b.slots[r] = beladySlot{} }

func (b *belady) SetEvictable(r evict.Ref, _ evict.Tier, ok bool) {
	s := &b.slots[r]
	if ok && !s.evictable {
		heap.Push(&b.heap, use{b.next(s.page), r, s.page})
	}
	s.evictable = ok
}

func (b *belady) Victims(_ float64, _ evict.Tier, _ uint64, _ *evict.Shares, dst []evict.Victim) []evict.Victim {
	for len(b.heap) > 0 {
		top := b.heap[0]
		if s := b.slots[top.ref]; !s.evictable || s.page != top.page {
			heap.Pop(&b.heap)
			continue
		}
		if n := b.next(top.page); n != top.at {
			b.heap[0].at = n
			heap.Fix(&b.heap, 0)
			continue
		}
		return append(dst, evict.Victim{Ref: top.ref, Score: -evict.Score(top.at)})
	}
	return dst
}

func (b *belady) Worth(_ float64, _ evict.Ref, _ evict.Tier, a evict.Attrs) evict.Score {
	return -evict.Score(b.next(b.byTag[a.KeyTag]))
}

func (b *belady) Touch(float64, evict.Ref)             {}
func (b *belady) Pass(float64, []evict.Attrs)          {}
func (b *belady) Resize(evict.Tier, uint64, uint64)    {}
func (b *belady) SetLoading(evict.Tier, evict.Loading) {}
func (b *belady) FootprintBytes() uint64               { return 0 }

// byNextUse has the farthest first, of equals the page that came last: a child before its parent. Entries that time
// has overtaken are put right when they come to the top: next uses only move away.
type byNextUse []use

type use struct {
	at   int32
	ref  evict.Ref
	page int32
}

func (h byNextUse) Len() int { return len(h) }
func (h byNextUse) Less(i, j int) bool {
	return h[i].at > h[j].at || h[i].at == h[j].at && h[i].page > h[j].page
}
func (h byNextUse) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *byNextUse) Push(x any)   { *h = append(*h, x.(use)) }
func (h *byNextUse) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
