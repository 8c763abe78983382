//go:build !race

package client

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/store/rpc"
)

// TestChunksAllocateNothing: a page's chunks are placed, verified and permuted without an allocation of ours.
func TestChunksAllocateNothing(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		cell, row := int(small.CellBytes), int(small.CellBytes/small.Tokens)
		layout := &Layout{PageBytes: small.Full().Cells() * cell, Layout: kernels.Layout{
			Heads: int(small.Heads), Layers: int(small.Layers), Tokens: int(small.Tokens), Components: []kernels.Component{
				{RowBytes: row, HeadStride: row, LayerStride: int(small.Heads) * cell, TokenStride: int(small.Heads) * row}},
		}}
		for name, l := range map[string]*Layout{"in order": nil, "permuted": layout} {
			o, err := orderOf(l, &small, small.Full())
			if err != nil {
				t.Fatal(err)
			}
			f := &fetch{s: w.s, run: w.run(1), geo: small, view: small.Full(), order: o, dst: w.buffers(1, small.Full()), pages: make([]fetchPage, 1)}
			in := newIntake(f, []int{0})
			codec := rpc.NewCodec()
			var messages []mem.BufferSlice
			for _, m := range w.messages(0, small.Full(), 40<<10, w.extent(0, 1, small.Full())) {
				if m.GetTrailer() != nil {
					continue
				}
				b, err := proto.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				var s mem.BufferSlice
				for len(b) > 0 {
					k := min(16<<10, len(b))
					s, b = append(s, mem.SliceBuffer(b[:k])), b[k:]
				}
				messages = append(messages, s)
			}
			hash := w.s.hash(&f.run, 0)
			if n := testing.AllocsPerRun(50, func() {
				in.body.reset(hash, f.dst[0])
				in.at, in.dropped = 0, false
				for _, m := range messages {
					if err := codec.Unmarshal(m, &in.received); err != nil {
						t.Fatal(err)
					}
				}
				if !in.body.complete() {
					t.Fatal("not whole")
				}
			}); n > 0 {
				t.Errorf("%s: %v allocations a page", name, n)
			}
		}
	})
}
