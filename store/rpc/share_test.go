package rpc

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestRef: the bytes are those of the example in docs/formats/shm.md, and come back.
func TestRef(t *testing.T) {
	doc, err := os.ReadFile("../../docs/formats/shm.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "generations 3 and 1:\n\n```\n")
	example, _, _ := strings.Cut(rest, "```")
	want, err := hex.DecodeString(strings.Join(strings.Fields(example), ""))
	if err != nil || len(want) != RefBytes {
		t.Fatalf("the example has %d bytes, %v", len(want), err)
	}
	r := Ref{Slab: 7, Offset: 65536, Bytes: 4096, SlotGeneration: 3, SlabGeneration: 1}
	if got := r.Append(nil); string(got) != string(want) {
		t.Errorf("%x, the document says %x", got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		any := rapid.Uint64()
		r := Ref{any.Draw(t, "slab"), any.Draw(t, "offset"), any.Draw(t, "bytes"), any.Draw(t, "slot"), any.Draw(t, "generation")}
		if got := RefOf((*[RefBytes]byte)(r.Append(nil))); got != r {
			t.Fatalf("%+v came back as %+v", r, got)
		}
	})
}
