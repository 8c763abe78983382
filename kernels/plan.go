// Package kernels moves bytes: copies with a checksum, permutes between an engine's element order and the head-major
// order of the store, both in one pass over memory. AVX2 and AVX-512 where the processor has them, plain Go elsewhere
// (build tag purego: everywhere), with equal results; no allocation; nothing is kept. It imports nothing of ours.
package kernels

import "fmt"

// Axis is one loop of a strided copy: N steps, each Src and Dst bytes further. N below 2 is no loop.
type Axis struct{ N, Src, Dst int }

// MaxAxes is enough for head, layer, component, token and dim.
const MaxAxes = 5

// Plan copies Run contiguous bytes for every combination of Axes, from Src and to Dst on. Axes may stand in any
// order: the loops are ordered and merged by whoever runs them. Strides are not negative; a source stride may be 0.
type Plan struct {
	Src, Dst int // where the first byte is
	Axes     [MaxAxes]Axis
	Run      int
}

// Bytes is what p copies.
func (p *Plan) Bytes() int {
	n := p.Run
	for _, a := range p.Axes {
		n *= max(a.N, 1)
	}
	return n
}

// check says whether p stays inside of buffers of the given sizes. Written so that no product can overflow.
func (p *Plan) check(dstBytes, srcBytes int) error {
	if p.Run < 1 || p.Src < 0 || p.Dst < 0 {
		return fmt.Errorf("plan of runs of %d from %d to %d: %w", p.Run, p.Src, p.Dst, ErrPlan)
	}
	for _, side := range [2]struct {
		name      string
		at, bytes int
		stride    func(Axis) int
	}{
		{"source", p.Src, srcBytes, func(a Axis) int { return a.Src }},
		{"destination", p.Dst, dstBytes, func(a Axis) int { return a.Dst }},
	} {
		left := side.bytes - side.at
		if left < p.Run {
			return fmt.Errorf("plan needs %d bytes at %d of a %s of %d: %w", p.Run, side.at, side.name, side.bytes, ErrBounds)
		}
		left -= p.Run
		for _, a := range p.Axes {
			stride := side.stride(a)
			if a.N < 0 || stride < 0 || a.N > 1 && a.Dst == 0 {
				return fmt.Errorf("plan with axis %+v: %w", a, ErrPlan)
			}
			if a.N > 1 && stride > left/(a.N-1) {
				return fmt.Errorf("plan with axis %+v leaves a %s of %d bytes: %w", a, side.name, side.bytes, ErrBounds)
			}
			if a.N > 1 {
				left -= stride * (a.N - 1)
			}
		}
	}
	return nil
}

// Copy runs the plans from src to dst without sums. Bounds of all plans are checked before a byte moves: ErrBounds,
// ErrPlan.
func Copy(dst, src []byte, plans ...Plan) error {
	for i := range plans {
		if err := plans[i].check(len(dst), len(src)); err != nil {
			return err
		}
	}
	for i := range plans {
		var w walk
		w.init(&plans[i], false) // reading upwards is what the processor's prefetch helps with
		w.all(dst[w.dst:], src[w.src:], 0, w.steps(0))
	}
	return nil
}
