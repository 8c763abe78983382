package kernels

import (
	"fmt"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// pages spread over an arena, so that sources come from memory as they do in a store.
const (
	arenaBytes = 256 << 20
	pageBytes  = 1 << 20
)

type arena struct {
	src, dst []byte
	at       int
}

func newArena() *arena {
	a := &arena{src: make([]byte, arenaBytes), dst: make([]byte, 8*pageBytes+4096)}
	for i := range a.src {
		a.src[i] = byte(i * 2654435761 >> 8) // repeats every 64 KiB: all pages are equal
	}
	clear(a.dst)
	return a
}

// next is a page of the arena and one of eight destinations, never at the same offset within 4 KiB.
func (a *arena) next() (dst, src []byte) {
	a.at = (a.at*5 + 77) % (arenaBytes / pageBytes)
	d := a.at % 8 * pageBytes
	return a.dst[d+2048 : d+2048+pageBytes], a.src[a.at*pageBytes : (a.at+1)*pageBytes]
}

// ratio runs f and a plain copy of the same sizes by turns and reports f's speed as a fraction of the copy's.
func ratio(b *testing.B, f func(dst, src []byte)) {
	a := newArena()
	var plain, ours time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for range 8 {
			dst, src := a.next()
			t0 := time.Now()
			copy(dst, src)
			t1 := time.Now()
			plain += t1.Sub(t0)
		}
		for range 8 {
			dst, src := a.next()
			t0 := time.Now()
			f(dst, src)
			ours += time.Since(t0)
		}
	}
	b.ReportMetric(plain.Seconds()/ours.Seconds(), "of_copy")
	b.ReportMetric(float64(8*b.N)*pageBytes/ours.Seconds()/1e9, "GB/s")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkCopySumPieces(b *testing.B) {
	c := Cut{pageBytes, 64 << 10}
	sums := make([]uint64, c.Count(pageBytes))
	ratio(b, func(dst, src []byte) { _ = CopySumPieces(dst, src, c, sums) })
}

func BenchmarkSummer(b *testing.B) {
	for _, portion := range []int{32 << 10, 100_000, pageBytes} {
		c := Cut{pageBytes, 64 << 10}
		sums := make([]uint64, c.Count(pageBytes))
		b.Run(fmt.Sprintf("%d_B", portion), func(b *testing.B) {
			ratio(b, func(dst, src []byte) {
				var s Summer
				_ = s.Reset(dst, c, sums)
				for at := 0; at < len(src); at += portion {
					_, _ = s.Write(src[at:min(at+portion, len(src))])
				}
			})
		})
	}
}

func BenchmarkHashOnly(b *testing.B) {
	ratio(b, func(dst, src []byte) {
		for at := 0; at < len(src); at += 64 << 10 {
			sink += xxh3.Hash(src[at : at+64<<10])
		}
	})
}

var sink uint64

// Llama-3-8B-like pages of 1 MiB in a layer-first engine order: rows of 256 bytes.
func BenchmarkPermute(b *testing.B) {
	e := newEngine([4]int{byComponent, byLayer, byToken, byHead}, 8, 16, 16, 0, 256, 256)
	if e.bytes != pageBytes {
		b.Fatal(e.bytes)
	}
	to, _ := e.ToHeadMajor(nil)
	from, _ := e.FromHeadMajor(nil)
	c := Cut{e.Layers * e.CellBytes(), 64 << 10}
	sums := make([]uint64, c.Count(pageBytes))
	b.Run("copy", func(b *testing.B) { ratio(b, func(dst, src []byte) { _ = Copy(dst, src, to...) }) })
	b.Run("sum", func(b *testing.B) { ratio(b, func(dst, src []byte) { _ = PermuteSum(dst, src, to, c, sums) }) })
	b.Run("check", func(b *testing.B) {
		_ = SumPieces(newArena().src[:pageBytes], c, sums)
		ratio(b, func(dst, src []byte) {
			if err := PermuteCheck(dst, src, from, c, sums); err != nil {
				b.Fatal(err)
			}
		})
	})
}
