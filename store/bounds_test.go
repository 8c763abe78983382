package store_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

// held is what the host tier holds in all.
func held(f *storetest.Fixture) (held, capacity int64) {
	u := f.Store.Status().Tiers[0].Usage
	return u.Live + u.Slack + u.Metadata, u.Capacity
}

func TestCase_C25_TenTimesTheCapacity(t *testing.T) {
	f := storetest.New(t, storetest.Options{CapacityBytes: 16 << 20})
	pageBytes := int64(page.PayloadBytes(f.Geometry.Full(), f.Geometry.CellBytes))
	var written int64
	var last []byte
	for i := 0; written < 10*(16<<20); i++ {
		chain := storetest.Chain(fmt.Sprint("cap", i), 8)
		mustPublish(t, f, chain, whole) // none is ever refused
		written += 8 * pageBytes
		if h, c := held(f); h > c {
			t.Fatalf("%d bytes held, bound %d", h, c)
		}
		last = chain
	}
	wantPages(t, f, last, whole, nil)
	survivors := 0
	for i := range int(written/pageBytes) / 8 {
		chain := storetest.Chain(fmt.Sprint("cap", i), 8)
		bits, lead := exists(t, f, chain, whole)
		for j, b := range bits {
			if b != (j < lead) {
				t.Fatalf("chain %d: what survives is not a prefix: %v", i, bits)
			}
		}
		if lead > 0 {
			survivors += lead
			wantPages(t, f, chain[:32*lead], whole, nil)
		}
	}
	if low := int(8 << 20 / pageBytes); survivors < low {
		t.Errorf("%d pages survive, want the tier at least half full (%d)", survivors, low)
	}
}

// Nothing is refused: what is written once is worth no less than what was, under either policy.
func TestCase_C59_ThreeTimesTheCapacityFlatOut(t *testing.T) {
	for name, policy := range map[string]func(int) evict.Policy{"default": nil, "lru": newLRU} {
		t.Run(name, func(t *testing.T) { flatOut(t, policy) })
	}
}

func flatOut(t *testing.T, policy func(int) evict.Policy) {
	f := storetest.New(t, storetest.Options{CapacityBytes: 32 << 20, NewPolicy: policy})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 3 * (32 << 20) / 4 / (8 * 64 << 10) {
				rs, err := f.Publish(context.Background(), f.Caller, storetest.Chain(fmt.Sprint("flat", w, "/", i), 8), whole, 0)
				if err != nil {
					t.Error(err)
					return
				}
				for j, r := range rs {
					if r.Outcome != core.Committed {
						t.Errorf("writer %d chain %d page %d: %v %v", w, i, j, r.Outcome, r.Reason)
					}
				}
				if h, c := held(f); h > c {
					t.Errorf("%d bytes held, bound %d", h, c)
				}
			}
		})
	}
	wg.Wait()
	if h, c := held(f); h < c*3/4 {
		t.Errorf("%d bytes held of %d: the store is not full", h, c)
	}
}

func TestCase_C27_OneLongChainUnderPressure(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	f := storetest.New(t, storetest.Options{CapacityBytes: 16 << 20})
	chain := storetest.Chain("long", 100)
	mustPublish(t, f, chain, whole)
	for i := range 40 {
		mustPublish(t, f, storetest.Chain(fmt.Sprint("p", i), 4), whole)
		bits, lead := exists(t, f, chain, whole)
		for j, b := range bits {
			if b != (j < lead) {
				t.Fatalf("after %d: %v", i, bits)
			}
		}
		if _, lead := exists(t, f, chain, whole); lead > 0 {
			wantPages(t, f, chain[:32*lead], whole, nil)
		}
	}
}

func TestCase_C20_ProbesDoNotHinderEviction(t *testing.T) {
	f := storetest.New(t, storetest.Options{CapacityBytes: 16 << 20})
	ctx, stop := context.WithCancel(t.Context())
	var probes atomic.Int64
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			chain := storetest.Chain(fmt.Sprint("c20", w), 64)
			for ctx.Err() == nil {
				bits, lead := make([]byte, 8), make([]uint32, 1)
				f.Store.Exists(f.Caller, []core.Run{f.Run(chain)}, whole, bits, lead)
				probes.Add(64)
			}
		})
	}
	for i := range 100 {
		mustPublish(t, f, storetest.Chain(fmt.Sprint("c20", i%7), 1+i%8), whole)
		mustPublish(t, f, storetest.Chain(fmt.Sprint("other", i), 8), whole)
	}
	stop()
	wg.Wait()
	if f.Store.Status().Totals.Evicted == 0 || probes.Load() == 0 {
		t.Errorf("%d evicted, %d probes", f.Store.Status().Totals.Evicted, probes.Load())
	}
}

func TestCase_C29_QuotaAroundTheWaterLevel(t *testing.T) {
	for _, quota := range []uint64{2 << 20, 64 << 20} { // below and above what the tier can hold
		t.Run(fmt.Sprint(quota), func(t *testing.T) {
			f := storetest.New(t, storetest.Options{CapacityBytes: 16 << 20})
			n := f.Namespace
			n.State.Quota = quota
			f.Store.SetNamespace(n)
			refused := 0
			for i := range 60 {
				chain := storetest.Chain(fmt.Sprint("q", i), 8)
				rs, err := f.Publish(t.Context(), f.Caller, chain, whole, 0)
				if err != nil {
					t.Fatal(err)
				}
				hole := false
				for j, r := range rs {
					switch {
					case r.Outcome == core.Committed:
						if hole {
							t.Fatalf("page %d was taken behind one that was refused", j)
						}
					case r.Outcome == core.Refused && r.Reason == reason.QuotaExceeded:
						hole = true
						refused++
					default:
						t.Fatalf("page %d: %v %v", j, r.Outcome, r.Reason)
					}
				}
				if u := f.Store.Usage(n.State.ID, 1); u.Bytes > quota {
					t.Fatalf("%d bytes under a quota of %d", u.Bytes, quota)
				}
			}
			if small := quota < 16<<20; small != (refused > 0) {
				t.Errorf("%d pages refused under a quota of %d", refused, quota)
			}
			if quota < 16<<20 && f.Store.Status().Totals.Evicted != 0 {
				t.Error("a namespace over its quota evicted pages")
			}
		})
	}
}

// One probe for 50,000 keys, again and again while the tier is full and evicts: what is leased is all there, of each chain
// that is being evicted there is a prefix, and what was never there is not.
func TestCase_C30_FiftyThousandKeysWhileEvicting(t *testing.T) {
	const keys, leased, victims, depth = 50_000, 200, 400, 8
	f := storetest.New(t, storetest.Options{CapacityBytes: 16 << 20, Geometry: smallPages})
	chains := [][]byte{storetest.Chain("leased", leased)}
	for i := range victims {
		chains = append(chains, storetest.Chain(fmt.Sprint("victim", i), depth))
	}
	chains = append(chains, storetest.Chain("never", keys-leased-victims*depth))
	var runs []core.Run
	for _, c := range chains {
		runs = append(runs, f.Run(c))
	}
	mustPublish(t, f, chains[0], whole)
	if l, why, err := f.Store.Lookup(t.Context(), f.Caller, runs[:1], whole, time.Hour, evict.Hint{}); err != nil || why != reason.None || l.Covered[0] != leased {
		t.Fatal(l, why, err)
	}
	probe := func() error {
		bits, leading := make([]byte, (keys+7)/8), make([]uint32, len(runs))
		if why := f.Store.Exists(f.Caller, runs, whole, bits, leading); why != reason.None {
			return fmt.Errorf("refused: %v", why)
		}
		at := 0
		for i, c := range chains {
			n, lead := len(c)/32, int(leading[i])
			if i == 0 && lead != leased || i == len(chains)-1 && lead != 0 {
				return fmt.Errorf("chain %d of %d: %d pages are there", i, len(chains), lead)
			}
			for j := range n {
				if there := bits[(at+j)/8]>>((at+j)%8)&1 == 1; there != (j < lead) {
					return fmt.Errorf("chain %d, page %d: there %v, %d from the root on", i, j, there, lead)
				}
			}
			at += n
		}
		return nil
	}
	ctx, stop := context.WithCancel(t.Context())
	var probes atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := probe(); err != nil {
				t.Error(err)
				return
			}
			probes.Add(1)
		}
	})
	defer wg.Wait()
	defer stop()
	evicted := func() uint64 { return f.Store.Status().Totals.Evicted }
	for i := 0; evicted() == 0; i++ {
		mustPublish(t, f, chains[1+i%victims], whole)
	}
	before, from := probes.Load(), evicted()
	for i := 0; !t.Failed() && (i < victims || probes.Load() < before+3); i++ {
		mustPublish(t, f, chains[1+i%victims], whole)
	}
	if n := evicted() - from; n < victims {
		t.Errorf("%d pages evicted while %d keys were asked for %d times", n, keys, probes.Load()-before)
	}
}

func TestCase_C80_EverythingIsLeased(t *testing.T) {
	f := storetest.New(t, storetest.Options{
		CapacityBytes: 16 << 20, Limits: core.Limits{TierShare: 1, PrincipalShare: 1, SessionShare: 1},
	})
	var leased [][]byte
	for i := 0; ; i++ { // fill the tier with leased chains
		chain := storetest.Chain(fmt.Sprint("l", i), 4)
		rs, err := f.Publish(t.Context(), f.Caller, chain, whole, 0)
		if err != nil {
			t.Fatal(err)
		}
		if rs[0].Outcome == core.Refused {
			if rs[0].Reason != reason.Busy {
				t.Fatalf("a full tier of leased pages: %v", rs[0].Reason)
			}
			break
		}
		n := 0
		for n < 4 && rs[n].Outcome == core.Committed {
			n++
		}
		l, why, err := f.Store.Lookup(t.Context(), f.Caller, []core.Run{f.Run(chain[:32*n])}, whole, time.Minute, evict.Hint{})
		if err != nil || why != reason.None || int(l.Covered[0]) != n {
			t.Fatal(l, why, err)
		}
		leased = append(leased, chain[:32*n])
		if n < 4 {
			break
		}
		if i > 1000 {
			t.Fatal("the tier never filled")
		}
	}
	rs, err := f.Publish(t.Context(), f.Caller, storetest.Chain("one more", 1), whole, 0)
	if err != nil || rs[0].Outcome != core.Refused || rs[0].Reason != reason.Busy {
		t.Fatalf("%+v %v, want a typed busy", rs, err)
	}
	for _, chain := range leased {
		wantPages(t, f, chain, whole, nil)
	}
}

func TestNeverHitIsReported(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	id := f.Namespace.State.ID
	mustPublish(t, f, storetest.Chain("written", 4), whole)
	exists(t, f, storetest.Chain("another seed", 900), whole)
	if f.Store.Usage(id, 1).NeverHit {
		t.Error("reported after so few misses")
	}
	exists(t, f, storetest.Chain("another seed", 200), whole)
	if u := f.Store.Usage(id, 1); !u.NeverHit || f.Store.Status().NeverHit != 1 {
		t.Errorf("%d hits, %d misses: not reported", u.Hits, u.Misses)
	}
	exists(t, f, storetest.Chain("written", 1), whole)
	if f.Store.Usage(id, 1).NeverHit {
		t.Error("reported after a hit")
	}
}

func TestMixedSizesGiveSlabsBack(t *testing.T) {
	f := storetest.New(t, storetest.Options{CapacityBytes: 32 << 20})
	other := page.GroupID{2}
	n := f.Namespace
	n.State.Groups = map[page.GroupID]core.Geometry{
		f.Group: f.Geometry,
		other:   {Heads: 4, Layers: 4, CellBytes: 24 << 10, Tokens: 16, Grade: page.Elements},
	}
	f.Store.SetNamespace(n)
	for i := range 100 {
		mustPublish(t, f, storetest.Chain(fmt.Sprint("s", i), 8), whole)
	}
	big := f.WithGroup(other, n.State.Groups[other])
	for i := range 100 {
		rs, err := big.Publish(t.Context(), f.Caller, storetest.Chain(fmt.Sprint("b", i), 4), whole, 0)
		if err != nil {
			t.Fatal(err)
		}
		for j, r := range rs {
			if r.Outcome != core.Committed {
				t.Fatalf("chain %d page %d: %v %v", i, j, r.Outcome, r.Reason)
			}
		}
		if h, c := held(f); h > c {
			t.Fatalf("%d bytes held, bound %d", h, c)
		}
	}
	wantPages(t, big, storetest.Chain("b99", 4), whole, nil)
}

func TestLivesThatAreOverAreForgotten(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	n := f.Namespace
	for e := range page.Epoch(3000) {
		n.State.Epoch, n.State.Life = e+1, core.Active
		f.Store.SetNamespace(n)
		n.State.Life = core.Retired
		f.Store.SetNamespace(n)
		f.Store.SetNamespace(n) // told twice, remembered once
	}
	probe := func(e page.Epoch) reason.Reason {
		fam := f.Family()
		fam.Epoch = e
		return f.Store.Exists(f.Caller, []core.Run{{Family: fam, Hashes: storetest.Chain("x", 1)}}, whole, make([]byte, 1), make([]uint32, 1))
	}
	if why := probe(3000); why != reason.Retired {
		t.Errorf("the latest life: %v, want retired", why)
	}
	if why := probe(1); why != reason.Absent {
		t.Errorf("the first life: %v, want forgotten", why)
	}
}
