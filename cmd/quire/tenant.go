package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/sysmem"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

type tenantView struct {
	Tenant        string `json:"tenant"`
	Guarantee     uint64 `json:"guarantee_bytes"`
	DiskGuarantee uint64 `json:"disk_guarantee_bytes"`
	Quota         uint64 `json:"quota_bytes"` // 0: none
	Memory        uint64 `json:"memory_bytes"`
	Disk          uint64 `json:"disk_bytes"`
	Charged       uint64 `json:"charged_bytes"`
	Pinned        uint64 `json:"pinned_bytes"`
	Evicted       uint64 `json:"evicted_pages"` // last copies, for room
	Trouble       string `json:"trouble,omitempty"`
}

func tenantViewOf(t *quirev1.Tenant) tenantView {
	return tenantView{
		t.GetTenant(), t.GetGuaranteeBytes(), t.GetDiskGuaranteeBytes(), t.GetQuotaBytes(), t.GetMemoryBytes(), t.GetDiskBytes(),
		t.GetChargedBytes(), t.GetPinnedBytes(), t.GetEvictedPages(), t.GetTrouble(),
	}
}

func (a *app) tenantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Guarantee tenants their part of memory and disk, and bound what they take",
		Example: `  quire tenant list
  quire tenant set research --guarantee 10GiB --quota 30GiB`,
	}
	cmd.AddCommand(a.tenantSetCommand(), a.tenantListCommand())
	return cmd
}

func (a *app) tenantSetCommand() *cobra.Command {
	var guarantee, disk, quota string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Set what a tenant is guaranteed and may take at most, in each node",
		Long: `Set what a tenant is guaranteed and may take at most, in each node. What others need is not taken from a
guarantee, however much they write. What a tenant has beyond its guarantee is burst: it stays while there is room and is
evicted first. Beyond its quota a publication is refused (quota_exceeded). What is not named stays as it is.`,
		Example: `  quire tenant set research --guarantee 10GiB --quota 30GiB
  quire tenant set research --disk-guarantee 200GiB
  quire tenant set research --guarantee 0 --disk-guarantee 0 --quota 0`,
		Args: exactly("NAME"),
	}
	cmd.Flags().StringVar(&guarantee, "guarantee", "", "`size` of memory that is kept for the tenant; 0: none. All guarantees fit the memory together")
	cmd.Flags().StringVar(&disk, "disk-guarantee", "", "`size` of the disk tier that is kept for the tenant; 0: none")
	cmd.Flags().StringVar(&quota, "quota", "", "`size` that the tenant's pages may take, each once however many copies it has; 0: no quota")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error {
		req := &quirev1.SetTenantRequest{Tenant: args[0]}
		for _, f := range []struct {
			flag, text string
			to         **uint64
		}{{"guarantee", guarantee, &req.GuaranteeBytes}, {"disk-guarantee", disk, &req.DiskGuaranteeBytes}, {"quota", quota, &req.QuotaBytes}} {
			if !cmd.Flags().Changed(f.flag) {
				continue
			}
			n, err := sysmem.ParseBytes(f.text)
			if err != nil {
				return usagef("--%s: %v", f.flag, err)
			}
			bytes := uint64(n)
			*f.to = &bytes
		}
		if req.GuaranteeBytes == nil && req.DiskGuaranteeBytes == nil && req.QuotaBytes == nil {
			return usagef("write --guarantee, --disk-guarantee or --quota")
		}
		return a.with(ctx, func(ctx context.Context, r *remote) error {
			answer, err := r.admin.SetTenant(ctx, req)
			if err != nil {
				return err
			}
			v := tenantViewOf(answer.GetTenant())
			return a.print(v, func(w io.Writer) error {
				return pairs(w, [2]string{"tenant", v.Tenant}, [2]string{"guarantee", quotaText(v.Guarantee)},
					[2]string{"disk guarantee", quotaText(v.DiskGuarantee)}, [2]string{"quota", quotaText(v.Quota)})
			})
		})
	})
	return cmd
}

func (a *app) tenantListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List tenants: what they are guaranteed, and what they hold",
		Example: "  quire tenant list",
		Args:    exactly(),
		RunE: a.action(func(ctx context.Context, _ []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error {
				answer, err := r.admin.ListTenants(ctx, &quirev1.ListTenantsRequest{})
				if err != nil {
					return err
				}
				all := []tenantView{}
				for _, t := range answer.GetTenants() {
					all = append(all, tenantViewOf(t))
				}
				return a.print(struct {
					Tenants []tenantView `json:"tenants"`
				}{all}, func(w io.Writer) error { return writeTenants(w, all) })
			})
		}),
	}
}

func writeTenants(w io.Writer, all []tenantView) error {
	t := newTable("TENANT", "MEMORY", "GUARANTEE", "DISK", "DISK GUARANTEE", "CHARGED", "QUOTA", "PINNED", "EVICTED").numbers(1, 2, 3, 4, 5, 6, 7, 8)
	for _, v := range all {
		t.row(v.Tenant, bytesText(v.Memory), quotaText(v.Guarantee), bytesText(v.Disk), quotaText(v.DiskGuarantee),
			bytesText(v.Charged), quotaText(v.Quota), bytesText(v.Pinned), countText(v.Evicted))
	}
	if err := t.write(w); err != nil {
		return err
	}
	for _, v := range all {
		if v.Trouble != "" {
			fmt.Fprintf(w, "\n%s: %s\n", v.Tenant, v.Trouble)
		}
	}
	return nil
}
