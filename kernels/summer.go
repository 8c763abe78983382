package kernels

import "fmt"

// Summer copies a payload that arrives in portions of any size into its place and sums its pieces on the way: an
// io.Writer. A piece that comes whole is hashed while it is copied, another where it arrived, as soon as it is whole: sums
// do not depend on the portions, and no state of a half hashed piece is kept. Its place is a tier's memory, which nobody
// reads soon: stores of whole pieces go past the caches (StreamSum). Not for concurrent use; the zero Summer takes nothing.
type Summer struct {
	dst  []byte
	cut  Cut
	sums []uint64
	at   int // bytes taken
	from int // where the piece that is not whole yet begins
	done int // pieces summed
}

// Reset starts a payload of len(dst) bytes with one sum per piece. dst and sums belong to the Summer until the last
// byte. ErrPlan, ErrSums.
func (s *Summer) Reset(dst []byte, c Cut, sums []uint64) error {
	*s = Summer{}
	if err := c.need(len(dst), len(sums)); err != nil {
		return err
	}
	*s = Summer{dst: dst, cut: c, sums: sums}
	return nil
}

// Write copies p behind what came before. ErrBounds, and nothing is taken, if it does not fit.
func (s *Summer) Write(p []byte) (int, error) {
	if len(p) > len(s.dst)-s.at {
		return 0, fmt.Errorf("write %d bytes at %d of %d: %w", len(p), s.at, len(s.dst), ErrBounds)
	}
	n := len(p)
	for len(p) > 0 {
		end := s.cut.next(s.dst, s.from)
		k := min(len(p), end-s.at)
		switch to := s.dst[s.at : s.at+k]; {
		case s.at+k < end:
			copy(to, p)
		case s.at == s.from:
			s.sums[s.done] = StreamSum(to, p[:k])
		default:
			copy(to, p)
			s.sums[s.done] = Sum(s.dst[s.from:end])
		}
		s.at, p = s.at+k, p[k:]
		if s.at == end {
			s.from = end
			s.done++
		}
	}
	return n, nil
}

// Offset is the number of bytes taken.
func (s *Summer) Offset() int { return s.at }

// Summed is the number of pieces whose sums are set.
func (s *Summer) Summed() int { return s.done }

// Complete reports whether the last byte has come.
func (s *Summer) Complete() bool { return s.at == len(s.dst) }
