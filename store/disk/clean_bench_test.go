package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/tier"
)

// churn replaces regions of a tier: nine of ten times one of the tenth that is hot. What lives in emptied segments is
// moved; when nothing is worth emptying, a region that was not replaced for long is evicted.
type churn struct {
	b         *testing.B
	d         *Driver
	rng       *rand.Rand
	mem       []byte
	live      []tier.Region  // Handle 0: evicted
	owner     map[uint32]int // to live
	name      []uint32       // of live
	next      uint32
	hand      int // of the clock that evicts
	used      []bool
	published int64
}

func (c *churn) write(o tier.Owner) (tier.Region, error) {
	r, err := c.d.Alloc(tier.Class{Bytes: int64(len(c.mem))}, o)
	if err != nil {
		return r, err
	}
	return r, transfer(c.d, tier.Op{Region: r, Memory: c.mem, Write: true, Note: &tier.Note{}})
}

func (c *churn) drop(i int) {
	if c.live[i].Handle != 0 {
		c.d.Free(c.live[i])
		delete(c.owner, c.name[i])
		c.live[i] = tier.Region{}
	}
}

func (c *churn) publish(i int) {
	c.drop(i)
	c.next++
	r, err := c.write(tier.Owner{Extent: c.next})
	for errors.Is(err, tier.ErrFull) {
		handle, residents := c.d.Compact(nil)
		for _, x := range residents {
			to, err := c.write(x.Owner)
			if err != nil {
				c.b.Fatalf("move: %v", err)
			}
			c.d.Free(x.Region)
			c.live[c.owner[x.Owner.Extent]] = to
		}
		if handle == 0 {
			for k := 0; k < len(c.live)/500; c.hand++ {
				j := c.hand % len(c.live)
				if c.live[j].Handle != 0 && !c.used[j] {
					c.drop(j)
					k++
				}
				c.used[j] = false
			}
		}
		barrier(c.b, c.d)
		r, err = c.write(tier.Owner{Extent: c.next})
	}
	if err != nil {
		c.b.Fatal(err)
	}
	c.live[i], c.owner[c.next], c.name[i], c.used[i] = r, i, c.next, true
	c.published += int64(len(c.mem))
}

// BenchmarkClean reports, over five capacities, device bytes per byte published and the share of the capacity that was
// live, where the caller keeps the tier at a share of it, and where it lets the tier decide ("full=1").
func BenchmarkClean(b *testing.B) {
	for _, share := range []float64{0.8, 0.85, 0.9, 1} {
		b.Run(fmt.Sprintf("full=%v", share), func(b *testing.B) {
			for b.Loop() {
				const bytes = 8*blockBytes - 100
				d := openDriver(b, Options{FS: memfs.New(), Dir: "data", CapacityBytes: 256 << 20, SegmentBytes: 1<<20 + blockBytes, Readers: 1})
				n := int(share * float64(d.sizes.capacity) / (8 * blockBytes))
				c := churn{b: b, d: d, rng: newRandOf(1), mem: extent(b, bytes, 1), live: make([]tier.Region, n), owner: map[uint32]int{}, name: make([]uint32, n), used: make([]bool, n)}
				for i := range n {
					c.publish(i)
				}
				before, start := d.Stats(), c.published
				for c.published-start < 5*d.sizes.capacity {
					i := c.rng.IntN(n)
					if c.rng.IntN(10) > 0 {
						i %= n / 10
					}
					c.publish(i)
				}
				after, u := d.Stats(), d.Usage()
				per := func(what func(Stats) uint64) float64 {
					return float64(what(after)-what(before)) / float64(c.published-start)
				}
				b.ReportMetric(per(func(s Stats) uint64 { return s.PayloadBytes + s.FrameBytes + s.JournalBytes + s.IndexBytes }), "device-B/B")
				b.ReportMetric(per(func(s Stats) uint64 { return s.MovedBytes }), "moved-B/B")
				b.ReportMetric(per(func(s Stats) uint64 { return s.IndexBytes + s.JournalBytes }), "index-B/B")
				b.ReportMetric(float64(u.Live)/float64(u.Capacity), "live")
				if err := d.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
