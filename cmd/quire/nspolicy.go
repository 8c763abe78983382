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
	var quota string
	var cmd *cobra.Command
	cmd = a.change("policy ID", "Set when pages expire and how many bytes there may be", "  quire ns policy 3f9a --expiry 24h --quota 100GiB",
		[]string{"ID"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, _ []string) (*quirev1.Namespace, error) {
			p := &quirev1.NamespacePolicy{DefaultExpiry: n.GetPolicy().GetDefaultExpiry(), QuotaBytes: n.GetPolicy().GetQuotaBytes()}
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
			answer, err := r.namespaces.SetPolicy(ctx, &quirev1.SetPolicyRequest{Id: n.GetId(), Policy: p})
			return answer.GetNamespace(), err
		})
	cmd.Flags().DurationVar(&expiry, "expiry", 0, "`time` a page lives unless its writer says otherwise; 0: for ever")
	cmd.Flags().StringVar(&quota, "quota", "", "`size` that the namespace's pages may take; 0: no quota")
	return cmd
}
