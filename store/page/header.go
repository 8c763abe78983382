package page

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

// Header is what travels with an extent's payload through every tier and over the wire. Sums and Provenance alias
// the input of DecodeHeader.
type Header struct {
	Key           Key
	Extent        ExtentID
	Parent        Hash // zero: root, or unknown if ParentUnknown
	ParentUnknown bool
	Durable       bool // committed with durability=disk
	Strict        bool // of a namespace whose pages come from one writer group
	Depth, Tokens uint32
	View          View
	Heads, Layers uint16 // of the whole page
	CellBytes     uint32 // of one (kv head, layer)
	Components    uint16 // in a cell; 0: the writer does not say
	Grade         Grade
	PackingID     [32]byte
	PayloadBytes  uint64
	CreatedUnix   uint64 // seconds
	DeclaredFLOPs float64
	ExpiryUnix    uint32 // seconds; 0: none
	Provenance    []byte // canonical, at most MaxProvenance
	SumsLE        []byte // 8 bytes a piece
}

// EncodedBytes is the size of h on any medium.
func (h *Header) EncodedBytes() int {
	return headerFixedBytes + len(h.Provenance) + len(h.SumsLE) + headerTailBytes
}

// EncodedHeaderBytes is the size of the header of an extent of view v.
func EncodedHeaderBytes(v View, cellBytes uint32, provenanceBytes int) int {
	return headerFixedBytes + provenanceBytes + 8*PieceCount(v, cellBytes) + headerTailBytes
}

// Pieces is the geometry of h's sums.
func (h *Header) Pieces() Pieces { return PiecesOf(int(h.View.L1)-int(h.View.L0), int(h.CellBytes)) }

// Sum is the checksum of piece i.
func (h *Header) Sum(i int) uint64 { return SumAt(h.SumsLE, i) }

// SetSums keeps sumsLE (not a copy) and sets the payload digest to match.
func (h *Header) SetSums(sumsLE []byte) {
	h.SumsLE = sumsLE
	h.Extent.Digest = DigestOfSums(sumsLE)
}

// AppendEncode appends the encoding of h to dst. It refuses what DecodeHeader would refuse; dst is then unchanged.
// No allocation if dst has room for EncodedBytes.
func (h *Header) AppendEncode(dst []byte) ([]byte, error) {
	if err := h.check(); err != nil {
		return dst, err
	}
	n := h.EncodedBytes()
	dst = slices.Grow(dst, n)[:len(dst)+n]
	b := dst[len(dst)-n:]
	clear(b[:headerFixedBytes])
	h.putFixed(b)
	at := headerFixedBytes + copy(b[headerFixedBytes:], h.Provenance)
	at += copy(b[at:], h.SumsLE)
	putTail(b, at)
	return dst, nil
}

// putTail writes the checksum of b[:at] behind it.
func putTail(b []byte, at int) {
	sum := xxh3.Hash128(b[:at]).Bytes()
	copy(b[at:], sum[:])
}

func (h *Header) putFixed(b []byte) {
	le := binary.LittleEndian
	copy(b[offMagic:], HeaderMagic)
	le.PutUint16(b[offVersion:], HeaderVersion)
	le.PutUint16(b[offFlags:], h.flags())
	le.PutUint32(b[offHeaderBytes:], uint32(len(b)))
	le.PutUint32(b[offPieceCount:], uint32(len(h.SumsLE)/8))
	le.PutUint64(b[offPayloadBytes:], h.PayloadBytes)
	copy(b[offNamespace:], h.Key.Namespace[:])
	le.PutUint64(b[offEpoch:], uint64(h.Key.Epoch))
	copy(b[offScope:], h.Key.Scope[:])
	copy(b[offGroup:], h.Key.Group[:])
	b[offHashBytes] = h.Key.Hash.n
	b[offParentBytes] = h.Parent.n
	le.PutUint16(b[offProvenanceBytes:], uint16(len(h.Provenance)))
	le.PutUint32(b[offDepth:], h.Depth)
	copy(b[offHash:], h.Key.Hash.b[:])
	copy(b[offParentHash:], h.Parent.b[:])
	copy(b[offWriter:], h.Extent.Writer[:])
	le.PutUint64(b[offSequence:], h.Extent.Seq)
	copy(b[offPayloadDigest:], h.Extent.Digest[:])
	le.PutUint16(b[offViewH0:], h.View.H0)
	le.PutUint16(b[offViewH1:], h.View.H1)
	le.PutUint16(b[offViewL0:], h.View.L0)
	le.PutUint16(b[offViewL1:], h.View.L1)
	le.PutUint16(b[offShards:], 1)
	le.PutUint32(b[offTokens:], h.Tokens)
	le.PutUint32(b[offCellBytes:], h.CellBytes)
	le.PutUint16(b[offPageHeads:], h.Heads)
	le.PutUint16(b[offPageLayers:], h.Layers)
	le.PutUint16(b[offGrade:], uint16(h.Grade))
	le.PutUint16(b[offComponents:], h.Components)
	copy(b[offPackingID:], h.PackingID[:])
	le.PutUint64(b[offCreated:], h.CreatedUnix)
	le.PutUint64(b[offDeclaredFLOPs:], math.Float64bits(h.DeclaredFLOPs))
	le.PutUint32(b[offExpiry:], h.ExpiryUnix)
}

func (h *Header) flags() (f uint16) {
	if h.Durable {
		f |= flagDurable
	}
	if h.Strict {
		f |= flagStrict
	}
	if h.ParentUnknown {
		f |= flagParentUnknown
	}
	return f
}
