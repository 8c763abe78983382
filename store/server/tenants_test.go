package server_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

func ptr(n uint64) *uint64 { return &n }

func TestTenantsAreSetAndListed(t *testing.T) {
	w := newWorld(t, server.Limits{})
	op := w.as("root", namespace.RoleOperator)
	a := w.as("a", namespace.RoleEngine).open("w1", "1")
	eyes := w.as("a", namespace.RoleReadOnly)

	if _, err := a.admin.SetTenant(ctx(t), &quirev1.SetTenantRequest{Tenant: "a", QuotaBytes: ptr(1)}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an engine sets quotas: %v", err)
	}
	if _, err := a.admin.ListTenants(ctx(t), &quirev1.ListTenantsRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an engine lists tenants: %v", err)
	}
	set := func(r *quirev1.SetTenantRequest) (*quirev1.Tenant, error) {
		got, err := op.admin.SetTenant(ctx(t), r)
		return got.GetTenant(), err
	}
	if got, err := set(&quirev1.SetTenantRequest{Tenant: "a", GuaranteeBytes: ptr(1 << 20)}); err != nil || got.GuaranteeBytes != 1<<20 || got.QuotaBytes != 0 {
		t.Fatalf("%v %v", got, err)
	}
	if got, err := set(&quirev1.SetTenantRequest{Tenant: "a", QuotaBytes: ptr(1 << 20)}); err != nil || got.GuaranteeBytes != 1<<20 || got.QuotaBytes != 1<<20 {
		t.Fatalf("what is not named stays: %v %v", got, err)
	}
	if _, err := set(&quirev1.SetTenantRequest{Tenant: "b", GuaranteeBytes: ptr(64 << 20)}); status.Code(err) != codes.OutOfRange ||
		!strings.Contains(err.Error(), "others are guaranteed 1048576") {
		t.Errorf("more than there is: %v", err)
	}

	chain := storetest.Chain("quota", 20) // 20 x 68 KiB
	begun := a.begin(chain)
	granted := 0
	for i, p := range begun.Pages {
		switch {
		case p.Outcome == quirev1.Outcome_OUTCOME_GRANTED && granted == i:
			granted++
		case p.Outcome != quirev1.Outcome_OUTCOME_REFUSED || p.Reason != quirev1.Reason_REASON_QUOTA_EXCEEDED:
			t.Errorf("page %d: %v", i, p)
		}
	}
	if granted != 15 {
		t.Errorf("%d pages granted under a quota of 1 MiB", granted)
	}
	b := w.as("b", namespace.RoleEngine).open("w1", "1")
	b.publish(storetest.Chain("b", 2))

	list := func(p *peer) map[string]*quirev1.Tenant {
		got, err := p.admin.ListTenants(ctx(t), &quirev1.ListTenantsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*quirev1.Tenant{}
		for _, x := range got.Tenants {
			out[x.Tenant] = x
		}
		return out
	}
	all := list(op)
	if len(all) != 2 || all["a"].QuotaBytes != 1<<20 || all["b"].MemoryBytes != 2*68<<10 || all["b"].ChargedBytes != 2*68<<10 || all["b"].GuaranteeBytes != 0 {
		t.Errorf("tenants %v", all)
	}
	if mine := list(eyes); len(mine) != 1 || mine["a"] == nil {
		t.Errorf("read-only sees %v", mine)
	}
	if got, err := set(&quirev1.SetTenantRequest{Tenant: "a", GuaranteeBytes: ptr(0), QuotaBytes: ptr(0)}); err != nil || got.GuaranteeBytes != 0 {
		t.Errorf("taken away: %v %v", got, err)
	}
	if len(w.registry.Tenants()) != 0 {
		t.Errorf("registry: %v", w.registry.Tenants())
	}
}

// What another process sets reaches the store, and what this node cannot keep is said.
func TestTenantsSetElsewhere(t *testing.T) {
	w := newWorld(t, server.Limits{})
	op := w.as("root", namespace.RoleOperator)
	set := func(name string, bytes uint64) {
		t.Helper()
		if _, err := w.registry.SetTenant(context.Background(), root, name, namespace.TierBytes{Memory: 1 << 30}, func(q namespace.TenantQuota) namespace.TenantQuota {
			q.GuaranteeBytes = bytes
			return q
		}); err != nil {
			t.Fatal(err)
		}
	}
	kept := func(name string) uint64 { return w.store.TenantUsage(name).Guarantee[evict.Host] }
	trouble := func(name string) string {
		got, err := op.admin.ListTenants(ctx(t), &quirev1.ListTenantsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range got.Tenants {
			if x.Tenant == name {
				return x.Trouble
			}
		}
		return "not listed"
	}
	set("a", 40<<20)
	w.eventually("a guarantee", func() bool { return kept("a") == 40<<20 })
	set("b", 50<<20) // this node has 64
	w.eventually("trouble", func() bool { return strings.Contains(trouble("b"), "not kept") })
	if kept("b") != 0 || trouble("a") != "" {
		t.Errorf("%d bytes are kept, %q", kept("b"), trouble("a"))
	}
	set("a", 1<<20)
	w.eventually("room for the other", func() bool { return kept("b") == 50<<20 && trouble("b") == "" })
	set("a", 0)
	w.eventually("no guarantee", func() bool { return kept("a") == 0 })
}

// Who has a guarantee is a label of metrics, and nobody else; what was evicted of each tenant and namespace is listed.
func TestWhatTenantsLost(t *testing.T) {
	w := newWorld(t, server.Limits{})
	op := w.as("root", namespace.RoleOperator)
	a, b := w.as("a", namespace.RoleEngine).open("w1", "1"), w.as("b", namespace.RoleEngine).open("w1", "1")
	const pageBytes, guaranteed = 68 << 10, 4 << 20
	if _, err := op.admin.SetTenant(ctx(t), &quirev1.SetTenantRequest{Tenant: "a", GuaranteeBytes: ptr(guaranteed)}); err != nil {
		t.Fatal(err)
	}
	if _, err := op.admin.SetTenant(ctx(t), &quirev1.SetTenantRequest{Tenant: "b", QuotaBytes: ptr(1 << 30)}); err != nil {
		t.Fatal(err)
	}
	const mine = 100 // 6.8 MiB
	a.publish(storetest.Chain("a", mine))
	w.clock.Advance(time.Second) // they are the oldest
	for i := range 40 {          // 85 MiB into 64
		b.publish(storetest.Chain(fmt.Sprint("b", i), 32))
	}
	lost := mine - guaranteed/pageBytes - 1 // the page across the end of the guarantee stays
	if got := w.metric("quire_tenant_evicted_pages_total", "a"); got != float64(lost) {
		t.Errorf("%v pages evicted of a, want %d", got, lost)
	}
	if got := w.metric("quire_tenant_live_bytes", "a"); got != float64((mine-lost)*pageBytes) {
		t.Errorf("%v bytes of a are live, want %d", got, (mine-lost)*pageBytes)
	}
	if got := w.metric("quire_tenant_guarantee_bytes"); got != guaranteed {
		t.Errorf("%v bytes are guaranteed", got)
	}
	all := w.metric("quire_evicted_pages_total")
	if got := w.metric("quire_tenant_evicted_pages_total"); got != float64(lost) || all <= got {
		t.Errorf("%v of %v evicted pages are of tenants with a guarantee", got, all)
	}
	listed, err := op.admin.ListTenants(ctx(t), &quirev1.ListTenantsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sum := uint64(0)
	for _, x := range listed.Tenants {
		sum += x.EvictedPages
	}
	spaces, err := op.ns.List(ctx(t), &quirev1.ListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range spaces.Namespaces {
		sum += x.Usage.EvictedPages
	}
	if sum != 2*uint64(all) {
		t.Errorf("tenants and namespaces lost %d pages, want twice %v", sum, all)
	}
	if _, err := op.admin.SetTenant(ctx(t), &quirev1.SetTenantRequest{Tenant: "a", GuaranteeBytes: ptr(0)}); err != nil {
		t.Fatal(err)
	}
	if got := w.metric("quire_tenant_evicted_pages_total"); got != 0 {
		t.Errorf("a tenant without a guarantee is a label: %v", got)
	}
}
