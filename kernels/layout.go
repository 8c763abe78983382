package kernels

import "fmt"

// Component is one part of a cell in an engine's order: rows of RowBytes contiguous bytes (all dims of one head and
// token), the first at Offset, the others by strides in bytes.
type Component struct {
	RowBytes, Offset                     int
	HeadStride, LayerStride, TokenStride int
}

// Layout is an engine's element order of one view. Components stand in the order of the spec.
//
//	engine      Offset + head*HeadStride + layer*LayerStride + token*TokenStride + byte of the row
//	head-major  [head][layer][component][token][row], without holes
type Layout struct {
	Heads, Layers, Tokens int
	Components            []Component
}

// CellBytes is the size of one (head, layer) in head-major order.
func (l *Layout) CellBytes() int {
	n := 0
	for _, c := range l.Components {
		n += c.RowBytes * l.Tokens
	}
	return n
}

// Bytes is the size of the view in head-major order.
func (l *Layout) Bytes() int { return l.Heads * l.Layers * l.CellBytes() }

// ToHeadMajor appends the plans that copy from the engine's order to head-major order: one where the components lie
// evenly, else one each. ErrPlan for a layout that cannot be.
func (l *Layout) ToHeadMajor(dst []Plan) ([]Plan, error) {
	if err := l.check(); err != nil {
		return dst, err
	}
	if step, ok := l.even(); ok {
		p := l.plan(l.Components[0])
		p.Axes[3] = Axis{len(l.Components), step, l.Components[0].RowBytes * l.Tokens}
		return append(dst, p), nil
	}
	at := 0
	for _, c := range l.Components {
		p := l.plan(c)
		p.Dst = at
		at += c.RowBytes * l.Tokens
		dst = append(dst, p)
	}
	return dst, nil
}

// plan is of one component, the first of its cell.
func (l *Layout) plan(c Component) Plan {
	cell := l.CellBytes()
	return Plan{Src: c.Offset, Run: c.RowBytes, Axes: [MaxAxes]Axis{
		{l.Heads, c.HeadStride, l.Layers * cell},
		{l.Layers, c.LayerStride, cell},
		{l.Tokens, c.TokenStride, c.RowBytes},
	}}
}

// FromHeadMajor appends the plans of the way back.
func (l *Layout) FromHeadMajor(dst []Plan) ([]Plan, error) {
	n := len(dst)
	dst, err := l.ToHeadMajor(dst)
	for i := n; i < len(dst); i++ {
		dst[i] = dst[i].Reverse()
	}
	return dst, err
}

// Reverse is the plan from dst to src.
func (p Plan) Reverse() Plan {
	p.Src, p.Dst = p.Dst, p.Src
	for i, a := range p.Axes {
		p.Axes[i] = Axis{a.N, a.Dst, a.Src}
	}
	return p
}

// even says whether all components have one shape and one step between them.
func (l *Layout) even() (step int, ok bool) {
	want := l.Components[0]
	if len(l.Components) > 1 {
		step = l.Components[1].Offset - want.Offset
	}
	for _, c := range l.Components {
		if c != want {
			return 0, false
		}
		want.Offset += step
	}
	return step, step >= 0
}

// Bounds of a layout, so that no product of its numbers can overflow.
const (
	maxDim   = 1 << 16
	maxBytes = 1 << 48
)

func (l *Layout) check() error {
	if l.Heads < 1 || l.Layers < 1 || l.Tokens < 1 || l.Heads > maxDim || l.Layers > maxDim || l.Tokens > maxDim {
		return fmt.Errorf("layout of %d heads x %d layers x %d tokens: %w", l.Heads, l.Layers, l.Tokens, ErrPlan)
	}
	if len(l.Components) < 1 || len(l.Components) > MaxPlans {
		return fmt.Errorf("layout of %d components, want 1 to %d: %w", len(l.Components), MaxPlans, ErrPlan)
	}
	for i, c := range l.Components {
		if c.RowBytes < 1 || c.RowBytes > maxDim || c.Offset < 0 || min(c.HeadStride, c.LayerStride, c.TokenStride) < 0 {
			return fmt.Errorf("layout with component %d %+v: %w", i, c, ErrPlan)
		}
	}
	if l.CellBytes() > maxBytes/(l.Heads*l.Layers) {
		return fmt.Errorf("layout of %d cells of %d bytes: %w", l.Heads*l.Layers, l.CellBytes(), ErrPlan)
	}
	return nil
}
