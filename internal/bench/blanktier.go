package bench

import (
	"sync"
	"sync/atomic"

	"github.com/quire-kv/quire/store/tier"
)

// blankTier is a tier that keeps no payloads: every region shows the same memory, so that millions of pages cost their
// index alone. Nothing can be read back from it; existence can be asked for. All regions are of the size of the first,
// and one may be written at a time.
//
//	region 1 ──┐
//	region 2 ──┼──> one buffer
//	region 3 ──┘
type blankTier struct {
	buffer atomic.Pointer[[]byte] // nil until the first region
	next   atomic.Int64           // offset of the next region
	live   atomic.Int64
	closed atomic.Bool
	moves  sync.WaitGroup
}

var _ tier.Driver = (*blankTier)(nil)

const (
	blankCapacity = 1 << 50 // as good as none
	slabBits      = 40      // of the offset are in one handle
)

func (t *blankTier) region(handle uint32, offset int64) (tier.Region, bool) {
	b := t.buffer.Load()
	if b == nil || handle == 0 {
		return tier.Region{}, false
	}
	return tier.Region{Handle: handle, Offset: offset, Bytes: int64(len(*b)), Memory: *b}, true
}

// Alloc gives out address space.
func (t *blankTier) Alloc(c tier.Class, _ tier.Owner) (tier.Region, error) {
	if t.closed.Load() {
		return tier.Region{}, tier.ErrClosed
	}
	if t.buffer.Load() == nil {
		b := make([]byte, c.Bytes)
		t.buffer.CompareAndSwap(nil, &b)
	}
	if c.Bytes != int64(len(*t.buffer.Load())) {
		return tier.Region{}, tier.ErrTooLarge
	}
	n := tier.RoundUp(c.Bytes)
	at := t.next.Add(n) - n
	t.live.Add(c.Bytes)
	r, _ := t.region(1+uint32(at>>slabBits), at&(1<<slabBits-1))
	return r, nil
}

// Free counts.
func (t *blankTier) Free(r tier.Region) { t.live.Add(-r.Bytes) }

// Lookup finds everything: nobody asks for what was not allocated.
func (t *blankTier) Lookup(handle uint32, offset int64) (tier.Region, bool) {
	return t.region(handle, offset)
}

// Submit moves nothing.
func (t *blankTier) Submit(ops []tier.Op) {
	for _, op := range ops {
		t.moves.Go(func() { op.Done(nil) })
	}
}

// Compact has nothing to empty.
func (t *blankTier) Compact(dst []tier.Resident) (uint32, []tier.Resident) { return 0, dst }

// Keep has nothing to keep.
func (t *blankTier) Keep(uint32) {}

// Usage is what was allocated.
func (t *blankTier) Usage() tier.Usage {
	return tier.Usage{Capacity: blankCapacity, Live: t.live.Load(), Writable: !t.closed.Load()}
}

// Close waits for Done calls.
func (t *blankTier) Close() error {
	t.closed.Store(true)
	t.moves.Wait()
	return nil
}
