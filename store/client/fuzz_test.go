package client

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// FuzzReassembly: the messages of two pages, tampered with by a script of 4-byte steps, never panic, never write
// outside of the destinations, and never make a page OK with other bytes than its own.
//
//	step: what (delete, repeat, swap, flip, offset, extent, page, cut sums, header, cut the chunk), which message, two operands
func FuzzReassembly(f *testing.F) {
	f.Add([]byte{}, byte(40))
	f.Add([]byte{0, 1, 0, 0, 3, 2, 9, 1}, byte(40))
	f.Add([]byte{2, 1, 2, 0, 4, 3, 1, 7, 5, 0, 1, 0}, byte(100))
	f.Add([]byte{6, 2, 1, 0, 7, 0, 3, 0, 8, 0, 200, 1, 9, 1, 5, 0, 1, 4, 0, 0}, byte(64))
	tiny := Geometry{Heads: 2, Layers: 3, CellBytes: 24 << 10, Tokens: 16, Grade: page.Elements}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	s := &Session{c: &Client{opt: Options{Clock: clock.System()}}, epoch: 1, hashBytes: 32, bgCtx: ended}
	w := &world{geo: tiny, group: page.GroupID{9}, s: s, fake: &fake{}, cells: map[[4]int][]byte{}}
	view := page.View{H0: 0, H1: 2, L0: 1, L1: 3}
	extents := [][]*extent{{w.extent(0, 1, tiny.Full())}, {w.extent(1, 1, page.View{H0: 0, H1: 1, L0: 0, L1: 3}), w.extent(1, 1, page.View{H0: 1, H1: 2, L0: 0, L1: 3})}}
	f.Fuzz(func(t *testing.T, script []byte, chunkKiB byte) {
		w.t = t
		var ms []*quirev1.FetchResponse
		for k := range 2 {
			ms = append(ms, w.messages(k, view, (int(chunkKiB)+1)<<10, extents[k]...)...)
		}
		for ; len(script) >= 4 && len(ms) > 0; script = script[4:] {
			ms = tamper(ms, script[0]%10, int(script[1])%len(ms), script[2], script[3])
		}
		fe := &fetch{s: s, run: w.run(2), geo: tiny, view: view, pages: make([]fetchPage, 2)}
		n := int(page.PayloadBytes(view, tiny.CellBytes))
		memory := bytes.Repeat([]byte{0xEE}, 3*n)
		fe.dst = [][]byte{memory[:n:n], memory[2*n:]}
		in := newIntake(fe, []int{0, 1})
		codec := rpc.NewCodec()
		for _, m := range ms {
			b, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:len(b)/2]), mem.SliceBuffer(b[len(b)/2:])}, &in.received) != nil {
				break
			}
		}
		for i := range 2 {
			if fe.pages[i].result.Outcome == OK && !bytes.Equal(fe.dst[i], w.payload(i, 1, view)) {
				t.Fatalf("page %d is OK and wrong", i)
			}
		}
		if bytes.Count(memory[n:2*n], []byte{0xEE}) != n {
			t.Fatal("wrote outside of the destinations")
		}
	})
}

func tamper(ms []*quirev1.FetchResponse, what byte, i int, a, b byte) []*quirev1.FetchResponse {
	m := proto.Clone(ms[i]).(*quirev1.FetchResponse)
	ms[i] = m
	flip := func(p []byte) {
		if len(p) > 0 {
			p[(int(a)<<8|int(b))%len(p)] ^= 1 << (b & 7)
		}
	}
	switch what {
	case 0:
		return append(ms[:i:i], ms[i+1:]...)
	case 1:
		return append(ms[:i+1:i+1], ms[i:]...)
	case 2:
		j := int(a) % len(ms)
		ms[i], ms[j] = ms[j], ms[i]
	case 3:
		flip(m.Chunk)
	case 4:
		m.Offset += uint64(int64(int8(a))) << (b % 64)
	case 5:
		m.Extent = uint32(a) << (b % 32)
	case 6:
		m.Page = uint32(a) << (b % 32)
	case 7:
		flip(m.CutSums)
		m.CutSums = m.CutSums[:len(m.CutSums)*int(b)/255]
	case 8:
		flip(m.Header)
	case 9:
		m.Chunk = m.Chunk[:len(m.Chunk)*int(a)/255]
	}
	return ms
}
