package page

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// ExtentIDBytes is the size of an encoded ExtentID.
const ExtentIDBytes = 40

// ExtentID names one committed body of bytes for ever. Comparable; the zero ExtentID is none.
//
//	0 16 writer   16 8 sequence, little-endian   24 16 digest
type ExtentID struct {
	Writer [16]byte // random per writer instance
	Seq    uint64
	Digest [16]byte // DigestOfSums over the piece sums
}

// AppendEncode appends the 40 bytes of id to dst.
func (id *ExtentID) AppendEncode(dst []byte) []byte {
	dst = append(dst, id.Writer[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, id.Seq)
	return append(dst, id.Digest[:]...)
}

// DecodeExtentID reads exactly 40 bytes; ErrTruncated or ErrTooLong otherwise.
func DecodeExtentID(b []byte) (id ExtentID, err error) {
	switch {
	case len(b) < ExtentIDBytes:
		return id, fmt.Errorf("extent id: got %d bytes, want %d: %w", len(b), ExtentIDBytes, ErrTruncated)
	case len(b) > ExtentIDBytes:
		return id, fmt.Errorf("extent id: got %d bytes, want %d: %w", len(b), ExtentIDBytes, ErrTooLong)
	}
	copy(id.Writer[:], b)
	id.Seq = binary.LittleEndian.Uint64(b[16:])
	copy(id.Digest[:], b[24:])
	return id, nil
}

// String is writer-sequence-digest: hex, decimal, hex.
func (id ExtentID) String() string {
	return hex.EncodeToString(id.Writer[:]) + "-" + strconv.FormatUint(id.Seq, 10) + "-" + hex.EncodeToString(id.Digest[:])
}

// MarshalText is String.
func (id ExtentID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses the form of String.
func (id *ExtentID) UnmarshalText(text []byte) error {
	p, err := ParseExtentID(string(text))
	if err == nil {
		*id = p
	}
	return err
}

// ParseExtentID parses the form of String.
func ParseExtentID(s string) (id ExtentID, err error) {
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return ExtentID{}, fmt.Errorf("parse extent id: want writer-sequence-digest: %w", ErrInvalid)
	}
	if err = unhex("extent id's writer", id.Writer[:], []byte(parts[0])); err != nil {
		return ExtentID{}, err
	}
	if id.Seq, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return ExtentID{}, fmt.Errorf("parse extent id's sequence: %w", ErrInvalid)
	}
	if err = unhex("extent id's digest", id.Digest[:], []byte(parts[2])); err != nil {
		return ExtentID{}, err
	}
	return id, nil
}
