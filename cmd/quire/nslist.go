package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

func (a *app) nsListCommand() *cobra.Command {
	var tenant string
	var retired, instances bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List namespaces as a tree: model, weights, then what differs between siblings",
		Long: `List namespaces as a tree: model, weights, then what differs between the siblings under them. The first look when a
hit rate halves: a fork shows as two siblings, one with old hits and one with new writes, and the factor between them.

Under the tree are the engine instances that report to this node, with their own word on how they fare: those whose
breaker is open first, then those with the lowest hit rate. Engines of one model that use different namespaces at the
same time are pointed out, with each factor between them, both values, and the hit rate of each side.`,
		Example: `  quire ns list
  quire ns list --instances
  quire ns list --retired -o json`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this `tenant`'s (operators); empty: all you may see")
	cmd.Flags().BoolVar(&retired, "retired", false, "retired ones too")
	cmd.Flags().BoolVar(&instances, "instances", false, fmt.Sprintf("show every engine instance, not only the first %d", maxShownInstances))
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		return a.with(ctx, func(ctx context.Context, r *remote) error {
			all, err := r.list(ctx, tenant, retired)
			if err != nil {
				return err
			}
			most := maxShownInstances
			if instances {
				most = 0
			}
			return a.printTree(all, most)
		})
	})
	return cmd
}

// treeModel is one model with its revisions, as -o json gives it.
type treeModel struct {
	Model     string         `json:"model"`
	Revisions []treeRevision `json:"revisions"`
}

type treeRevision struct {
	Weights    string     `json:"weights"`
	Namespaces []treeLeaf `json:"namespaces"`
}

type treeLeaf struct {
	namespaceView
	// DiffersIn has the factors in which the siblings of one revision differ, with this one's values.
	DiffersIn []factorView `json:"differs_in"`
	source    *quirev1.Namespace
}

type factorView struct {
	Path  string `json:"path"`
	Value string `json:"value"`
	Class string `json:"class"`
}

// treeOf sorts namespaces by model, weights, tenant, id.
func treeOf(all []*quirev1.Namespace) []treeModel {
	leaves := make([]treeLeaf, len(all))
	for i, n := range all {
		leaves[i] = treeLeaf{namespaceView: viewOf(n), DiffersIn: []factorView{}, source: n}
	}
	slices.SortFunc(leaves, func(x, y treeLeaf) int {
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.Weights, y.Weights),
			cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Epoch, y.Epoch))
	})
	tree := []treeModel{}
	for _, l := range leaves {
		if len(tree) == 0 || tree[len(tree)-1].Model != l.Model {
			tree = append(tree, treeModel{Model: l.Model})
		}
		m := &tree[len(tree)-1]
		if len(m.Revisions) == 0 || m.Revisions[len(m.Revisions)-1].Weights != l.Weights {
			m.Revisions = append(m.Revisions, treeRevision{Weights: l.Weights})
		}
		r := &m.Revisions[len(m.Revisions)-1]
		r.Namespaces = append(r.Namespaces, l)
	}
	for _, m := range tree {
		for _, r := range m.Revisions {
			markDifferences(r.Namespaces)
		}
	}
	return tree
}

// markDifferences fills DiffersIn of siblings: the factors that Diff names between any of them and the first, so the
// tree and 'ns diff' never disagree.
func markDifferences(siblings []treeLeaf) {
	specs := make([]*namespace.Spec, len(siblings))
	for i, l := range siblings {
		s, err := namespace.Parse([]byte(l.source.GetSpec()))
		if err != nil {
			return // a newer server's spec: the tree still shows the rest
		}
		specs[i] = s
	}
	classes := map[string]namespace.Class{}
	for _, s := range specs[1:] {
		for _, d := range namespace.Diff(specs[0], s) {
			classes[d.Path] = d.Class
		}
	}
	for i, s := range specs {
		for _, f := range s.Factors() {
			if class, ok := classes[f.Path]; ok {
				siblings[i].DiffersIn = append(siblings[i].DiffersIn, factorView{f.Path, f.Value, class.String()})
			}
		}
	}
}

// maxShownFactors keeps a line of the tree readable; 'ns diff' names all.
const maxShownFactors = 3

// printTree shows at most so many instances; 0: all.
func (a *app) printTree(all []*quirev1.Namespace, instances int) error {
	tree := treeOf(all)
	forks := forksOf(tree)
	return a.print(struct {
		Models []treeModel `json:"models"`
		Forks  []forkView  `json:"forks"`
	}{tree, forks}, func(w io.Writer) error {
		if len(tree) == 0 {
			_, err := fmt.Fprintln(w, "no namespaces; open one with 'quire ns open FILE' or 'quire ns open example:NAME'")
			return err
		}
		if err := a.writeTree(w, tree); err != nil {
			return err
		}
		if rows := rowsOf(tree); len(rows) > 0 {
			fmt.Fprintln(w)
			if err := writeInstances(w, rows, instances); err != nil {
				return err
			}
		}
		return writeForks(w, forks)
	})
}

func (a *app) writeTree(w io.Writer, tree []treeModel) error {
	t := newTable("MODEL / WEIGHTS / NAMESPACE", "STATE", "PAGES", "BYTES", "HITS", "MISSES", "HIT RATE", "LAST WRITE", "DIFFERS IN").numbers(2, 3, 4, 5, 6)
	never := 0
	for _, m := range tree {
		t.row(m.Model)
		for i, r := range m.Revisions {
			branch, stem := treeMarks(i, len(m.Revisions))
			t.row(branch + shortDigest(r.Weights))
			for j, l := range r.Namespaces {
				twig, _ := treeMarks(j, len(r.Namespaces))
				t.row(stem+twig+leafName(l), l.State, countText(l.Pages), bytesText(l.Bytes), countText(l.Hits), countText(l.Misses),
					hitRate(l), a.ago(l.source.GetUsage().GetLastWrite()), factorsText(l.DiffersIn))
				if l.NeverHit {
					never++
				}
			}
		}
	}
	if err := t.write(w); err != nil || never == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d written to and never hit: do its writers and readers hash alike? Compare it with its siblings: quire ns diff A B\n", never)
	return err
}

// hitRate says in words what a share of nothing found would hide among small numbers.
func hitRate(l treeLeaf) string {
	if l.NeverHit {
		return "never"
	}
	return share(l.Hits, l.Misses)
}

// treeMarks are the line drawings before child i of n, and before what hangs under it.
func treeMarks(i, n int) (branch, stem string) {
	if i == n-1 {
		return "└─ ", "   "
	}
	return "├─ ", "│  "
}

func leafName(l treeLeaf) string { return l.ID[:min(len(l.ID), shortID)] + " " + l.Tenant }

// shortDigest is sha256:0123456789ab.
func shortDigest(s string) string {
	kind, digits, ok := strings.Cut(s, ":")
	if !ok || len(digits) <= shortID {
		return s
	}
	return kind + ":" + digits[:shortID]
}

func factorsText(all []factorView) string {
	var parts []string
	for i, f := range all {
		if i == maxShownFactors {
			parts = append(parts, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		parts = append(parts, f.Path+"="+shortDigest(orDash(f.Value)))
	}
	return strings.Join(parts, ", ")
}
