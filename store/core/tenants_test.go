package core

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

const tenantPage = 12288 // bytes of a page of testGeometry in a tier

func hostGuarantee(pages uint64) (q TenantQuota) {
	q.Guarantee[evict.Host] = pages * tenantPage
	return q
}

func TestGuaranteesFitTheTier(t *testing.T) {
	l := NewLedger(Limits{Capacity: [evict.NumTiers]uint64{evict.Host: 100}})
	set := func(tenant uint32, host, disk uint64) error {
		return l.SetTenant(tenant, TenantQuota{Guarantee: [evict.NumTiers]uint64{evict.Host: host, evict.Disk: disk}})
	}
	for i, step := range []struct {
		tenant     uint32
		host, disk uint64
		want       *GuaranteeError
	}{
		{1, 101, 0, &GuaranteeError{evict.Host, 101, 0, 100}},
		{1, 60, 1 << 50, nil}, // a tier without a limit
		{2, 41, 0, &GuaranteeError{evict.Host, 41, 60, 100}},
		{2, 40, 0, nil},
		{2, math.MaxUint64, 0, &GuaranteeError{evict.Host, math.MaxUint64, 60, 100}},
		{1, 50, 0, nil}, // less is always taken
		{2, 50, 0, nil},
		{1, 0, 0, nil},
		{3, 50, 0, nil},
	} {
		var got *GuaranteeError
		if err := set(step.tenant, step.host, step.disk); errors.As(err, &got) != (err != nil) || (got == nil) != (step.want == nil) ||
			got != nil && *got != *step.want {
			t.Errorf("step %d: %v, want %v", i, err, step.want)
		}
	}
	if n := len(l.tenants.accounts); n != 2 || l.Guarantees(evict.Host) != 100 {
		t.Errorf("%d accounts, %d bytes are guaranteed", n, l.Guarantees(evict.Host))
	}
	l = NewLedger(Limits{})
	for tenant := uint32(1); tenant < evict.MaxShares; tenant++ {
		if err := set(tenant, 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := set(9999, 1, 0); !errors.As(err, &SharesError{}) || len(l.tenants.accounts) != evict.MaxShares-1 {
		t.Errorf("one guarantee too many: %v", err)
	}
	if set(7, 0, 0) != nil || set(9999, 1, 0) != nil {
		t.Error("a share that was given back is not given again")
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
}

// tenantWorld is a world with one namespace for each tenant, from 1, in a host tier of so many pages.
func tenantWorld(t fatalist, pages int64, p evict.Policy, quotas ...TenantQuota) (*world, []page.Family) {
	capacity := [evict.NumTiers]uint64{evict.Host: uint64(pages) * tenantPage}
	w := newWorld(t, pages*tenantPage, Options{Ledger: NewLedger(Limits{Capacity: capacity}), Policy: p, SweepRecords: 1 << 10})
	families := make([]page.Family, len(quotas))
	for i, q := range quotas {
		tenant := uint32(i + 1)
		if err := w.s.o.Ledger.SetTenant(tenant, q); err != nil {
			t.Fatalf("tenant %d: %v", tenant, err)
		}
		st := testNamespace(byte(tenant), 1)
		st.Tenant = tenant
		w.do(NamespaceChanged{st})
		families[i] = familyIn(st, testGroup)
	}
	w.do(TenantsChanged{})
	w.advance(time.Second)
	return w, families
}

// pagesOf is how many pages each tenant has in Host.
func (w *world) pagesOf(tenants int) (n []int) {
	for tenant := range tenants {
		n = append(n, int(w.s.o.Ledger.Tenant(uint32(tenant + 1)).Live[evict.Host]/tenantPage))
	}
	return n
}

// offer publishes whole pages of a chain as far as they are granted, and says how many were and why not more.
func (w *world) offer(b Begin) (granted int, why reason.Reason) {
	w.t.Helper()
	r := w.begin(b)
	var pages []uint32
	for i, res := range r.Results {
		switch {
		case res.Outcome == Granted:
			pages = append(pages, uint32(i))
		case res.Outcome == Refused && why == reason.None:
			why = res.Reason
		}
	}
	if len(pages) > 0 {
		w.commit(b.Run.Family, r.Token, pages...)
	}
	return len(pages), why
}

// A flood takes what is beyond guarantees, whoever has it, and nothing else; expired pages go before all.
func TestTenantFlood(t *testing.T) {
	w, f := tenantWorld(t, 100, nil, hostGuarantee(30), hostGuarantee(20), TenantQuota{})
	for d := range 40 { // tenant 1 is the oldest: alone LRU would take all of it first
		w.publish(f[0], 0, d, d+1)
	}
	w.now = w.now.Add(time.Hour)
	w.publish(f[1], 0, 0, 15)
	expiring := w.beginEvent(chain(f[1], 1, 0, 5), page.View{})
	for i := range expiring.Pages {
		expiring.Pages[i].Expiry = w.wall + 2
	}
	w.publishView(expiring)
	w.publish(f[2], 0, 0, 40)
	w.advance(time.Minute) // tenant 2 has what it may, a quarter of it expired and swept
	if n := w.pagesOf(3); n[0] != 40 || n[1] != 15 || n[2] != 40 {
		t.Fatalf("pages %d", n)
	}
	for c := 1; c < 40; c++ {
		if n, why := w.offer(w.beginEvent(chain(f[2], c, 0, 10), page.View{})); n != 10 {
			t.Fatalf("flood: %d granted, %v", n, why)
		}
		if n := w.pagesOf(3); n[0] < 30 || n[1] != 15 || n[0]+n[1]+n[2] > 100 {
			t.Fatalf("pages %d", n)
		}
	}
	if n := w.pagesOf(3); n[0] != 30 || w.leading(f[0], 0, 0, 40) != 30 || n[2] != 55 {
		t.Errorf("pages %d after the flood", n)
	}
	for i, want := range []uint64{10, 0, w.s.Totals().Evicted - 10} {
		if u := w.s.o.Ledger.Tenant(uint32(i + 1)); u.Evicted != want {
			t.Errorf("%d pages of tenant %d were evicted, want %d", u.Evicted, i+1, want)
		}
	}
	if n, why := w.offer(w.beginEvent(chain(f[1], 2, 0, 10), page.View{})); n != 10 || w.pagesOf(3)[1] != 20 || w.leading(f[1], 2, 0, 10) != 10 {
		t.Errorf("a tenant comes for what it is guaranteed: %d granted, %v, pages %d", n, why, w.pagesOf(3))
	}
	w.check()
}

// A guarantee that ends within a page is kept to the byte: that page stays, and makes way only for another of its tenant.
func TestGuaranteeEndsWithinAPage(t *testing.T) {
	q := hostGuarantee(10)
	q.Guarantee[evict.Host] += tenantPage / 2
	w, f := tenantWorld(t, 30, nil, q, TenantQuota{}, hostGuarantee(3))
	for d := range 20 {
		w.publish(f[0], 0, d, d+1)
	}
	w.now = w.now.Add(time.Hour)
	for c := range 10 {
		if n, why := w.offer(w.beginEvent(chain(f[1], c, 0, 8), page.View{})); n != 8 {
			t.Fatalf("flood: %d granted, %v", n, why)
		}
	}
	if n := w.pagesOf(3); n[0] != 11 || n[1] != 19 {
		t.Fatalf("pages %d after the flood", n)
	}
	w.publish(f[0], 1, 0, 2) // it has come back for more, and the others are beyond
	w.publish(f[1], 20, 0, 4)
	if n := w.pagesOf(3); n[0] != 11 || n[1] != 19 {
		t.Errorf("pages %d after the next flood", n)
	}
	w.do(Delete{Ticket: w.ticket(), Runs: []Run{chain(f[1], 20, 0, 4)}})
	for c := range 10 {
		w.do(Delete{Ticket: w.ticket(), Runs: []Run{chain(f[1], c, 0, 8)}})
	}
	w.publish(f[2], 0, 0, 3)
	w.tier.capacity = 14 * tenantPage // alone with one that is within its own
	if n, why := w.offer(w.beginEvent(chain(f[0], 2, 0, 5), page.View{})); n != 5 {
		t.Errorf("%d of 5 pages granted in place of its own: %v", n, why)
	}
	if n := w.pagesOf(3); n[0] != 11 || n[2] != 3 {
		t.Errorf("pages %d", n)
	}
	w.check()
}

// Whose readers still hold what is deleted is beyond its guarantee though its pages are within: it makes room by its own pages,
// page after page, and by nobody else's.
func TestTenantWhoseReadersHoldMakesRoomByItsOwn(t *testing.T) {
	q := hostGuarantee(10)
	q.Guarantee[evict.Host] += tenantPage / 2
	w, f := tenantWorld(t, 14, nil, q, hostGuarantee(3))
	w.publish(f[0], 0, 0, 11)
	w.publish(f[1], 0, 0, 3)
	r := w.read(f[0], 1, LeaseID{}, page.View{}, 0, 9, 11)
	w.delete(f[0], 0, 9, 11)
	if n, why := w.offer(w.beginEvent(chain(f[0], 1, 0, 2), page.View{})); n != 2 {
		t.Errorf("%d of 2 pages granted: %v", n, why)
	}
	if n := w.pagesOf(2); n[0] != 9 || n[1] != 3 || w.leading(f[0], 0, 0, 9) != 7 {
		t.Errorf("pages %d, %d of the old ones", n, w.leading(f[0], 0, 0, 9))
	}
	w.readDone(r.Ticket)
	w.check()
}

// What has expired goes for anybody, though its tenant has a guarantee and no sweep was there yet: neither of the time, nor of
// the guarantee.
func TestWhatHasExpiredGoesWithinAGuarantee(t *testing.T) {
	w, f := tenantWorld(t, 5, nil, TenantQuota{}, TenantQuota{})
	b := w.beginEvent(chain(f[0], 0, 0, 3), page.View{})
	b.Pages[2].Expiry = w.wall + 1
	w.publishView(b)
	w.publish(f[1], 0, 0, 2)
	if err := w.s.o.Ledger.SetTenant(1, hostGuarantee(5)); err != nil {
		t.Fatal(err)
	}
	w.now, w.wall = w.now.Add(2*time.Second), w.wall+2
	w.do(Reclaim{Tier: evict.Host, Bytes: tenantPage, Tenant: 2})
	if w.reclaimed != tenantPage || w.tiersOf(f[0], 0, 2) != "" || w.leading(f[0], 0, 0, 3) != 2 {
		t.Errorf("%d bytes, %d pages of the other", w.reclaimed, w.leading(f[0], 0, 0, 3))
	}
	w.do(TenantsChanged{})
	w.tickUntilQuiet()
	w.check()
}

// Where nobody is beyond a guarantee and there is no room all the same, everybody's pages go, in the policy's order. Where
// somebody is, and nothing of theirs can go, a tenant within its guarantee takes its own.
func TestTenantsWithinTheirGuarantees(t *testing.T) {
	w, f := tenantWorld(t, 100, nil, hostGuarantee(50), hostGuarantee(50), TenantQuota{})
	w.publish(f[0], 0, 0, 48)
	w.now = w.now.Add(time.Hour)
	w.publish(f[1], 0, 0, 49)
	w.tier.capacity = 97 * tenantPage // what slots of other sizes waste
	if n, why := w.offer(w.beginEvent(chain(f[1], 1, 0, 1), page.View{})); n != 1 || w.pagesOf(3)[0] != 47 {
		t.Errorf("%d granted, %v, pages %d", n, why, w.pagesOf(3))
	}
	if n, why := w.offer(w.beginEvent(chain(f[2], 0, 0, 1), page.View{})); n != 0 || why != reason.Busy {
		t.Errorf("a tenant without a guarantee: %d granted, %v", n, why)
	}
	w.do(Delete{Ticket: w.ticket(), Runs: []Run{chain(f[1], 1, 0, 1), chain(f[1], 0, 47, 49)}})
	held := w.begin(w.beginEvent(chain(f[2], 0, 0, 3), page.View{})) // open grants cannot go
	if n, why := w.offer(w.beginEvent(chain(f[0], 1, 0, 1), page.View{})); n != 1 || w.pagesOf(3)[0] != 47 || w.leading(f[1], 0, 0, 49) != 47 {
		t.Errorf("%d granted, %v, pages %d", n, why, w.pagesOf(3))
	}
	w.do(Abort{Token: held.Token})
	w.check()
}

// Pins take no more beyond their tenant's guarantee than what is guaranteed to nobody.
func TestPinsLeaveGuaranteesWhole(t *testing.T) {
	w, f := tenantWorld(t, 100, nil, hostGuarantee(80), hostGuarantee(10), TenantQuota{})
	w.publish(f[1], 0, 0, 25)
	w.publish(f[2], 0, 0, 25)
	if r := w.lookup(f[1], 1, 0, 0, 0, 25); r.Covered[0] != 20 {
		t.Errorf("%d pages pinned, 10 are guaranteed and 10 are free", r.Covered[0])
	}
	if r := w.lookup(f[2], 2, 0, 0, 0, 25); r.Covered[0] != 0 || r.Reason != reason.Busy || r.Leading[0] != 25 {
		t.Errorf("%d pages pinned, nothing is free: %v", r.Covered[0], r.Reason)
	}
	for d := range 80 {
		if n, why := w.offer(w.beginEvent(chain(f[0], 0, d, d+1), page.View{})); n != 1 {
			t.Fatalf("page %d of a guarantee of 80: %v", d, why)
		}
	}
	if n := w.pagesOf(3); n[0] != 80 {
		t.Errorf("pages %d", n)
	}
	w.check()
}

// Guarantees that are set, taken away and given to others while pages are there.
func TestGuaranteesChange(t *testing.T) {
	w, f := tenantWorld(t, 40, nil, TenantQuota{}, TenantQuota{})
	w.publish(f[0], 0, 0, 20)
	w.now = w.now.Add(time.Second)
	w.publish(f[1], 0, 0, 20)
	w.now = w.now.Add(time.Second)
	l := w.s.o.Ledger
	if err := l.SetTenant(1, hostGuarantee(15)); err != nil {
		t.Fatal(err)
	}
	w.do(TenantsChanged{})
	w.publish(f[1], 1, 0, 19) // before the sweep: what is found in the wrong leaf set is put right
	w.advance(2 * time.Second)
	if n := w.pagesOf(2); n[0] != 15 || n[1] != 25 {
		t.Errorf("pages %d", n)
	}
	if l.SetTenant(1, TenantQuota{}) != nil || l.SetTenant(2, hostGuarantee(30)) != nil {
		t.Fatal("refused")
	}
	w.do(TenantsChanged{})
	w.check() // before the sweep: pages stand in leaf sets that were given to others, or to nobody
	w.advance(2 * time.Second)
	w.publish(f[1], 2, 0, 10)
	w.advance(time.Second)
	w.publish(f[0], 1, 0, 10)
	if n := w.pagesOf(2); n[0] != 10 || n[1] != 30 {
		t.Errorf("pages %d after the guarantee went to another", n)
	}
	w.check()
}

// Quotas and guarantees below and above the water level: what a quota refuses evicts nothing, what is evicted is room for
// what is granted, and neither swings to and fro.
func TestCase_C29_TenantsAroundTheWaterLevel(t *testing.T) {
	steps := 100_000
	if testing.Short() {
		steps = 10_000
	}
	const tierPages, chains, depth = 60, 6, 12
	w, f := tenantWorld(t, tierPages, nil, hostGuarantee(20), hostGuarantee(15), TenantQuota{}, TenantQuota{})
	rnd := rand.New(rand.NewPCG(29, 1))
	seen := map[string]int{}
	var leases []leaseOf
	for n := range steps {
		i := rnd.IntN(len(f))
		tenant, c := uint32(i+1), rnd.IntN(chains)
		from := rnd.IntN(depth)
		r := chain(f[i], c, from, from+1+rnd.IntN(depth-from))
		evicted := w.s.Totals().Evicted
		switch op := rnd.IntN(100); {
		case op < 60:
			before := w.s.o.Ledger.Tenant(tenant)
			granted, why := w.offer(w.beginEvent(r, page.View{}))
			after := w.s.o.Ledger.Tenant(tenant)
			seen["begin "+why.String()]++
			gone := int(w.s.Totals().Evicted - evicted)
			if gone > granted {
				t.Fatalf("step %d: %d pages evicted for %d granted (%v)", n, gone, granted, why)
			}
			if q := before.Quota; q != 0 && granted > 0 && before.Charged+tenantPage > q || granted > 0 && q != 0 && after.Charged > max(q, before.Charged) {
				t.Fatalf("step %d: quota %d, %d before and %d after %d pages", n, q, before.Charged, after.Charged, granted)
			}
			if why == reason.QuotaExceeded && after.Charged > before.Charged && after.Charged+tenantPage <= before.Quota && gone == 0 {
				t.Fatalf("step %d: %d bytes of a quota of %d, and refused", n, after.Charged, before.Quota)
			}
			if gone > 0 && int64(w.tier.used)+tenantPage <= w.tier.capacity-tenantPage*int64(gone) {
				t.Fatalf("step %d: %d pages evicted, and %d of %d bytes used", n, gone, w.tier.used, w.tier.capacity)
			}
		case op < 70:
			if l := w.lookup(f[i], Principal(tenant), 0, c, from, from+1); l.Lease != (LeaseID{}) {
				leases = append(leases, leaseOf{l.Lease, Principal(tenant)})
			}
		case op < 80:
			if l, ok := pick(rnd, leases); ok {
				w.do(Release{Principal: l.by, Lease: l.id})
			}
		case op < 90:
			w.do(Touch{Ticket: w.ticket(), Runs: []Run{r}})
		case op < 95:
			w.do(Delete{Ticket: w.ticket(), Runs: []Run{r}})
		case op < 98:
			w.advance(time.Duration(rnd.IntN(4000)) * time.Millisecond)
			leases = leases[:0]
		default:
			q := TenantQuota{Quota: []uint64{0, 10, 40, 70, 1000}[rnd.IntN(5)] * tenantPage}
			q.Guarantee[evict.Host] = []uint64{0, 0, 10 * tenantPage, 25*tenantPage + 1, 59*tenantPage - 1}[rnd.IntN(5)]
			if w.s.o.Ledger.SetTenant(tenant, q) != nil {
				seen["refused"]++
			}
			w.do(TenantsChanged{})
		}
		if int64(w.tier.used) > w.tier.capacity {
			t.Fatalf("step %d: %d of %d bytes", n, w.tier.used, w.tier.capacity)
		}
		if n%50 == 0 {
			w.check()
		}
	}
	w.check()
	if n := w.s.Totals().NotWorth; n != 0 {
		t.Errorf("%d pages were not worth it under LRU", n)
	}
	for _, want := range []string{"begin none", "begin quota_exceeded", "begin busy", "refused"} {
		if seen[want] == 0 {
			t.Errorf("never seen: %s (%v)", want, seen)
		}
	}
}
