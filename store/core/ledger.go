package core

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quire-kv/quire/evict"
)

// Ledger is the one thing that the shards of a node share: counters against bounds that no shard may pass alone.
// Take either takes all or nothing. Safe for concurrent use; under the simulator it is as deterministic as the
// order of Steps.
type Ledger struct {
	limits Limits
	seq    atomic.Uint64 // of tokens and leases: unique in the node

	mu         sync.Mutex // guards all below
	pages      uint64
	extents    uint64
	pins       tierBytes
	principals map[Principal]tierBytes
	sessions   map[Session]tierBytes
	tenants    tenantBook
}

// Limits of a Ledger; 0 is no limit.
type Limits struct {
	Pages, Extents uint64                 // metadata records of the node
	Capacity       [evict.NumTiers]uint64 // bytes of each tier: leases and pins together take at most half
	// Shares of a tier that pins may take; zero values are the documented 1/2, 1/4, 1/8.
	TierShare, PrincipalShare, SessionShare float64
}

type tierBytes [evict.NumTiers]uint64

// payer is whom a pinned page is charged to.
type payer struct {
	principal Principal
	session   Session // 0: the principal alone
}

// NewLedger returns an empty ledger.
func NewLedger(l Limits) *Ledger {
	for _, d := range []struct {
		share *float64
		def   float64
	}{{&l.TierShare, 1. / 2}, {&l.PrincipalShare, 1. / 4}, {&l.SessionShare, 1. / 8}} {
		if *d.share <= 0 || *d.share > 1 {
			*d.share = d.def
		}
	}
	return &Ledger{limits: l, principals: map[Principal]tierBytes{}, sessions: map[Session]tierBytes{}, tenants: newTenantBook()}
}

// next is a number never given before.
func (l *Ledger) next() uint64 { return l.seq.Add(1) }

// room says whether so many records could be taken now.
func (l *Ledger) room(pages, extents uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fits(pages, extents)
}

func (l *Ledger) fits(pages, extents uint64) bool {
	return (l.limits.Pages == 0 || l.pages+pages <= l.limits.Pages) &&
		(l.limits.Extents == 0 || l.extents+extents <= l.limits.Extents)
}

// takeRecords takes metadata records, all or nothing.
func (l *Ledger) takeRecords(pages, extents uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.fits(pages, extents) {
		return false
	}
	l.pages, l.extents = l.pages+pages, l.extents+extents
	return true
}

func (l *Ledger) giveRecords(pages, extents uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages, l.extents = l.pages-pages, l.extents-extents
}

// takePin charges b, of pages of a, to p within the shares of tier, principal and session, and beside the guarantees
// of other tenants, all or nothing.
func (l *Ledger) takePin(p payer, a *account, b tierBytes) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.fitsPins(a, b) {
		return false
	}
	principal, session := l.principals[p.principal], l.sessions[p.session]
	for t := range b {
		if b[t] == 0 || l.limits.Capacity[t] == 0 {
			continue
		}
		capacity := float64(l.limits.Capacity[t])
		if float64(l.pins[t]+b[t]) > capacity*l.limits.TierShare ||
			float64(principal[t]+b[t]) > capacity*l.limits.PrincipalShare ||
			p.session != 0 && float64(session[t]+b[t]) > capacity*l.limits.SessionShare {
			return false
		}
	}
	l.charge(p, a, b, func(x, y uint64) uint64 { return x + y })
	return true
}

func (l *Ledger) givePin(p payer, a *account, b tierBytes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charge(p, a, b, func(x, y uint64) uint64 { return x - y })
}

func (l *Ledger) charge(p payer, a *account, b tierBytes, op func(x, y uint64) uint64) {
	l.tenants.pin(a, b, op)
	l.pins = l.pins.apply(b, op)
	setOrDrop(l.principals, p.principal, l.principals[p.principal].apply(b, op))
	if p.session != 0 {
		setOrDrop(l.sessions, p.session, l.sessions[p.session].apply(b, op))
	}
}

func (a tierBytes) apply(b tierBytes, op func(x, y uint64) uint64) tierBytes {
	for t := range a {
		a[t] = op(a[t], b[t])
	}
	return a
}

// setOrDrop keeps the map as large as what is charged.
func setOrDrop[K comparable](m map[K]tierBytes, k K, v tierBytes) {
	if v == (tierBytes{}) {
		delete(m, k)
		return
	}
	m[k] = v
}

// Check verifies that the ledger holds exactly what its shards do. shards are all that share it, and stand still.
func (l *Ledger) Check(shards ...*Shard) error {
	want := NewLedger(Limits{})
	for _, s := range shards {
		s.recountInto(want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pages != want.pages || l.extents != want.extents || l.pins != want.pins {
		return fmt.Errorf("ledger: pages %d, extents %d, pins %v; shards hold %d, %d, %v",
			l.pages, l.extents, l.pins, want.pages, want.extents, want.pins)
	}
	if len(l.principals) != len(want.principals) || len(l.sessions) != len(want.sessions) {
		return fmt.Errorf("ledger: %d principals and %d sessions are charged, shards say %d and %d",
			len(l.principals), len(l.sessions), len(want.principals), len(want.sessions))
	}
	if err := l.tenants.check(&want.tenants); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	for p, b := range want.principals { // order does not matter: any difference is an error
		if l.principals[p] != b {
			return fmt.Errorf("ledger: principal %d is charged %v, shards say %v", p, l.principals[p], b)
		}
	}
	for p, b := range want.sessions {
		if l.sessions[p] != b {
			return fmt.Errorf("ledger: session %d is charged %v, shards say %v", p, l.sessions[p], b)
		}
	}
	return nil
}
