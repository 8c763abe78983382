package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

func (a *app) pageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Look at, read, write and delete single pages",
		Long:  "Look at, read, write and delete single pages.\n\n" + keyHelp,
		Example: `  quire page exists 3f9a 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  quire page explain 3f9a full/@hello`,
	}
	cmd.AddCommand(a.pageExistsCommand(), a.pageGetCommand(), a.pagePutCommand(), a.pageDeleteCommand(), a.pageExplainCommand())
	return cmd
}

// onKey makes the action of a command on NAMESPACE KEY.
func (a *app) onKey(f func(context.Context, *remote, *pageKey) error) func(*cobra.Command, []string) error {
	return a.action(func(ctx context.Context, args []string) error {
		return a.with(ctx, func(ctx context.Context, r *remote) error {
			n, err := r.find(ctx, args[0])
			if err != nil {
				return err
			}
			k, err := parseKey(n, args[1])
			if err != nil {
				return err
			}
			return f(ctx, r, k)
		})
	})
}

func (a *app) pageExistsCommand() *cobra.Command {
	var view viewFlag
	cmd := &cobra.Command{
		Use:     "exists NAMESPACE KEY",
		Short:   "Say whether a whole page, or a view of it, is stored; exits 3 if not",
		Long:    "Say whether a whole page, or a view of it, is stored. Takes no lease and refreshes nothing. Exits 3 if it is not.\n\n" + keyHelp,
		Example: "  quire page exists 3f9a full/@hello --view 0:4,0:32",
		Args:    exactly("NAMESPACE", "KEY"),
	}
	cmd.Flags().Var(&view, "view", "only kv heads and layers h0:h1,l0:l1 (`view`)")
	cmd.RunE = a.onKey(func(ctx context.Context, r *remote, k *pageKey) error {
		answer, err := r.pages.BatchExists(ctx, &quirev1.BatchExistsRequest{
			Namespace: k.ref(), Runs: []*quirev1.KeyRun{k.run()}, View: view.view,
		})
		if err != nil {
			return err
		}
		present := len(answer.GetPresent()) > 0 && answer.GetPresent()[0]&1 == 1
		err = a.print(struct {
			Key     string `json:"key"`
			Present bool   `json:"present"`
		}{k.text(), present}, func(w io.Writer) error {
			word := "absent"
			if present {
				word = "present"
			}
			_, err := fmt.Fprintln(w, word)
			return err
		})
		if err == nil && !present {
			return &exitError{exitNotFound, ""}
		}
		return err
	})
	return cmd
}

func (a *app) pageDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAMESPACE KEY",
		Short:   "Hide a page at once; running leases finish",
		Long:    "Hide a page at once; running leases finish. Exits 3 if there was none.\n\n" + keyHelp,
		Example: "  quire page delete 3f9a full/@hello",
		Args:    exactly("NAMESPACE", "KEY"),
		RunE: a.onKey(func(ctx context.Context, r *remote, k *pageKey) error {
			answer, err := r.pages.BatchDelete(ctx, &quirev1.BatchDeleteRequest{Namespace: k.ref(), Runs: []*quirev1.KeyRun{k.run()}})
			if err != nil {
				return err
			}
			if len(answer.GetPages()) != 1 {
				return fmt.Errorf("the server answered for %d pages instead of one", len(answer.GetPages()))
			}
			if p := answer.GetPages()[0]; p.GetOutcome() != quirev1.Outcome_OUTCOME_OK {
				return missed(rpc.FromProto(p.GetReason()), "page %s was not deleted", k.text())
			}
			return a.print(struct {
				Deleted string `json:"deleted"`
			}{k.text()}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, "deleted "+k.text())
				return err
			})
		}),
	}
}

// explainView is an explanation as -o json gives it.
type explainView struct {
	Key       string          `json:"key"`
	Served    bool            `json:"served"`
	Reason    string          `json:"reason,omitempty"` // why not
	Text      string          `json:"text"`
	Extents   []extentView    `json:"extents"`
	Elsewhere []elsewhereView `json:"elsewhere"`
	Parent    string          `json:"parent_hash,omitempty"`
	Depth     uint32          `json:"depth"`
	Children  uint32          `json:"children"`
	Pins      uint32          `json:"pins"`
	Orphan    bool            `json:"orphan"`
	Expires   string          `json:"expires,omitempty"`
	Score     float64         `json:"score"`
	ScoreTier string          `json:"score_tier"`
	ScoreUnit string          `json:"score_unit"`
	Below     uint32          `json:"ranked_below"` // of ranked_pages others that may go from that tier, so many score less
	Ranked    uint32          `json:"ranked_pages"`
}

type extentView struct {
	ID         string `json:"id"`
	View       string `json:"view"`
	Tier       string `json:"tier"`
	Bytes      uint64 `json:"bytes"`
	Provenance string `json:"provenance"`
	Accepted   bool   `json:"accepted"`
	Created    string `json:"created,omitempty"`
}

type elsewhereView struct {
	Namespace   string           `json:"namespace"`
	Epoch       uint64           `json:"epoch"`
	Tenant      string           `json:"tenant"`
	Complete    bool             `json:"complete"`
	Differences []differenceView `json:"differences"`
}

func (a *app) pageExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain NAMESPACE KEY",
		Short: "Say where a key is, where else its hash lives, and why it would or would not be served",
		Long: `Say where a key is, where else the same hash lives and what differs there, and why the page would or would not be
served; what it is worth to eviction, and how that stands among others. Exits 0 if it would be served, 3 if it is not
there, 4 if something stands against it.

` + keyHelp,
		Example: "  quire page explain 3f9a full/@hello",
		Args:    exactly("NAMESPACE", "KEY"),
		RunE: a.onKey(func(ctx context.Context, r *remote, k *pageKey) error {
			answer, err := r.admin.Explain(ctx, &quirev1.ExplainRequest{Namespace: k.ref(), Run: k.run()})
			if err != nil {
				return err
			}
			if len(answer.GetPages()) != 1 {
				return fmt.Errorf("the server answered for %d pages instead of one", len(answer.GetPages()))
			}
			return a.printExplanation(k, answer.GetPages()[0])
		}),
	}
}

func (a *app) printExplanation(k *pageKey, p *quirev1.PageExplanation) error {
	v := explainView{
		Key: k.text(), Served: p.GetServed(), Reason: reasonText(p.GetReason()), Text: p.GetText(),
		Extents: []extentView{}, Elsewhere: []elsewhereView{}, Parent: hex.EncodeToString(p.GetParentHash()),
		Depth: p.GetDepth(), Children: p.GetChildren(), Pins: p.GetPins(), Orphan: p.GetOrphan(), Expires: instant(p.GetExpires()), Score: p.GetScore(),
		ScoreTier: p.GetScoreTier(), ScoreUnit: p.GetScoreUnit(), Below: p.GetRankedBelow(), Ranked: p.GetRankedPages(),
	}
	for _, e := range p.GetExtents() {
		v.Extents = append(v.Extents, extentView{hex.EncodeToString(e.GetExtentId()), viewText(e.GetView()), e.GetTier(), e.GetBytes(), e.GetProvenance(), e.GetAccepted(), instant(e.GetCreated())})
	}
	for _, s := range p.GetElsewhere() {
		v.Elsewhere = append(v.Elsewhere, elsewhereView{hex.EncodeToString(s.GetNamespace()), s.GetEpoch(), s.GetTenant(), s.GetComplete(), differenceViews(s.GetDifferences())})
	}
	if err := a.print(v, v.write); err != nil || v.Served {
		return err
	}
	code := reasonCode(rpc.FromProto(p.GetReason()))
	if p.GetReason() == quirev1.Reason_REASON_UNSPECIFIED {
		code = reasonCode(reason.Absent)
	}
	return &exitError{code, ""}
}

// scoreText is what the page is worth and how it stands among those that may go.
func (v explainView) scoreText() string {
	text := fmt.Sprintf("%.4g", v.Score)
	if v.ScoreUnit != "" { // an older server does not say
		text += fmt.Sprintf(" %s in %s", v.ScoreUnit, v.ScoreTier)
	}
	if v.Ranked > 0 {
		text += fmt.Sprintf(", more than %s of %d others that may go", percentText(float64(v.Below)/float64(v.Ranked)), v.Ranked)
	}
	return text
}

func (v explainView) write(w io.Writer) error {
	verdict := "served"
	if !v.Served {
		verdict = "not served: " + orDash(v.Reason)
	}
	lines := [][2]string{{"key", v.Key}, {"verdict", verdict}, {"why", orDash(v.Text)}}
	if len(v.Extents) > 0 {
		lines = append(lines,
			[2]string{"parent", orDash(v.Parent)},
			[2]string{"place in chain", fmt.Sprintf("depth %d, %d children, orphan %v", v.Depth, v.Children, v.Orphan)},
			[2]string{"pins", fmt.Sprint(v.Pins)}, [2]string{"expires", orNever(v.Expires)}, [2]string{"score", v.scoreText()})
	}
	if err := pairs(w, lines...); err != nil {
		return err
	}
	if len(v.Extents) > 0 {
		t := newTable("EXTENT", "VIEW", "TIER", "BYTES", "ACCEPTED", "CREATED").numbers(3)
		for _, e := range v.Extents {
			t.row(e.ID, e.View, e.Tier, countText(e.Bytes), fmt.Sprint(e.Accepted), orDash(e.Created))
		}
		if err := t.write(w); err != nil {
			return err
		}
	}
	for _, s := range v.Elsewhere {
		fmt.Fprintf(w, "same hash in %s (tenant %s, epoch %d, complete %v)\n", s.Namespace[:min(len(s.Namespace), shortID)], s.Tenant, s.Epoch, s.Complete)
		if len(s.Differences) > 0 {
			if err := writeDifferences(w, s.Differences, "  "); err != nil {
				return err
			}
		}
	}
	return nil
}
