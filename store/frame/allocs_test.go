//go:build !race

package frame

import (
	"testing"

	"github.com/quire-kv/quire/store/rpc"
)

// TestChunksAllocateNothing: neither a chunk that is sent nor one that arrives allocates once warm.
func TestChunksAllocateNothing(t *testing.T) {
	s := &said{}
	x := &exchange{c: newConn(s, nil, limits{1 << 20, maxDataBytes}, newPieces()), call: 1}
	x.c.gives = x.c.takes
	pin := rpc.NewPin(func() {})
	head, err := (&rpc.FetchHead{Page: 3, Extent: 1, Offset: 1 << 20}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &rpc.Chunk{Head: head, Body: make([]byte, 300<<10), Pin: pin}
	if n := testing.AllocsPerRun(200, func() {
		if err := x.send(m); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("sending: %v allocations", n)
	}
	x.end()
	var b batch
	b.add(m)
	wire := frameBytes(header{kind: kindMessage, flags: flagChunks, call: 1}, b.head[headerBytes:], m.Body)
	dst, at := make([]byte, len(m.Body)), 0
	r := &rpc.Received{Head: &rpc.FetchHead{}, Begin: func(int) error { at = 0; return nil }}
	r.Place = func(n int) []byte { return dst[at : at+n] }
	r.Placed = func() { at = min(at+pieceBytes, len(dst)) }
	if n := testing.AllocsPerRun(200, func() {
		s.b = wire
		var h header
		if err := x.c.next(&h); err != nil {
			t.Fatal(err)
		}
		if err := x.receive(&h, r); err != nil {
			t.Fatal(err)
		}
	}); n > 1 { // the io.Reader of this test's connection
		t.Errorf("receiving: %v allocations", n)
	}
}
