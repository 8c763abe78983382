package store_test

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

func newLRU(int) evict.Policy { return evict.NewLRU(0) }

// A long chain that comes back after many short ones of one use each: LRU lets its deep, dear pages go, the default keeps
// them, and says so.
func TestCase_C31_TheDefaultIsNotLRU(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	geo := core.Geometry{Heads: 4, Layers: 4, CellBytes: 8 << 10, Tokens: 16, Grade: page.Elements}
	geo.FLOPs = func(from, to uint64) float64 { return float64(to*to - from*from) }
	capacity := 66 * page.RegionBytes(geo.Full(), geo.CellBytes, len("engine=test")) // 60 and slack
	served := map[string]int{}
	for name, policy := range map[string]func(int) evict.Policy{
		"lru": newLRU,
		"vbr": func(int) evict.Policy { return evict.NewVBR(1<<12, 31) },
	} {
		now := clock.NewManual(time.Unix(1e9, 0))
		f := storetest.New(t, storetest.Options{Geometry: geo, CapacityBytes: capacity, Clock: now, NewPolicy: policy})
		request := func(chain []byte) {
			now.Advance(time.Second)
			if _, lead := exists(t, f, chain, whole); lead > 0 {
				wantPages(t, f, chain[:32*lead], whole, nil)
				served[name] += lead
			}
			offer(t, f, chain, whole)
		}
		for round := range 20 {
			request(storetest.Chain("deep", 40))
			for k := range 60 {
				request(storetest.Chain(fmt.Sprint("once ", round, "/", k), 1))
			}
		}
		st := f.Store.Status()
		checkVictims(t, name, &st)
		if name == "lru" {
			if !reflect.DeepEqual(st.Eviction, store.Eviction{}) {
				t.Errorf("LRU simulates %+v", st.Eviction)
			}
			continue
		}
		checkSimulated(t, &st.Eviction)
		dear := f.Store.Explain(t.Context(), &page.Key{Family: f.Run(nil).Family, Hash: mustHash(t, storetest.Chain("deep", 40)[39*32:])})
		cheap := f.Store.Explain(t.Context(), &page.Key{Family: f.Run(nil).Family, Hash: mustHash(t, storetest.Chain("once 19/59", 1))})
		if dear.Sampled < 10 || dear.Below != dear.Sampled || cheap.Below > cheap.Sampled/2 || dear.Score <= cheap.Score || dear.RankTier != evict.Host {
			t.Errorf("the deep page scores %g, more than %d of %d; a short one %g, more than %d of %d", dear.Score, dear.Below, dear.Sampled, cheap.Score, cheap.Below, cheap.Sampled)
		}
	}
	if served["lru"] > 19*6 || served["vbr"] < 19*38 {
		t.Errorf("pages served: %v", served)
	}
}

// checkVictims: every page that left has its score counted, and none left an orphan.
func checkVictims(t *testing.T, name string, st *store.Status) {
	t.Helper()
	scored := uint64(0)
	for _, n := range st.Totals.Tiers[evict.Host].Victims.Counts {
		scored += n
	}
	if n := st.Totals.Tiers[evict.Host].Evicted; n == 0 || n != scored || st.Totals.Orphaned != [core.NumOrphanCauses]uint64{} {
		t.Errorf("%s: %d pages evicted, %d scored, orphans %v", name, n, scored, st.Totals.Orphaned)
	}
}

// checkSimulated: the policy knows that it saves almost all that can be, and LRU far less.
func checkSimulated(t *testing.T, e *store.Eviction) {
	t.Helper()
	shards := 0
	for _, m := range e.Modes {
		shards += m.Shards
		if m.Name == "lru" && m.Saved > e.Saved/2 {
			t.Errorf("LRU saves %g, it says, and itself %g", m.Saved, e.Saved)
		}
	}
	if len(e.Modes) != 3 || shards != 4 || e.Saved < 0.95*e.Content || e.Content >= e.Used {
		t.Errorf("%+v", e)
	}
}

func mustHash(t *testing.T, raw []byte) page.Hash {
	t.Helper()
	h, err := page.MakeHash(raw)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// told notes what a policy hears of loading.
type told struct {
	evict.Policy
	mu   sync.Mutex
	last evict.Loading
	at   evict.Tier
}

func (p *told) SetLoading(t evict.Tier, l evict.Loading) {
	p.mu.Lock()
	p.at, p.last = t, l
	p.mu.Unlock()
	p.Policy.SetLoading(t, l)
}

// What loading from disk costs is measured while pages are read from there, and every shard's policy is told.
func TestLoadingIsMeasured(t *testing.T) {
	var policies []*told
	o := onDisk()
	o.PrefillFLOPS = 1e15
	o.NewPolicy = func(int) evict.Policy {
		policies = append(policies, &told{Policy: evict.NewVBR(1<<12, 1)})
		return policies[len(policies)-1]
	}
	f := storetest.New(t, o)
	var chains [][]byte
	for i := range 40 {
		chains = append(chains, storetest.Chain(fmt.Sprint("spill", i), 8))
		mustPublish(t, f, chains[i], whole)
		settle(t, f)
	}
	for _, chain := range chains {
		wantPages(t, f, chain, whole, nil)
	}
	st := f.Store.Status()
	var rate float64
	for _, ts := range st.Tiers {
		if ts.Tier == evict.Disk {
			rate = ts.LoadRate
		} else if ts.LoadRate != 0 {
			t.Errorf("%v: %g bytes per second", ts.Tier, ts.LoadRate)
		}
	}
	if st.PromotedBytes < 8<<20 || rate <= 0 {
		t.Fatalf("%d bytes promoted, %g bytes per second", st.PromotedBytes, rate)
	}
	for i, p := range policies {
		p.mu.Lock()
		if p.at != evict.Disk || p.last.FLOPSPerSecond != 1e15 || p.last.BytesPerSecond <= 0 {
			t.Errorf("shard %d was told %v %+v", i, p.at, p.last)
		}
		p.mu.Unlock()
	}
}
