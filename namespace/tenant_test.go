package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
)

func TestTenantQuotas(t *testing.T) {
	r, _ := newRegistry(t)
	room := namespace.TierBytes{Memory: 100, Disk: 1000}
	set := func(by namespace.Principal, name string, q namespace.TenantQuota) error {
		_, err := r.SetTenant(context.Background(), by, name, room, func(namespace.TenantQuota) namespace.TenantQuota { return q })
		return err
	}
	for i, step := range []struct {
		by   namespace.Principal
		name string
		q    namespace.TenantQuota
		want reason.Reason
		says string
	}{
		{engine, "a", namespace.TenantQuota{QuotaBytes: 1}, reason.Unauthorized, ""},
		{reader, "a", namespace.TenantQuota{QuotaBytes: 1}, reason.Unauthorized, ""},
		{operator, "a b", namespace.TenantQuota{QuotaBytes: 1}, reason.InvalidSpec, "tenant"},
		{operator, "", namespace.TenantQuota{QuotaBytes: 1}, reason.InvalidSpec, "tenant"},
		{operator, "a", namespace.TenantQuota{GuaranteeBytes: 60, QuotaBytes: 59}, reason.InvalidSpec, "guarantee_bytes"},
		{operator, "a", namespace.TenantQuota{DiskGuaranteeBytes: 60, QuotaBytes: 59}, reason.InvalidSpec, "disk_guarantee_bytes"},
		{operator, "a", namespace.TenantQuota{GuaranteeBytes: 60, QuotaBytes: 60}, reason.None, ""},
		{operator, "b", namespace.TenantQuota{GuaranteeBytes: 41}, reason.LimitExceeded, "41 bytes of memory, others are guaranteed 60, it has 100: at most 40"},
		{operator, "b", namespace.TenantQuota{DiskGuaranteeBytes: 1001}, reason.LimitExceeded, "1001 bytes of disk, others are guaranteed 0, it has 1000: at most 1000"},
		{operator, "b", namespace.TenantQuota{GuaranteeBytes: 1<<64 - 1}, reason.LimitExceeded, "at most 40"},
		{operator, "b", namespace.TenantQuota{GuaranteeBytes: 40, DiskGuaranteeBytes: 1000}, reason.None, ""},
		{operator, "b", namespace.TenantQuota{GuaranteeBytes: 40, DiskGuaranteeBytes: 1000}, reason.None, ""},
		{operator, "c", namespace.TenantQuota{QuotaBytes: 5}, reason.None, ""},
		{operator, "c", namespace.TenantQuota{GuaranteeBytes: 1}, reason.LimitExceeded, "at most 0"},
		{operator, "a", namespace.TenantQuota{}, reason.None, ""},
		{operator, "c", namespace.TenantQuota{GuaranteeBytes: 1}, reason.None, ""},
	} {
		err := set(step.by, step.name, step.q)
		if step.want == reason.None && err != nil || step.want != reason.None && !errors.Is(err, step.want) ||
			err != nil && !strings.Contains(err.Error(), step.says) {
			t.Errorf("step %d: %v, want %v %q", i, err, step.want, step.says)
		}
	}
	if got := fmt.Sprintf("%+v", r.Tenants()); !strings.HasPrefix(got, "[{Name:b TenantQuota:{GuaranteeBytes:40 DiskGuaranteeBytes:1000 QuotaBytes:0}") ||
		!strings.Contains(got, "{Name:c TenantQuota:{GuaranteeBytes:1 DiskGuaranteeBytes:0 QuotaBytes:0}") || len(r.Tenants()) != 2 {
		t.Errorf("tenants %s", got)
	}
	room = namespace.TierBytes{Memory: 10} // the node shrank: what is there stays, may shrink, and may not grow
	if err := set(operator, "b", namespace.TenantQuota{GuaranteeBytes: 40, QuotaBytes: 50}); err != nil {
		t.Error(err)
	}
	if err := set(operator, "b", namespace.TenantQuota{GuaranteeBytes: 41}); !errors.Is(err, reason.LimitExceeded) {
		t.Errorf("a guarantee that grows beyond the node: %v", err)
	}
}

func TestGuaranteesAreBounded(t *testing.T) {
	r, _ := newRegistry(t)
	for i := range namespace.MaxGuarantees + 1 {
		_, err := r.SetTenant(context.Background(), operator, fmt.Sprint("t", i), namespace.TierBytes{Memory: 1 << 20}, func(q namespace.TenantQuota) namespace.TenantQuota {
			q.GuaranteeBytes = 1
			return q
		})
		if last := i == namespace.MaxGuarantees; last != errors.Is(err, reason.LimitExceeded) || !last && err != nil {
			t.Fatalf("guarantee %d: %v", i, err)
		}
	}
}

func TestWatchTenants(t *testing.T) {
	r, _ := newRegistry(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	told, done := make(chan int), make(chan error)
	go func() {
		done <- r.WatchTenants(ctx, func() error {
			select {
			case told <- len(r.Tenants()):
			case <-ctx.Done():
			}
			return nil
		})
	}()
	quota := uint64(0)
	change := func(name string) {
		if _, err := r.SetTenant(ctx, operator, name, namespace.TierBytes{}, func(namespace.TenantQuota) namespace.TenantQuota {
			return namespace.TenantQuota{QuotaBytes: quota}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := <-told; n != 0 {
		t.Errorf("%d at first", n)
	}
	for _, step := range []struct {
		name  string
		quota uint64
		want  int
	}{{"a", 1, 1}, {"b", 1, 2}, {"a", 2, 2}, {"a", 0, 1}} {
		quota = step.quota
		change(step.name)
		open(t, r, engine, example(t, "llama-3-8b")) // no change of a tenant
		if n := <-told; n != step.want {
			t.Errorf("%+v: told of %d", step, n)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
