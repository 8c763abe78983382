package kernels

import (
	"fmt"

	"github.com/zeebo/xxh3"
)

// groupBytes is how much is permuted before it is hashed: it stays in the L2 cache of a server, and holds enough heads
// that an engine's order with heads innermost is read in long stretches.
const groupBytes = 1 << 20

// MaxPlans bounds the plans of one permutation: one per component of a cell at most, and no page has that many.
const MaxPlans = 8

// PermuteSum copies from an engine's order into dst in head-major order and writes the xxh3-64 of each piece of dst
// to sums, a few pieces at a time, so that they are hashed while they are in cache. The plans together fill dst exactly.
// ErrBounds, ErrPlan, ErrSums before a byte moves.
func PermuteSum(dst, src []byte, plans []Plan, c Cut, sums []uint64) error {
	var walks [MaxPlans]walk
	if err := prepare(&walks, dst, src, plans, true); err != nil {
		return err
	}
	if err := c.need(len(dst), len(sums)); err != nil {
		return err
	}
	for i, at := 0, 0; at < len(dst); {
		end := c.group(dst, at)
		for k := range plans {
			w := &walks[k]
			w.within(dst[w.dst:], src[w.src:], 0, at-w.dst, end-w.dst)
		}
		for ; at < end; i++ {
			next := c.next(dst, at)
			sums[i] = xxh3.Hash(dst[at:next])
			at = next
		}
	}
	return nil
}

// PermuteCheck copies from src in head-major order into an engine's order, each piece only after it was found to have
// its sum. A *SumError (ErrSum) names the first piece that has not: pieces before it have been copied, nothing of it
// or after it. ErrBounds, ErrPlan, ErrSums before a byte moves.
func PermuteCheck(dst, src []byte, plans []Plan, c Cut, want []uint64) error {
	var walks [MaxPlans]walk
	if err := prepare(&walks, dst, src, plans, false); err != nil {
		return err
	}
	if err := c.need(len(src), len(want)); err != nil {
		return err
	}
	for i, at := 0, 0; at < len(src); i++ {
		end := c.next(src, at)
		if err := checkPiece(i, src[at:end], want[i]); err != nil {
			return err
		}
		for k := range plans {
			w := &walks[k]
			w.within(dst[w.dst:], src[w.src:], 0, at-w.src, end-w.src)
		}
		at = end
	}
	return nil
}

// prepare checks the plans and orders their loops by the head-major side.
func prepare(walks *[MaxPlans]walk, dst, src []byte, plans []Plan, toCanonical bool) error {
	if len(plans) > MaxPlans {
		return fmt.Errorf("%d plans, at most %d: %w", len(plans), MaxPlans, ErrPlan)
	}
	total := 0
	for i := range plans {
		if err := plans[i].check(len(dst), len(src)); err != nil {
			return err
		}
		walks[i].init(&plans[i], toCanonical)
		if err := walks[i].nested(); err != nil {
			return err
		}
		total += plans[i].Bytes()
	}
	if toCanonical && total != len(dst) {
		return fmt.Errorf("plans of %d bytes for a destination of %d: %w", total, len(dst), ErrBounds)
	}
	return nil
}
