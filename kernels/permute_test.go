package kernels

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
)

// engine is a random layout with room around and between everything, and its element function written plainly.
type engine struct {
	Layout
	bytes int
}

// axis names for the order in which an engine may nest its loops.
const (
	byHead = iota
	byLayer
	byComponent
	byToken
)

// newEngine nests the loops in the given order, innermost last, with gap bytes behind every row.
func newEngine(order [4]int, heads, layers, tokens, gap int, rows ...int) engine {
	n := [4]int{heads, layers, len(rows), tokens}
	widest := 0
	for _, w := range rows {
		widest = max(widest, w)
	}
	var stride [4]int
	at := widest + gap
	for i := 3; i >= 0; i-- {
		stride[order[i]] = at
		at *= n[order[i]]
	}
	e := engine{Layout{Heads: heads, Layers: layers, Tokens: tokens}, at}
	for i, w := range rows {
		e.Components = append(e.Components, Component{w, i * stride[byComponent], stride[byHead], stride[byLayer], stride[byToken]})
	}
	return e
}

// headMajor is the plain permutation, a byte at a time.
func (e *engine) headMajor(src []byte) (dst []byte) {
	for h := range e.Heads {
		for l := range e.Layers {
			for _, c := range e.Components {
				for t := range e.Tokens {
					at := c.Offset + h*c.HeadStride + l*c.LayerStride + t*c.TokenStride
					for b := range c.RowBytes {
						dst = append(dst, src[at+b])
					}
				}
			}
		}
	}
	return dst
}

// newPools puts each component into a pool of its own behind the one before, packed: [layer][token][head][row].
func newPools(heads, layers, tokens int, rows ...int) engine {
	e := engine{Layout: Layout{Heads: heads, Layers: layers, Tokens: tokens}}
	for _, w := range rows {
		e.Components = append(e.Components, Component{w, e.bytes, w, heads * tokens * w, heads * w})
		e.bytes += heads * layers * tokens * w
	}
	return e
}

func randomEngine(r *rand.Rand) engine {
	order := [4]int{0, 1, 2, 3}
	r.Shuffle(4, func(i, j int) { order[i], order[j] = order[j], order[i] })
	rows := make([]int, 1+r.IntN(3))
	widths := []int{1, 2, 3, 4, 8, 16, 24, 32, 33, 64, 96, 100, 128, 160, 192, 256, 576, 1152}
	for i := range rows {
		if rows[i] = widths[r.IntN(len(widths))]; i > 0 && r.IntN(2) == 0 {
			rows[i] = rows[0]
		}
	}
	if r.IntN(3) == 0 {
		return newPools(1+r.IntN(4), 1+r.IntN(4), 1+r.IntN(5), rows...)
	}
	return newEngine(order, 1+r.IntN(4), 1+r.IntN(4), 1+r.IntN(5), r.IntN(3)*r.IntN(9), rows...)
}

func randomCut(r *rand.Rand, e *engine) Cut {
	head := e.Layers * e.CellBytes()
	unit := []int{head, e.CellBytes()}[r.IntN(2)]
	return Cut{UnitBytes: unit, PieceBytes: 1 + r.IntN(unit)}
}

func naiveSums(b []byte, c Cut) (sums []uint64) {
	for u := 0; u < len(b); u += c.UnitBytes {
		unit := b[u:min(u+c.UnitBytes, len(b))]
		for p := 0; p < len(unit); p += c.PieceBytes {
			sums = append(sums, xxh3.Hash(unit[p:min(p+c.PieceBytes, len(unit))]))
		}
	}
	return sums
}

// Every order, shape, gap and cut: both directions equal the plain permutation, with its sums, and nothing else is
// touched.
func TestPermuteEqualsPlain(t *testing.T) {
	r := newRand(t)
	atEveryLevel(t, func(t *testing.T) { permuteEqualsPlain(t, r) })
}

func permuteEqualsPlain(t *testing.T, r *rand.Rand) {
	for range 1500 {
		permuteCase(t, r)
	}
}

func permuteCase(t *testing.T, r *rand.Rand) {
	t.Helper()
	e := randomEngine(r)
	cut := randomCut(r, &e)
	src := randomBytes(r, e.bytes)
	want := e.headMajor(src)
	sums := make([]uint64, cut.Count(len(want)))
	got := make([]byte, len(want))
	plans, err := e.ToHeadMajor(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := permuteSum(got, src, plans, cut, sums, randomGroup(r, len(want))); err != nil {
		t.Fatalf("%+v %+v: %v", e, cut, err)
	}
	if !bytes.Equal(got, want) || !equal(sums, naiveSums(want, cut)) {
		t.Fatalf("%+v %+v: wrong bytes or sums", e, cut)
	}
	clear(got)
	if err := Copy(got, src, plans...); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%+v: Copy: %v", e, err)
	}
	checkBack(t, &e, cut, src, want, sums, randomGroup(r, len(want)))
}

func FuzzPermute(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { permuteCase(t, rand.New(rand.NewPCG(seed, 0))) })
}

// randomGroup is so small that groups end anywhere, or the usual one.
func randomGroup(r *rand.Rand, bytes int) int {
	if r.IntN(4) == 0 {
		return groupBytes
	}
	return r.IntN(bytes)
}

// checkBack: head-major to engine order, over a buffer whose gaps must stay as they are.
func checkBack(t *testing.T, e *engine, cut Cut, src, want []byte, sums []uint64, group int) {
	t.Helper()
	plans, err := e.FromHeadMajor(nil)
	if err != nil {
		t.Fatal(err)
	}
	back := bytes.Repeat([]byte{0xa5}, len(src))
	if err := permuteCheck(back, want, plans, cut, sums, group); err != nil {
		t.Fatalf("%+v %+v: %v", e, cut, err)
	}
	if got := e.headMajor(back); !bytes.Equal(got, want) {
		t.Fatalf("%+v %+v: wrong bytes on the way back", e, cut)
	}
	named := make([]byte, len(src)) // 1 where an element lies
	if err := Copy(named, bytes.Repeat([]byte{1}, len(want)), plans...); err != nil {
		t.Fatal(err)
	}
	for at, n := range named {
		if n == 0 && back[at] != 0xa5 {
			t.Fatalf("%+v: byte %d between elements was written", e, at)
		}
	}
}

func equal(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A wrong byte is found before anything of its piece is moved; what is moved is right.
func TestPermuteCheckFindsDamage(t *testing.T) {
	r := newRand(t)
	for i := range 300 {
		e := randomEngine(r)
		if i == 0 {
			e = newEngine([4]int{byLayer, byToken, byHead, byComponent}, 5, 7, 100, 32, 512, 130)
		}
		cut := randomCut(r, &e)
		plans, _ := e.FromHeadMajor(nil)
		src := randomBytes(r, e.Bytes())
		sums := naiveSums(src, cut)
		clean := append([]byte(nil), src...)
		bad := r.IntN(len(src))
		src[bad] ^= 1 << r.IntN(8)
		dst := make([]byte, e.bytes)
		err := permuteCheck(dst, src, plans, cut, sums, randomGroup(r, len(src)))
		var se *SumError
		if !errors.Is(err, ErrSum) || !errors.As(err, &se) {
			t.Fatalf("%+v: %v", e, err)
		}
		at := 0
		for range se.Piece {
			at = cut.next(src, at)
		}
		end := cut.next(src, at)
		if bad < at || bad >= end {
			t.Fatalf("damage at %d, piece %d is [%d,%d)", bad, se.Piece, at, end)
		}
		clear(clean[at:end])
		want := make([]byte, e.bytes)
		if err := Copy(want, clean, plans...); err != nil {
			t.Fatal(err)
		}
		for at, b := range dst {
			if b != 0 && b != want[at] {
				t.Fatalf("%+v: byte %d is %d, want %d or nothing", e, at, b, want[at])
			}
		}
	}
}

// An extent of several groups of pieces, the last of them short.
func TestPermuteLarge(t *testing.T) {
	r := newRand(t)
	e := newEngine([4]int{byLayer, byToken, byHead, byComponent}, 5, 7, 100, 32, 512, 130)
	src := randomBytes(r, e.bytes)
	want := e.headMajor(src)
	if len(want) < 2*groupBytes {
		t.Fatal(len(want))
	}
	plans, _ := e.ToHeadMajor(nil)
	cut := Cut{e.Layers * e.CellBytes(), 60_000}
	atEveryLevel(t, func(t *testing.T) {
		got, sums := make([]byte, len(want)), make([]uint64, cut.Count(len(want)))
		if err := PermuteSum(got, src, plans, cut, sums); err != nil || !bytes.Equal(got, want) || !equal(sums, naiveSums(want, cut)) {
			t.Fatal("wrong bytes or sums", err)
		}
		checkBack(t, &e, cut, src, want, sums, groupBytes)
	})
}

func TestElementsInFiveAxes(t *testing.T) {
	r := newRand(t)
	n := [MaxAxes]int{2, 3, 2, 4, 5} // head, layer, component, token, dim; elements of 2 bytes, dim before token
	p := Plan{Run: 2}
	dst, src := 2, 2
	srcOrder := [MaxAxes]int{0, 3, 1, 2, 4}
	for i := MaxAxes - 1; i >= 0; i-- {
		p.Axes[i].N, p.Axes[i].Dst = n[i], dst
		p.Axes[srcOrder[i]].Src = src
		dst *= n[i]
		src *= n[srcOrder[i]]
	}
	in := randomBytes(r, p.Bytes())
	out, back := make([]byte, p.Bytes()), make([]byte, p.Bytes())
	cut := Cut{UnitBytes: dst / n[0], PieceBytes: 7}
	sums := make([]uint64, cut.Count(dst))
	if err := PermuteSum(out, in, []Plan{p}, cut, sums); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(in, out) {
		t.Fatal("nothing was permuted")
	}
	if err := PermuteCheck(back, out, []Plan{p.Reverse()}, cut, sums); err != nil || !bytes.Equal(in, back) {
		t.Fatal("not its own inverse", err)
	}
}

func TestLayoutRefusals(t *testing.T) {
	ok := Layout{Heads: 1, Layers: 1, Tokens: 1, Components: []Component{{RowBytes: 1}}}
	if _, err := ok.ToHeadMajor(nil); err != nil {
		t.Fatal(err)
	}
	for i, spoil := range []func(*Layout){
		func(l *Layout) { l.Heads = 0 }, func(l *Layout) { l.Layers = -1 }, func(l *Layout) { l.Tokens = 0 },
		func(l *Layout) { l.Heads = 1 << 17 }, func(l *Layout) { l.Components = nil },
		func(l *Layout) { l.Components = make([]Component, MaxPlans+1) },
		func(l *Layout) { l.Components = []Component{{RowBytes: 0}} },
		func(l *Layout) { l.Components = []Component{{RowBytes: 1, Offset: -1}} },
		func(l *Layout) { l.Components = []Component{{RowBytes: 1, TokenStride: -1}} },
		func(l *Layout) { l.Components = []Component{{RowBytes: 1, HeadStride: -1}} },
		func(l *Layout) { l.Components = []Component{{RowBytes: 1, LayerStride: -1}} },
		func(l *Layout) { l.Heads, l.Layers, l.Tokens, l.Components[0].RowBytes = 1<<16, 1<<16, 1<<16, 1<<16 },
	} {
		l := ok
		l.Components = append([]Component(nil), ok.Components...)
		spoil(&l)
		if _, err := l.ToHeadMajor(nil); !errors.Is(err, ErrPlan) {
			t.Errorf("%d: %v", i, err)
		}
		if _, err := l.FromHeadMajor(nil); !errors.Is(err, ErrPlan) {
			t.Errorf("%d back: %v", i, err)
		}
	}
}

func TestPlanRefusals(t *testing.T) {
	dst, src := make([]byte, 64), make([]byte, 64)
	big := int(^uint(0) >> 1)
	for i, c := range []struct {
		p    Plan
		want error
	}{
		{Plan{Run: 0}, ErrPlan},
		{Plan{Run: -1}, ErrPlan},
		{Plan{Run: 65}, ErrBounds},
		{Plan{Run: 1, Src: 64}, ErrBounds},
		{Plan{Run: 1, Dst: 64}, ErrBounds},
		{Plan{Run: 1, Src: big}, ErrBounds},
		{Plan{Run: 1, Src: -1}, ErrPlan},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: 8, Src: 9, Dst: 8}}}, ErrBounds},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: 8, Src: 8, Dst: 9}}}, ErrBounds},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: big, Src: 1, Dst: 1}}}, ErrBounds},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: 4, Src: 8, Dst: 8}, {N: 4, Src: 8, Dst: 16}}}, ErrBounds}, // together only
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: 2, Src: 8, Dst: big}, {N: 2, Src: 8, Dst: big}}}, ErrBounds},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: -2, Src: 8, Dst: 8}}}, ErrPlan},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: 2, Src: -8, Dst: 8}}}, ErrPlan},
		{Plan{Run: 8, Axes: [MaxAxes]Axis{{N: big, Src: 0, Dst: 0}}}, ErrPlan},
	} {
		if err := Copy(dst, src, Plan{Run: 1}, c.p); !errors.Is(err, c.want) {
			t.Errorf("%d: Copy: %v, want %v", i, err, c.want)
		}
		if err := PermuteSum(dst, src, []Plan{c.p}, Cut{64, 64}, make([]uint64, 1)); !errors.Is(err, c.want) {
			t.Errorf("%d: PermuteSum: %v, want %v", i, err, c.want)
		}
		if err := PermuteCheck(dst, src, []Plan{c.p}, Cut{64, 64}, make([]uint64, 1)); !errors.Is(err, c.want) {
			t.Errorf("%d: PermuteCheck: %v, want %v", i, err, c.want)
		}
	}
	overlap := Plan{Run: 8, Axes: [MaxAxes]Axis{{N: 8, Src: 4, Dst: 4}}}
	if err := PermuteSum(dst, src, []Plan{overlap}, Cut{64, 64}, make([]uint64, 1)); !errors.Is(err, ErrPlan) {
		t.Errorf("overlap: %v", err)
	}
	half := Plan{Run: 32}
	if err := PermuteSum(dst, src, []Plan{half}, Cut{64, 64}, make([]uint64, 1)); !errors.Is(err, ErrBounds) {
		t.Errorf("destination not filled: %v", err)
	}
	if err := PermuteSum(dst, src, make([]Plan, MaxPlans+1), Cut{64, 64}, make([]uint64, 1)); !errors.Is(err, ErrPlan) {
		t.Errorf("too many plans: %v", err)
	}
	whole := Plan{Run: 64}
	for _, n := range []int{0, 2} {
		if err := PermuteSum(dst, src, []Plan{whole}, Cut{64, 64}, make([]uint64, n)); !errors.Is(err, ErrSums) {
			t.Errorf("%d sums: %v", n, err)
		}
		if err := PermuteCheck(dst, src, []Plan{whole}, Cut{64, 64}, make([]uint64, n)); !errors.Is(err, ErrSums) {
			t.Errorf("%d sums: %v", n, err)
		}
	}
	if !bytes.Equal(dst, make([]byte, 64)) {
		t.Error("a refused plan moved bytes")
	}
}

// A broadcast source is a plan like any other.
func TestSourceStrideZero(t *testing.T) {
	dst := make([]byte, 12)
	if err := Copy(dst, []byte("abc"), Plan{Run: 3, Axes: [MaxAxes]Axis{{N: 4, Dst: 3}}}); err != nil || string(dst) != "abcabcabcabc" {
		t.Fatal(string(dst), err)
	}
}

func TestPermuteAllocations(t *testing.T) {
	e := newEngine([4]int{byComponent, byLayer, byToken, byHead}, 8, 4, 16, 0, 256, 256)
	to, _ := e.ToHeadMajor(nil)
	from, _ := e.FromHeadMajor(nil)
	src, dst := make([]byte, e.bytes), make([]byte, e.Bytes())
	cut := Cut{e.Layers * e.CellBytes(), 10_000}
	sums := make([]uint64, cut.Count(len(dst)))
	if n := testing.AllocsPerRun(10, func() {
		if PermuteSum(dst, src, to, cut, sums) != nil || PermuteCheck(src, dst, from, cut, sums) != nil || Copy(dst, src, to...) != nil {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
