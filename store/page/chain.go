package page

import "fmt"

// MaxPageTokens bounds the tokens of one page, and so the memory of a chain.
const MaxPageTokens = 1 << 16

func checkPageTokens(n int) error {
	if n < 1 || n > MaxPageTokens {
		return fmt.Errorf("chain of pages of %d tokens, want 1 to %d: %w", n, MaxPageTokens, ErrInvalid)
	}
	return nil
}

// Narrow appends wide token ids as the 32-bit ids that chains take. ErrWideToken for an id that is negative or does
// not fit: the engines hash those by another rule, which is not built. dst is then unchanged.
func Narrow(dst []uint32, wide []int64) ([]uint32, error) {
	base := len(dst)
	for i, t := range wide {
		if t < 0 || t > 1<<32-1 {
			return dst[:base], fmt.Errorf("token %d of %d is %d: %w", i, len(wide), t, ErrWideToken)
		}
		dst = append(dst, uint32(t))
	}
	return dst, nil
}
