package server

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/rpc"
)

// tenants keeps the store told of every tenant's quota.
type tenants struct {
	store    *store.Store
	registry *namespace.Registry

	mu      sync.Mutex // serialises sync, and guards what follows
	told    map[string]namespace.TenantQuota
	trouble map[string]string // why the store refused a quota that is set
}

func newTenants(s *store.Store, r *namespace.Registry) *tenants {
	return &tenants{store: s, registry: r, told: map[string]namespace.TenantQuota{}, trouble: map[string]string{}}
}

// sync tells the store what changed since it was told last: what is taken away first, so that it makes room for what is
// given. The registry knows that all guarantees fit the node that took them; a node that is smaller, or has become
// so, keeps those that fit, by name.
func (t *tenants) sync() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := map[string]namespace.TenantQuota{}
	for _, r := range t.registry.Tenants() {
		now[r.Name] = r.TenantQuota
	}
	for name := range t.told { // whatever the order: each only gives back
		if _, ok := now[name]; !ok && t.store.SetTenant(name, core.TenantQuota{}) == nil {
			delete(t.told, name)
			delete(t.trouble, name)
		}
	}
	for _, gives := range []bool{false, true} {
		for _, name := range slices.Sorted(maps.Keys(now)) {
			q, was := now[name], t.told[name]
			if q == was && t.trouble[name] == "" || gives == shrinks(q, was) {
				continue
			}
			if err := t.store.SetTenant(name, quotaOf(q)); err != nil {
				t.trouble[name] = "not kept: " + err.Error()
				continue
			}
			t.told[name] = q
			delete(t.trouble, name)
		}
	}
}

// shrinks says whether a change guarantees no more than before, of anything.
func shrinks(q, was namespace.TenantQuota) bool {
	return q.GuaranteeBytes <= was.GuaranteeBytes && q.DiskGuaranteeBytes <= was.DiskGuaranteeBytes
}

func quotaOf(q namespace.TenantQuota) (out core.TenantQuota) {
	out.Guarantee[evict.Host], out.Guarantee[evict.Disk] = q.GuaranteeBytes, q.DiskGuaranteeBytes
	out.Quota = q.QuotaBytes
	return out
}

func (t *tenants) troubleOf(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trouble[name]
}

// followTenants tells the store of what is changed elsewhere, until ctx ends.
func (n *node) followTenants(ctx context.Context) {
	for ctx.Err() == nil {
		err := n.registry.WatchTenants(ctx, func() error {
			n.tenants.sync()
			return nil
		})
		if errors.Is(err, namespace.ErrClosed) || !n.pause(ctx, refollowAfter) {
			return
		}
	}
}

// SetTenant changes what a tenant may hold. It is in force here when it is answered.
func (s adminService) SetTenant(ctx context.Context, r *quirev1.SetTenantRequest) (*quirev1.SetTenantResponse, error) {
	who, err := operator(ctx)
	if err != nil {
		return nil, err
	}
	n := s.node
	if _, err := n.registry.SetTenant(ctx, who, r.Tenant, n.room(), func(q namespace.TenantQuota) namespace.TenantQuota {
		if r.GuaranteeBytes != nil {
			q.GuaranteeBytes = *r.GuaranteeBytes
		}
		if r.DiskGuaranteeBytes != nil {
			q.DiskGuaranteeBytes = *r.DiskGuaranteeBytes
		}
		if r.QuotaBytes != nil {
			q.QuotaBytes = *r.QuotaBytes
		}
		return q
	}); err != nil {
		return nil, rpc.Refused(err)
	}
	n.tenants.sync()
	if trouble := n.tenants.troubleOf(r.Tenant); trouble != "" {
		return nil, rpc.Errorf(reason.LimitExceeded, "the registry took it, this node did not: %s", trouble)
	}
	for _, t := range n.registry.Tenants() {
		if t.Name == r.Tenant {
			return &quirev1.SetTenantResponse{Tenant: n.tenantToProto(&t)}, nil
		}
	}
	return &quirev1.SetTenantResponse{Tenant: n.tenantToProto(&namespace.TenantRecord{Name: r.Tenant})}, nil
}

// room is what this node's tiers hold.
func (n *node) room() (r namespace.TierBytes) {
	for _, t := range n.store.Status().Tiers {
		switch t.Tier {
		case evict.Host:
			r.Memory = uint64(t.Capacity)
		case evict.Disk:
			r.Disk = uint64(t.Capacity)
		}
	}
	return r
}

// ListTenants lists those with a quota, and those with pages or namespaces.
func (s adminService) ListTenants(ctx context.Context, _ *quirev1.ListTenantsRequest) (*quirev1.ListTenantsResponse, error) {
	who, err := admin(ctx)
	if err != nil {
		return nil, err
	}
	n := s.node
	all := n.registry.Tenants()
	have := map[string]bool{}
	for i := range all {
		have[all[i].Name] = true
	}
	for _, ns := range n.registry.List(everything, "", false) {
		if !have[ns.Tenant] {
			have[ns.Tenant] = true
			all = append(all, namespace.TenantRecord{Name: ns.Tenant})
		}
	}
	if who.Role != namespace.RoleOperator { // the others are nobody's business
		all = slices.DeleteFunc(all, func(t namespace.TenantRecord) bool { return t.Name != who.Tenant })
	}
	slices.SortFunc(all, func(a, b namespace.TenantRecord) int { return cmp.Compare(a.Name, b.Name) })
	out := &quirev1.ListTenantsResponse{}
	for i := range all {
		out.Tenants = append(out.Tenants, n.tenantToProto(&all[i]))
	}
	return out, nil
}

func (n *node) tenantToProto(t *namespace.TenantRecord) *quirev1.Tenant {
	u := n.store.TenantUsage(t.Name)
	return &quirev1.Tenant{
		Tenant: t.Name, GuaranteeBytes: t.GuaranteeBytes, DiskGuaranteeBytes: t.DiskGuaranteeBytes, QuotaBytes: t.QuotaBytes,
		MemoryBytes: u.Live[evict.Host], DiskBytes: u.Live[evict.Disk], ChargedBytes: u.Charged,
		PinnedBytes: u.Pinned[evict.Host] + u.Pinned[evict.Disk], Trouble: n.tenants.troubleOf(t.Name), EvictedPages: u.Evicted,
	}
}
