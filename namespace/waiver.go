package namespace

import (
	"slices"
	"strings"
	"time"

	"github.com/quire-kv/quire/reason"
)

// Waiver joins provenance values of one factor: pages and engines of any of them are taken as the anchor's until
// Expiry. The anchor is the namespace's own value, for ever: no waiver moves an id.
type Waiver struct {
	Factor string    `json:"factor"` // short name: "engine_version", "options.x"
	Anchor string    `json:"anchor"`
	Values []string  `json:"values"` // the anchor first
	Author string    `json:"author"`
	Reason string    `json:"reason"`
	Expiry time.Time `json:"expiry"`
	ID     string    `json:"id"` // short, unique in the namespace, given by the registry
}

// Bounds of waivers.
const (
	MaxWaiverLife   = 366 * 24 * time.Hour // what nobody renews within a year nobody remembers
	maxWaivers      = 64                   // live ones of a namespace
	maxWaiverValues = 32
)

func (w *Waiver) live(now time.Time) bool { return now.Before(w.Expiry) }

func (w *Waiver) has(value string) bool { return slices.Contains(w.Values, value) }

// normalise puts the anchor first and the factor's name in its short form.
func (w Waiver) normalise() Waiver {
	w.Factor = strings.TrimPrefix(w.Factor, provenancePrefix)
	w.Values = slices.Clone(w.Values)
	if len(w.Values) > 0 && w.Anchor == "" {
		w.Anchor = w.Values[0]
	}
	if !slices.Contains(w.Values, w.Anchor) {
		w.Values = slices.Insert(w.Values, 0, w.Anchor)
	}
	w.Expiry = w.Expiry.UTC().Truncate(time.Second)
	return w
}

// checkWaiver judges a normalised waiver for n among the other namespaces of its tenant.
func checkWaiver(n *Namespace, w Waiver, spaces []*Namespace, now time.Time) *Refusal {
	r := firstRefusal(
		func() *Refusal { return w.checkFactor(n) },
		func() *Refusal { return w.checkForm(now) },
		func() *Refusal { return w.checkOverlap(n, now) },
	)
	if r != nil {
		return r
	}
	return checkOverlapAcross(n, w, spaces, now)
}

// checkFactor refuses what is not one provenance factor: classes 1 and 2 are never waivable.
func (w *Waiver) checkFactor(n *Namespace) *Refusal {
	own, ok := n.provenanceValue(w.Factor)
	for _, f := range n.factors {
		if f.Class != Provenance && (f.Path == w.Factor || strings.HasSuffix(f.Path, "."+w.Factor)) {
			return invalid("factor", "%.64q is %v: only provenance can be waived, never which values these are or what the bytes mean", w.Factor, f.Class)
		}
	}
	switch {
	case !ok:
		return invalid("factor", "%.64q is not a provenance factor: did you mean %q?", w.Factor, nearestWord(w.Factor, provenanceNames(n)))
	case w.Anchor != own:
		return invalid("values", "the first value is the anchor for ever and must be the namespace's own: write %q first", own)
	}
	return nil
}

func provenanceNames(n *Namespace) []string {
	var names []string
	for _, f := range n.factors {
		if name, ok := strings.CutPrefix(f.Path, provenancePrefix); ok {
			names = append(names, name)
		}
	}
	return names
}

// provenanceValue is n's own value of a factor; an option that n lacks has the value "".
func (n *Namespace) provenanceValue(name string) (string, bool) {
	for _, f := range n.factors {
		if f.Path == provenancePrefix+name {
			return f.Value, true
		}
	}
	option, ok := strings.CutPrefix(name, "options.")
	return "", ok && isWord(option)
}

func (w *Waiver) checkForm(now time.Time) *Refusal {
	switch {
	case w.Author == "" || !isPlain(w.Author):
		return invalid("author", "missing: write who accepts this")
	case w.Reason == "" || !isPlain(w.Reason):
		return invalid("reason", "missing: write why these values may stand for each other, in one line")
	case w.Expiry.IsZero() || !now.Before(w.Expiry):
		return invalid("expiry", "missing or past: write when this ends, at most a year from now")
	case w.Expiry.Sub(now) > MaxWaiverLife:
		return invalid("expiry", "more than a year from now: write an earlier end and renew it")
	case len(w.Values) < 2 || len(w.Values) > maxWaiverValues:
		return invalid("values", "%d values: write 2 to %d, the anchor first", len(w.Values), maxWaiverValues)
	}
	for i, v := range w.Values {
		if !isPlain(v) || isAuto(v) || v == "" && v != w.Anchor {
			return invalid("values", "%.64q: write resolved values", v)
		}
		if slices.Contains(w.Values[:i], v) {
			return invalid("values", "%q is given twice", v)
		}
	}
	if w.Values[0] != w.Anchor {
		return invalid("values", "write the anchor %q first", w.Anchor)
	}
	return nil
}

// checkOverlap refuses a value that another live waiver of n names already: which of the two ends it? Sharing the
// anchor is no overlap, since all waivers of a factor share it.
func (w *Waiver) checkOverlap(n *Namespace, now time.Time) *Refusal {
	live := 0
	for i := range n.Waivers {
		o := &n.Waivers[i]
		if !o.live(now) {
			continue
		}
		if live++; live == maxWaivers {
			return refuse(reason.LimitExceeded, "", "%d live waivers: revoke one first", live)
		}
		for _, v := range w.Values[1:] {
			if o.Factor == w.Factor && o.has(v) {
				return invalid("values", "%q is named by waiver %s already: revoke that first", v, o.ID)
			}
		}
	}
	return nil
}

// checkOverlapAcross refuses a waiver by which a provenance would be taken by two namespaces of the tenant, both
// through waivers: an engine could then be given either.
func checkOverlapAcross(n *Namespace, w Waiver, spaces []*Namespace, now time.Time) *Refusal {
	mine := n.accepted(now)
	mine[w.Factor] = append(slices.Clone(mine[w.Factor]), w.Values...)
	for _, m := range spaces {
		if m.ID == n.ID || m.State == Retired || !m.hasLiveWaiver(now) || !sameButProvenance(m, n) {
			continue
		}
		if intersect(mine, m.accepted(now)) {
			return &Refusal{Reason: reason.InvalidSpec, Path: "values", Siblings: []Sibling{{m, diffFactors(m.factors, n.factors)}},
				Text: "namespace " + m.ID.String() + " accepts some of these provenances by its own waivers: revoke those first"}
		}
	}
	return nil
}

func (n *Namespace) hasLiveWaiver(now time.Time) bool {
	return slices.ContainsFunc(n.Waivers, func(w Waiver) bool { return w.live(now) })
}

// accepted is every factor's accepted values: the namespace's own, and those joined to it. Reads of absent factors
// give no values, which stands for "".
func (n *Namespace) accepted(now time.Time) map[string][]string {
	sets := make(map[string][]string)
	for _, name := range provenanceNames(n) {
		own, _ := n.provenanceValue(name)
		sets[name] = []string{own}
	}
	for i := range n.Waivers {
		if w := &n.Waivers[i]; w.live(now) {
			sets[w.Factor] = append(sets[w.Factor], w.Values...)
		}
	}
	return sets
}

// intersect says whether some provenance is in both.
func intersect(a, b map[string][]string) bool {
	within := func(a, b map[string][]string) bool {
		for name, values := range a {
			others := b[name]
			if len(others) == 0 {
				others = []string{""}
			}
			if !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(others, v) }) {
				return false
			}
		}
		return true
	}
	return within(a, b) && within(b, a)
}

// sameButProvenance says whether a and b differ in nothing but class 3.
func sameButProvenance(a, b *Namespace) bool {
	return !slices.ContainsFunc(diffFactors(a.factors, b.factors), func(d Difference) bool { return d.Class != Provenance })
}
