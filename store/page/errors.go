package page

import (
	"errors"
	"fmt"
)

// Kinds of what can be wrong with bytes or values of this package; check with errors.Is.
var (
	// ErrInvalid: a value that no writer of this format may produce.
	ErrInvalid = errors.New("invalid value")
	// ErrUnsupported: reserved in the format and refused until built: token sets, shards, uneven TP.
	ErrUnsupported = errors.New("unsupported")
	// ErrMagic: these bytes are no extent header.
	ErrMagic = errors.New("not an extent header")
	// ErrVersion: a header of another version of the format.
	ErrVersion = errors.New("unknown version")
	// ErrUnknownFlags: a flag that this version does not know.
	ErrUnknownFlags = errors.New("unknown flags")
	// ErrTruncated: fewer bytes than the header says or needs.
	ErrTruncated = errors.New("truncated")
	// ErrTooLong: more bytes, or a larger count, than the header or the format allows.
	ErrTooLong = errors.New("too long")
	// ErrChecksum: the bytes are not those that were written.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrMismatch: a sound header of something else than what the reader expects.
	ErrMismatch = errors.New("mismatch")
	// ErrHashLen: a page hash must be MinHashBytes to MaxHashBytes long.
	ErrHashLen = errors.New("page hash must be 16 to 64 bytes")
	// ErrWideToken: a token id that does not fit into 32 bits.
	ErrWideToken = errors.New("token id outside of 32 bits")
)

// FieldError says which field of an extent header is wrong, where it lies, and what was found and wanted there.
type FieldError struct {
	Kind      error  // one of the Err values above; errors.Is finds it
	Field     string // as named in docs/formats/extent-header.md
	Offset    int    // from the first byte of the header
	Got, Want string
}

// Error names field, offset, got, want and kind.
func (e *FieldError) Error() string {
	return fmt.Sprintf("extent header: %s at offset %d: got %s, want %s: %v", e.Field, e.Offset, e.Got, e.Want, e.Kind)
}

// Unwrap returns the kind.
func (e *FieldError) Unwrap() error { return e.Kind }

func fieldErr(kind error, field string, offset int, got, want any) error {
	return &FieldError{Kind: kind, Field: field, Offset: offset, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}
}
