package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/quire-kv/quire/internal/offheap"
)

// arenaBytes is beyond what caches of common machines hold, so that the reference reads memory.
const arenaBytes = 1 << 30

// reference is what all speeds are held against: Go's copy on one core, blocks of one size out of an arena of 1 GiB in
// random order, into each of the destinations in turn. Arena and destinations are touched before.
type reference struct {
	arena *offheap.Array[byte]
	order []int
	dst   [][]byte
	next  int
}

// Memcpy is the reference for those who measure elsewhere: bytes per second in GB (1e9), over about d, of blocks out of
// an arena of so many bytes into as many touched buffers as named.
func Memcpy(ctx context.Context, blockBytes, buffersInTurn, arena int, d time.Duration) (float64, error) {
	if blockBytes < 1 || buffersInTurn < 1 || arena < blockBytes {
		return 0, fmt.Errorf("memcpy of blocks of %d bytes, %d buffers, %d bytes of arena", blockBytes, buffersInTurn, arena)
	}
	r := newReference(buffers(buffersInTurn, blockBytes), newArena(arena))
	rate := r.rate(ctx, d)
	return rate / 1e9, ctx.Err()
}

// newArena is touched memory full of noise.
func newArena(bytes int) *offheap.Array[byte] {
	a := offheap.New[byte](bytes)
	noise(a.Slice(), 1)
	return a
}

// newReference copies out of an arena, which references may share. dst are the touched buffers that the measured calls
// fill too, each of one block.
func newReference(dst [][]byte, arena *offheap.Array[byte]) *reference {
	return &reference{
		arena: arena, dst: dst, order: rand.New(rand.NewPCG(1, 2)).Perm(len(arena.Slice()) / len(dst[0])),
	}
}

// buffers are n touched buffers of so many bytes.
func buffers(n, bytes int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = make([]byte, bytes)
		noise(out[i], uint64(i))
	}
	return out
}

// noise fills b with bytes that do not repeat.
func noise(b []byte, seed uint64) {
	x := seed
	for i := 0; i+8 <= len(b); i += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>32) * 0xd6e8feb86659fd93
		binary.LittleEndian.PutUint64(b[i:], z^z>>32)
	}
}

// block is the i-th block of the arena.
func (r *reference) block(i int) []byte {
	n := len(r.dst[0])
	return r.arena.Slice()[i*n : (i+1)*n]
}

// rate copies for about d and answers bytes per second.
func (r *reference) rate(ctx context.Context, d time.Duration) float64 {
	copied, took := r.copyFor(ctx, d)
	return float64(copied) / took.Seconds()
}

// copyFor copies for about d and answers how much, and how long it took.
func (r *reference) copyFor(ctx context.Context, d time.Duration) (bytes int, took time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begun := time.Now()
	for time.Since(begun) < d && ctx.Err() == nil {
		for range len(r.dst) {
			bytes += copy(r.dst[r.next%len(r.dst)], r.block(r.order[r.next%len(r.order)]))
			r.next++
		}
	}
	runtime.KeepAlive(r.arena)
	return bytes, time.Since(begun)
}

// rateMeter sums up slices of a reference.
type rateMeter struct {
	bytes int
	took  time.Duration
}

func (m *rateMeter) add(bytes int, took time.Duration) { m.bytes, m.took = m.bytes+bytes, m.took+took }

func (m *rateMeter) perSecond() float64 { return float64(m.bytes) / m.took.Seconds() }
