package page

import "fmt"

// View is a rectangle of a page: kv heads [H0,H1) x layers [L0,L1), the whole token axis, shard 0 of 1.
// Token set and shard have their place in the encodings (header, proto) and are refused until built: see Reserved.
//
//	        l0      l1
//	   +----+-------+---+
//	h0 |    |#######|   |
//	h1 |    |#######|   |
//	   +----+-------+---+
type View struct{ H0, H1, L0, L1 uint16 }

// String is h[0,8) l[0,32).
func (v View) String() string { return fmt.Sprintf("h[%d,%d) l[%d,%d)", v.H0, v.H1, v.L0, v.L1) }

// Reserved is the part of a view that the encodings have a place for and nobody may use yet.
type Reserved struct {
	TokenStart, TokenStride, TokenRun uint32 // all 0: all tokens of the page
	Shard, Shards                     uint32 // Shards 0 or 1: not cut into shards
}

// Check refuses anything but all tokens and shard 0 of 1 with ErrUnsupported: a token slice is refused, not guessed.
func (r Reserved) Check() error {
	if r.TokenStart != 0 || r.TokenStride != 0 || r.TokenRun != 0 {
		return fmt.Errorf("view of tokens (start %d, stride %d, run %d): %w", r.TokenStart, r.TokenStride, r.TokenRun, ErrUnsupported)
	}
	if r.Shard != 0 || r.Shards > 1 {
		return fmt.Errorf("view of shard %d of %d: %w", r.Shard, r.Shards, ErrUnsupported)
	}
	return nil
}

// Empty reports whether v has no cell.
func (v View) Empty() bool { return v.H0 >= v.H1 || v.L0 >= v.L1 }

// Cells is the number of (head, layer) cells.
func (v View) Cells() int {
	if v.Empty() {
		return 0
	}
	return int(v.H1-v.H0) * int(v.L1-v.L0)
}

// Contains reports whether every cell of w is in v.
func (v View) Contains(w View) bool {
	return w.Empty() || v.H0 <= w.H0 && w.H1 <= v.H1 && v.L0 <= w.L0 && w.L1 <= v.L1
}

// Intersect returns the common cells; the result may be Empty.
func (v View) Intersect(w View) View {
	return View{max(v.H0, w.H0), min(v.H1, w.H1), max(v.L0, w.L0), min(v.L1, w.L1)}
}

// Subtract appends v minus w to dst as at most four disjoint rectangles: above and below w over v's full
// width of layers, then left and right of it. Deterministic: same input, same order.
func (v View) Subtract(dst []View, w View) []View {
	if v.Empty() {
		return dst
	}
	x := v.Intersect(w)
	if x.Empty() {
		return append(dst, v)
	}
	for _, r := range [4]View{
		{v.H0, x.H0, v.L0, v.L1}, {x.H1, v.H1, v.L0, v.L1},
		{x.H0, x.H1, v.L0, x.L0}, {x.H0, x.H1, x.L1, v.L1},
	} {
		if !r.Empty() {
			dst = append(dst, r)
		}
	}
	return dst
}

// Uncovered appends the parts of v that no view in have covers. MaxRects bounds the work: beyond it the
// answer is v itself and ok is false (a page that fragmented is refused further cuts).
func (v View) Uncovered(dst []View, have []View) (_ []View, ok bool) {
	if v.Empty() {
		return dst, true
	}
	base := len(dst)
	dst = append(dst, v)
	for _, h := range have {
		n := len(dst)
		for i := base; i < n; i++ {
			dst = dst[i].Subtract(dst, h)
		}
		dst = append(dst[:base], dst[n:]...)
		if len(dst)-base > MaxRects {
			return append(dst[:base], v), false
		}
	}
	return dst, true
}

// Covered reports whether the views in have cover v; false also where MaxRects is not enough to tell.
func (v View) Covered(have []View) bool {
	var buf [4 * MaxRects]View
	rest, ok := v.Uncovered(buf[:0], have)
	return ok && len(rest) == 0
}

// MaxRects bounds the extents of one page and the rectangles of one grant.
const MaxRects = 256

// Part says which cells of extent Index serve a reader's view.
type Part struct {
	Index int
	View  View
}

// Tile covers v from have, in order of preference, each cell exactly once; ok is false if a hole remains, or if v
// would fall into more than MaxRects rectangles. No allocation if dst has room.
func (v View) Tile(dst []Part, have []View) (_ []Part, ok bool) {
	// Cutting n disjoint rectangles by one leaves at most 2n+4: its four sides halve some, its corners add the rest.
	var a, b [MaxRects*2 + 4]View
	rest, next := append(a[:0], v), b[:0]
	for i, h := range have {
		next = next[:0]
		for _, r := range rest {
			if x := r.Intersect(h); !x.Empty() {
				dst = append(dst, Part{i, x})
			}
			next = r.Subtract(next, h)
		}
		if rest, next = next, rest; len(rest) == 0 {
			return dst, true
		}
		if len(rest) > MaxRects {
			return dst, false
		}
	}
	return dst, v.Empty()
}
