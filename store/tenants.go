package store

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/store/core"
)

// SetTenant sets what a tenant may hold in this node; the zero quota takes away what was set. A guarantee that a tier
// cannot keep beside those of others is a *core.GuaranteeError, or a core.SharesError where too many have one, and changes
// nothing.
func (s *Store) SetTenant(name string, q core.TenantQuota) error {
	for t, n := range q.Guarantee {
		if n > 0 && s.o.Tiers[t] == nil {
			return &core.GuaranteeError{Tier: evict.Tier(t), Asked: n}
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := s.ledger.SetTenant(s.Tenant(name), q); err != nil {
		return err
	}
	for _, sh := range s.shards {
		s.step(sh, core.TenantsChanged{})
	}
	return nil
}

// TenantUsage is what a tenant holds, and may hold, in this node.
func (s *Store) TenantUsage(name string) core.TenantUsage {
	s.names.mu.RLock()
	n, ok := s.names.tenants[name]
	s.names.mu.RUnlock()
	if !ok {
		return core.TenantUsage{}
	}
	return s.ledger.Tenant(n)
}
