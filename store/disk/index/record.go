package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
)

// Keys. Numbers are big-endian, so that a segment is one range, in the order of its offsets, with its own dictionary
// before its entries.
//
//	00 "format"                                        "quire disk index 1"
//	01 segment 8 | 00                                  applied up to: uvarint offset
//	01 segment 8 | 01 | id 4                           a family: namespace 32, epoch 8, scope 32, group 32
//	01 segment 8 | 02 | id 4                           a lineage
//	01 segment 8 | 03 | offset 8                       an entry
//	02                                                 next sequence number: uvarint
const (
	format = "quire disk index 1"

	prefixFormat  = 0x00
	prefixSegment = 0x01
	prefixNextSeq = 0x02

	kindApplied = 0x00
	kindFamily  = 0x01
	kindLineage = 0x02
	kindEntry   = 0x03

	segmentBytes     = 9 // prefix and number
	idKeyBytes       = segmentBytes + 1 + 4
	entryKeyBytes    = segmentBytes + 1 + 8
	familyValueBytes = 32 + 8 + 32 + 32
)

// MaxLineageBytes bounds an entry's lineage.
const MaxLineageBytes = 4 << 10

func formatKey() []byte { return append([]byte{prefixFormat}, "format"...) }

func appendSegment(dst []byte, segment uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefixSegment), segment)
}

// appendSegmentEnd is the key behind all of a segment's; segment numbers end before the last.
func appendSegmentEnd(dst []byte, segment uint64) []byte {
	if segment == math.MaxUint64 {
		return append(dst, prefixSegment+1)
	}
	return appendSegment(dst, segment+1)
}

func appendAppliedKey(dst []byte, segment uint64) []byte {
	return append(appendSegment(dst, segment), kindApplied)
}

func appendIDKey(dst []byte, segment uint64, kind byte, id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(appendSegment(dst, segment), kind), id)
}

func appendEntryKey(dst []byte, segment uint64, offset int64) []byte {
	return binary.BigEndian.AppendUint64(append(appendSegment(dst, segment), kindEntry), uint64(offset))
}

func appendFamily(dst []byte, f *page.Family) []byte {
	dst = append(dst, f.Namespace[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(f.Epoch))
	dst = append(dst, f.Scope[:]...)
	return append(dst, f.Group[:]...)
}

func decodeFamily(b []byte) (f page.Family, err error) {
	if len(b) != familyValueBytes {
		return f, fmt.Errorf("family of %d bytes, want %d", len(b), familyValueBytes)
	}
	copy(f.Namespace[:], b)
	f.Epoch = page.Epoch(binary.BigEndian.Uint64(b[32:]))
	copy(f.Scope[:], b[40:])
	copy(f.Group[:], b[72:])
	return f, nil
}

// The first byte of an entry's value: the version of its layout above, flags below.
const (
	valueVersion      = 1 << 4
	versionMask       = 0xf0
	flagParentUnknown = 1 << 0
	flagFLOPs         = 1 << 1
	flagExpiry        = 1 << 2
	flagMask          = 0x0f
)

// check refuses what decode would.
func (e *Entry) check() error {
	if e.Offset < 0 || e.Bytes < 0 || e.Key.Hash.IsZero() || len(e.Lineage) > MaxLineageBytes {
		return fmt.Errorf("%w: offset %d, %d bytes, hash of %d bytes, lineage of %d bytes",
			ErrEntry, e.Offset, e.Bytes, e.Key.Hash.Len(), len(e.Lineage))
	}
	return nil
}

// appendValue appends the value of an entry, all of it but its place and its dictionary's strings.
//
//	version 4 bits, flags 4 bits
//	uvarint bytes | seq | family | lineage (0: empty) | h0 | h1 | l0 | l1
//	hash length 1, hash | parent length 1 (0: none), parent | extent id 40
//	[FLOPs 8, float64 little-endian] [uvarint expiry]
func (e *Entry) appendValue(dst []byte, family, lineage uint32) []byte {
	head := len(dst)
	dst = append(dst, valueVersion)
	for _, v := range [...]uint64{uint64(e.Bytes), e.Seq, uint64(family), uint64(lineage),
		uint64(e.View.H0), uint64(e.View.H1), uint64(e.View.L0), uint64(e.View.L1)} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = append(append(dst, byte(e.Key.Hash.Len())), e.Key.Hash.Bytes()...)
	dst = append(append(dst, byte(e.Parent.Len())), e.Parent.Bytes()...)
	dst = e.Extent.AppendEncode(dst)
	if e.ParentUnknown {
		dst[head] |= flagParentUnknown
	}
	if bits := math.Float64bits(e.DeclaredFLOPs); bits != 0 {
		dst[head] |= flagFLOPs
		dst = binary.LittleEndian.AppendUint64(dst, bits)
	}
	if e.Expiry != 0 {
		dst[head] |= flagExpiry
		dst = binary.AppendUvarint(dst, uint64(e.Expiry))
	}
	return dst
}

var errValue = errors.New("value does not decode")

// decodeValue fills all of e but its segment, offset, family and lineage, whose ids it returns. It refuses what
// appendValue does not write.
func (e *Entry) decodeValue(b []byte) (family, lineage uint32, err error) {
	if len(b) == 0 || b[0]&versionMask != valueVersion || b[0]&flagMask&^(flagParentUnknown|flagFLOPs|flagExpiry) != 0 {
		return 0, 0, fmt.Errorf("%w: first byte of %.1x", errValue, b)
	}
	r := reader{b: b[1:]}
	flags := b[0]
	bytes, seq := r.uvarint(math.MaxInt64), r.uvarint(math.MaxUint64)
	family, lineage = uint32(r.uvarint(math.MaxUint32)), uint32(r.uvarint(math.MaxUint32))
	e.Bytes, e.Seq = int64(bytes), seq
	for _, v := range [...]*uint16{&e.View.H0, &e.View.H1, &e.View.L0, &e.View.L1} {
		*v = uint16(r.uvarint(math.MaxUint16))
	}
	e.Key.Hash = r.hash(false)
	e.Parent = r.hash(true)
	extent := r.bytes(page.ExtentIDBytes)
	e.ParentUnknown, e.DeclaredFLOPs, e.Expiry = flags&flagParentUnknown != 0, 0, 0
	if flags&flagFLOPs != 0 {
		if bits := r.bytes(8); bits != nil {
			e.DeclaredFLOPs = math.Float64frombits(binary.LittleEndian.Uint64(bits))
		}
	}
	if flags&flagExpiry != 0 {
		e.Expiry = clock.Wall(r.uvarint(math.MaxUint32))
	}
	if r.bad || len(r.b) != 0 {
		return 0, 0, fmt.Errorf("%w: %d bytes, %d left over", errValue, len(b), len(r.b))
	}
	e.Extent, err = page.DecodeExtentID(extent)
	return family, lineage, err
}

// reader takes a value apart; after what is not there, bad is set and everything is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() {
	r.b, r.bad = nil, true
}

func (r *reader) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes aliases the value; nil if there are not that many.
func (r *reader) bytes(n int) []byte {
	if n > len(r.b) || r.bad {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) hash(optional bool) (h page.Hash) {
	n := r.bytes(1)
	if n == nil || n[0] == 0 && optional {
		return h
	}
	h, err := page.MakeHash(r.bytes(int(n[0])))
	if err != nil {
		r.fail()
	}
	return h
}

// decodeUvarint reads a value that is one number.
func decodeUvarint(b []byte) (uint64, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 || n != len(b) {
		return 0, fmt.Errorf("%w: % x is no number", errValue, b)
	}
	return v, nil
}
