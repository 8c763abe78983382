package store_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/storetest"
)

// picky is LRU that finds what is offered worth less than all that is there.
type picky struct{ *evict.LRU }

func (p picky) Worth(now float64, ref evict.Ref, t evict.Tier, a evict.Attrs) evict.Score {
	if ref == 0 {
		return -0.5
	}
	return p.LRU.Worth(now, ref, t, a)
}

// A full tier keeps what is worth more: what is offered is refused as a whole, counted apart from refusals, and nothing
// is evicted. Into free room, and under plain LRU, everything goes.
func TestFullTierKeepsWhatIsWorthMore(t *testing.T) {
	for name, o := range map[string]storetest.Options{
		"memory":        {CapacityBytes: 8 << 20},
		"memory & disk": {CapacityBytes: 8 << 20, Disk: &storetest.Disk{}},
	} {
		t.Run(name, func(t *testing.T) {
			o.NewPolicy = func(int) evict.Policy { return picky{evict.NewLRU(1 << 16)} }
			f := storetest.New(t, o)
			committed, refused := 0, 0
			for i := range 40 {
				chain := storetest.Chain(fmt.Sprint("p", i), 8)
				rs, err := f.Publish(t.Context(), f.Caller, chain, whole, 0)
				if err != nil {
					t.Fatal(err)
				}
				for j, r := range rs {
					switch {
					case r.Outcome == core.Committed && (refused == 0 || j > 0 && rs[j-1].Outcome == core.Committed):
						committed++
					case r.Outcome == core.Refused && r.Reason == reason.NotWorth:
						refused++
					default:
						t.Fatalf("chain %d page %d: %v %v", i, j, r.Outcome, r.Reason)
					}
				}
			}
			tot := f.Store.Status().Totals
			if refused == 0 || tot.NotWorth != uint64(refused) || tot.RefusedPages[reason.NotWorth] != 0 || tot.Pages != uint64(committed) ||
				tot.Tiers[evict.Host].Evicted != 0 || tot.Orphaned != [core.NumOrphanCauses]uint64{} {
				t.Errorf("%d committed, %d refused: %+v", committed, refused, tot)
			}
			if _, _, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(storetest.Chain("p0", 8))}); err != nil {
				t.Fatal(err)
			}
			mustPublish(t, f, storetest.Chain("after", 8), whole)
		})
	}
}

// humble is LRU that finds a page worth less than all others where it may not go from a tier: because it is not there.
type humble struct {
	*evict.LRU
	leaves map[humbleLeaf]bool
}

type humbleLeaf struct {
	ref evict.Ref
	t   evict.Tier
}

func (p humble) SetEvictable(ref evict.Ref, t evict.Tier, ok bool) {
	p.leaves[humbleLeaf{ref, t}] = ok
	p.LRU.SetEvictable(ref, t, ok)
}

func (p humble) Worth(now float64, ref evict.Ref, t evict.Tier, a evict.Attrs) evict.Score {
	if ref != 0 && !p.leaves[humbleLeaf{ref, t}] {
		return -0.5
	}
	return p.LRU.Worth(now, ref, t, a)
}

// A full disk keeps what is worth more than what is written behind, and memory what is worth more than what is read from
// disk; what is durable is taken, every read is served, and what is not on disk is lost with its eviction from memory alone.
func TestTiersKeepWhatIsWorthMore(t *testing.T) {
	f := storetest.New(t, storetest.Options{
		CapacityBytes: 8 << 20, Disk: &storetest.Disk{CapacityBytes: 32 << 20},
		NewPolicy: func(int) evict.Policy { return humble{evict.NewLRU(1 << 16), map[humbleLeaf]bool{}} },
	})
	const chains = 160 // of 512 KiB: more than twice the disk
	lead := func(i int) int {
		_, n := exists(t, f, storetest.Chain(fmt.Sprint("q", i), 8), whole)
		return n
	}
	for i := range chains {
		mustPublish(t, f, storetest.Chain(fmt.Sprint("q", i), 8), whole)
		settle(t, f)
	}
	disk := func() core.TierTotals { return f.Store.Status().Totals.Tiers[evict.Disk] }
	if d := disk(); d.Evicted*8 > d.NotWorth || d.Extents == 0 { // cleaning drops some
		t.Fatalf("%d pages left the disk, %d copies were not worth it, %d are there", d.Evicted, d.NotWorth, d.Extents)
	}
	early, late := 0, 0 // of as many chains as the disk is full of, and of those after them
	for i := range chains {
		n := lead(i)
		if n > 0 {
			wantPages(t, f, storetest.Chain(fmt.Sprint("q", i), 8)[:32*n], whole, nil)
		}
		if i < 48 {
			early += n
		} else if i < 96 {
			late += n
		}
	}
	if early < 48*8/2 || late >= early {
		t.Errorf("%d pages are left of those that came first, %d of those after them", early, late)
	}
	if f.Store.Status().Totals.Tiers[evict.Host].NotWorth == 0 {
		t.Error("all that was read from disk stayed in memory")
	}
	durable := storetest.Chain("durable", 8)
	mustPublishDurable(t, f, durable)
	if disk().Evicted == 0 {
		t.Error("nothing gave way to what is durable")
	}
	f.Restart(t)
	wantPages(t, f, durable, whole, nil)
}

// What is worth less than all that is on disk is refused before a segment is cleaned for it, which would be written anew; where
// most of the disk is dead, there is room for it.
func TestUnworthyPagesCleanNoSegment(t *testing.T) {
	const size = 64 << 20
	f := storetest.New(t, storetest.Options{
		CapacityBytes: 8 << 20, Disk: &storetest.Disk{CapacityBytes: size},
		NewPolicy: func(int) evict.Policy { return humble{evict.NewLRU(1 << 16), map[humbleLeaf]bool{}} },
	})
	published := 0
	offer := func(until func() bool) {
		for n := 0; !until(); n++ {
			if n == 400 {
				t.Fatal("the disk is as before")
			}
			mustPublish(t, f, storetest.Chain(fmt.Sprint("u", published), 8), whole)
			settle(t, f)
			published++
		}
	}
	now := func() (d core.TierTotals, cleaned uint64) {
		st := f.Store.Status()
		return st.Totals.Tiers[evict.Disk], st.CleanedBytes
	}
	refused := func(more uint64) func() bool {
		before, _ := now()
		return func() bool { d, _ := now(); return d.NotWorth >= before.NotWorth+more }
	}
	offer(refused(1))
	first := published
	remove := func(keep func(i int) bool) {
		for i := range first {
			if !keep(i) {
				if _, _, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(storetest.Chain(fmt.Sprint("u", i), 8))}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	remove(func(i int) bool { return i%4 == 0 || i > first*4/10 }) // segments to clean, in a disk most of which lives
	before, written := now()
	offer(refused(100))
	if d, cleaned := now(); d.Evicted != before.Evicted || cleaned != written || f.Disk.Usage().Live < size/2 {
		t.Errorf("%d pages evicted and %d bytes written anew for what is not worth it; %d live", d.Evicted-before.Evicted, cleaned-written, f.Disk.Usage().Live)
	}
	remove(func(i int) bool { return i%4 == 0 })
	before, _ = now()
	offer(func() bool { d, _ := now(); return d.Extents > before.Extents+80 })
}

// fickle is LRU that finds more in the pages of memory when they are to go than when it is asked what would go next.
type fickle struct {
	*evict.LRU
	on *atomic.Bool
}

func (p fickle) Victims(now float64, t evict.Tier, need uint64, among *evict.Shares, dst []evict.Victim) []evict.Victim {
	from := len(dst)
	dst = p.LRU.Victims(now, t, need, among, dst)
	for i := from; p.on.Load() && t == evict.Host && need > 0 && i < len(dst); i++ {
		dst[i].Score = evict.MaxScore / 2
	}
	return dst
}

// Between the look for the lowest victim and its eviction time goes on, and another may be drawn. A read is served all the
// same.
func TestReadsAreServedThoughScoresMove(t *testing.T) {
	var on atomic.Bool
	f := storetest.New(t, storetest.Options{
		CapacityBytes: 8 << 20, Disk: &storetest.Disk{CapacityBytes: 64 << 20},
		NewPolicy: func(int) evict.Policy { return fickle{evict.NewLRU(1 << 16), &on} },
	})
	const chains = 40 // of 512 KiB
	for i := range chains {
		mustPublish(t, f, storetest.Chain(fmt.Sprint("f", i), 8), whole)
		settle(t, f)
	}
	on.Store(true)
	for i := range chains {
		wantPages(t, f, storetest.Chain(fmt.Sprint("f", i), 8), whole, nil)
	}
	if f.Store.Status().Totals.Tiers[evict.Host].NotWorth == 0 {
		t.Error("no page was worth less than what memory had")
	}
}
