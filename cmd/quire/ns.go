package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

func (a *app) nsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ns",
		Short: "Open, compare and retire namespaces: which pages may stand for each other",
		Example: `  quire ns open example:llama-3-8b
  quire ns list
  quire ns diff 3f9a 77b0`,
	}
	cmd.AddCommand(
		a.nsExampleCommand(), a.nsOpenCommand(), a.nsListCommand(), a.nsShowCommand(), a.nsDiffCommand(), a.nsWaiveCommand(),
		a.nsRevokeWaiverCommand(), a.nsGrantCommand(), a.nsRevokeGrantCommand(), a.nsPolicyCommand(),
		a.nsAllowForkCommand(),
		a.nsDrainCommand(), a.nsRetireCommand(), a.nsPurgeCommand(),
	)
	return cmd
}

func (a *app) nsOpenCommand() *cobra.Command {
	var tenant string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "open FILE|example:NAME",
		Short: "Open the namespace of a spec: get it, or create it",
		Long: `Open the namespace of a spec in YAML or JSON: get it, or create it. What differs from its nearest siblings is
shown. A refusal names the field and what to write instead.`,
		Example: `  quire ns open llama.yaml
  quire ns open example:llama-3-8b
  quire ns open - < llama.yaml
  quire ns open --dry-run llama.yaml`,
		Args: exactly("FILE"),
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "open for this `tenant` (operators); empty: your own")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what open would do, and do nothing")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error {
		spec, err := a.specText(args[0])
		if err != nil {
			return err
		}
		return a.with(ctx, func(ctx context.Context, r *remote) error {
			if dryRun {
				return a.negotiate(ctx, r, spec, tenant)
			}
			return a.open(ctx, r, spec, tenant)
		})
	})
	return cmd
}

type siblingView struct {
	ID          string           `json:"id"`
	State       string           `json:"state"`
	Differences []differenceView `json:"differences"`
}

func (a *app) open(ctx context.Context, r *remote, spec, tenant string) error {
	answer, err := r.namespaces.Open(ctx, &quirev1.OpenRequest{Spec: spec, Tenant: tenant})
	if err != nil {
		return err
	}
	n := viewOf(answer.GetNamespace())
	siblings := siblingViews(answer.GetSiblings())
	return a.print(struct {
		Created   bool          `json:"created"`
		Namespace namespaceView `json:"namespace"`
		Siblings  []siblingView `json:"siblings"`
	}{answer.GetCreated(), n, siblings}, func(w io.Writer) error {
		word := "exists"
		if answer.GetCreated() {
			word = "created"
		}
		fmt.Fprintf(w, "%s  %s  %s\n", n.ID, word, n.Model)
		for _, g := range n.Groups {
			fmt.Fprintf(w, "  group %s\n", groupLine(g))
		}
		return writeSiblings(w, siblings)
	})
}

func (a *app) negotiate(ctx context.Context, r *remote, spec, tenant string) error {
	answer, err := r.namespaces.Negotiate(ctx, &quirev1.NegotiateRequest{Spec: spec, Tenant: tenant})
	if err != nil {
		return err
	}
	siblings := siblingViews(answer.GetSiblings())
	would, id := "create", fmt.Sprintf("%x", answer.GetId())
	if answer.GetExists() {
		would = "get"
	}
	refused := answer.GetReason() != quirev1.Reason_REASON_UNSPECIFIED
	if refused {
		would = "refuse"
	}
	err = a.print(struct {
		ID       string        `json:"id"`
		Would    string        `json:"would"` // get, create or refuse
		Reason   string        `json:"reason,omitempty"`
		Siblings []siblingView `json:"siblings"`
	}{id, would, reasonText(answer.GetReason()), siblings}, func(w io.Writer) error {
		line := "open would " + would + " " + id
		if refused {
			line = "open would be refused: " + reasonText(answer.GetReason())
		}
		fmt.Fprintln(w, line)
		return writeSiblings(w, siblings)
	})
	if err == nil && refused {
		return &exitError{exitMismatch, ""}
	}
	return err
}

func siblingViews(siblings []*quirev1.Sibling) []siblingView {
	out := []siblingView{}
	for _, s := range siblings {
		out = append(out, siblingView{fmt.Sprintf("%x", s.GetId()), stateName(s.GetState()), differenceViews(s.GetDifferences())})
	}
	return out
}

func writeSiblings(w io.Writer, siblings []siblingView) error {
	for _, s := range siblings {
		fmt.Fprintf(w, "sibling %s (%s) differs in:\n", s.ID[:min(len(s.ID), shortID)], s.State)
		if err := writeDifferences(w, s.Differences, "  "); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) nsShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show one namespace: spec, groups, waivers, grants, policy, use, engine instances",
		Example: "  quire ns show 3f9a",
		Args:    exactly("ID"),
		RunE: a.action(func(ctx context.Context, args []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error {
				n, err := r.find(ctx, args[0])
				if err != nil {
					return err
				}
				return a.show(viewOf(n))
			})
		}),
	}
}

func (a *app) show(v namespaceView) error {
	return a.print(v, func(w io.Writer) error {
		err := pairs(w,
			[2]string{"id", v.ID}, [2]string{"epoch", fmt.Sprint(v.Epoch)}, [2]string{"tenant", v.Tenant},
			[2]string{"state", v.State}, [2]string{"model", v.Model}, [2]string{"weights", v.Weights},
			[2]string{"pages", countText(v.Pages)}, [2]string{"bytes", bytesText(v.Bytes)},
			[2]string{"hit rate", share(v.Hits, v.Misses)}, [2]string{"orphans", countText(v.Orphans)}, [2]string{"evicted", countText(v.Evicted)},
			[2]string{"last write", orNever(v.Last)}, [2]string{"created", orNever(v.Created)},
			[2]string{"pages expire", lifetimeText(time.Duration(v.Policy.DefaultExpirySeconds * float64(time.Second)))},
			[2]string{"quota", quotaText(v.Policy.QuotaBytes)}, [2]string{"durability", v.Policy.DefaultDurability},
		)
		if err != nil {
			return err
		}
		for _, g := range v.Groups {
			fmt.Fprintf(w, "group   %s\n", groupLine(g))
		}
		for _, x := range v.Waivers {
			fmt.Fprintf(w, "waiver  %s  %s: %s until %s, by %s: %s\n", x.ID, x.Factor, strings.Join(x.Values, " = "), x.Expiry, x.Author, x.Reason)
		}
		for _, g := range v.Grants {
			fmt.Fprintf(w, "grant   %s may %s\n", g.Tenant, g.Right)
		}
		if _, err = fmt.Fprintf(w, "spec    %s\n", v.Spec); err != nil || len(v.Instances) == 0 {
			return err
		}
		fmt.Fprintln(w)
		return writeInstances(w, rowsOf([]treeModel{{Revisions: []treeRevision{{Namespaces: []treeLeaf{{namespaceView: v}}}}}}), 0)
	})
}

func orNever(s string) string {
	if s == "" {
		return "never"
	}
	return s
}

func quotaText(n uint64) string {
	if n == 0 {
		return "none"
	}
	return bytesText(n)
}

// change makes a command that changes one namespace and shows what became of it.
func (a *app) change(use, shortText, example string, names []string,
	f func(context.Context, *remote, *quirev1.Namespace, []string) (*quirev1.Namespace, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: shortText, Example: example, Args: exactly(names...),
		RunE: a.action(func(ctx context.Context, args []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error {
				n, err := r.find(ctx, args[0])
				if err != nil {
					return err
				}
				after, err := f(ctx, r, n, args)
				if err != nil {
					return err
				}
				v := viewOf(after)
				return a.print(v, func(w io.Writer) error {
					_, err := fmt.Fprintf(w, "%s  epoch %d  %s\n", v.ID, v.Epoch, v.State)
					return err
				})
			})
		}),
	}
}

func (a *app) nsDrainCommand() *cobra.Command {
	return a.change("drain ID", "Stop new publications; reads and leases go on", "  quire ns drain 3f9a", []string{"ID"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, _ []string) (*quirev1.Namespace, error) {
			answer, err := r.namespaces.Drain(ctx, &quirev1.DrainRequest{Id: n.GetId()})
			return answer.GetNamespace(), err
		})
}

func (a *app) nsRetireCommand() *cobra.Command {
	return a.change("retire ID", "Make every page unreachable now; its bytes come back in the background", "  quire ns retire 3f9a", []string{"ID"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, _ []string) (*quirev1.Namespace, error) {
			answer, err := r.namespaces.Retire(ctx, &quirev1.RetireRequest{Id: n.GetId()})
			return answer.GetNamespace(), err
		})
}

func (a *app) nsPurgeCommand() *cobra.Command {
	return a.change("purge ID", "Begin a new epoch: every page goes, the namespace stays", "  quire ns purge 3f9a", []string{"ID"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, _ []string) (*quirev1.Namespace, error) {
			answer, err := r.namespaces.Purge(ctx, &quirev1.PurgeRequest{Id: n.GetId()})
			return answer.GetNamespace(), err
		})
}

func (a *app) nsAllowForkCommand() *cobra.Command {
	return a.change("allow-fork ID", "Let namespaces be opened that differ from this one in their hash contract alone", "  quire ns allow-fork 3f9a", []string{"ID"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, _ []string) (*quirev1.Namespace, error) {
			answer, err := r.namespaces.AllowFork(ctx, &quirev1.AllowForkRequest{Id: n.GetId()})
			return answer.GetNamespace(), err
		})
}

func (a *app) nsWaiveCommand() *cobra.Command {
	var why string
	var lifetime time.Duration
	var values []string
	cmd := a.change("waive ID FACTOR", "Accept named values of one provenance factor as one, for a time",
		`  quire ns waive 3f9a engine_version --value 0.32.0 --value 0.32.1 --for 720h --reason "same kernels, checked"`,
		[]string{"ID", "FACTOR"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, args []string) (*quirev1.Namespace, error) {
			if len(values) < 2 {
				return nil, usagef("a waiver joins two values or more; give --value for each, the one the namespace has first")
			}
			if why == "" {
				return nil, usagef("a waiver needs --reason: whoever reads it later wants to know")
			}
			answer, err := r.namespaces.Waive(ctx, &quirev1.WaiveRequest{
				Id: n.GetId(), Factor: args[1], Values: values, Reason: why, Lifetime: durationpb.New(lifetime),
			})
			return answer.GetNamespace(), err
		})
	cmd.Long = `Accept named values of one provenance factor as one, until it expires or is revoked. The value that the namespace
has is named first. A waiver can never join specs that differ in what the values are or what the bytes mean.`
	cmd.Flags().StringArrayVar(&values, "value", nil, "a `value` to accept; give two or more, the namespace's own first")
	cmd.Flags().DurationVar(&lifetime, "for", 30*24*time.Hour, "`time` until it ends")
	cmd.Flags().StringVar(&why, "reason", "", "why these values are the same (`text`)")
	return cmd
}

func (a *app) nsRevokeWaiverCommand() *cobra.Command {
	return a.change("revoke-waiver ID WAIVER", "End a waiver now: what came in through it is hidden at once", "  quire ns revoke-waiver 3f9a w1",
		[]string{"ID", "WAIVER"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, args []string) (*quirev1.Namespace, error) {
			answer, err := r.namespaces.RevokeWaiver(ctx, &quirev1.RevokeWaiverRequest{Id: n.GetId(), WaiverId: args[1]})
			return answer.GetNamespace(), err
		})
}

func (a *app) nsGrantCommand() *cobra.Command {
	var publish bool
	cmd := a.change("grant ID TENANT", "Let another tenant read, or read and publish", "  quire ns grant 3f9a research --publish",
		[]string{"ID", "TENANT"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, args []string) (*quirev1.Namespace, error) {
			right := quirev1.GrantRight_GRANT_RIGHT_READ
			if publish {
				right = quirev1.GrantRight_GRANT_RIGHT_READ_PUBLISH
			}
			answer, err := r.namespaces.Grant(ctx, &quirev1.GrantRequest{Id: n.GetId(), Tenant: args[1], Right: right})
			return answer.GetNamespace(), err
		})
	cmd.Flags().BoolVar(&publish, "publish", false, "publishing too")
	return cmd
}

func (a *app) nsRevokeGrantCommand() *cobra.Command {
	return a.change("revoke-grant ID TENANT", "End a grant now", "  quire ns revoke-grant 3f9a research", []string{"ID", "TENANT"},
		func(ctx context.Context, r *remote, n *quirev1.Namespace, args []string) (*quirev1.Namespace, error) {
			answer, err := r.namespaces.RevokeGrant(ctx, &quirev1.RevokeGrantRequest{Id: n.GetId(), Tenant: args[1]})
			return answer.GetNamespace(), err
		})
}
