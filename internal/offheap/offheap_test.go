package offheap

import (
	"runtime"
	"testing"
)

type record struct {
	a uint64
	b uint32
}

func TestArrayIsZeroStableAndIndependent(t *testing.T) {
	a, b := New[record](1<<16), New[record](1<<16)
	first := a.At(0)
	for i := range uint32(1 << 16) {
		if *a.At(i) != (record{}) {
			t.Fatalf("element %d is not zero", i)
		}
		*a.At(i) = record{uint64(i), i}
	}
	for i := range uint32(1 << 16) {
		if *a.At(i) != (record{uint64(i), i}) || *b.At(i) != (record{}) {
			t.Fatalf("element %d: %v and %v", i, *a.At(i), *b.At(i))
		}
	}
	if first != a.At(0) || a.Len() != 1<<16 || len(a.Slice()) != a.Len() {
		t.Error("array moved or has another length")
	}
	runtime.KeepAlive(a)
}

// A reservation far beyond the machine's memory succeeds: only what is touched counts.
func TestReservationIsNotMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("plain memory elsewhere")
	}
	for range 64 { // far beyond the machine if it counted
		a := New[[64]byte](1 << 28)
		a.At(1<<28 - 1)[63] = 1
		if a.At(1<<28 - 1)[63] != 1 {
			t.Fatal("lost a byte")
		}
		runtime.KeepAlive(a)
	}
}

func TestBeyondTheEndPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	New[uint32](4).At(4)
}
