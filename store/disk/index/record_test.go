package index

import (
	"bytes"
	"encoding/hex"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
)

func sample() *Entry {
	hash, _ := page.MakeHash(bytes.Repeat([]byte{0xaa}, 32))
	parent, _ := page.MakeHash(bytes.Repeat([]byte{0xbb}, 16))
	e := &Entry{Segment: 1, Offset: 4096, Bytes: 69632, Seq: 300, Parent: parent, ParentUnknown: true,
		View: page.View{H0: 0, H1: 8, L0: 16, L1: 32}, DeclaredFLOPs: 1.5, Expiry: 1 << 30}
	e.Key.Hash = hash
	e.Extent = page.ExtentID{Writer: [16]byte{1}, Seq: 2, Digest: [16]byte{3}}
	return e
}

// TestValueGolden holds the layout of docs/formats/disk-index.md, whose example is this value.
func TestValueGolden(t *testing.T) {
	got := hex.EncodeToString(sample().appendValue(nil, 1, 2))
	doc, err := os.ReadFile("../../../docs/formats/disk-index.md")
	if err != nil {
		t.Fatal(err)
	}
	if plain := strings.NewReplacer(" ", "", "\n", "").Replace(string(doc)); !strings.Contains(plain, got) {
		t.Errorf("the document has another example than\n%s", got)
	}
}

func TestValueRoundTrip(t *testing.T) {
	g := newGenerator(newRand(t), 1)
	for i := range 1000 {
		var want, got Entry
		g.next(&want)
		want.Segment, want.Offset, want.Key.Family, want.Lineage = 0, 0, page.Family{}, ""
		want.Bytes = g.r.Int64()
		want.Seq = g.r.Uint64()
		want.View = page.View{H0: uint16(g.r.Uint32()), H1: uint16(g.r.Uint32()), L0: uint16(g.r.Uint32()), L1: uint16(g.r.Uint32())}
		want.ParentUnknown = i%2 == 0
		want.Expiry = clock.Wall(g.r.Uint32()) * clock.Wall(i%3)
		want.DeclaredFLOPs = []float64{0, 1, math.Inf(1), -1e300}[i%4]
		family, lineage := g.r.Uint32(), g.r.Uint32()
		b := want.appendValue(nil, family, lineage)
		f, l, err := got.decodeValue(b)
		if err != nil || f != family || l != lineage || got != want {
			t.Fatalf("%+v became %+v, family %d %d, lineage %d %d: %v", want, got, family, f, lineage, l, err)
		}
		if _, _, err := got.decodeValue(b[:len(b)-1]); err == nil {
			t.Fatalf("a value without its last byte decodes")
		}
		if _, _, err := got.decodeValue(append(b, 0)); err == nil {
			t.Fatalf("a value with a byte too many decodes")
		}
	}
}

// FuzzDecodeValue: whatever decodes is encoded to a value that decodes to the same.
func FuzzDecodeValue(f *testing.F) {
	f.Add(sample().appendValue(nil, 1, 2))
	f.Add((&Entry{Key: sample().Key}).appendValue(nil, 1, 0))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again Entry
		family, lineage, err := e.decodeValue(b)
		if err != nil {
			return
		}
		if math.IsNaN(e.DeclaredFLOPs) {
			return // equal to nothing
		}
		f, l, err := again.decodeValue(e.appendValue(nil, family, lineage))
		if err != nil || f != family || l != lineage || again != e {
			t.Errorf("% x: %+v became %+v: %v", b, e, again, err)
		}
	})
}

func TestDecodeAllocatesNothing(t *testing.T) {
	b := sample().appendValue(nil, 1, 2)
	var e Entry
	if n := testing.AllocsPerRun(100, func() { _, _, _ = e.decodeValue(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
