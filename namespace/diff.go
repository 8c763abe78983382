package namespace

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/quire-kv/quire/store/page"
)

// Difference is one factor of a Diff; an empty side means the factor is absent there.
type Difference struct {
	Path, A, B string
	Class      Class
}

// Diff names every factor that differs, in path order. Recorded factors never do.
func Diff(a, b *Spec) []Difference { return diffFactors(a.Factors(), b.Factors()) }

func diffFactors(x, y []Factor) []Difference {
	var out []Difference
	add := func(path, a, b string, c Class) {
		if c != Recorded && a != b {
			out = append(out, Difference{path, a, b, c})
		}
	}
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && x[0].Path < y[0].Path:
			add(x[0].Path, x[0].Value, "", x[0].Class)
			x = x[1:]
		case len(x) == 0 || y[0].Path < x[0].Path:
			add(y[0].Path, "", y[0].Value, y[0].Class)
			y = y[1:]
		default: // the stricter class counts: the reduction of a strict and a plain spec
			add(x[0].Path, x[0].Value, y[0].Value, min(x[0].Class, y[0].Class))
			x, y = x[1:], y[1:]
		}
	}
	return out
}

// Sibling is another namespace of the tenant and what differs: A is the sibling's value, B that of the spec asked for.
type Sibling struct {
	Namespace *Namespace
	Diff      []Difference
}

// maxSiblings bounds what an answer shows: more than a screen helps nobody.
const maxSiblings = 8

// nearest is the siblings of factors f among spaces, nearest first. Retired ones and self are left out.
func nearest(spaces []*Namespace, f []Factor, self page.NamespaceID) []Sibling {
	var out []Sibling
	for _, n := range spaces {
		if n.State != Retired && n.ID != self {
			out = append(out, Sibling{n, diffFactors(n.factors, f)})
		}
	}
	sortSiblings(out)
	return out[:min(len(out), maxSiblings)]
}

// sortSiblings puts the nearest first: fewest semantic differences, then fewest of representation, then of
// provenance, then by id.
func sortSiblings(s []Sibling) {
	slices.SortFunc(s, func(a, b Sibling) int {
		x, y := distance(a.Diff), distance(b.Diff)
		return cmp.Or(slices.Compare(x[:], y[:]), bytes.Compare(a.Namespace.ID[:], b.Namespace.ID[:]))
	})
}

// distance counts differences by class.
func distance(d []Difference) (n [3]int) {
	for _, x := range d {
		n[x.Class-Semantic]++
	}
	return n
}
