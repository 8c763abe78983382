package kernels

import (
	"errors"
	"fmt"
)

// Kinds of refusals; check with errors.Is. All but ErrSum come before a byte moves.
var (
	// ErrBounds: a buffer is not as long as what is to be copied needs.
	ErrBounds = errors.New("buffer size")
	// ErrPlan: a plan that cannot be run: negative, overlapping, or too much.
	ErrPlan = errors.New("bad plan")
	// ErrSums: not one sum per piece.
	ErrSums = errors.New("number of sums")
	// ErrSum: a piece does not have the sum that it should have.
	ErrSum = errors.New("checksum mismatch")
)

// SumError is an ErrSum that says where.
type SumError struct {
	Piece     int
	Got, Want uint64
}

// Error names the piece and both sums.
func (e *SumError) Error() string {
	return fmt.Sprintf("piece %d: got sum %016x, want %016x: %v", e.Piece, e.Got, e.Want, ErrSum)
}

// Unwrap returns ErrSum.
func (e *SumError) Unwrap() error { return ErrSum }
