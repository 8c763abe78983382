//go:build !race

package rpc

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// TestChunksAllocateNothing: neither lending nor receiving a chunk allocates once warm.
func TestChunksAllocateNothing(t *testing.T) {
	codec := NewCodec()
	body := make([]byte, 1<<20)
	pin := NewPin(func() {})
	head, _ := (&FetchHead{Page: 3, Extent: 1, Offset: 1 << 20}).Append(make([]byte, 0, 64))
	c := &Chunk{Head: head, Body: body, Pin: pin}
	if n := testing.AllocsPerRun(200, func() {
		s, err := codec.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		s.Free()
	}); n > 0 {
		t.Errorf("Marshal: %v allocations", n)
	}
	s, _ := codec.Marshal(c)
	wire := s.Materialize()
	var bufs mem.BufferSlice
	for len(wire) > 0 {
		k := min(16<<10, len(wire))
		bufs, wire = append(bufs, mem.SliceBuffer(wire[:k])), wire[k:]
	}
	dst := make([]byte, len(body))
	at := 0
	r := &Received{Head: &FetchHead{}, Begin: func(int) error { at = 0; return nil },
		Chunk: func(p []byte) error { at += copy(dst[at:], p); return nil }}
	if n := testing.AllocsPerRun(200, func() {
		if err := codec.Unmarshal(bufs, r); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("Unmarshal: %v allocations", n)
	}
	if at != len(body) {
		t.Error("short")
	}
}
