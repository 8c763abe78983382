package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Generations of one slab, in memory of their own, 8-byte words in the machine's order:
//
//	0       8        16           24           32      40                48      64
//	| magic | number | slab bytes | slot bytes | slots | slab generation | zeros | generation of slot 0 | 1 | ...
//
// They begin at 1. The node writes them, clients have them mapped for reading. Safe for concurrent use.
type Generations struct{ words []atomic.Uint64 }

const (
	magic       = 0x3142414c53525551 // "QURSLAB1" in memory
	headerWords = 8
	slabWord    = 5
	wordBytes   = 8

	// gone is the generation of a slab whose memory was given back: unmap it.
	gone = ^uint64(0)
)

// ErrGenerations is memory that does not hold the generations of a slab.
var ErrGenerations = errors.New("shm: not the generations of a slab")

// GenerationBytes is what the generations of a slab of so many slots take.
func GenerationBytes(slots int64) int64 { return wordBytes * (headerWords + slots) }

// NewGenerations writes the first generations of a slab into mem, which must be zero, writable, aligned to 8 and
// at least GenerationBytes(slots) long.
func NewGenerations(mem []byte, number uint64, slabBytes, slotBytes, slots int64) Generations {
	g := Generations{wordsOf(mem)}
	for i := range slots {
		g.words[headerWords+i].Store(1)
	}
	for i, v := range [...]uint64{magic, number, uint64(slabBytes), uint64(slotBytes), uint64(slots), 1} {
		g.words[i].Store(v)
	}
	return g
}

// OpenGenerations reads what NewGenerations wrote for a slab of slabBytes. ErrGenerations.
func OpenGenerations(mem []byte, slabBytes int) (Generations, error) {
	g := Generations{wordsOf(mem)}
	if len(g.words) < headerWords || g.words[0].Load() != magic {
		return Generations{}, fmt.Errorf("%w: no magic in %d bytes", ErrGenerations, len(mem))
	}
	all, slot, slots := g.words[2].Load(), g.words[3].Load(), g.words[4].Load()
	switch {
	case all != uint64(slabBytes), slot == 0, slot > all, slots == 0, slots > all/slot:
		return Generations{}, fmt.Errorf("%w: %d slots of %d bytes in a slab of %d, which is %d", ErrGenerations, slots, slot, all, slabBytes)
	case slots > uint64(len(g.words)-headerWords):
		return Generations{}, fmt.Errorf("%w: %d slots in %d bytes", ErrGenerations, slots, len(mem))
	}
	g.words = g.words[:headerWords+slots]
	return g, nil
}

func wordsOf(mem []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/wordBytes)
}

// Number of the slab: no two slabs that a client ever sees have the same.
func (g Generations) Number() uint64 { return g.words[1].Load() }

// SlotBytes is the size of each slot.
func (g Generations) SlotBytes() uint64 { return g.words[3].Load() }

// At is the generation of the slot that begins at, or has within it, a byte of the slab, and that of the slab.
func (g Generations) At(offset uint64) (slot, slab uint64) {
	return g.words[headerWords+offset/g.SlotBytes()].Load(), g.words[slabWord].Load()
}

// RaiseSlot ends the life of slot i for its readers. Bytes of the slot that are written after the call are written
// after it for them too.
func (g Generations) RaiseSlot(i uint32) { g.words[headerWords+int(i)].Add(1) }

// RaiseSlab outdates everything in the slab that was named so far.
func (g Generations) RaiseSlab() { g.words[slabWord].Add(1) }

// End says that the memory of the slab was given back.
func (g Generations) End() { g.words[slabWord].Store(gone) }

// Gone reports whether it was.
func (g Generations) Gone() bool { return g.words[slabWord].Load() == gone }

// Valid reports whether the slot of offset, and the slab, still have these generations. What the caller read before
// the call was read before the generations are.
func (g Generations) Valid(offset, slot, slab uint64) bool {
	i := headerWords + offset/g.SlotBytes()
	if i >= uint64(len(g.words)) {
		return false
	}
	var fence atomic.Uint64
	fence.Add(1) // an atomic addition is a full barrier on every machine; the loads below alone are none for earlier reads
	return g.words[i].Load() == slot && g.words[slabWord].Load() == slab
}
