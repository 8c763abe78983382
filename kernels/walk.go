package kernels

import "fmt"

// walk is a plan made ready to run: loops that do nothing dropped, the others ordered by the strides of one side,
// outermost first, and merged where two are one on both sides. That side is then walked upwards.
type walk struct {
	src, dst int
	axes     [MaxAxes]Axis
	n        int // axes in use
	run      int
	byDst    bool
	span     [MaxAxes + 1]int // bytes of the ordering side that the loops from depth on reach over
	across   Axis             // a loop around all that within copies: none, or what peel took
}

func (w *walk) init(p *Plan, byDst bool) {
	*w = walk{src: p.Src, dst: p.Dst, run: p.Run, byDst: byDst, across: Axis{N: 1}}
	for _, a := range p.Axes {
		if a.N > 1 {
			w.insert(a)
		}
	}
	w.merge()
	w.span[w.n] = w.run
	for i := w.n - 1; i >= 0; i-- {
		w.span[i] = (w.axes[i].N-1)*w.stride(w.axes[i]) + w.span[i+1]
	}
}

// stride is of the ordering side.
func (w *walk) stride(a Axis) int {
	if w.byDst {
		return a.Dst
	}
	return a.Src
}

// insert keeps axes sorted, largest stride first.
func (w *walk) insert(a Axis) {
	i := w.n
	for ; i > 0 && w.stride(w.axes[i-1]) < w.stride(a); i-- {
		w.axes[i] = w.axes[i-1]
	}
	w.axes[i] = a
	w.n++
}

// merge joins the innermost loop with the run, and neighbouring loops, where they are contiguous on both sides.
func (w *walk) merge() {
	for w.n > 0 && w.axes[w.n-1].Src == w.run && w.axes[w.n-1].Dst == w.run {
		w.run *= w.axes[w.n-1].N
		w.n--
	}
	for i := w.n - 2; i >= 0; i-- {
		in := w.axes[i+1]
		if w.axes[i].Src != in.Src*in.N || w.axes[i].Dst != in.Dst*in.N {
			continue
		}
		w.axes[i] = Axis{w.axes[i].N * in.N, in.Src, in.Dst}
		copy(w.axes[i+1:], w.axes[i+2:w.n])
		w.n--
	}
}

// nested says whether the ordering side is visited in ascending order and no byte of it twice.
func (w *walk) nested() error {
	for i := range w.n {
		if s := w.stride(w.axes[i]); s < w.span[i+1] {
			return fmt.Errorf("plan whose head-major side overlaps: stride %d inside of %d bytes: %w", s, w.span[i+1], ErrPlan)
		}
	}
	return nil
}

// over says whether the outermost loop is the one over units, each of unitBytes of the ordering side.
func (w *walk) over(units, unitBytes int) bool {
	at := w.src
	if w.byDst {
		at = w.dst
	}
	return w.n > 0 && w.axes[0].N == units && w.stride(w.axes[0]) == unitBytes && at+w.span[1] <= unitBytes
}

// peel takes the outermost loop out of the nest: within then copies the same part of each of its steps.
func (w *walk) peel() {
	w.across = w.axes[0]
	w.n--
	copy(w.axes[:], w.axes[1:])
	copy(w.span[:], w.span[1:])
}

// steps of the loop at depth; 1 for the run itself.
func (w *walk) steps(depth int) int {
	if depth == w.n {
		return 1
	}
	return w.axes[depth].N
}

// all copies n steps of the loop at depth and everything inside of it.
func (w *walk) all(dst, src []byte, depth, n int) {
	if depth == w.n {
		copy(dst[:w.run], src)
		return
	}
	a := w.axes[depth]
	if depth == w.n-1 {
		rows(dst, src, n, a.Dst, a.Src, w.run)
		return
	}
	inner := w.axes[depth+1].N
	for k := range n {
		w.all(dst[k*a.Dst:], src[k*a.Src:], depth+1, inner)
	}
}

// within copies what of the block at depth lies in [lo, hi) of the ordering side, both relative to the block's first
// byte: the step that lo cuts, the whole steps, the steps that hi cuts.
func (w *walk) within(dst, src []byte, depth, lo, hi int) {
	lo, hi = max(lo, 0), min(hi, w.span[depth])
	if lo >= hi {
		return
	}
	if depth == w.n {
		for k := range w.across.N {
			copy(dst[k*w.across.Dst+lo:k*w.across.Dst+hi], src[k*w.across.Src+lo:])
		}
		return
	}
	a, inner := w.axes[depth], w.span[depth+1]
	stride := w.stride(a)
	step := func(k int) {
		w.within(dst[k*a.Dst:], src[k*a.Src:], depth+1, lo-k*stride, hi-k*stride)
	}
	first := lo / stride
	whole := (lo + stride - 1) / stride
	if first < whole {
		step(first)
	}
	end := 0
	if hi >= inner {
		end = min((hi-inner)/stride+1, a.N)
	}
	if whole < end {
		w.block(dst[whole*a.Dst:], src[whole*a.Src:], depth, end-whole)
	}
	for k := max(whole, end); k <= min((hi-1)/stride, a.N-1); k++ {
		step(k)
	}
}

// block is all, in the order of the other side: what lies in cache can be visited in any order, memory is best visited
// upwards.
func (w *walk) block(dst, src []byte, depth, n int) {
	p := Plan{Run: w.run}
	copy(p.Axes[:], w.axes[depth:w.n])
	p.Axes[0].N = n
	if w.across.N > 1 {
		p.Axes[w.n-depth] = w.across
	}
	var b walk
	b.init(&p, !w.byDst)
	b.all(dst, src, 0, b.steps(0))
}
