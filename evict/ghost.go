package evict

import (
	"unsafe"

	"github.com/quire-kv/quire/internal/offheap"
)

// ghosts remember of pages that are gone how they were used, so that one that comes back is not new.
//
//	bucket of a tag:  [ghost][ghost]..[ghost]     the one used longest ago of 8 makes room
//
// The table grows by doubling and moves nothing: an entry that lies where half as many buckets would put it is still
// found there after one doubling, and lost after the next.
type ghosts struct {
	slots   *offheap.Array[ghost]
	buckets uint32 // a power of two
}

type ghost struct {
	tag  uint64 // 0: empty
	used uint32 // ticks
	uses uint8
	turn uint8
}

const (
	ghostWays    = 8
	ghostsPer    = 8       // a page that is there
	firstBuckets = 1 << 10 // 128 KiB
	maxGhosts    = 1 << 24 // 256 MiB
)

func newGhosts(maxRefs int) ghosts {
	n := uint32(firstBuckets)
	for n*ghostWays < maxGhosts && uint64(n)*ghostWays < uint64(maxRefs)*ghostsPer {
		n *= 2
	}
	return ghosts{slots: offheap.New[ghost](int(n) * ghostWays), buckets: firstBuckets}
}

// grow makes room for the ghosts of so many pages.
func (g *ghosts) grow(pages int) {
	for int(g.buckets)*ghostWays < pages*ghostsPer && int(g.buckets)*2*ghostWays <= g.slots.Len() {
		g.buckets *= 2
	}
}

// find is the ghost of a tag, nil if there is none.
func (g *ghosts) find(tag uint64) *ghost {
	if tag == 0 {
		return nil
	}
	for n := g.buckets; n >= max(g.buckets/2, firstBuckets); n /= 2 {
		b := bucketOf(tag, n)
		for i := range uint32(ghostWays) {
			if s := g.slots.At(b + i); s.tag == tag {
				return s
			}
		}
	}
	return nil
}

// take removes the ghost of a tag.
func (g *ghosts) take(tag uint64) {
	if s := g.find(tag); s != nil {
		*s = ghost{}
	}
}

func (g *ghosts) put(n ghost) {
	if n.tag == 0 {
		return
	}
	b := bucketOf(n.tag, g.buckets)
	oldest := g.slots.At(b)
	for i := range uint32(ghostWays) {
		s := g.slots.At(b + i)
		if s.tag == 0 || s.tag == n.tag {
			oldest = s
			break
		}
		if s.used < oldest.used {
			oldest = s
		}
	}
	*oldest = n
}

func (g *ghosts) footprint() uint64 {
	return uint64(g.buckets) * ghostWays * uint64(unsafe.Sizeof(ghost{}))
}

// bucketOf leaves out the low bits, by which pages are sampled.
func bucketOf(tag uint64, buckets uint32) uint32 { return uint32(tag>>32) & (buckets - 1) * ghostWays }
