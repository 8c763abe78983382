package page

import (
	"encoding/hex"
	"math"
)

func hexOf(b []byte) string { return hex.EncodeToString(b) }

// check says whether h is one that the format allows: both sides of the codec hold to it.
func (h *Header) check() error {
	if err := h.checkNames(); err != nil {
		return err
	}
	if err := h.checkGeometry(); err != nil {
		return err
	}
	return h.checkSums()
}

// checkNames: who and what.
func (h *Header) checkNames() error {
	if h.Key.Epoch == 0 {
		return fieldErr(ErrInvalid, "epoch", offEpoch, 0, "at least 1")
	}
	if n := h.Key.Hash.n; n < MinHashBytes {
		return fieldErr(ErrHashLen, "hash_bytes", offHashBytes, n, "16 to 64")
	}
	if n := h.Parent.n; n != 0 && n != h.Key.Hash.n {
		return fieldErr(ErrHashLen, "parent_bytes", offParentBytes, n, h.Key.Hash.n)
	}
	if h.ParentUnknown && h.Parent.n != 0 {
		return fieldErr(ErrInvalid, "parent_bytes", offParentBytes, h.Parent.n, "0 (parent unknown)")
	}
	if len(h.Provenance) > MaxProvenance {
		return fieldErr(ErrTooLong, "provenance_bytes", offProvenanceBytes, len(h.Provenance), MaxProvenance)
	}
	if f := h.DeclaredFLOPs; f < 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return fieldErr(ErrInvalid, "declared_flops", offDeclaredFLOPs, f, "finite, not negative")
	}
	return nil
}

// checkGeometry: the view inside of its page.
func (h *Header) checkGeometry() error {
	for _, f := range [...]struct {
		name   string
		offset int
		v      uint32
	}{
		{"tokens", offTokens, h.Tokens}, {"cell_bytes", offCellBytes, h.CellBytes},
		{"page_heads", offPageHeads, uint32(h.Heads)}, {"page_layers", offPageLayers, uint32(h.Layers)},
	} {
		if f.v == 0 {
			return fieldErr(ErrInvalid, f.name, f.offset, 0, "at least 1")
		}
	}
	if h.Grade < Elements || h.Grade > Whole {
		return fieldErr(ErrInvalid, "grade", offGrade, uint16(h.Grade), "1 to 3")
	}
	page := View{H1: h.Heads, L1: h.Layers}
	if h.View.Empty() || !page.Contains(h.View) {
		return fieldErr(ErrInvalid, "view", offViewH0, h.View, "not empty, inside of "+page.String())
	}
	return nil
}

// checkSums: payload and pieces as the geometry gives them, and the digest over the sums.
func (h *Header) checkSums() error {
	if want := PayloadBytes(h.View, h.CellBytes); h.PayloadBytes != want {
		return fieldErr(ErrInvalid, "payload_bytes", offPayloadBytes, h.PayloadBytes, want)
	}
	want := PieceCount(h.View, h.CellBytes)
	if want > MaxPieces {
		return fieldErr(ErrTooLong, "piece_count", offPieceCount, want, MaxPieces)
	}
	if len(h.SumsLE) != 8*want {
		return fieldErr(ErrInvalid, "piece_count", offPieceCount, len(h.SumsLE)/8, want)
	}
	if d := DigestOfSums(h.SumsLE); d != h.Extent.Digest {
		return fieldErr(ErrChecksum, "payload_digest", offPayloadDigest, hexOf(h.Extent.Digest[:]), hexOf(d[:]))
	}
	return nil
}

// Expectation is what a reader knows of the extent that it asked for. Zero fields are not compared, save Key.
type Expectation struct {
	Key           *Key // required
	Extent        ExtentID
	View          View // the extent must be able to serve it: hold it, or be it exactly when nothing can be cut
	Heads, Layers uint16
	CellBytes     uint32
	Tokens        uint32
	Grade         Grade
	PackingID     [32]byte
}

// Expect compares h with what the reader asked for: a *FieldError of kind ErrMismatch names the first field that differs.
func (h *Header) Expect(want *Expectation) error {
	if err := h.expectKey(want.Key); err != nil {
		return err
	}
	switch {
	case want.Extent != (ExtentID{}) && h.Extent != want.Extent:
		return fieldErr(ErrMismatch, "writer", offWriter, h.Extent, want.Extent)
	case want.Heads != 0 && h.Heads != want.Heads:
		return fieldErr(ErrMismatch, "page_heads", offPageHeads, h.Heads, want.Heads)
	case want.Layers != 0 && h.Layers != want.Layers:
		return fieldErr(ErrMismatch, "page_layers", offPageLayers, h.Layers, want.Layers)
	case want.CellBytes != 0 && h.CellBytes != want.CellBytes:
		return fieldErr(ErrMismatch, "cell_bytes", offCellBytes, h.CellBytes, want.CellBytes)
	case want.Tokens != 0 && h.Tokens != want.Tokens:
		return fieldErr(ErrMismatch, "tokens", offTokens, h.Tokens, want.Tokens)
	case want.Grade != GradeInvalid && h.Grade != want.Grade:
		return fieldErr(ErrMismatch, "grade", offGrade, h.Grade, want.Grade)
	case want.PackingID != [32]byte{} && h.PackingID != want.PackingID:
		return fieldErr(ErrMismatch, "packing_id", offPackingID, hexOf(h.PackingID[:]), hexOf(want.PackingID[:]))
	case !want.View.Empty() && !h.Grade.CanServe(h.View, want.View):
		return fieldErr(ErrMismatch, "view", offViewH0, h.View, want.View)
	}
	return nil
}

func (h *Header) expectKey(want *Key) error {
	switch k := &h.Key; {
	case want == nil:
		return fieldErr(ErrMismatch, "hash", offHash, k.Hash, "a key")
	case *k == *want:
		return nil
	case k.Namespace != want.Namespace:
		return fieldErr(ErrMismatch, "namespace", offNamespace, k.Namespace, want.Namespace)
	case k.Epoch != want.Epoch:
		return fieldErr(ErrMismatch, "epoch", offEpoch, k.Epoch, want.Epoch)
	case k.Scope != want.Scope:
		return fieldErr(ErrMismatch, "scope", offScope, k.Scope, want.Scope)
	case k.Group != want.Group:
		return fieldErr(ErrMismatch, "group", offGroup, k.Group, want.Group)
	default:
		return fieldErr(ErrMismatch, "hash", offHash, k.Hash, want.Hash)
	}
}
