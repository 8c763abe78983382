package tiertest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/quire-kv/quire/store/tier"
)

// testConcurrent has writers, readers of other writers' places, compaction and a sampler of the bound at once.
func testConcurrent(t *testing.T, h Harness) {
	const writers = 6
	rounds := 300
	if testing.Short() {
		rounds = 100
	}
	r := newRig(t, h)
	fail := &collector{}
	classes := []tier.Class{mixed(8_000), mixed(90_000), private(1, 1, 8_000), private(2, 1, 50_000)}
	stop := make(chan struct{})
	var background, writing sync.WaitGroup
	background.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if u := r.d.Usage(); u.Live+u.Slack+u.Metadata > u.Capacity {
				fail.Fatalf("usage %+v passes the bound", u)
			}
			if slab, residents := r.d.Compact(nil); len(residents) > 0 {
				r.d.Lookup(slab, residents[0].Region.Offset)
				r.d.Keep(slab)
			}
		}
	})
	for w := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			mine := &rig{t: fail, d: r.d, transient: h.Transient, log: r.log}
			var live []held
			for i := range uint64(rounds) {
				x, err := mine.try(classes[rng.IntN(len(classes))], uint64(w)<<32|i)
				for errors.Is(err, tier.ErrFull) && len(live) > 0 {
					live = mine.freeOne(live, rng.IntN(len(live)))
					x, err = mine.try(classes[0], uint64(w)<<32|i)
				}
				if err == nil {
					live = append(live, x)
				}
				r.d.Lookup(uint32(rng.IntN(20)), int64(rng.IntN(64))*8192)
				if len(live) > 24 {
					live = mine.freeOne(live, rng.IntN(len(live)))
				}
			}
			for len(live) > 0 {
				live = mine.freeOne(live, 0)
			}
		})
	}
	writing.Wait()
	close(stop)
	background.Wait()
	if fail.first != "" {
		t.Fatal(fail.first)
	}
	if u := r.usage(); u.Live != 0 {
		t.Fatalf("%d bytes live in the end", u.Live)
	}
}

// freeOne checks and frees region i. Unlike free it does not look for it afterwards: another may have the place.
func (r *rig) freeOne(live []held, i int) []held {
	r.check(live[i])
	r.d.Free(live[i].Region)
	live[i] = live[len(live)-1]
	return live[:len(live)-1]
}
