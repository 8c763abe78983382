package page

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// fixedPart is the header's fixed part by the constants of the code.
func fixedPart() map[int]string {
	return map[int]string{
		offMagic: "magic", offVersion: "version", offFlags: "flags", offHeaderBytes: "header_bytes", offPieceCount: "piece_count",
		offPayloadBytes: "payload_bytes", offNamespace: "namespace", offEpoch: "epoch", offScope: "scope", offGroup: "group",
		offHashBytes: "hash_bytes", offParentBytes: "parent_bytes", offProvenanceBytes: "provenance_bytes", offDepth: "depth",
		offHash: "hash", offParentHash: "parent_hash", offWriter: "writer", offSequence: "sequence", offPayloadDigest: "payload_digest",
		offViewH0: "view_h0", offViewH1: "view_h1", offViewL0: "view_l0", offViewL1: "view_l1", offTokenStart: "token_start",
		offTokenStride: "token_stride", offTokenRun: "token_run", offShard: "shard", offShards: "shards", offTokens: "tokens",
		offCellBytes: "cell_bytes", offPageHeads: "page_heads", offPageLayers: "page_layers", offGrade: "grade", offComponents: "components",
		offPackingID: "packing_id", offCreated: "created", offDeclaredFLOPs: "declared_flops", offExpiry: "expiry", offReserved: "reserved",
	}
}

// table reads the rows of the markdown table in docs/formats whose head begins with the given cell.
func table(t *testing.T, file, head string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/formats/" + file)
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for _, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") {
			in = false
			continue
		}
		var cells []string
		for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
			cells = append(cells, strings.TrimSpace(c))
		}
		if in && !strings.HasPrefix(cells[0], "---") {
			rows = append(rows, cells)
		}
		in = in || cells[0] == head
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table of %q", file, head)
	}
	return rows
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// docs/formats/extent-header.md has every field at its offset, and fields leave no hole.
func TestHeaderTableEqualsCode(t *testing.T) {
	code := fixedPart()
	at := 0
	for _, row := range table(t, "extent-header.md", "offset") {
		offset, size, name := number(t, row[0]), number(t, row[1]), row[2]
		if offset != at {
			t.Errorf("%s is at %d, the field before it ends at %d", name, offset, at)
		}
		at = offset + size
		if code[offset] != name {
			t.Errorf("offset %d is %q in the docs, %q in the code", offset, name, code[offset])
		}
		delete(code, offset)
	}
	if at != headerFixedBytes || len(code) != 0 {
		t.Errorf("the table ends at %d of %d, without %v", at, headerFixedBytes, code)
	}
	text, _ := os.ReadFile("../../docs/formats/extent-header.md")
	for _, want := range []int{MaxHeaderBytes, MaxPieces, MaxProvenance} {
		if s := thousands(want); !strings.Contains(string(text), s) {
			t.Errorf("the bound %s is not in the docs", s)
		}
	}
}

func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// Every field of the fixed part is written where the table says: changing it changes those bytes, the lengths and sums
// that depend on it, and no other.
func TestFieldsAreWhereTheTableSays(t *testing.T) {
	for name, set := range map[string]func(*Header){
		"flags":          func(h *Header) { h.Durable = false },
		"namespace":      func(h *Header) { h.Key.Namespace[0]++; h.Key.Namespace[31]++ },
		"epoch":          func(h *Header) { h.Key.Epoch = 1<<63 + 1 },
		"scope":          func(h *Header) { h.Key.Scope[0]++; h.Key.Scope[31]++ },
		"group":          func(h *Header) { h.Key.Group[0]++; h.Key.Group[31]++ },
		"depth":          func(h *Header) { h.Depth = 1<<31 + 1 },
		"hash":           func(h *Header) { h.Key.Hash = mustHash(1, 32) },
		"parent_hash":    func(h *Header) { h.Parent = mustHash(1, 32) },
		"writer":         func(h *Header) { h.Extent.Writer[0]++; h.Extent.Writer[15]++ },
		"sequence":       func(h *Header) { h.Extent.Seq = 1<<63 + 1 },
		"tokens":         func(h *Header) { h.Tokens = 1<<31 + 1 },
		"page_heads":     func(h *Header) { h.Heads = 1<<15 + 1 },
		"page_layers":    func(h *Header) { h.Layers = 1<<15 + 1 },
		"grade":          func(h *Header) { h.Grade = Whole },
		"components":     func(h *Header) { h.Components = 1<<15 + 1 },
		"packing_id":     func(h *Header) { h.PackingID[0]++; h.PackingID[31]++ },
		"created":        func(h *Header) { h.CreatedUnix = 1<<63 + 1 },
		"declared_flops": func(h *Header) { h.DeclaredFLOPs = 1.0000000000000002 },
		"expiry":         func(h *Header) { h.ExpiryUnix = 1<<31 + 1 },
	} {
		before := encodeSample(t)
		h := sampleHeader()
		set(h)
		after, err := h.AppendEncode(nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		changed := false
		for _, row := range table(t, "extent-header.md", "offset") {
			offset, size := number(t, row[0]), number(t, row[1])
			differs := string(before[offset:offset+size]) != string(after[offset:offset+size])
			if changed = changed || differs; differs != (row[2] == name) {
				t.Errorf("%s: bytes of %s changed: %v", name, row[2], differs)
			}
		}
		if !changed {
			t.Errorf("%s: nothing changed", name)
		}
	}
}

// docs/formats/pieces.md's examples are what the code computes.
func TestPieceTableEqualsCode(t *testing.T) {
	for _, row := range table(t, "pieces.md", "model, tokens of a page") {
		p := PiecesOf(number(t, row[2]), number(t, row[3]))
		if p.PerHead != number(t, row[4]) || p.PieceBytes != number(t, row[5]) {
			t.Errorf("%s: %+v", row[0], p)
		}
	}
}

// docs/formats/keys-and-hashes.md states the tags and sizes of the code.
func TestKeyDocsEqualCode(t *testing.T) {
	text, err := os.ReadFile("../../docs/formats/keys-and-hashes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{scopeDomain, sglangSeedDomain, SHA256CBOR.String(), XXHashCBOR.String(),
		fmt.Sprintf("| %d to %d |", MinHashBytes, MaxHashBytes), fmt.Sprintf("%d bytes on the wire", ExtentIDBytes)} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the docs", want)
		}
	}
	var k Key
	for row, size := range map[string]int{"namespace": len(k.Namespace), "epoch": 8, "scope": len(k.Scope), "group": len(k.Group)} {
		found := false
		for _, r := range table(t, "keys-and-hashes.md", "field") {
			found = found || r[0] == row && r[1] == strconv.Itoa(size)
		}
		if !found {
			t.Errorf("%s of %d bytes is not in the docs", row, size)
		}
	}
}
