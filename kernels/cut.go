package kernels

import "fmt"

// Cut says where one checksummed piece ends and the next begins: every PieceBytes, counted afresh in each unit of
// UnitBytes (docs/formats/pieces.md). The last piece of a unit may be shorter.
type Cut struct{ UnitBytes, PieceBytes int }

func (c Cut) check() error {
	if c.PieceBytes < 1 || c.UnitBytes < c.PieceBytes {
		return fmt.Errorf("pieces of %d bytes in units of %d: %w", c.PieceBytes, c.UnitBytes, ErrPlan)
	}
	return nil
}

// Count is the number of pieces of payloadBytes, which are whole units or end inside of one.
func (c Cut) Count(payloadBytes int) int {
	perUnit := (c.UnitBytes + c.PieceBytes - 1) / c.PieceBytes
	units, rest := payloadBytes/c.UnitBytes, payloadBytes%c.UnitBytes
	return units*perUnit + (rest+c.PieceBytes-1)/c.PieceBytes
}

// left is the number of bytes from offset to the end of its piece.
func (c Cut) left(offset int) int {
	in := offset % c.UnitBytes
	return min(c.PieceBytes-in%c.PieceBytes, c.UnitBytes-in)
}

// need refuses a cut that cannot be, and sums that are not one per piece.
func (c Cut) need(payloadBytes, sums int) error {
	if err := c.check(); err != nil {
		return err
	}
	if want := c.Count(payloadBytes); sums != want {
		return fmt.Errorf("%d sums for %d pieces: %w", sums, want, ErrSums)
	}
	return nil
}

// next is the piece that begins at offset of b.
func (c Cut) next(b []byte, offset int) (end int) { return min(offset+c.left(offset), len(b)) }

// group is the end of as many whole pieces of bytes from offset on as fit into groupBytes, one at least, and their number.
func (c Cut) group(bytes, offset, groupBytes int) (end, n int) {
	for end = offset; end < bytes; n++ {
		next := min(end+c.left(end), bytes)
		if n > 0 && next-offset > groupBytes {
			break
		}
		end = next
	}
	return end, n
}

// CopySumPieces copies src to dst, of equal length, and writes the xxh3-64 of each piece to sums, by CopySum: it is what
// arrived that is summed. ErrBounds, ErrSums before a byte moves.
func CopySumPieces(dst, src []byte, c Cut, sums []uint64) error {
	if len(dst) != len(src) {
		return fmt.Errorf("copy %d bytes to %d: %w", len(src), len(dst), ErrBounds)
	}
	if err := c.need(len(dst), len(sums)); err != nil {
		return err
	}
	for i, at := 0, 0; at < len(dst); i++ {
		end := c.next(dst, at)
		sums[i] = CopySum(dst[at:end], src[at:end])
		at = end
	}
	return nil
}

// SumPieces writes the sum of each piece of b.
func SumPieces(b []byte, c Cut, sums []uint64) error {
	if err := c.need(len(b), len(sums)); err != nil {
		return err
	}
	for i, at := 0, 0; at < len(b); i++ {
		end := c.next(b, at)
		sums[i] = Sum(b[at:end])
		at = end
	}
	return nil
}

func checkPiece(i int, b []byte, want uint64) error {
	if got := Sum(b); got != want {
		return &SumError{Piece: i, Got: got, Want: want}
	}
	return nil
}
