package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

type leaseView struct {
	Kind             string  `json:"kind"` // read or publish
	ID               string  `json:"id"`
	Namespace        string  `json:"namespace"`
	Principal        string  `json:"principal"`
	Session          string  `json:"session,omitempty"`
	Pages            uint32  `json:"pages"`
	Bytes            uint64  `json:"bytes"`
	RemainingSeconds float64 `json:"remaining_seconds"`
}

func (a *app) leaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "lease",
		Short:   "Look at read leases and publications in flight",
		Example: "  quire lease list",
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "list [ID]",
		Short: "List live leases, of one namespace or of all: who pins what, and for how long",
		Example: `  quire lease list
  quire lease list 3f9a -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: a.action(func(ctx context.Context, args []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error { return a.leases(ctx, r, args) })
		}),
	})
	return cmd
}

func (a *app) leases(ctx context.Context, r *remote, args []string) error {
	req := &quirev1.ListLeasesRequest{}
	if len(args) == 1 {
		n, err := r.find(ctx, args[0])
		if err != nil {
			return err
		}
		req.Namespace = &quirev1.NamespaceRef{Id: n.GetId(), Epoch: n.GetEpoch()}
	}
	answer, err := r.admin.ListLeases(ctx, req)
	if err != nil {
		return err
	}
	all := []leaseView{}
	for _, l := range answer.GetLeases() {
		all = append(all, leaseView{
			Kind: strings.ToLower(strings.TrimPrefix(l.GetKind().String(), "KIND_")), ID: hex.EncodeToString(l.GetId()),
			Namespace: hex.EncodeToString(l.GetNamespace()), Principal: l.GetPrincipal(), Session: hex.EncodeToString(l.GetSessionId()),
			Pages: l.GetPages(), Bytes: l.GetBytes(), RemainingSeconds: l.GetRemaining().AsDuration().Seconds(),
		})
	}
	return a.print(struct {
		Leases []leaseView `json:"leases"`
	}{all}, func(w io.Writer) error {
		if len(all) == 0 {
			_, err := fmt.Fprintln(w, "no leases")
			return err
		}
		t := newTable("KIND", "LEASE", "NAMESPACE", "PRINCIPAL", "PAGES", "BYTES", "REMAINING").numbers(4, 5, 6)
		for _, l := range all {
			left := time.Duration(l.RemainingSeconds * float64(time.Second)).Round(time.Millisecond)
			t.row(l.Kind, l.ID, l.Namespace[:min(len(l.Namespace), shortID)], l.Principal, countText(uint64(l.Pages)), bytesText(l.Bytes), left.String())
		}
		return t.write(w)
	})
}
