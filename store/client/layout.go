package client

import (
	"fmt"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Layout says how the caller's memory orders the view of one page; nil is Quire's own order, head-major without
// holes. Packing elements allows any; cell allows heads and layers to be moved, with one component of one token that
// is the whole cell; whole allows nil only.
type Layout struct {
	kernels.Layout
	PageBytes int // of the caller's memory for one page: what each buffer must be long
}

// order is a Layout checked against a view, ready to move single cells. The nil order is Quire's.
type order struct {
	layout   Layout
	toStore  []kernels.Plan // by component: one cell, from the caller's memory at that component's base to head-major
	toCaller []kernels.Plan
}

// orderOf checks l against what the view holds. Errors are *rpc.Error.
func orderOf(l *Layout, geo *Geometry, v page.View) (*order, error) {
	if l == nil {
		return nil, nil
	}
	cell := int(geo.CellBytes)
	oneRun := l.Tokens == 1 && len(l.Components) == 1 && l.Components[0].RowBytes == cell
	switch {
	case geo.Grade == page.Whole, geo.Grade == page.Cell && !oneRun:
		return nil, rpc.Errorf(reason.InvalidView, "a layout for pages whose packing is %v", geo.Grade)
	case l.Heads != int(v.H1-v.H0) || l.Layers != int(v.L1-v.L0):
		return nil, rpc.Errorf(reason.InvalidView, "a layout of %d heads x %d layers for %v", l.Heads, l.Layers, v)
	case !oneRun && l.Tokens != int(geo.Tokens), l.CellBytes() != cell:
		return nil, rpc.Errorf(reason.InvalidView, "a layout of %d tokens and %d bytes a cell; the group has %d and %d", l.Tokens, l.CellBytes(), geo.Tokens, cell)
	}
	if _, err := l.ToHeadMajor(nil); err != nil {
		return nil, rpc.Errorf(reason.InvalidView, "%v", err)
	}
	o := &order{layout: *l}
	at := 0
	for _, c := range l.Components {
		p := kernels.Plan{Dst: at, Run: c.RowBytes, Axes: [kernels.MaxAxes]kernels.Axis{{N: l.Tokens, Src: c.TokenStride, Dst: c.RowBytes}}}
		o.toStore, o.toCaller = append(o.toStore, p), append(o.toCaller, p.Reverse())
		at += c.RowBytes * l.Tokens
	}
	if end, ok := o.end(); !ok || end > l.PageBytes {
		return nil, rpc.Errorf(reason.BufferSize, "a layout that reaches beyond its %d bytes", l.PageBytes)
	}
	return o, nil
}

// end is how far the layout reaches; ok is false when that does not even fit an int.
func (o *order) end() (end int, ok bool) {
	l := &o.layout
	for _, c := range l.Components {
		reach := c.Offset + c.RowBytes
		for _, a := range [3][2]int{{l.Heads, c.HeadStride}, {l.Layers, c.LayerStride}, {l.Tokens, c.TokenStride}} {
			if a[1] < 0 || a[0] > 1 && a[1] > (1<<62-reach)/(a[0]-1) {
				return 0, false
			}
			reach += (a[0] - 1) * a[1]
		}
		end = max(end, reach)
	}
	return end, true
}

// base is where component k of the cell that is the i-th in head-major order begins in the caller's memory.
func (o *order) base(i, k int) int {
	c := &o.layout.Components[k]
	return c.Offset + i/o.layout.Layers*c.HeadStride + i%o.layout.Layers*c.LayerStride
}

// scatter copies the i-th head-major cell into the caller's page.
func (o *order) scatter(mem []byte, i int, cell []byte) error {
	for k := range o.toCaller {
		if err := kernels.Copy(mem[o.base(i, k):], cell, o.toCaller[k]); err != nil {
			return fmt.Errorf("scatter cell %d: %w", i, err)
		}
	}
	return nil
}

// gather copies it back.
func (o *order) gather(cell, mem []byte, i int) error {
	for k := range o.toStore {
		if err := kernels.Copy(cell, mem[o.base(i, k):], o.toStore[k]); err != nil {
			return fmt.Errorf("gather cell %d: %w", i, err)
		}
	}
	return nil
}

// pageBytes is what a caller's buffer for one page must be long.
func pageBytes(o *order, geo *Geometry, v page.View) int {
	if o != nil {
		return o.layout.PageBytes
	}
	return int(page.PayloadBytes(v, geo.CellBytes))
}
