package replay

import (
	"fmt"

	"github.com/quire-kv/quire/evict"
)

// Workload is a trace made ready for replay: pages have dense numbers, and each request is one path of the tree of
// prefixes. It may be read by many replays at once.
type Workload struct {
	Name       string
	PageTokens uint32
	Requests   []Access
	Parents    []int32 // of each page, -1: root. A parent has a lower number than its children
	Depths     []int32 // pages before it
	Spaces     []int32 // the namespace of each page, from 0 in order of appearance; nil: one for all
}

// Access is one request: the pages that its prompt fills, from the root on.
type Access struct {
	Seconds float64 // since the start
	Input   int32   // tokens of the prompt; those behind the last full page have no page
	Output  int32   // tokens generated
	Space   int32   // namespace, as Workload.Spaces
	Pages   []int32
}

// Pages is how many there are.
func (w *Workload) Pages() int { return len(w.Parents) }

// Accesses is how many pages all requests have together.
func (w *Workload) Accesses() (n int) {
	for i := range w.Requests {
		n += len(w.Requests[i].Pages)
	}
	return n
}

// Costs is what recomputing each page costs under a shape.
func (w *Workload) Costs(m evict.Shape) []float64 {
	var byDepth []float64
	out := make([]float64, len(w.Depths))
	for p, d := range w.Depths {
		for len(byDepth) <= int(d) {
			byDepth = append(byDepth, m.PageFLOPs(uint32(len(byDepth)), w.PageTokens))
		}
		out[p] = byDepth[d]
	}
	return out
}

// Reuse is what a cache without end makes of a workload.
type Reuse struct {
	Accesses int     // of pages
	Hits     int     // of them to pages seen before
	FLOPs    float64 // of all accesses
	Saved    float64 // of the hits: the content bound
}

// Reuse counts it at these costs.
func (w *Workload) Reuse(costs []float64) (r Reuse) {
	seen := make([]bool, w.Pages())
	for i := range w.Requests {
		for _, p := range w.Requests[i].Pages {
			r.Accesses++
			r.FLOPs += costs[p]
			if seen[p] {
				r.Hits++
				r.Saved += costs[p]
			}
			seen[p] = true
		}
	}
	return r
}

// Bounds of a workload: what a replay holds in memory is some 16 bytes for each access and 100 for each page.
const (
	maxPages    = 1 << 26
	maxAccesses = 1 << 28
	maxRequests = 1 << 24
)

// builder numbers pages as they first come.
type builder struct {
	w        *Workload
	perPage  int // blocks of the trace
	ids      map[pageKey]int32
	spaces   map[int]int32 // by the number in a recording
	accesses int
	last     float64
}

// pageKey names a page by its parent and the trace's own name of it: a name that a trace uses at two places is two
// pages.
type pageKey struct {
	parent int32
	id     uint64
}

// newBuilder makes pages of so many tokens of blocks of so many.
func newBuilder(name string, blockTokens, pageTokens uint32) (*builder, error) {
	b := &builder{w: &Workload{Name: name, PageTokens: pageTokens}, ids: map[pageKey]int32{}}
	return b, b.blocksOf(blockTokens)
}

// blocksOf says how long the blocks are that come next.
func (b *builder) blocksOf(tokens uint32) error {
	if n := b.w.PageTokens; n == 0 || n%tokens != 0 {
		return fmt.Errorf("%w: %s: pages of %d tokens are not made of whole blocks of %d", ErrTrace, b.w.Name, n, tokens)
	}
	b.perPage = int(b.w.PageTokens / tokens)
	return nil
}

// add takes in one request. Where a page is several blocks, their ids are mixed into one of 64 bits.
func (b *builder) add(a Access, blocks []uint64) error {
	if a.Seconds < b.last {
		return fmt.Errorf("%w: %s: a request at %.3f s comes after one at %.3f s", ErrTrace, b.w.Name, a.Seconds, b.last)
	}
	if len(b.w.Requests) == maxRequests {
		return fmt.Errorf("%w: %s: more than %d requests", ErrTrace, b.w.Name, maxRequests)
	}
	b.last = a.Seconds
	n := len(blocks) / b.perPage
	if b.accesses += n; b.accesses > maxAccesses {
		return fmt.Errorf("%w: %s: more than %d accesses to pages; larger pages make fewer", ErrTrace, b.w.Name, maxAccesses)
	}
	a.Pages = make([]int32, n)
	parent := int32(-1)
	before := len(b.w.Parents)
	for d := range a.Pages {
		id := blocks[d*b.perPage]
		for _, next := range blocks[d*b.perPage+1 : (d+1)*b.perPage] {
			id = mix(id) ^ next
		}
		p, err := b.page(pageKey{parent, id}, int32(d))
		if err != nil {
			return err
		}
		a.Pages[d], parent = p, p
	}
	if a.Space > 0 && b.w.Spaces == nil {
		b.w.Spaces = make([]int32, before)
	}
	for b.w.Spaces != nil && len(b.w.Spaces) < len(b.w.Parents) {
		b.w.Spaces = append(b.w.Spaces, a.Space)
	}
	b.w.Requests = append(b.w.Requests, a)
	return nil
}

// space numbers the namespaces of a recording as they first come.
func (b *builder) space(number int) int32 {
	if b.spaces == nil {
		b.spaces = map[int]int32{}
	}
	n, ok := b.spaces[number]
	if !ok {
		n = int32(len(b.spaces))
		b.spaces[number] = n
	}
	return n
}

// Namespaces is how many the workload has.
func (w *Workload) Namespaces() int {
	most := int32(0)
	for i := range w.Requests {
		most = max(most, w.Requests[i].Space)
	}
	return int(most) + 1
}

func (b *builder) page(k pageKey, depth int32) (int32, error) {
	if p, ok := b.ids[k]; ok {
		return p, nil
	}
	p := int32(len(b.w.Parents))
	if p == maxPages {
		return 0, fmt.Errorf("%w: %s: more than %d pages", ErrTrace, b.w.Name, maxPages)
	}
	b.ids[k] = p
	b.w.Parents = append(b.w.Parents, k.parent)
	b.w.Depths = append(b.w.Depths, depth)
	return p, nil
}
