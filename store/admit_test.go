package store_test

import (
	"fmt"
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
