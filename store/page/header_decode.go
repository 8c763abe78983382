package page

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"
)

// HeaderBytes is the size that a header says it has, from its first bytes (12 are enough), so that a reader of a
// stream knows how much to wait for. The answer is within the bounds of the format; nothing else is checked.
func HeaderBytes(b []byte) (int, error) {
	if len(b) < headerFrameBytes {
		return 0, fieldErr(ErrTruncated, "header_bytes", offHeaderBytes, len(b), "at least 12 bytes")
	}
	if string(b[offMagic:offVersion]) != HeaderMagic {
		return 0, fieldErr(ErrMagic, "magic", offMagic, hexOf(b[offMagic:offVersion]), hexOf([]byte(HeaderMagic)))
	}
	if v := binary.LittleEndian.Uint16(b[offVersion:]); v != HeaderVersion {
		return 0, fieldErr(ErrVersion, "version", offVersion, v, HeaderVersion)
	}
	n := binary.LittleEndian.Uint32(b[offHeaderBytes:])
	if n < headerFixedBytes+headerTailBytes {
		return 0, fieldErr(ErrTruncated, "header_bytes", offHeaderBytes, n, "at least 416")
	}
	if n > MaxHeaderBytes {
		return 0, fieldErr(ErrTooLong, "header_bytes", offHeaderBytes, n, MaxHeaderBytes)
	}
	return int(n), nil
}

// DecodeHeader reads exactly one header from b into h. Sums and Provenance of h alias b. Nothing is allocated on
// success. On an error, a *FieldError, h is zero: lengths and tail first, so that damage is ErrChecksum and not a
// guess at what was meant; then every field.
func DecodeHeader(h *Header, b []byte) error {
	*h = Header{}
	if err := checkFrame(b); err != nil {
		return err
	}
	if err := checkRaw(b); err != nil {
		return err
	}
	h.fill(b)
	if err := h.check(); err != nil {
		*h = Header{}
		return err
	}
	return nil
}

// checkFrame holds the three lengths of b together, and its tail.
func checkFrame(b []byte) error {
	n, err := HeaderBytes(b)
	if err != nil {
		return err
	}
	if len(b) < n {
		return fieldErr(ErrTruncated, "header_bytes", offHeaderBytes, len(b), n)
	}
	if len(b) > n {
		return fieldErr(ErrTooLong, "header_bytes", offHeaderBytes, len(b), n)
	}
	le := binary.LittleEndian
	prov, pieces := int(le.Uint16(b[offProvenanceBytes:])), le.Uint32(b[offPieceCount:])
	if prov > MaxProvenance {
		return fieldErr(ErrTooLong, "provenance_bytes", offProvenanceBytes, prov, MaxProvenance)
	}
	if pieces > MaxPieces {
		return fieldErr(ErrTooLong, "piece_count", offPieceCount, pieces, MaxPieces)
	}
	if want := headerFixedBytes + prov + 8*int(pieces) + headerTailBytes; n != want {
		return fieldErr(ErrInvalid, "header_bytes", offHeaderBytes, n, want)
	}
	at := n - headerTailBytes
	if sum := xxh3.Hash128(b[:at]).Bytes(); !bytes.Equal(sum[:], b[at:]) {
		return fieldErr(ErrChecksum, "tail", at, hexOf(b[at:]), hexOf(sum[:]))
	}
	return nil
}

// checkRaw refuses what the decoded form has no place for.
func checkRaw(b []byte) error {
	le := binary.LittleEndian
	if f := le.Uint16(b[offFlags:]); f&^knownFlags != 0 {
		return fieldErr(ErrUnknownFlags, "flags", offFlags, f, knownFlags)
	}
	if r := le.Uint32(b[offReserved:]); r != 0 {
		return fieldErr(ErrInvalid, "reserved", offReserved, r, 0)
	}
	if err := checkPadding(b, "hash", offHash, int(b[offHashBytes])); err != nil {
		return err
	}
	if err := checkPadding(b, "parent_hash", offParentHash, int(b[offParentBytes])); err != nil {
		return err
	}
	for _, f := range [...]struct {
		name   string
		offset int
	}{{"token_start", offTokenStart}, {"token_stride", offTokenStride}, {"token_run", offTokenRun}} {
		if v := le.Uint32(b[f.offset:]); v != 0 {
			return fieldErr(ErrUnsupported, f.name, f.offset, v, "0 (all tokens)")
		}
	}
	if r, n := le.Uint16(b[offShard:]), le.Uint16(b[offShards:]); r != 0 || n != 1 {
		return fieldErr(ErrUnsupported, "shard", offShard, [2]uint16{r, n}, "0 of 1")
	}
	return nil
}

// checkPadding bounds the length of a hash and wants zeros behind it.
func checkPadding(b []byte, name string, offset, n int) error {
	if n > MaxHashBytes {
		return fieldErr(ErrTooLong, name, offset, n, MaxHashBytes)
	}
	for i, c := range b[offset+n : offset+MaxHashBytes] {
		if c != 0 {
			return fieldErr(ErrInvalid, name, offset+n+i, c, "0 (padding)")
		}
	}
	return nil
}

// fill reads the fields of a frame that checkFrame and checkRaw passed.
func (h *Header) fill(b []byte) {
	le := binary.LittleEndian
	f := le.Uint16(b[offFlags:])
	h.Durable, h.Strict, h.ParentUnknown = f&flagDurable != 0, f&flagStrict != 0, f&flagParentUnknown != 0
	h.PayloadBytes = le.Uint64(b[offPayloadBytes:])
	copy(h.Key.Namespace[:], b[offNamespace:])
	h.Key.Epoch = Epoch(le.Uint64(b[offEpoch:]))
	copy(h.Key.Scope[:], b[offScope:])
	copy(h.Key.Group[:], b[offGroup:])
	h.Key.Hash.n, h.Parent.n = b[offHashBytes], b[offParentBytes]
	copy(h.Key.Hash.b[:], b[offHash:])
	copy(h.Parent.b[:], b[offParentHash:])
	h.Depth = le.Uint32(b[offDepth:])
	copy(h.Extent.Writer[:], b[offWriter:])
	h.Extent.Seq = le.Uint64(b[offSequence:])
	copy(h.Extent.Digest[:], b[offPayloadDigest:])
	h.View = View{le.Uint16(b[offViewH0:]), le.Uint16(b[offViewH1:]), le.Uint16(b[offViewL0:]), le.Uint16(b[offViewL1:])}
	h.Tokens, h.CellBytes = le.Uint32(b[offTokens:]), le.Uint32(b[offCellBytes:])
	h.Heads, h.Layers = le.Uint16(b[offPageHeads:]), le.Uint16(b[offPageLayers:])
	h.Grade, h.Components = Grade(le.Uint16(b[offGrade:])), le.Uint16(b[offComponents:])
	copy(h.PackingID[:], b[offPackingID:])
	h.CreatedUnix, h.ExpiryUnix = le.Uint64(b[offCreated:]), le.Uint32(b[offExpiry:])
	h.DeclaredFLOPs = math.Float64frombits(le.Uint64(b[offDeclaredFLOPs:]))
	prov := headerFixedBytes + int(le.Uint16(b[offProvenanceBytes:]))
	h.Provenance = b[headerFixedBytes:prov:prov]
	end := len(b) - headerTailBytes
	h.SumsLE = b[prov:end:end]
}
