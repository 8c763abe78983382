package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/quire-kv/quire/namespace"
)

// forkView is two namespaces of one tenant, model and weights that engines use at the same time: the pages of one are
// never a hit in the other.
type forkView struct {
	Model       string           `json:"model"`
	Weights     string           `json:"weights"`
	Tenant      string           `json:"tenant"`
	A           forkSide         `json:"a"` // the one with more hits
	B           forkSide         `json:"b"`
	Differences []differenceView `json:"differences"`
}

type forkSide struct {
	Namespace string   `json:"namespace"`
	Instances []string `json:"instances"`
	hitsView           // of all of them
}

// forksOf compares, for each tenant and revision, the namespace whose instances have most hits with each other one
// that instances report from. What differs is what 'ns diff' names.
func forksOf(tree []treeModel) []forkView {
	forks := []forkView{}
	for _, m := range tree {
		for _, r := range m.Revisions {
			for tenant, inUse := range usedByTenant(r.Namespaces) {
				for _, l := range inUse[1:] {
					f := forkView{Model: m.Model, Weights: r.Weights, Tenant: tenant, A: sideOf(inUse[0]), B: sideOf(l)}
					if f.Differences = differencesOf(inUse[0], l); len(f.Differences) > 0 {
						forks = append(forks, f)
					}
				}
			}
		}
	}
	slices.SortStableFunc(forks, func(x, y forkView) int {
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.Weights, y.Weights), cmp.Compare(x.Tenant, y.Tenant), cmp.Compare(y.B.LookupKeys, x.B.LookupKeys))
	})
	return forks
}

// usedByTenant has the namespaces that instances report from, those with most hits first.
func usedByTenant(siblings []treeLeaf) map[string][]treeLeaf {
	out := map[string][]treeLeaf{}
	for _, l := range siblings {
		if len(l.Instances) > 0 {
			out[l.Tenant] = append(out[l.Tenant], l)
		}
	}
	for _, all := range out {
		slices.SortStableFunc(all, func(x, y treeLeaf) int {
			a, b := sideOf(x), sideOf(y)
			return cmp.Or(cmp.Compare(b.HitKeys, a.HitKeys), cmp.Compare(b.LookupKeys, a.LookupKeys), cmp.Compare(x.ID, y.ID))
		})
	}
	return out
}

func sideOf(l treeLeaf) forkSide {
	s := forkSide{Namespace: l.ID}
	var keys, hits uint64
	for _, i := range l.Instances {
		s.Instances = append(s.Instances, i.Instance)
		keys, hits = keys+i.LookupKeys, hits+i.HitKeys
	}
	s.hitsView = hitsOf(keys, hits)
	return s
}

// differencesOf is nothing where a spec is of a newer server.
func differencesOf(a, b treeLeaf) []differenceView {
	x, errX := namespace.Parse([]byte(a.source.GetSpec()))
	y, errY := namespace.Parse([]byte(b.source.GetSpec()))
	if errX != nil || errY != nil {
		return nil
	}
	var out []differenceView
	for _, d := range namespace.Diff(x, y) {
		out = append(out, differenceView{d.Path, d.A, d.B, d.Class.String()})
	}
	return out
}

// What is shown of forks, and of one; -o json has all.
const (
	maxShownForks       = 4
	maxForkDifferences  = 8
	maxShownForkMembers = 2
)

func writeForks(w io.Writer, forks []forkView) error {
	for i, f := range forks {
		if i == maxShownForks {
			_, err := fmt.Fprintf(w, "\nand %d more forks; -o json has all\n", len(forks)-i)
			return err
		}
		if err := writeFork(w, f); err != nil {
			return err
		}
	}
	return nil
}

func writeFork(w io.Writer, f forkView) error {
	a, b := f.A.Namespace[:min(len(f.A.Namespace), shortID)], f.B.Namespace[:min(len(f.B.Namespace), shortID)]
	fmt.Fprintf(w, "\nfork: engines of %s use two namespaces at once, and none of one's pages is a hit in the other\n", f.Model)
	sides := newTable("  NAMESPACE", "KEYS HIT", "KEYS", "INSTANCES").numbers(1, 2)
	for _, s := range []struct {
		id string
		forkSide
	}{{a, f.A}, {b, f.B}} {
		sides.row("  "+s.id, s.text(), countText(s.LookupKeys), membersText(s.Instances))
	}
	if err := sides.write(w); err != nil {
		return err
	}
	t := newTable("  FACTOR", a, b, "CLASS")
	for _, d := range f.Differences[:min(len(f.Differences), maxForkDifferences)] {
		t.row("  "+d.Path, shortDigest(orDash(d.A)), shortDigest(orDash(d.B)), d.Class)
	}
	if err := t.write(w); err != nil {
		return err
	}
	if more := len(f.Differences) - maxForkDifferences; more > 0 {
		_, err := fmt.Fprintf(w, "  and %d more: quire ns diff %s %s\n", more, a, b)
		return err
	}
	return nil
}

func membersText(all []string) string {
	out := ""
	for i, name := range all {
		if i == maxShownForkMembers {
			return out + fmt.Sprintf(" and %d more", len(all)-i)
		}
		if i > 0 {
			out += ", "
		}
		out += name
	}
	return out
}
