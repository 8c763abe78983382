// Package page says what a KV page is, byte for byte: keys, views, extents and their headers, pieces and their sums,
// and the chain hashes of the engines. It imports nothing of ours.
package page

// NamespaceID is SHA-256(format version, tenant, canonical spec).
type NamespaceID [32]byte

// Epoch numbers a namespace's lives, from 1; 0 is invalid.
type Epoch uint64

// Scope is the per-request digest (adapters, salt); zero for plain requests. MakeScope computes it.
type Scope [32]byte

// GroupID is the digest of a KV group's representation.
type GroupID [32]byte

// Bounds of a page hash: 128 bits are the least that names content, 512 the longest digest in use.
const (
	MinHashBytes = 16
	MaxHashBytes = 64
)

// Hash is an opaque page hash of 16 to 64 bytes, zero-padded. Comparable; the zero Hash is none.
type Hash struct {
	b [MaxHashBytes]byte
	n uint8
}

// MakeHash copies b. ErrHashLen if b is too short or too long.
func MakeHash(b []byte) (h Hash, err error) {
	if len(b) < MinHashBytes || len(b) > MaxHashBytes {
		return h, ErrHashLen
	}
	h.n = uint8(copy(h.b[:], b))
	return h, nil
}

// Bytes aliases h.
func (h *Hash) Bytes() []byte { return h.b[:h.n] }

// Len is the number of bytes; 0 for the zero Hash.
func (h *Hash) Len() int { return int(h.n) }

// IsZero reports whether h is none.
func (h *Hash) IsZero() bool { return h.n == 0 }

// Family is what all keys of one request usually share; nodes intern it to a 4-byte handle.
type Family struct {
	Namespace NamespaceID
	Epoch     Epoch
	Scope     Scope
	Group     GroupID
}

// Key names tokens, not bytes. Comparable, no pointers; 176 bytes, so pass it by pointer on hot paths.
type Key struct {
	Family
	Hash Hash
}
