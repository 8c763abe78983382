package page

import (
	"errors"
	"math/rand/v2"
	"testing"
)

const gridSide = 8

// grid is how often each cell is covered: the plain model of view arithmetic.
type grid [gridSide][gridSide]int

func gridOf(vs ...View) (g grid) {
	for _, v := range vs {
		for h := v.H0; h < v.H1; h++ {
			for l := v.L0; l < v.L1; l++ {
				g[h][l]++
			}
		}
	}
	return g
}

func (g grid) and(o grid) (r grid) {
	for h := range g {
		for l := range g[h] {
			r[h][l] = min(g[h][l], o[h][l])
		}
	}
	return r
}

func (g grid) minus(o grid) (r grid) {
	for h := range g {
		for l := range g[h] {
			if g[h][l] > 0 && o[h][l] == 0 {
				r[h][l] = 1
			}
		}
	}
	return r
}

func (g grid) cells() (n int) {
	for h := range g {
		for _, c := range g[h] {
			n += c
		}
	}
	return n
}

// checkViews holds every operation to the grid.
func checkViews(t *testing.T, v View, have []View) {
	t.Helper()
	gv := gridOf(v)
	if v.Cells() != gv.cells() || v.Empty() != (gv.cells() == 0) {
		t.Fatalf("%v: %d cells, empty %v", v, v.Cells(), v.Empty())
	}
	for _, w := range have {
		gw := gridOf(w)
		if got := gridOf(v.Intersect(w)); got != gv.and(gw) {
			t.Fatalf("%v and %v: %v", v, w, v.Intersect(w))
		}
		sub := v.Subtract(nil, w)
		if gridOf(sub...) != gv.minus(gw) || len(sub) > 4 {
			t.Fatalf("%v minus %v: %v", v, w, sub)
		}
		if got, want := v.Contains(w), gw.minus(gv).cells() == 0; got != want {
			t.Fatalf("%v contains %v: %v", v, w, got)
		}
	}
	rest := gv.minus(gridOf(have...))
	un, ok := v.Uncovered(nil, have)
	if !ok || gridOf(un...) != rest {
		t.Fatalf("%v uncovered by %v: %v %v", v, have, un, ok)
	}
	for _, u := range un {
		if u.Empty() {
			t.Fatalf("%v uncovered by %v: empty %v", v, have, un)
		}
	}
	checkTile(t, v, have, rest)
}

// checkTile: each cell once, from the first extent that has it; a hole is said.
func checkTile(t *testing.T, v View, have []View, rest grid) {
	t.Helper()
	parts, ok := v.Tile(nil, have)
	if want := rest.cells() == 0; ok != want {
		t.Fatalf("%v tiled by %v: %v", v, have, ok)
	}
	if v.Covered(have) != ok {
		t.Fatalf("%v covered by %v: %v", v, have, !ok)
	}
	var views []View
	for _, p := range parts {
		if !have[p.Index].Contains(p.View) || p.View.Empty() {
			t.Fatalf("%v tiled by %v: part %v", v, have, p)
		}
		for i := range p.Index {
			if !have[i].Intersect(p.View).Empty() {
				t.Fatalf("%v tiled by %v: part %v is in %d too", v, have, p, i)
			}
		}
		views = append(views, p.View)
	}
	if gridOf(views...) != gridOf(v).minus(rest) {
		t.Fatalf("%v tiled by %v: %v", v, have, parts)
	}
}

func randomView(r *rand.Rand) View {
	h, l := r.IntN(gridSide), r.IntN(gridSide)
	return View{uint16(h), uint16(h + r.IntN(gridSide-h+1)), uint16(l), uint16(l + r.IntN(gridSide-l+1))}
}

func TestViewsEqualGrid(t *testing.T) {
	r := newRand(t)
	for range 60_000 {
		have := make([]View, r.IntN(6))
		for i := range have {
			have[i] = randomView(r)
		}
		checkViews(t, randomView(r), have)
	}
}

// FuzzViewTile reads rectangles, four bytes each, the first as the view.
func FuzzViewTile(f *testing.F) {
	f.Add([]byte{0, 8, 0, 8, 0, 4, 0, 8, 4, 8, 0, 4, 4, 8, 4, 8})
	f.Add([]byte{2, 2, 0, 8, 0, 8, 0, 8})
	f.Add([]byte{0, 8, 0, 8, 3, 5, 3, 5})
	f.Fuzz(func(t *testing.T, b []byte) {
		var vs []View
		for ; len(b) >= 4 && len(vs) < 40; b = b[4:] {
			n := func(i int) uint16 { return uint16(b[i]) % (gridSide + 1) }
			v := View{n(0), n(1), n(2), n(3)}
			if v.H0 > v.H1 || v.L0 > v.L1 {
				v = View{min(v.H0, v.H1), max(v.H0, v.H1), min(v.L0, v.L1), max(v.L0, v.L1)}
			}
			vs = append(vs, v)
		}
		if len(vs) > 0 {
			checkViews(t, vs[0], vs[1:])
		}
	})
}

// A page in shreds: beyond the bound the answer is "all of it", and tiling gives up, neither ever wrong.
func TestViewsBounded(t *testing.T) {
	v := View{0, 1000, 0, 1000}
	var have []View
	for i := range uint16(400) {
		have = append(have, View{2 * i, 2*i + 1, 2 * i, 2*i + 1})
	}
	un, ok := v.Uncovered([]View{{1, 2, 3, 4}}, have)
	if ok || len(un) != 2 || un[0] != (View{1, 2, 3, 4}) || un[1] != v {
		t.Fatalf("%d rectangles, %v", len(un), ok)
	}
	if _, ok := v.Tile(nil, have); ok {
		t.Fatal("tiled with holes")
	}
	if un, ok := v.Uncovered(nil, have[:60]); !ok || len(un) > MaxRects {
		t.Fatalf("%d rectangles, %v", len(un), ok)
	}
}

func TestViewAllocations(t *testing.T) {
	r := newRand(t)
	have := make([]View, 200)
	for i := range have {
		h, l := uint16(r.IntN(500)), uint16(r.IntN(500))
		have[i] = View{h, h + uint16(r.IntN(40)), l, l + uint16(r.IntN(40))}
	}
	have = append(have, View{0, 600, 0, 600})
	rects, parts := make([]View, 0, 4*MaxRects), make([]Part, 0, 64*MaxRects)
	v := View{0, 600, 0, 600}
	if n := testing.AllocsPerRun(20, func() {
		rects, _ = v.Uncovered(rects[:0], have)
		parts, _ = v.Tile(parts[:0], have)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Token slices and shards have their place in the encodings and are refused, not guessed: never another rank's slice.
func TestCase_C70_TokenSlicesRefused(t *testing.T) {
	for _, r := range []Reserved{{}, {Shards: 1}} {
		if err := r.Check(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, r := range []Reserved{
		{TokenStart: 1}, {TokenStride: 2}, {TokenRun: 1}, {TokenStart: 1, TokenStride: 2, TokenRun: 1}, {Shard: 1, Shards: 2}, {Shards: 2}, {Shard: 1},
	} {
		if err := r.Check(); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	enc := encodeSample(t)
	for _, off := range []int{offTokenStart, offTokenStride, offTokenRun, offShard, offShards} {
		b := append([]byte(nil), enc...)
		b[off] = 2
		reseal(b)
		var h Header
		if err := DecodeHeader(&h, b); !errors.Is(err, ErrUnsupported) || h.Key != (Key{}) {
			t.Errorf("offset %d: %v", off, err)
		}
	}
}
