package kernels

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

const (
	arenaBytes = 1 << 30 // beyond what caches hold, so that sources come from memory as they do in a store
	pageBytes  = 1 << 20
	turn       = 10 // pages in a row by one function
	settle     = 2  // of them, not timed: caches are as the other left them
)

// arena is what pages come from, and destinations that are in cache (few) and that are not (many).
type arena struct {
	src, few, many []byte
	order          []int
	at             int
}

var theArena = sync.OnceValue(func() *arena {
	r := rand.NewPCG(1, 2)
	a := &arena{src: make([]byte, arenaBytes), few: alignedBytes(8 * pageBytes), many: alignedBytes(256 * pageBytes), order: rand.New(r).Perm(arenaBytes / pageBytes)}
	for i := 0; i < arenaBytes; i += 8 {
		binary.LittleEndian.PutUint64(a.src[i:], r.Uint64())
	}
	clear(a.few)
	clear(a.many)
	return a
})

// run times f over a turn of pages, the next ones of the arena.
func (a *arena) run(dst []byte, f func(dst, src []byte, page int)) (d time.Duration) {
	for k := range turn {
		a.at++
		page, to := a.order[a.at%len(a.order)], a.at%(len(dst)/pageBytes)*pageBytes
		begun := time.Now()
		f(dst[to:to+pageBytes], a.src[page*pageBytes:(page+1)*pageBytes], page)
		if k >= settle {
			d += time.Since(begun)
		}
	}
	return d
}

// ratio runs f and a plain copy of the same sizes by turns and reports f's speed as a fraction of the copy's, by medians.
func ratio(b *testing.B, f func(dst, src []byte, page int)) {
	a := theArena()
	for _, to := range []struct {
		name string
		dst  []byte
	}{{"8_destinations", a.few}, {"256_destinations", a.many}} {
		b.Run(to.name, func(b *testing.B) {
			var plain, ours []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				plain = append(plain, a.run(to.dst, func(dst, src []byte, _ int) { copy(dst, src) }))
				ours = append(ours, a.run(to.dst, f))
			}
			slices.Sort(plain)
			slices.Sort(ours)
			middle := ours[len(ours)/2].Seconds()
			b.ReportMetric(plain[len(plain)/2].Seconds()/middle, "of_copy")
			b.ReportMetric((turn-settle)*pageBytes/middle/1e9, "GB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func pieces(b []byte, f func(at, end int)) {
	for at := 0; at < len(b); at += 64 << 10 {
		f(at, at+64<<10)
	}
}

func BenchmarkCopySum(b *testing.B) {
	for _, c := range copySums {
		b.Run(c.name, func(b *testing.B) {
			ratio(b, func(dst, src []byte, _ int) { pieces(src, func(at, end int) { sink += c.f(dst[at:end], src[at:end]) }) })
		})
	}
}

// BenchmarkSum reads in place.
func BenchmarkSum(b *testing.B) {
	ratio(b, func(_, src []byte, _ int) { pieces(src, func(at, end int) { sink += Sum(src[at:end]) }) })
}

var sink uint64

func BenchmarkSummer(b *testing.B) {
	c := Cut{pageBytes, 64 << 10}
	sums := make([]uint64, c.Count(pageBytes))
	for _, portion := range []int{32 << 10, 100_000, pageBytes} {
		b.Run(fmt.Sprintf("%d_B", portion), func(b *testing.B) {
			ratio(b, func(dst, src []byte, _ int) {
				var s Summer
				_ = s.Reset(dst, c, sums)
				for at := 0; at < len(src); at += portion {
					_, _ = s.Write(src[at:min(at+portion, len(src))])
				}
			})
		})
	}
}

// shapes are engines' orders of pages of 1 MiB.
var shapes = []struct {
	name                  string
	order                 [4]int
	heads, layers, tokens int
	rows                  []int
}{
	{"kv_layer_token_head_8x256B", [4]int{byComponent, byLayer, byToken, byHead}, 8, 16, 16, []int{256, 256}},
	{"kv_layer_head_token_8x256B", [4]int{byComponent, byLayer, byHead, byToken}, 8, 16, 16, []int{256, 256}},
	{"kv_token_layer_head_8x256B", [4]int{byComponent, byToken, byLayer, byHead}, 8, 16, 16, []int{256, 256}},
	{"token_layer_kv_head_8x256B", [4]int{byToken, byLayer, byComponent, byHead}, 8, 16, 16, []int{256, 256}},
	{"kv_layer_token_head_32x64B", [4]int{byComponent, byLayer, byToken, byHead}, 32, 16, 16, []int{64, 64}},
	{"layer_token_head_2x1024B", [4]int{byComponent, byLayer, byToken, byHead}, 2, 32, 16, []int{1024}},
}

// BenchmarkPermuteSum goes from an engine's order to head-major, BenchmarkPermuteCheck back.
func BenchmarkPermuteSum(b *testing.B) { permutes(b, false) }

func BenchmarkPermuteCheck(b *testing.B) { permutes(b, true) }

func permutes(b *testing.B, back bool) {
	for _, s := range shapes {
		e := newEngine(s.order, s.heads, s.layers, s.tokens, 0, s.rows...)
		if e.bytes != pageBytes || e.Bytes() != pageBytes {
			b.Fatal(s.name, e.bytes)
		}
		unit := e.Layers * e.CellBytes()
		c := Cut{unit, min(unit, 64<<10)}
		b.Run(s.name, func(b *testing.B) {
			if back {
				benchCheck(b, &e, c)
				return
			}
			to, _ := e.ToHeadMajor(nil)
			sums := make([]uint64, c.Count(pageBytes))
			ratio(b, func(dst, src []byte, _ int) {
				if err := PermuteSum(dst, src, to, c, sums); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func benchCheck(b *testing.B, e *engine, c Cut) {
	a := theArena()
	from, _ := e.FromHeadMajor(nil)
	n := c.Count(pageBytes)
	sums := make([]uint64, n*(arenaBytes/pageBytes))
	for page := range arenaBytes / pageBytes {
		_ = SumPieces(a.src[page*pageBytes:(page+1)*pageBytes], c, sums[page*n:(page+1)*n])
	}
	ratio(b, func(dst, src []byte, page int) {
		if err := PermuteCheck(dst, src, from, c, sums[page*n:(page+1)*n]); err != nil {
			b.Fatal(err)
		}
	})
}
