package core

import (
	"fmt"
	"sync/atomic"

	"github.com/quire-kv/quire/evict"
)

// TenantQuota is what a tenant may hold in a node.
//
//	0          guarantee                      quota
//	|--------------|----------------------------|
//	  not evicted    burst: evicted before all    refused
//	  for others     that is within a guarantee
type TenantQuota struct {
	// Guarantee is bytes of each tier that are the tenant's while it wants them. Without one, all that it has is burst.
	Guarantee [evict.NumTiers]uint64
	// Quota is bytes that its pages may take, each extent once however many copies it has; 0: no bound.
	Quota uint64
}

func (q *TenantQuota) guaranteed() bool { return q.Guarantee != [evict.NumTiers]uint64{} }

// GuaranteeError refuses a guarantee that the tier cannot keep beside those that others have.
type GuaranteeError struct {
	Tier                    evict.Tier
	Asked, Others, Capacity uint64 // bytes
}

func (e *GuaranteeError) Error() string {
	return fmt.Sprintf("a guarantee of %d bytes in %v: others have %d, the tier is %d", e.Asked, e.Tier, e.Others, e.Capacity)
}

// SharesError refuses a guarantee when MaxShares-1 tenants have one.
type SharesError struct{}

func (SharesError) Error() string {
	return fmt.Sprintf("%d tenants have a guarantee", evict.MaxShares-1)
}

// account is what a tenant holds in all shards. It lives while a shard has a namespace of the tenant, or it has a quota.
type account struct {
	share   atomic.Uint32 // evict.Share; read beside the lock
	evicted atomic.Uint64 // pages whose last copy went for room; likewise

	// Guarded by Ledger.mu.
	refs    int // epochs
	quota   TenantQuota
	live    tierBytes // of extents in their pages, grants and copies under way included: what a guarantee keeps
	held    tierBytes // these, and what only readers and leases keep: what a guarantee is used up by
	charged uint64    // of held, each extent once
	pinned  tierBytes // by whomever
	across  tierSet   // where the next page to go lies across the end of the guarantee, and stays; until it holds more
}

// over says whether the tenant has pages beyond its guarantee in t.
func (a *account) over(t evict.Tier) bool {
	return a.live[t] > a.quota.Guarantee[t] && !a.across.has(t)
}

// bursts says whether what the tenant asks for in t comes on top of its guarantee.
func (a *account) bursts(t evict.Tier) bool { return a.held[t] > a.quota.Guarantee[t] }

// excess is pinned bytes that no guarantee covers.
func (a *account) excess(t evict.Tier) uint64 {
	return a.pinned[t] - min(a.pinned[t], a.quota.Guarantee[t])
}

// tenantBook is the part of a Ledger that is about tenants; guarded by its mu.
type tenantBook struct {
	accounts map[uint32]*account
	shares   [evict.MaxShares]uint32 // tenant by share; 0: free. Share 0 is nobody's
	within   [evict.NumTiers]evict.Shares
	over     [evict.NumTiers]int // accounts with pages beyond their guarantee
	promised tierBytes           // sum of guarantees
	excess   tierBytes           // sum over accounts
}

func newTenantBook() tenantBook { return tenantBook{accounts: map[uint32]*account{}} }

// of finds or makes an account.
func (b *tenantBook) of(tenant uint32) *account {
	a := b.accounts[tenant]
	if a == nil {
		a = &account{}
		b.accounts[tenant] = a
	}
	return a
}

// addLive changes what a guarantee keeps by n bytes, which may wrap around.
func (b *tenantBook) addLive(a *account, t evict.Tier, n uint64) {
	was := a.over(t)
	if more := a.live[t] + n; more > a.live[t] {
		a.across &^= 1 << t
	}
	a.live[t] += n
	b.crossed(a, t, was)
}

// crossed notes that a tenant may have come to be beyond its guarantee, or within it.
func (b *tenantBook) crossed(a *account, t evict.Tier, was bool) {
	over := a.over(t)
	if over == was {
		return
	}
	if b.over[t]--; over {
		b.over[t] += 2
	}
	if share := evict.Share(a.share.Load()); share != 0 {
		b.within[t].Set(share, !over)
	}
}

// pin changes what is pinned of a tenant's pages.
func (b *tenantBook) pin(a *account, n tierBytes, op func(x, y uint64) uint64) {
	for t := range evict.NumTiers {
		b.excess[t] -= a.excess(t)
		a.pinned[t] = op(a.pinned[t], n[t])
		b.excess[t] += a.excess(t)
	}
}

// sum adds an account to the sums, or takes it out.
func (b *tenantBook) sum(a *account, sign int) {
	share := evict.Share(a.share.Load())
	for t := range evict.NumTiers {
		if a.over(t) {
			b.over[t] += sign
		}
		if share != 0 {
			b.within[t].Set(share, sign > 0 && !a.over(t))
		}
		b.promised[t] += uint64(sign) * a.quota.Guarantee[t]
		b.excess[t] += uint64(sign) * a.excess(t)
	}
}

// SetTenant sets what a tenant may hold. A *GuaranteeError or SharesError changes nothing. The shards must be told by
// TenantsChanged.
func (l *Ledger) SetTenant(tenant uint32, q TenantQuota) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.tenants
	a := b.of(tenant)
	defer l.drop(tenant, a)
	for t := range q.Guarantee {
		others := b.promised[t] - a.quota.Guarantee[t]
		if c := l.limits.Capacity[t]; q.Guarantee[t] > a.quota.Guarantee[t] && c != 0 && (q.Guarantee[t] > c || others > c-q.Guarantee[t]) {
			return &GuaranteeError{evict.Tier(t), q.Guarantee[t], others, c}
		}
	}
	share := a.share.Load()
	switch {
	case !q.guaranteed():
		share = 0
	case share == 0:
		for share = 1; share < evict.MaxShares && b.shares[share] != 0; share++ {
		}
		if share == evict.MaxShares {
			return SharesError{}
		}
	}
	b.sum(a, -1)
	b.shares[a.share.Load()], b.shares[share] = 0, tenant
	b.shares[0] = 0
	a.quota, a.across = q, 0
	// Until the shards have gone over its pages, some are in the leaf set of their old share: with everybody's, or in one
	// that is nobody's now and therefore in no set of those within their guarantee.
	a.share.Store(share)
	b.sum(a, 1)
	return nil
}

// drop forgets an account that nobody needs. Under mu.
func (l *Ledger) drop(tenant uint32, a *account) {
	if a.refs == 0 && a.quota == (TenantQuota{}) {
		delete(l.tenants.accounts, tenant)
	}
}

// account finds or makes the account of a tenant, for an epoch that gives it back.
func (l *Ledger) account(tenant uint32) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.tenants.of(tenant)
	a.refs++
	return a
}

func (l *Ledger) giveAccount(tenant uint32, a *account) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.refs--
	l.drop(tenant, a)
}

// takeBytes charges an extent to its tenant; false when that is bounded and would pass its quota. live: it stands in its
// page. once: no other copy of it is charged.
func (l *Ledger) takeBytes(a *account, t evict.Tier, n uint64, live, once, bounded bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := a.quota.Quota; once && bounded && q != 0 && a.charged+n > q {
		return false
	}
	a.held[t] += n
	if once {
		a.charged += n
	}
	if live {
		l.tenants.addLive(a, t, n)
	}
	return true
}

// endLive takes bytes out of what a guarantee keeps: only readers and leases keep them from now on.
func (l *Ledger) endLive(a *account, t evict.Tier, n uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenants.addLive(a, t, -n)
}

// giveBytes ends the charge of an extent that is not live.
func (l *Ledger) giveBytes(a *account, t evict.Tier, n uint64, once bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.held[t] -= n
	if once {
		a.charged -= n
	}
}

// fitsPins says whether pins of b of a tenant's pages leave the guarantees of the others whole. Under mu.
func (l *Ledger) fitsPins(a *account, b tierBytes) bool {
	book := &l.tenants
	for t := range b {
		c := l.limits.Capacity[t]
		if b[t] == 0 || c == 0 || book.promised[t] == 0 {
			continue
		}
		after := a.pinned[t] + b[t]
		more := after - min(after, a.quota.Guarantee[t]) - a.excess(evict.Tier(t))
		if free := c - min(c, book.promised[t]); more > 0 && book.excess[t]+more > free {
			return false
		}
	}
	return true
}

// spares says whether a tenant that is beyond its guarantee in t stays at it without n bytes. If not, it counts as within
// until it holds more: what is guaranteed is kept to the byte.
func (l *Ledger) spares(a *account, t evict.Tier, n uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.live[t] >= a.quota.Guarantee[t]+n {
		return true
	}
	was := a.over(t)
	a.across |= 1 << t
	l.tenants.crossed(a, t, was)
	return false
}

// among is the shares of which leaves may go from t for a tenant:
//
//	own false  all that are beyond their guarantee
//	own true   of a tenant that is within its own: its own leaves, or everybody's when nobody is beyond; of one that is
//	           beyond by less than the page that comes next: its own; else none
//
// So nobody's guarantee is touched while somebody is beyond theirs, and never for who is beyond their own.
func (l *Ledger) among(tenant uint32, t evict.Tier, own bool) (set evict.Shares, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.tenants
	if !own {
		for i, w := range b.within[t] {
			set[i] = ^w
		}
		return set, true
	}
	a := b.accounts[tenant]
	switch {
	case a != nil && a.bursts(t) && !a.across.has(t):
		return set, false
	case a != nil && a.bursts(t): // by less than a page: it makes room by its own alone
	case b.over[t] == 0:
		return evict.AllShares(), true
	case a == nil || a.share.Load() == 0:
		return set, false
	}
	set.Set(evict.Share(a.share.Load()), true)
	return set, true
}

// bursts says whether a tenant is beyond its guarantee in t.
func (l *Ledger) bursts(tenant uint32, t evict.Tier) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.tenants.accounts[tenant]
	return a == nil || a.bursts(t)
}

// MayTake is the highest score of what r may evict. What a tenant is guaranteed it need not be worth.
func (l *Ledger) MayTake(r Reclaim) evict.Score {
	if r.Judge && (r.Own || l.bursts(r.Tenant, r.Tier)) {
		return r.Worth
	}
	return evict.MaxScore
}

// Guarantees is the sum of the guarantees in t.
func (l *Ledger) Guarantees(t evict.Tier) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenants.promised[t]
}

// TenantUsage is what a tenant holds in a node.
type TenantUsage struct {
	TenantQuota
	Live    [evict.NumTiers]uint64 // of its pages: what its guarantee keeps
	Pinned  [evict.NumTiers]uint64
	Charged uint64 // each extent once: what its quota bounds
	Evicted uint64 // pages whose last copy went for room, since the tenant has a namespace or a quota here
}

// Tenant is what a tenant holds, and may hold.
func (l *Ledger) Tenant(tenant uint32) (u TenantUsage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.tenants.accounts[tenant]; a != nil {
		u = TenantUsage{a.quota, a.live, a.pinned, a.charged, a.evicted.Load()}
	}
	return u
}

// checkTenants holds the accounts against a recount. Under mu.
func (b *tenantBook) check(want *tenantBook) error {
	sums := newTenantBook()
	for tenant, a := range b.accounts { // order does not matter: any difference is an error
		w := want.accounts[tenant]
		if w == nil {
			w = &account{}
		}
		if a.live != w.live || a.held != w.held || a.charged != w.charged || a.pinned != w.pinned || a.refs != w.refs {
			return fmt.Errorf("tenant %d: live %v held %v charged %d pinned %v refs %d, shards say %v %v %d %v %d", tenant,
				a.live, a.held, a.charged, a.pinned, a.refs, w.live, w.held, w.charged, w.pinned, w.refs)
		}
		sums.sum(a, 1)
	}
	for tenant := range want.accounts {
		if b.accounts[tenant] == nil {
			return fmt.Errorf("tenant %d has no account", tenant)
		}
	}
	if sums.within != b.within || sums.over != b.over || sums.promised != b.promised || sums.excess != b.excess {
		return fmt.Errorf("tenants: within %v over %v promised %v excess %v, counted %v %v %v %v",
			b.within, b.over, b.promised, b.excess, sums.within, sums.over, sums.promised, sums.excess)
	}
	return nil
}
