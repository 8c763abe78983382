package page

import "fmt"

// RankView is what one tensor-parallel rank holds of a page, and which of the ranks that hold the same it is.
type RankView struct {
	View
	Replica, Replicas int // 0 of 1 unless more ranks than kv heads
}

// TPView is the view of rank of tp over a page of heads x layers. With more ranks than heads (MLA: one head), rank
// r holds head floor(r*heads/tp), and tp/heads ranks hold the same. One of heads and tp must divide the other:
// ErrUnsupported otherwise, since engines differ in how they would cut.
func TPView(rank, tp int, heads, layers uint16) (RankView, error) {
	h := int(heads)
	if tp < 1 || rank < 0 || rank >= tp || h < 1 || layers < 1 {
		return RankView{}, fmt.Errorf("view of rank %d of %d over %d heads x %d layers: %w", rank, tp, heads, layers, ErrInvalid)
	}
	if h%tp != 0 && tp%h != 0 {
		return RankView{}, fmt.Errorf("view of rank %d of %d over %d heads: uneven: %w", rank, tp, heads, ErrUnsupported)
	}
	h0 := rank * h / tp
	if tp <= h {
		return RankView{View{uint16(h0), uint16(h0 + h/tp), 0, layers}, 0, 1}, nil
	}
	n := tp / h
	return RankView{View{uint16(h0), uint16(h0 + 1), 0, layers}, rank % n, n}, nil
}

// Writes says whether this rank is the one of its replicas that writes the page: the hash, read as a big-endian
// number, modulo the number of replicas. The others copy nothing.
func (r RankView) Writes(h *Hash) bool {
	if r.Replicas <= 1 {
		return true
	}
	m, n := uint64(0), uint64(r.Replicas)
	for _, b := range h.Bytes() {
		m = (m<<8 | uint64(b)) % n
	}
	return m == uint64(r.Replica)
}

// PPView cuts v to the layers of one pipeline stage, where layersOf says how many of the group's own layers each
// stage holds: engines differ in how they deal out a remainder, so it is asked and not guessed.
func PPView(v View, stage int, layersOf []uint16) (View, error) {
	if stage < 0 || stage >= len(layersOf) {
		return View{}, fmt.Errorf("view of stage %d of %d: %w", stage, len(layersOf), ErrInvalid)
	}
	l0, sum := 0, 0
	for i, n := range layersOf {
		if i == stage {
			l0 = sum
		}
		sum += int(n)
	}
	if v.L0 != 0 || sum != int(v.L1) {
		return View{}, fmt.Errorf("view of stage %d: stages hold %d layers, page has %d: %w", stage, sum, v.L1, ErrInvalid)
	}
	return View{v.H0, v.H1, uint16(l0), uint16(l0) + layersOf[stage]}, nil
}
