package page_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/store/page"
)

// model is a page's geometry: components as bytes of one row (one head, one token).
type model struct {
	name                  string
	heads, layers, tokens int
	rows                  []int
}

func (m *model) cell() (n int) {
	for _, r := range m.rows {
		n += r * m.tokens
	}
	return n
}

func (m *model) full() page.View { return page.View{H1: uint16(m.heads), L1: uint16(m.layers)} }

// layout is an engine's layer-first order of one rank's view: [layer][component][token][head][dim].
func (m *model) layout(v page.View) kernels.Layout {
	heads, layers := int(v.H1-v.H0), int(v.L1-v.L0)
	l := kernels.Layout{Heads: heads, Layers: layers, Tokens: m.tokens}
	at := 0
	for _, r := range m.rows {
		l.Components = append(l.Components, kernels.Component{RowBytes: r, Offset: at, HeadStride: r, LayerStride: heads * m.cell(), TokenStride: heads * r})
		at += r * m.tokens * heads
	}
	return l
}

// element is the value of one byte of a page, a function of where it is: what any assembly must show.
func element(head, layer, component, token, b int) byte {
	return byte((((head*131+layer)*137+component)*139+token)*149 + b*7)
}

// headMajor is the view of the page in the store's order, written plainly.
func (m *model) headMajor(v page.View) (out []byte) {
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			for c, r := range m.rows {
				for t := range m.tokens {
					for b := range r {
						out = append(out, element(int(h), int(l), c, t, b))
					}
				}
			}
		}
	}
	return out
}

// engineOrder is the view in the engine's order, written plainly.
func (m *model) engineOrder(v page.View) (out []byte) {
	for l := v.L0; l < v.L1; l++ {
		for c, r := range m.rows {
			for t := range m.tokens {
				for h := v.H0; h < v.H1; h++ {
					for b := range r {
						out = append(out, element(int(h), int(l), c, t, b))
					}
				}
			}
		}
	}
	return out
}

func cutOf(v page.View, cell int) kernels.Cut {
	p := page.PiecesOf(int(v.L1-v.L0), cell)
	return kernels.Cut{UnitBytes: p.UnitBytes, PieceBytes: p.PieceBytes}
}

// extent is what one writer published: an encoded header and the payload.
type extent struct{ header, payload []byte }

// publish takes a rank's engine-order memory and makes an extent of it.
func (m *model) publish(t *testing.T, v page.View, memory []byte) extent {
	t.Helper()
	l := m.layout(v)
	plans, err := l.ToHeadMajor(nil)
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, page.PayloadBytes(v, uint32(m.cell())))
	sums := make([]uint64, page.PieceCount(v, uint32(m.cell())))
	if err := kernels.PermuteSum(payload, memory, plans, cutOf(v, m.cell()), sums); err != nil {
		t.Fatal(err)
	}
	hash, _ := page.MakeHash(bytes.Repeat([]byte{1}, 32))
	h := page.Header{
		Key: page.Key{Family: page.Family{Epoch: 1}, Hash: hash}, View: v, Heads: uint16(m.heads), Layers: uint16(m.layers), Tokens: uint32(m.tokens),
		CellBytes: uint32(m.cell()), Grade: page.Elements, PayloadBytes: uint64(len(payload)),
	}
	h.SetSums(page.AppendSums(nil, sums))
	enc, err := h.AppendEncode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return extent{enc, payload}
}

// read assembles v from extents and puts it into engine order.
func (m *model) read(t *testing.T, v page.View, stored []extent) []byte {
	t.Helper()
	headers, views := make([]page.Header, len(stored)), make([]page.View, len(stored))
	for i, x := range stored {
		if err := page.DecodeHeader(&headers[i], x.header); err != nil {
			t.Fatal(err)
		}
		views[i] = headers[i].View
	}
	parts, ok := v.Tile(nil, views)
	if !ok {
		t.Fatalf("%v is not tiled by %v", v, views)
	}
	buf := make([]byte, page.PayloadBytes(v, uint32(m.cell())))
	for _, p := range parts {
		m.take(t, buf, v, p, &headers[p.Index], stored[p.Index].payload)
	}
	l := m.layout(v)
	plans, err := l.FromHeadMajor(nil)
	if err != nil {
		t.Fatal(err)
	}
	cut := cutOf(v, m.cell())
	sums := make([]uint64, cut.Count(len(buf)))
	if err := kernels.SumPieces(buf, cut, sums); err != nil {
		t.Fatal(err)
	}
	memory := make([]byte, len(buf))
	if err := kernels.PermuteCheck(memory, buf, plans, cut, sums); err != nil {
		t.Fatal(err)
	}
	return memory
}

// take copies one part, after every piece that it touches was found sound.
func (m *model) take(t *testing.T, buf []byte, v page.View, p page.Part, h *page.Header, payload []byte) {
	t.Helper()
	runs := page.RunsBetween(h.View, v, p.View, h.CellBytes)
	for k := range runs.N {
		src, dst, n := runs.Run(k)
		first, end, _, _ := h.Pieces().Touched(src, n)
		for i := first; i < end; i++ {
			at, size := h.Pieces().Span(i)
			if page.PieceSum(payload[at:at+size]) != h.Sum(i) {
				t.Fatalf("piece %d of %v", i, h.View)
			}
		}
		copy(buf[dst:dst+n], payload[src:src+n])
	}
}

// ranks are the views of all ranks of a shape, with what each writes of a page.
func (m *model) ranks(t *testing.T, tp, pp int) (views []page.RankView) {
	t.Helper()
	stages := make([]uint16, pp)
	for i := range m.layers {
		stages[i*pp/m.layers]++
	}
	for rank := range tp {
		v, err := page.TPView(rank, tp, uint16(m.heads), uint16(m.layers))
		if err != nil {
			t.Fatal(err)
		}
		for s := range pp {
			cut, err := page.PPView(v.View, s, stages)
			if err != nil {
				t.Fatal(err)
			}
			views = append(views, page.RankView{View: cut, Replica: v.Replica, Replicas: v.Replicas})
		}
	}
	return views
}

var models = []model{
	{"GQA 8 heads", 8, 5, 4, []int{64, 64}},
	{"GQA 2 heads, cells over 64 KiB", 2, 3, 256, []int{256, 256}},
	{"MLA", 1, 7, 16, []int{1024, 128}},
	{"K, V and scales", 4, 4, 8, []int{32, 32, 4, 4}},
}

// Every pair of shapes: what one shape wrote, every other reads, byte for byte, and each cell is stored once.
func TestCase_C40_EveryShapeReadsEveryShape(t *testing.T) {
	for _, m := range models {
		hash, _ := page.MakeHash(bytes.Repeat([]byte{1}, 32))
		for _, w := range [][2]int{{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {4, 2}, {8, 2}} {
			var stored []extent
			cells := 0
			for _, v := range m.ranks(t, w[0], w[1]) {
				if v.Writes(&hash) {
					stored = append(stored, m.publish(t, v.View, m.engineOrder(v.View)))
					cells += v.Cells()
				}
			}
			if cells != m.heads*m.layers {
				t.Fatalf("%s, TP%d PP%d: %d cells stored, page has %d", m.name, w[0], w[1], cells, m.heads*m.layers)
			}
			for _, r := range [][2]int{{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {4, 2}, {8, 2}} {
				for _, v := range m.ranks(t, r[0], r[1]) {
					if got := m.read(t, v.View, stored); !bytes.Equal(got, m.engineOrder(v.View)) {
						t.Fatalf("%s: TP%d PP%d wrote, TP%d PP%d reads other bytes at %v", m.name, w[0], w[1], r[0], r[1], v.View)
					}
				}
			}
		}
	}
}

// Five of eight ranks wrote, the rest died; a TP4 replica fills what is uncovered and nothing else, and every shape
// reads the page whole.
func TestCase_C63_HoleClosedByAnotherShape(t *testing.T) {
	m := models[0]
	var stored []extent
	var have []page.View
	for _, rank := range []int{0, 2, 3, 5, 7} {
		v, _ := page.TPView(rank, 8, 8, 5)
		stored = append(stored, m.publish(t, v.View, m.engineOrder(v.View)))
		have = append(have, v.View)
	}
	for _, v := range m.ranks(t, 4, 1) {
		grants, ok := v.Uncovered(nil, have)
		if !ok {
			t.Fatal("not computed")
		}
		for _, g := range grants {
			stored = append(stored, m.publish(t, g, m.engineOrder(g)))
			have = append(have, g)
		}
	}
	cells := 0
	for _, v := range have {
		cells += v.Cells()
	}
	if cells != 8*5 || len(stored) != 8 {
		t.Fatalf("%d extents of %d cells", len(stored), cells)
	}
	for _, tp := range []int{1, 2, 4, 8} {
		for _, v := range m.ranks(t, tp, 1) {
			if got := m.read(t, v.View, stored); !bytes.Equal(got, m.engineOrder(v.View)) {
				t.Fatalf("TP%d reads other bytes at %v", tp, v.View)
			}
		}
	}
}

// Equal size, other element order: permuted if both orders are declared and elements may be permuted; refused under
// cell and whole, where only the same packing is served, and a whole extent only as it is.
func TestCase_C5_ElementOrders(t *testing.T) {
	m := models[0]
	full := m.full()
	layerFirst := m.engineOrder(full)
	x := m.publish(t, full, layerFirst)
	if !bytes.Equal(x.payload, m.headMajor(full)) || bytes.Equal(x.payload, layerFirst) {
		t.Fatal("the extent is not in head-major order")
	}
	if got := m.read(t, full, []extent{x}); !bytes.Equal(got, layerFirst) {
		t.Fatal("the engine's order does not come back")
	}
	tokenFirst := m.layout(full) // another engine: [token][layer][component][head][dim]
	for i := range tokenFirst.Components {
		tokenFirst.Components[i] = kernels.Component{RowBytes: 64, Offset: i * 8 * 64, HeadStride: 64, LayerStride: 2 * 8 * 64, TokenStride: 5 * 2 * 8 * 64}
	}
	plans, err := tokenFirst.FromHeadMajor(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(x.payload))
	if err := kernels.Copy(got, x.payload, plans...); err != nil {
		t.Fatal(err)
	}
	for at := range got {
		b, h, c, l, tok := at%64, at/64%8, at/512%2, at/1024%5, at/5120
		if got[at] != element(h, l, c, tok, b) {
			t.Fatalf("byte %d of the other engine's order", at)
		}
	}
	a, b := [32]byte{1}, [32]byte{2}
	part := page.View{H1: 1, L1: 5}
	for _, c := range []struct {
		g             page.Grade
		other, slices bool
	}{{page.Elements, true, true}, {page.Cell, false, true}, {page.Whole, false, false}} {
		if err := c.g.Convert(a, b); (err == nil) != c.other || err != nil && !errors.Is(err, page.ErrUnsupported) {
			t.Errorf("%v: other packing: %v", c.g, err)
		}
		if err := c.g.Convert(a, a); err != nil {
			t.Errorf("%v: same packing: %v", c.g, err)
		}
		if c.g.CanServe(full, part) != c.slices || !c.g.CanServe(full, full) || c.g.CanServe(part, full) {
			t.Errorf("%v: slices", c.g)
		}
	}
	if page.GradeInvalid.Convert(a, a) == nil || page.GradeInvalid.CanServe(full, full) {
		t.Error("an invalid grade serves")
	}
}

// The two descriptions of pieces are one rule.
func TestPiecesAreCuts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		heads, layers, cell := 1+r.IntN(4), 1+r.IntN(20), 1+r.IntN(150_000)
		v := page.View{H1: uint16(heads), L1: uint16(layers)}
		payload := make([]byte, min(int(page.PayloadBytes(v, uint32(cell))), 1<<20)/(layers*cell)*(layers*cell))
		if v.H1 = uint16(len(payload) / (layers * cell)); v.H1 == 0 {
			continue
		}
		for i := range payload {
			payload[i] = byte(i>>8 + i)
		}
		cut := cutOf(v, cell)
		sums := make([]uint64, cut.Count(len(payload)))
		if err := kernels.SumPieces(payload, cut, sums); err != nil {
			t.Fatal(err)
		}
		want, err := page.AppendSumsOf(nil, payload, v, uint32(cell))
		if err != nil || !bytes.Equal(page.AppendSums(nil, sums), want) {
			t.Fatal(fmt.Sprintf("%v cells of %d: other sums", v, cell), err)
		}
	}
}
