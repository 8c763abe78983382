package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/sysmem"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

func (a *app) nsPolicyCommand() *cobra.Command {
	var expiry time.Duration
	var quota, durability string
	var cmd *cobra.Command
	cmd = a.change("policy ID", "Set when pages expire, how many bytes there may be and where they are kept", "  quire ns policy 3f9a --expiry 24h --quota 100GiB\n  quire ns policy 3f9a --durability disk",
		[]string{"ID"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, _ []string) (*quirev1.Namespace, error) {
			p := n.GetPolicy()
			if p == nil {
				p = &quirev1.NamespacePolicy{}
			}
			if cmd.Flags().Changed("expiry") {
				p.DefaultExpiry = durationpb.New(expiry)
			}
			if cmd.Flags().Changed("quota") {
				bytes, err := sysmem.ParseBytes(quota)
				if err != nil {
					return nil, usagef("--quota: %v", err)
				}
				p.QuotaBytes = uint64(bytes)
			}
			switch {
			case !cmd.Flags().Changed("durability"):
			case durability == "memory":
				p.DefaultDurability = quirev1.Durability_DURABILITY_MEMORY
			case durability == "disk":
				p.DefaultDurability = quirev1.Durability_DURABILITY_DISK
			default:
				return nil, usagef("--durability %q: write memory or disk", durability)
			}
			answer, err := r.namespaces.SetPolicy(ctx, &quirev1.SetPolicyRequest{Id: n.GetId(), Policy: p})
			return answer.GetNamespace(), err
		})
	cmd.Flags().DurationVar(&expiry, "expiry", 0, "`time` a page lives unless its writer says otherwise; 0: for ever")
	cmd.Flags().StringVar(&quota, "quota", "", "`size` that the namespace's pages may take; 0: no quota")
	cmd.Flags().StringVar(&durability, "durability", "", "`level` of publications that name none: memory, or disk, where they are answered when they would survive power loss")
	return cmd
}
