package page

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// PieceSum is the checksum of one piece: xxh3-64, no seed.
func PieceSum(piece []byte) uint64 { return xxh3.Hash(piece) }

// DigestOfSums is the payload digest of an extent: xxh3-128 over its encoded sums, in the canonical (big-endian)
// form that xxhash libraries print.
func DigestOfSums(sumsLE []byte) [16]byte { return xxh3.Hash128(sumsLE).Bytes() }

// AppendSums appends sums in their encoded form, 8 bytes little-endian each.
func AppendSums(dst []byte, sums []uint64) []byte {
	for _, s := range sums {
		dst = binary.LittleEndian.AppendUint64(dst, s)
	}
	return dst
}

// SumAt is sum i of encoded sums.
func SumAt(sumsLE []byte, i int) uint64 { return binary.LittleEndian.Uint64(sumsLE[8*i:]) }

// AppendSumsOf appends the encoded sums of all pieces of payload, an extent of view v. The payload must be
// v.Cells()*cellBytes long; ErrInvalid otherwise.
func AppendSumsOf(dst, payload []byte, v View, cellBytes uint32) ([]byte, error) {
	if uint64(len(payload)) != PayloadBytes(v, cellBytes) {
		return dst, ErrInvalid
	}
	p := PiecesOf(int(v.L1-v.L0), int(cellBytes))
	for i := range p.Count(int(v.H1 - v.H0)) {
		at, n := p.Span(i)
		dst = binary.LittleEndian.AppendUint64(dst, PieceSum(payload[at:at+n]))
	}
	return dst, nil
}

// PayloadBytes is the size of an extent of view v.
func PayloadBytes(v View, cellBytes uint32) uint64 { return uint64(v.Cells()) * uint64(cellBytes) }
