package rpc

import (
	"context"
	"encoding/binary"
)

// RefBytes is the length of an encoded Ref.
const RefBytes = 40

// Ref names bytes in memory that both ends of a connection reach: it is sent in place of the bytes. Little-endian:
//
//	0      8        16      24                32                40
//	| slab | offset | bytes | slot generation | slab generation |
//
// A slab is what one end handed to the other as a descriptor; its number is never used again on the connection. The
// generations say which life of the slot and of the slab is meant: as long as both still stand in the slab's own
// generations, the bytes are those that were named. What a client hands out has none, and says 0.
type Ref struct {
	Slab, Offset, Bytes            uint64
	SlotGeneration, SlabGeneration uint64
}

// Append encodes r.
func (r *Ref) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.Slab)
	b = binary.LittleEndian.AppendUint64(b, r.Offset)
	b = binary.LittleEndian.AppendUint64(b, r.Bytes)
	b = binary.LittleEndian.AppendUint64(b, r.SlotGeneration)
	return binary.LittleEndian.AppendUint64(b, r.SlabGeneration)
}

// RefOf decodes what Append wrote.
func RefOf(b *[RefBytes]byte) Ref {
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return Ref{at(0), at(1), at(2), at(3), at(4)}
}

// Sharing is what a connection adds whose two ends share memory. Safe for concurrent use.
type Sharing interface {
	// Refer names body for the peer, if it lies where the peer reaches it. It never waits.
	Refer(body []byte) (Ref, bool)
	// Resolve is what a name that was received stands for. The bytes may be read until done is called, once. An error
	// is a peer that names what it did not hand out.
	Resolve(r *Ref) (body []byte, done func(), err error)
	// Valid reports whether bytes that were read before this call were those that r names. Names of a client are
	// always valid: nothing but its own bytes can be there.
	Valid(r *Ref) bool
}

type sharingKey struct{}

// WithSharing is ctx on a connection whose ends share memory.
func WithSharing(ctx context.Context, s Sharing) context.Context {
	return context.WithValue(ctx, sharingKey{}, s)
}

// SharingFrom is the Sharing of the connection that ctx belongs to; nil: none.
func SharingFrom(ctx context.Context) Sharing {
	s, _ := ctx.Value(sharingKey{}).(Sharing)
	return s
}
