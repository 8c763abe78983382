package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// differenceView is one factor in which two specs differ.
type differenceView struct {
	Path  string `json:"path"`
	A     string `json:"a"`
	B     string `json:"b"`
	Class string `json:"class"`
}

func differenceViews(all []*quirev1.Difference) []differenceView {
	out := []differenceView{}
	for _, d := range all {
		out = append(out, differenceView{d.GetPath(), d.GetA(), d.GetB(), d.GetClass()})
	}
	return out
}

func writeDifferences(w io.Writer, all []differenceView, indent string) error {
	t := newTable(indent+"FACTOR", "A", "B", "CLASS")
	for _, d := range all {
		t.row(indent+d.Path, orDash(d.A), orDash(d.B), d.Class)
	}
	return t.write(w)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// reasonText is a reason's stable name, "" for none.
func reasonText(r quirev1.Reason) string {
	if r == quirev1.Reason_REASON_UNSPECIFIED {
		return ""
	}
	return rpc.FromProto(r).String()
}

func (a *app) nsDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff A B",
		Short: "Name every factor in which two namespaces or specs differ",
		Long: `Name every factor in which two namespaces or specs differ, with both values and the factor's class. A and B are ids,
beginnings of ids, spec files or example:NAME. Exits 4 when they differ, 0 when they are one identity.`,
		Example: `  quire ns diff 3f9a 77b0
  quire ns diff 3f9a new.yaml -o json`,
		Args: exactly("A", "B"),
		RunE: a.action(func(ctx context.Context, args []string) error {
			return a.with(ctx, func(ctx context.Context, r *remote) error { return a.diff(ctx, r, args[0], args[1]) })
		}),
	}
}

func (a *app) diff(ctx context.Context, r *remote, left, right string) error {
	req := &quirev1.DiffRequest{}
	var err error
	if req.A, err = a.diffSide(ctx, r, left); err != nil {
		return err
	}
	if req.B, err = a.diffSide(ctx, r, right); err != nil {
		return err
	}
	answer, err := r.namespaces.Diff(ctx, req)
	if err != nil {
		return err
	}
	all := differenceViews(answer.GetDifferences())
	err = a.print(struct {
		Differences []differenceView `json:"differences"`
	}{all}, func(w io.Writer) error {
		if len(all) == 0 {
			_, err := fmt.Fprintln(w, "no difference: one identity")
			return err
		}
		return writeDifferences(w, all, "")
	})
	if err == nil && len(all) > 0 {
		return &exitError{exitMismatch, ""}
	}
	return err
}

// diffSide takes what is a file or an example for a spec, and everything else for an id.
func (a *app) diffSide(ctx context.Context, r *remote, s string) (*quirev1.DiffSide, error) {
	_, err := os.Stat(s)
	if s == "-" || strings.HasPrefix(s, examplePrefix) || err == nil || !isHex(strings.ToLower(s)) {
		text, err := a.specText(s)
		if err != nil {
			return nil, err
		}
		return &quirev1.DiffSide{Side: &quirev1.DiffSide_Spec{Spec: text}}, nil
	}
	n, err := r.find(ctx, s)
	if err != nil {
		return nil, err
	}
	return &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: n.GetId()}}, nil
}

// missed is the error of a page that was not served.
func missed(r reason.Reason, format string, args ...any) error {
	return &exitError{reasonCode(r), fmt.Sprintf(format, args...) + ": " + r.String()}
}
