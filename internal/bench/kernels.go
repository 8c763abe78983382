package bench

import (
	"context"
	"runtime"
	"time"

	"github.com/quire-kv/quire/kernels"
)

// The page of benchKernels: 8 heads, 16 layers, keys and values of 16 tokens, rows of 128 elements of 2 bytes.
const (
	kernelHeads      = 8
	kernelLayers     = 16
	kernelTokens     = 16
	kernelRow        = 256
	kernelPageBytes  = 2 * kernelHeads * kernelLayers * kernelTokens * kernelRow
	kernelPieceBytes = 64 << 10
	kernelBuffers    = 8 // destinations in turn
)

// kernel is one way to move or to sum a block of the arena.
type kernel struct {
	name string
	goal float64 // of memcpy
	run  func(dst, src []byte, block int) error
}

// benchKernels holds each kernel against memcpy in the same second: one core, pages out of an arena of 1 GiB.
func benchKernels(ctx context.Context, o *Options) ([]Figure, error) {
	r := newReference(buffers(kernelBuffers, kernelPageBytes), newArena(o.arena))
	all, err := theKernels(r)
	if err != nil {
		return nil, err
	}
	var s sheet
	err = o.rounds(ctx, func(measured bool) error {
		var copied float64
		for _, k := range all {
			slice := o.Duration / time.Duration(2*len(all))
			plain := r.rate(ctx, slice)
			ours, err := r.rateOf(ctx, slice, k.run)
			if err != nil {
				return err
			}
			copied += plain / float64(len(all))
			if measured {
				s.add(k.name+"_of_memcpy", "", ours/plain)
			}
		}
		if measured {
			s.add("memcpy", "GB/s", copied/1e9)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	goals := map[string]goal{}
	for _, k := range all {
		goals[k.name+"_of_memcpy"] = atLeast(k.goal)
	}
	return s.figures(goals), nil
}

// theKernels are those of which a page is made. The engine's order is [component][layer][token][head][row].
func theKernels(r *reference) ([]kernel, error) {
	layout := kernels.Layout{Heads: kernelHeads, Layers: kernelLayers, Tokens: kernelTokens}
	for i := range 2 {
		layout.Components = append(layout.Components, kernels.Component{
			RowBytes: kernelRow, Offset: i * kernelPageBytes / 2, HeadStride: kernelRow,
			LayerStride: kernelTokens * kernelHeads * kernelRow, TokenStride: kernelHeads * kernelRow,
		})
	}
	to, err := layout.ToHeadMajor(nil)
	if err != nil {
		return nil, err
	}
	from, err := layout.FromHeadMajor(nil)
	if err != nil {
		return nil, err
	}
	cut := kernels.Cut{UnitBytes: kernelLayers * layout.CellBytes(), PieceBytes: kernelPieceBytes}
	n := cut.Count(kernelPageBytes)
	scratch, sums := make([]uint64, n), make([]uint64, n*len(r.order))
	for i := range r.order {
		if err := kernels.SumPieces(r.block(i), cut, sums[i*n:(i+1)*n]); err != nil {
			return nil, err
		}
	}
	return []kernel{
		{"copy_sum", 0.9, func(dst, src []byte, _ int) error { return kernels.CopySumPieces(dst, src, cut, scratch) }},
		{"sum", 1.15, func(_, src []byte, _ int) error { return kernels.SumPieces(src, cut, scratch) }},
		{"permute_sum", 0.5, func(dst, src []byte, _ int) error { return kernels.PermuteSum(dst, src, to, cut, scratch) }},
		{"permute_check", 0.5, func(dst, src []byte, i int) error {
			return kernels.PermuteCheck(dst, src, from, cut, sums[i*n:(i+1)*n])
		}},
	}, nil
}

// rateOf is rate for another function, which gets a destination, a block and the block's number.
func (r *reference) rateOf(ctx context.Context, d time.Duration, f func(dst, src []byte, block int) error) (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun, done := time.Now(), 0
	for time.Since(begun) < d && ctx.Err() == nil {
		for range len(r.dst) {
			i := r.order[r.next%len(r.order)]
			if err := f(r.dst[r.next%len(r.dst)], r.block(i), i); err != nil {
				return 0, err
			}
			done += len(r.dst[0])
			r.next++
		}
	}
	rate := float64(done) / time.Since(begun).Seconds()
	runtime.KeepAlive(r.arena)
	return rate, nil
}
