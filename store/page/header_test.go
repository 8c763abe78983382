package page

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write golden files anew")

func mustHash(fill byte, n int) Hash {
	b := make([]byte, n)
	for i := range b {
		b[i] = fill + byte(i)
	}
	h, err := MakeHash(b)
	if err != nil {
		panic(err)
	}
	return h
}

// sampleHeader is a header with every field set, of a TP2 rank's extent of a small page.
func sampleHeader() *Header {
	h := &Header{
		Key:     Key{Family: Family{Epoch: 3}, Hash: mustHash(0x40, 32)},
		Parent:  mustHash(0x80, 32),
		Durable: true, Strict: true, Depth: 7, Tokens: 16,
		View: View{2, 4, 1, 4}, Heads: 4, Layers: 6, CellBytes: 40_000, Components: 2, Grade: Elements,
		PayloadBytes: 240_000, CreatedUnix: 1_800_000_000, DeclaredFLOPs: 1.5e12, ExpiryUnix: 1_900_000_000,
		Provenance: []byte(`engine=sglang 0.5.23`),
	}
	for i := range 32 {
		h.Key.Namespace[i], h.Key.Scope[i], h.Key.Group[i], h.PackingID[i] = byte(i), byte(i+32), byte(i+64), byte(i+96)
	}
	for i := range h.Extent.Writer {
		h.Extent.Writer[i] = byte(0xf0 + i)
	}
	h.Extent.Seq = 0x0102030405060708
	var sums []byte
	for i := range PieceCount(h.View, h.CellBytes) {
		sums = binary.LittleEndian.AppendUint64(sums, PieceSum([]byte{byte(i)}))
	}
	h.SetSums(sums)
	return h
}

func encodeSample(t testing.TB) []byte {
	t.Helper()
	b, err := sampleHeader().AppendEncode(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reseal makes the tail right again after b was changed.
func reseal(b []byte) { putTail(b, len(b)-headerTailBytes) }

func TestHeaderGolden(t *testing.T) {
	const file = "testdata/header_v1.hex"
	var text strings.Builder
	for b := encodeSample(t); len(b) > 0; b = b[min(32, len(b)):] {
		text.WriteString(hex.EncodeToString(b[:min(32, len(b))]) + "\n")
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Fatalf("version 1 must stay as it is in %s; got\n%s", file, text.String())
	}
}

func randomHeader(r *rand.Rand) *Header {
	h := sampleHeader()
	n := MinHashBytes + r.IntN(MaxHashBytes-MinHashBytes+1)
	h.Key.Hash = mustHash(byte(r.Uint32()), n)
	switch r.IntN(3) {
	case 0:
		h.Parent = Hash{}
	case 1:
		h.Parent, h.ParentUnknown = Hash{}, true
	case 2:
		h.Parent = mustHash(byte(r.Uint32()), n)
	}
	h.Durable, h.Strict = r.IntN(2) == 0, r.IntN(2) == 0
	h.Heads, h.Layers = uint16(1+r.IntN(9)), uint16(1+r.IntN(80))
	h.View.H0, h.View.L0 = uint16(r.IntN(int(h.Heads))), uint16(r.IntN(int(h.Layers)))
	h.View.H1 = h.View.H0 + 1 + uint16(r.IntN(int(h.Heads-h.View.H0)))
	h.View.L1 = h.View.L0 + 1 + uint16(r.IntN(int(h.Layers-h.View.L0)))
	h.CellBytes = 1 + uint32(r.IntN(200_000))
	h.PayloadBytes = PayloadBytes(h.View, h.CellBytes)
	h.Grade = Grade(1 + r.IntN(3))
	h.Provenance = make([]byte, r.IntN(MaxProvenance+1))
	sums := make([]byte, 8*PieceCount(h.View, h.CellBytes))
	for i := range sums {
		sums[i] = byte(r.Uint32())
	}
	h.SetSums(sums)
	return h
}

func TestHeaderRoundTrip(t *testing.T) {
	r := newRand(t)
	for range 2000 {
		h := randomHeader(r)
		b, err := h.AppendEncode([]byte("before"))
		if err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		b = b[len("before"):]
		if len(b) != h.EncodedBytes() || len(b) != EncodedHeaderBytes(h.View, h.CellBytes, len(h.Provenance)) {
			t.Fatalf("%d bytes, said %d", len(b), h.EncodedBytes())
		}
		if n, err := HeaderBytes(b[:headerFrameBytes]); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
		var got Header
		if err := DecodeHeader(&got, b); err != nil {
			t.Fatal(err)
		}
		sameHeader(t, &got, h)
	}
}

func sameHeader(t *testing.T, got, want *Header) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v\nwant %+v", got, want)
	}
}

// Every truncation, every longer input and every flipped bit is a typed error; nothing of the header is given.
func TestCase_C16_HeaderDamaged(t *testing.T) {
	enc := encodeSample(t)
	var h Header
	refused := func(b []byte, kinds ...error) {
		t.Helper()
		err := DecodeHeader(&h, b)
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field == "" || fe.Got == "" || fe.Want == "" || fe.Offset < 0 || fe.Offset > len(enc) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if h.Key != (Key{}) || h.SumsLE != nil {
			t.Fatal("a refused header was filled")
		}
		for _, k := range kinds {
			if errors.Is(err, k) {
				return
			}
		}
		t.Fatalf("%v, want one of %v", err, kinds)
	}
	for n := range enc {
		refused(enc[:n:n], ErrTruncated)
	}
	refused(append(append([]byte(nil), enc...), 0), ErrTooLong)
	for bit := range 8 * len(enc) {
		b := append([]byte(nil), enc...)
		b[bit/8] ^= 1 << (bit % 8)
		refused(b, ErrChecksum, ErrMagic, ErrVersion, ErrTruncated, ErrTooLong, ErrInvalid)
	}
}

// Fields that lie although the tail is right: a writer that does not keep to the format.
func TestHeaderRefusals(t *testing.T) {
	le := binary.LittleEndian
	u16 := func(off int, v uint16) func([]byte) { return func(b []byte) { le.PutUint16(b[off:], v) } }
	u32 := func(off int, v uint32) func([]byte) { return func(b []byte) { le.PutUint32(b[off:], v) } }
	u64 := func(off int, v uint64) func([]byte) { return func(b []byte) { le.PutUint64(b[off:], v) } }
	u8 := func(off int, v byte) func([]byte) { return func(b []byte) { b[off] = v } }
	for _, c := range []struct {
		field  string
		kind   error
		offset int
		spoil  func([]byte)
	}{
		{"magic", ErrMagic, 0, u8(0, 'X')},
		{"version", ErrVersion, 4, u16(offVersion, 2)},
		{"version", ErrVersion, 4, u16(offVersion, 0)},
		{"flags", ErrUnknownFlags, 6, u16(offFlags, 8)},
		{"header_bytes", ErrTruncated, 8, u32(offHeaderBytes, 0)},
		{"header_bytes", ErrTruncated, 8, u32(offHeaderBytes, 100_000)},
		{"header_bytes", ErrTooLong, 8, u32(offHeaderBytes, math.MaxUint32)},
		{"header_bytes", ErrTooLong, 8, u32(offHeaderBytes, 416)},
		{"header_bytes", ErrInvalid, 8, u32(offPieceCount, 3)},
		{"piece_count", ErrTooLong, 12, u32(offPieceCount, math.MaxUint32)},
		{"provenance_bytes", ErrTooLong, 130, u16(offProvenanceBytes, math.MaxUint16)},
		{"header_bytes", ErrInvalid, 8, u16(offProvenanceBytes, 1)},
		{"payload_bytes", ErrInvalid, 16, u64(offPayloadBytes, 239_999)},
		{"epoch", ErrInvalid, 56, u64(offEpoch, 0)},
		{"hash", ErrTooLong, 136, u8(offHashBytes, 65)},
		{"hash_bytes", ErrHashLen, 128, func(b []byte) { b[offHashBytes] = 15; clear(b[offHash+15 : offHash+64]) }},
		{"hash", ErrInvalid, 136 + 63, u8(offHash+63, 1)},
		{"parent_hash", ErrTooLong, 200, u8(offParentBytes, 255)},
		{"parent_hash", ErrInvalid, 200 + 32, u8(offParentHash+32, 1)},
		{"parent_hash", ErrInvalid, 200, u8(offParentBytes, 0)},
		{"parent_bytes", ErrHashLen, 129, u8(offParentBytes, 33)},
		{"parent_bytes", ErrInvalid, 129, u16(offFlags, flagParentUnknown)},
		{"payload_digest", ErrChecksum, 288, u8(offPayloadDigest, 0)},
		{"view", ErrInvalid, 304, u16(offViewH0, 4)},
		{"view", ErrInvalid, 304, u16(offViewH1, 5)},
		{"view", ErrInvalid, 304, u16(offViewL0, 9)},
		{"view", ErrInvalid, 304, u16(offViewL1, 7)},
		{"tokens", ErrInvalid, 328, u32(offTokens, 0)},
		{"cell_bytes", ErrInvalid, 332, u32(offCellBytes, 0)},
		{"payload_bytes", ErrInvalid, 16, u32(offCellBytes, 39_999)},
		{"piece_count", ErrInvalid, 12, func(b []byte) { le.PutUint32(b[offCellBytes:], 80_000); le.PutUint64(b[offPayloadBytes:], 480_000) }},
		{"page_heads", ErrInvalid, 336, u16(offPageHeads, 0)},
		{"view", ErrInvalid, 304, u16(offPageHeads, 3)},
		{"page_layers", ErrInvalid, 338, u16(offPageLayers, 0)},
		{"grade", ErrInvalid, 340, u16(offGrade, 0)},
		{"grade", ErrInvalid, 340, u16(offGrade, 4)},
		{"declared_flops", ErrInvalid, 384, u64(offDeclaredFLOPs, math.Float64bits(math.NaN()))},
		{"declared_flops", ErrInvalid, 384, u64(offDeclaredFLOPs, math.Float64bits(math.Inf(1)))},
		{"declared_flops", ErrInvalid, 384, u64(offDeclaredFLOPs, math.Float64bits(-1))},
		{"reserved", ErrInvalid, 396, u8(offReserved+3, 1)},
	} {
		b := encodeSample(t)
		c.spoil(b)
		reseal(b)
		var h Header
		var fe *FieldError
		err := DecodeHeader(&h, b)
		if !errors.Is(err, c.kind) || !errors.As(err, &fe) || fe.Field != c.field || fe.Offset != c.offset {
			t.Errorf("%s: got %v, want %v at %d", c.field, err, c.kind, c.offset)
		}
	}
}

// The writer's side refuses what the reader's side would.
func TestEncodeRefusals(t *testing.T) {
	for i, c := range []struct {
		kind  error
		spoil func(*Header)
	}{
		{ErrInvalid, func(h *Header) { h.Key.Epoch = 0 }},
		{ErrHashLen, func(h *Header) { h.Key.Hash = Hash{} }},
		{ErrHashLen, func(h *Header) { h.Parent = mustHash(1, 16) }},
		{ErrInvalid, func(h *Header) { h.ParentUnknown = true }},
		{ErrTooLong, func(h *Header) { h.Provenance = make([]byte, MaxProvenance+1) }},
		{ErrInvalid, func(h *Header) { h.View = View{} }},
		{ErrInvalid, func(h *Header) { h.PayloadBytes++ }},
		{ErrInvalid, func(h *Header) { h.SumsLE = h.SumsLE[8:] }},
		{ErrInvalid, func(h *Header) { h.SumsLE = h.SumsLE[1:] }},
		{ErrChecksum, func(h *Header) { h.Extent.Digest[0]++ }},
		{ErrInvalid, func(h *Header) { h.Grade = GradeInvalid }},
		{ErrInvalid, func(h *Header) { h.DeclaredFLOPs = math.NaN() }},
		{ErrTooLong, func(h *Header) {
			h.Heads, h.Layers, h.View, h.CellBytes = 1<<15, 1<<15, View{0, 1 << 15, 0, 1 << 15}, 1<<32-1
			h.PayloadBytes = PayloadBytes(h.View, h.CellBytes)
		}},
	} {
		h := sampleHeader()
		c.spoil(h)
		dst := []byte("as it was")
		got, err := h.AppendEncode(dst)
		if !errors.Is(err, c.kind) || string(got) != "as it was" {
			t.Errorf("%d: %v, want %v", i, err, c.kind)
		}
	}
}

func TestHeaderAllocations(t *testing.T) {
	src := sampleHeader()
	b := make([]byte, 0, src.EncodedBytes())
	var h Header
	want := Expectation{Key: &src.Key, Extent: src.Extent, View: View{2, 3, 1, 2}, Heads: 4, Layers: 6, CellBytes: 40_000, Tokens: 16, Grade: Elements, PackingID: src.PackingID}
	if n := testing.AllocsPerRun(20, func() {
		b, _ = src.AppendEncode(b[:0])
		if DecodeHeader(&h, b) != nil || h.Expect(&want) != nil {
			t.Fail()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if &h.Provenance[0] != &b[headerFixedBytes] || &h.SumsLE[0] != &b[headerFixedBytes+len(h.Provenance)] {
		t.Error("provenance and sums are copies")
	}
	if h.Sum(5) != PieceSum([]byte{5}) || h.Pieces() != PiecesOf(3, 40_000) {
		t.Error("wrong sum or pieces")
	}
}

// A sound header of something else is named by the field that differs.
func TestExpect(t *testing.T) {
	h := sampleHeader()
	ok := Expectation{Key: &h.Key, View: View{3, 4, 1, 3}}
	if err := h.Expect(&ok); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field string
		spoil func(*Expectation, *Key)
	}{
		{"hash", func(e *Expectation, k *Key) { e.Key = nil }},
		{"namespace", func(e *Expectation, k *Key) { k.Namespace[0]++ }},
		{"epoch", func(e *Expectation, k *Key) { k.Epoch++ }},
		{"scope", func(e *Expectation, k *Key) { k.Scope[31]++ }},
		{"group", func(e *Expectation, k *Key) { k.Group[0]++ }},
		{"hash", func(e *Expectation, k *Key) { k.Hash = mustHash(1, 32) }},
		{"writer", func(e *Expectation, k *Key) { e.Extent = ExtentID{Seq: 1} }},
		{"page_heads", func(e *Expectation, k *Key) { e.Heads = 5 }},
		{"page_layers", func(e *Expectation, k *Key) { e.Layers = 5 }},
		{"cell_bytes", func(e *Expectation, k *Key) { e.CellBytes = 5 }},
		{"tokens", func(e *Expectation, k *Key) { e.Tokens = 5 }},
		{"grade", func(e *Expectation, k *Key) { e.Grade = Cell }},
		{"packing_id", func(e *Expectation, k *Key) { e.PackingID[0] = 1 }},
		{"view", func(e *Expectation, k *Key) { e.View = View{1, 3, 1, 2} }},
	} {
		e, k := ok, h.Key
		e.Key = &k
		c.spoil(&e, &k)
		var fe *FieldError
		if err := h.Expect(&e); !errors.Is(err, ErrMismatch) || !errors.As(err, &fe) || fe.Field != c.field {
			t.Errorf("%s: %v", c.field, err)
		}
	}
	h.Grade = Whole
	if err := h.Expect(&ok); !errors.Is(err, ErrMismatch) {
		t.Errorf("a part of a whole extent: %v", err)
	}
	ok.View = h.View
	if err := h.Expect(&ok); err != nil {
		t.Error(err)
	}
}

// FuzzDecodeHeader decodes the input as it is, and laid over a sound header with its tail made right, so that what
// lies behind the checksum is reached. What decodes must encode to the same bytes, and nothing may be allocated for it.
func FuzzDecodeHeader(f *testing.F) {
	enc := encodeSample(f)
	f.Add(enc, uint16(0))
	f.Add(enc[:headerFixedBytes], uint16(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint16(offHeaderBytes))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint16(offPieceCount))
	f.Add([]byte{1, 0, 2, 0}, uint16(offViewH0))
	f.Add([]byte{3}, uint16(offGrade))
	f.Fuzz(func(t *testing.T, in []byte, at uint16) {
		decodeOrRefuse(t, in)
		laid := append([]byte(nil), enc...)
		copy(laid[int(at)%len(laid):], in)
		reseal(laid)
		decodeOrRefuse(t, laid)
	})
}

func decodeOrRefuse(t *testing.T, b []byte) {
	t.Helper()
	var h Header
	if err := DecodeHeader(&h, b); err != nil {
		var fe *FieldError
		if !errors.As(err, &fe) || len(err.Error()) > 1000 {
			t.Fatalf("an error without a place: %v", err)
		}
		return
	}
	if n := testing.AllocsPerRun(1, func() { _ = DecodeHeader(&h, b) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
	again, err := h.AppendEncode(nil)
	if err != nil || !bytes.Equal(again, b) {
		t.Fatalf("decoded, but not to the same bytes: %v", err)
	}
}
