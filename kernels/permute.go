package kernels

import "fmt"

// groupBytes is how much is permuted between two rounds of hashing: it stays in the L2 cache of a server.
const groupBytes = 512 << 10

// MaxPlans bounds the plans of one permutation: one per component of a cell at most, and no page has that many.
const MaxPlans = 8

// PermuteSum copies from an engine's order into dst in head-major order and writes the xxh3-64 of each piece of dst
// to sums, a few pieces at a time, so that they are hashed while they are in cache. The plans together fill dst exactly.
// ErrBounds, ErrPlan, ErrSums before a byte moves.
func PermuteSum(dst, src []byte, plans []Plan, c Cut, sums []uint64) error {
	return permuteSum(dst, src, plans, c, sums, groupBytes)
}

func permuteSum(dst, src []byte, plans []Plan, c Cut, sums []uint64, groupBytes int) error {
	var walks [MaxPlans]walk
	if err := prepare(&walks, dst, src, plans, true); err != nil {
		return err
	}
	if err := c.need(len(dst), len(sums)); err != nil {
		return err
	}
	units := together(walks[:len(plans)], len(dst), c)
	unit := len(dst) / units
	for lo, i := 0, 0; lo < unit; {
		hi, n := c.group(unit, lo, groupBytes/units)
		for k := range plans {
			w := &walks[k]
			w.within(dst[w.dst:], src[w.src:], 0, lo-w.dst, hi-w.dst)
		}
		for u := range units {
			b, sums := dst[u*unit:(u+1)*unit], sums[u*(len(sums)/units)+i:]
			for k, at := 0, lo; k < n; k++ {
				end := c.next(b, at)
				sums[k] = Sum(b[at:end])
				at = end
			}
		}
		lo, i = hi, i+n
	}
	return nil
}

// PermuteCheck copies from src in head-major order into an engine's order, a few pieces at a time, after all of them
// were found to have their sums. A *SumError (ErrSum) names one that has not: nothing of it has been copied, while others
// may have been. ErrBounds, ErrPlan, ErrSums before a byte moves.
func PermuteCheck(dst, src []byte, plans []Plan, c Cut, want []uint64) error {
	return permuteCheck(dst, src, plans, c, want, groupBytes)
}

func permuteCheck(dst, src []byte, plans []Plan, c Cut, want []uint64, groupBytes int) error {
	var walks [MaxPlans]walk
	if err := prepare(&walks, dst, src, plans, false); err != nil {
		return err
	}
	if err := c.need(len(src), len(want)); err != nil {
		return err
	}
	units := together(walks[:len(plans)], len(src), c)
	unit := len(src) / units
	for lo, i := 0, 0; lo < unit; {
		hi, n := c.group(unit, lo, groupBytes/units)
		for u := range units {
			b, first := src[u*unit:(u+1)*unit], u*(len(want)/units)+i
			for k, at := first, lo; k < first+n; k++ {
				end := c.next(b, at)
				if err := checkPiece(k, b[at:end], want[k]); err != nil {
					return err
				}
				at = end
			}
		}
		for k := range plans {
			w := &walks[k]
			w.within(dst[w.dst:], src[w.src:], 0, lo-w.src, hi-w.src)
		}
		lo, i = hi, i+n
	}
	return nil
}

// together is the number of units that are walked side by side, in groups of the same pieces of each: an engine's order
// with heads innermost is then walked in long stretches. 1 where the plans do not go over units in the same way.
func together(walks []walk, bytes int, c Cut) int {
	units := bytes / c.UnitBytes
	for i := range walks {
		if units*c.UnitBytes != bytes || !walks[i].over(units, c.UnitBytes) {
			return 1
		}
	}
	for i := range walks {
		walks[i].peel()
	}
	return max(units, 1)
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
