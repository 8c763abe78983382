package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

// smallPages take 8 KiB each in a tier.
var smallPages = core.Geometry{Heads: 2, Layers: 2, CellBytes: 512, Tokens: 16, Grade: page.Elements}

func quota(host, disk, all uint64) (q core.TenantQuota) {
	q.Guarantee[evict.Host], q.Guarantee[evict.Disk], q.Quota = host, disk, all
	return q
}

func mustSetTenant(t *testing.T, s *store.Store, name string, q core.TenantQuota) {
	t.Helper()
	if err := s.SetTenant(name, q); err != nil {
		t.Fatal(err)
	}
}

func TestGuaranteesFitTheNode(t *testing.T) {
	f := storetest.New(t, storetest.Options{CapacityBytes: 16 << 20})
	capacity := uint64(f.Store.Status().Tiers[0].Capacity)
	mustSetTenant(t, f.Store, "a", quota(12<<20, 0, 0))
	var refused *core.GuaranteeError
	if err := f.Store.SetTenant("b", quota(8<<20, 0, 0)); !errors.As(err, &refused) ||
		*refused != (core.GuaranteeError{Tier: evict.Host, Asked: 8 << 20, Others: 12 << 20, Capacity: capacity}) {
		t.Errorf("beyond the capacity: %v", err)
	}
	if err := f.Store.SetTenant("b", quota(0, 1, 0)); !errors.As(err, &refused) || *refused != (core.GuaranteeError{Tier: evict.Disk, Asked: 1}) {
		t.Errorf("of a tier that is not there: %v", err)
	}
	mustSetTenant(t, f.Store, "a", core.TenantQuota{})
	mustSetTenant(t, f.Store, "b", quota(8<<20, 0, 9<<20))
	if u := f.Store.TenantUsage("b"); u.Quota != 9<<20 || f.Store.TenantUsage("nobody") != (core.TenantUsage{}) {
		t.Errorf("usage %+v", u)
	}
}

// Many writers of tenants without a guarantee at once: one that keeps within its own loses nothing.
func TestTenantFloodOfAStore(t *testing.T) {
	for name, o := range map[string]storetest.Options{
		"memory":        {CapacityBytes: 8 << 20, Geometry: smallPages},
		"memory & disk": {CapacityBytes: 8 << 20, Geometry: smallPages, Disk: &storetest.Disk{CapacityBytes: 16 << 20, SegmentBytes: 1 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			f := storetest.New(t, o)
			mine := f.WithTenant("mine")
			q := quota(3<<20, 0, 0)
			if o.Disk != nil {
				q = quota(3<<20, 6<<20, 0)
			}
			mustSetTenant(t, f.Store, "mine", q)
			keep := storetest.Chain("mine", 300) // 2.4 MiB
			mustPublish(t, mine, keep, whole)
			var wg sync.WaitGroup
			for w := range 3 {
				flood := f.WithTenant(fmt.Sprint("flood", w))
				wg.Go(func() {
					for i := range 250 {
						if _, err := flood.Publish(t.Context(), flood.Caller, storetest.Chain(fmt.Sprint(w, i), 8), whole, 0); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			st := f.Store.Status()
			if st.Totals.Tiers[evict.Host].Evicted == 0 || o.Disk != nil && st.Totals.Tiers[evict.Disk].Evicted == 0 {
				t.Errorf("the flood evicted nothing: %+v", st.Totals.Tiers)
			}
			if u := mine.Store.TenantUsage("mine"); u.Live[evict.Host] != 300*8<<10 {
				t.Errorf("%d of %d bytes are left in memory", u.Live[evict.Host], 300*8<<10)
			}
			wantPages(t, mine, keep, whole, nil)
			if o.Disk != nil {
				settle(t, f)
				if u := f.Store.TenantUsage("mine"); u.Live[evict.Disk] != 300*8<<10 {
					t.Errorf("%d of %d bytes are left on disk", u.Live[evict.Disk], 300*8<<10)
				}
			}
		})
	}
}

// What others do never takes a tenant below what it is guaranteed, quotas refuse and evict nothing for what they refuse,
// and usage never passes the tier: random operations of four tenants, whose quotas change, around the water level.
func TestCase_C29_TenantsAroundTheWaterLevelOfAStore(t *testing.T) {
	for name, policy := range map[string]func(int) evict.Policy{"default": nil, "lru": newLRU} {
		t.Run(name, func(t *testing.T) { aroundTheWaterLevel(t, policy) })
	}
}

func aroundTheWaterLevel(t *testing.T, policy func(int) evict.Policy) {
	steps := 100_000
	if testing.Short() {
		steps = 5000
	}
	const pageBytes, depth = 8 << 10, 10
	f := storetest.New(t, storetest.Options{CapacityBytes: 8 << 20, Geometry: smallPages, Shards: 2, NewPolicy: policy})
	names := []string{"a", "b", "c", "d"}
	var of []*storetest.Fixture
	for _, n := range names {
		of = append(of, f.WithTenant(n))
	}
	usage := func() (u []core.TenantUsage) {
		for _, n := range names {
			u = append(u, f.Store.TenantUsage(n))
		}
		return u
	}
	chains := map[string][]byte{}
	chainOf := func(i, c int) []byte {
		k := fmt.Sprint(i, "/", c)
		if chains[k] == nil {
			chains[k] = storetest.Chain(k, depth)
		}
		return chains[k]
	}
	rnd := rand.New(rand.NewPCG(29, 2))
	seen := map[reason.Reason]int{}
	guarantees := []uint64{0, 0, 100*pageBytes + 1, 200 * pageBytes, 450*pageBytes - 1}
	refused := 0
	var leases []func()
	for n := range steps {
		i := rnd.IntN(len(of))
		x := of[i]
		run := chainOf(i, rnd.IntN(40))
		run = run[:32*(1+rnd.IntN(depth))]
		before := usage()
		switch op := rnd.IntN(100); {
		case op < 55:
			evicted := f.Store.Status().Totals.Evicted
			rs, err := x.Publish(t.Context(), x.Caller, run, whole, 0)
			if err != nil {
				t.Fatal(err)
			}
			granted, hole, busy := uint64(0), false, false
			for j, r := range rs {
				switch {
				case r.Outcome == core.Committed:
					if granted++; hole {
						t.Fatalf("step %d: page %d was taken behind one that was not", n, j)
					}
				case r.Outcome == core.Refused:
					seen[r.Reason]++
					hole, busy = true, busy || r.Reason == reason.Busy
				}
			}
			if q := before[i].Quota; q != 0 && granted > 0 && f.Store.TenantUsage(names[i]).Charged > q {
				t.Fatalf("step %d: %d bytes under a quota of %d", n, f.Store.TenantUsage(names[i]).Charged, q)
			}
			if gone := f.Store.Status().Totals.Evicted - evicted; gone > granted && !busy {
				t.Fatalf("step %d: %d pages evicted for %d", n, gone, granted)
			}
		case op < 65:
			l, why, err := f.Store.Lookup(t.Context(), x.Caller, []core.Run{x.Run(run)}, whole, time.Minute, evict.Hint{})
			if err != nil {
				t.Fatal(err)
			}
			if why == reason.None && l.Lease != (core.LeaseID{}) {
				leases = append(leases, func() { f.Store.Release(x.Caller, x.Namespace.State.ID, 1, l.Lease, nil) })
			}
		case op < 75:
			if k := len(leases); k > 0 {
				leases[k-1]()
				leases = leases[:k-1]
			}
		case op < 90:
			if _, _, err := f.Store.Touch(t.Context(), x.Caller, []core.Run{x.Run(run)}, evict.Hint{}, false); err != nil {
				t.Fatal(err)
			}
		case op < 98:
			rest := chainOf(i, rnd.IntN(40))[len(run)-32:] // and all that stands on it
			if _, _, err := f.Store.Delete(t.Context(), x.Caller, []core.Run{x.Run(rest)}); err != nil {
				t.Fatal(err)
			}
		default:
			if f.Store.SetTenant(names[i], quota(guarantees[rnd.IntN(5)], 0, uint64(rnd.IntN(4))*150*pageBytes)) != nil {
				refused++
			}
		}
		for j, u := range usage() {
			least := min(before[j].Live[evict.Host], before[j].Guarantee[evict.Host])
			if j != i && u.Live[evict.Host] < least {
				t.Fatalf("step %d: tenant %s went from %d to %d bytes of a guarantee of %d", n, names[j], before[j].Live[evict.Host], u.Live[evict.Host], u.Guarantee[evict.Host])
			}
		}
		if h, c := held(f); h > c {
			t.Fatalf("step %d: %d bytes of %d", n, h, c)
		}
	}
	if seen[reason.QuotaExceeded] == 0 || refused == 0 || f.Store.Status().Totals.Evicted == 0 {
		t.Errorf("refused %v, %d guarantees refused: a bound was never reached", seen, refused)
	}
	if n := f.Store.Status().Totals.NotWorth; n != 0 && policy != nil || n != uint64(seen[reason.NotWorth]) {
		t.Errorf("%d pages not worth it, %d times said", n, seen[reason.NotWorth])
	}
}
