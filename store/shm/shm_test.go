package shm

import (
	"encoding/binary"
	"errors"
	"testing"
	"unsafe"
)

const slots = 5

func someGenerations(t testing.TB) (mem []byte, g Generations) {
	t.Helper()
	mem = alignedBytes(GenerationBytes(slots))
	return mem, NewGenerations(mem, 77, slots*4096+100, 4096, slots)
}

// alignedBytes is zeroed memory aligned to 8.
func alignedBytes(n int64) []byte {
	words := make([]uint64, (n+7)/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))[:n]
}

// TestGenerations: what the writer raises, the reader finds outdated, and nothing else.
func TestGenerations(t *testing.T) {
	mem, w := someGenerations(t)
	r, err := OpenGenerations(mem, slots*4096+100)
	if err != nil || r.Number() != 77 || r.SlotBytes() != 4096 {
		t.Fatal(err)
	}
	type name struct{ off, slot, slab uint64 }
	var names []name
	for i := range uint64(slots) {
		off := i*4096 + i
		slot, slab := w.At(off)
		names = append(names, name{off, slot, slab})
	}
	valid := func() (ok []bool) {
		for _, n := range names {
			ok = append(ok, r.Valid(n.off, n.slot, n.slab))
		}
		return ok
	}
	w.RaiseSlot(3)
	for i, ok := range valid() {
		if ok != (i != 3) {
			t.Errorf("slot %d after the end of slot 3: %v", i, ok)
		}
	}
	w.RaiseSlab()
	for i, ok := range valid() {
		if ok {
			t.Errorf("slot %d is valid in an outdated slab", i)
		}
	}
	if slot, slab := w.At(0); !r.Valid(0, slot, slab) || r.Gone() {
		t.Error("a new name is outdated")
	}
	if r.Valid(slots*4096, 1, 2) || r.Valid(1<<63, 1, 2) {
		t.Error("a slot that is not there is valid")
	}
	w.End()
	if !r.Gone() {
		t.Error("not gone")
	}
}

// TestOpenGenerations refuses what does not add up, before it is used.
func TestOpenGenerations(t *testing.T) {
	for name, change := range map[string]func(mem []byte) []byte{
		"short":            func(mem []byte) []byte { return mem[:40] },
		"empty":            func([]byte) []byte { return nil },
		"magic":            func(mem []byte) []byte { mem[0] ^= 1; return mem },
		"other slab":       func(mem []byte) []byte { mem[16] ^= 1; return mem },
		"no slot size":     func(mem []byte) []byte { binary.NativeEndian.PutUint64(mem[24:], 0); return mem },
		"large slots":      func(mem []byte) []byte { binary.NativeEndian.PutUint64(mem[24:], 1<<40); return mem },
		"no slots":         func(mem []byte) []byte { binary.NativeEndian.PutUint64(mem[32:], 0); return mem },
		"slots overflow":   func(mem []byte) []byte { binary.NativeEndian.PutUint64(mem[32:], 1<<63); return mem },
		"more than memory": func(mem []byte) []byte { return mem[:len(mem)-8] },
	} {
		mem, _ := someGenerations(t)
		if _, err := OpenGenerations(change(mem), slots*4096+100); !errors.Is(err, ErrGenerations) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzOpenGenerations: whatever a peer hands over, nothing beyond it is touched.
func FuzzOpenGenerations(f *testing.F) {
	mem, _ := someGenerations(f)
	f.Add(mem, slots*4096+100, uint64(4096))
	f.Add([]byte("no"), 1, uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, slabBytes int, off uint64) {
		mem := alignedBytes(int64(len(b)))
		copy(mem, b)
		g, err := OpenGenerations(mem, slabBytes)
		if err != nil {
			return
		}
		g.Valid(off, 1, 1)
		if off < uint64(slabBytes) && off/g.SlotBytes() < uint64(len(g.words)-headerWords) {
			slot, slab := g.At(off)
			if !g.Valid(off, slot, slab) {
				t.Error("not valid at once")
			}
		}
	})
}
