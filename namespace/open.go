package namespace

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// openPlan is what Open decides from one revision of a tenant's namespaces.
type openPlan struct {
	id       page.NamespaceID
	have     *Namespace // what exists under id, retired or not; nil: nothing
	next     *Namespace // what to write; nil: nothing
	created  bool       // a life begins: a new namespace, or the next epoch of a retired one
	siblings []Sibling
}

// planOpen decides an Open of a valid spec. floor is the highest epoch that the tenant's forgotten namespaces had.
func planOpen(spaces []*Namespace, tenant string, s *Spec, floor page.Epoch, now time.Time) (openPlan, *Refusal) {
	factors := s.Factors()
	p := openPlan{}
	p.id, p.have = target(spaces, tenant, s, factors, now)
	p.siblings = nearest(spaces, factors, p.id)
	if r := checkFork(spaces, factors, p.id, p.have, now); r != nil {
		return p, r
	}
	switch {
	case p.have == nil:
		p.created = true
		p.next = &Namespace{ID: p.id, Epoch: floor + 1, Tenant: tenant, Spec: s, State: Active, Created: now, LastUse: now, factors: factors}
	case p.have.State == Retired:
		p.created, p.next = true, p.have.reopened(now)
	case p.have.useIsStale(now):
		p.next = p.have.clone()
		p.next.LastUse = now
	}
	return p, nil
}

// target is the namespace that s opens: an active one of the tenant that takes s by a live waiver (at most one does:
// overlapping waivers are refused), else that of its own id. Waivers go first because they are what an operator said
// after the fact: the engine that came up under another version has its own namespace by then.
func target(spaces []*Namespace, tenant string, s *Spec, factors []Factor, now time.Time) (page.NamespaceID, *Namespace) {
	id := ID(tenant, encodeFactors(factors, Semantic, Provenance))
	given, _ := ParseProvenance(s.CanonicalProvenance()) // a valid spec's own is well formed
	asked := &Namespace{Spec: s, factors: factors}
	var own *Namespace
	for _, n := range spaces {
		if n.ID == id {
			own = n
		} else if n.State == Active && n.hasLiveWaiver(now) && sameButProvenance(n, asked) && n.accepts(given, now) {
			return n.ID, n
		}
	}
	return id, own
}

// checkFork refuses what would silently never hit: the same engine, the same values and bytes, another hash contract
// or page size, beside a namespace in use. An operator's AllowFork on either side lets both live.
func checkFork(spaces []*Namespace, factors []Factor, id page.NamespaceID, have *Namespace, now time.Time) *Refusal {
	if have != nil && have.AllowFork {
		return nil
	}
	engine := valueOf(factors, enginePath)
	var forks []Sibling
	for _, n := range spaces {
		if n.ID == id || !n.inUse(now) || n.AllowFork || valueOf(n.factors, enginePath) != engine {
			continue
		}
		if d := diffFactors(n.factors, factors); isFork(d) {
			forks = append(forks, Sibling{n, d})
		}
	}
	if len(forks) == 0 {
		return nil
	}
	sortSiblings(forks)
	first := forks[0]
	return &Refusal{
		Reason: reason.HashContractFork, Path: first.contractPath(), Diff: first.Diff, Siblings: forks[:min(len(forks), maxSiblings)],
		Text: "namespace " + first.Namespace.ID.String() + " of the same engine is in use and differs only in the hash contract: no page would ever be found: " +
			"give this engine the same seed, algorithm and page size, or let an operator allow the fork",
	}
}

const enginePath = "provenance.engine"

// isFork says whether classes 1 and 2 differ, and in the hash contract or page tokens only.
func isFork(diff []Difference) bool {
	found := false
	for _, d := range diff {
		switch {
		case d.Class == Provenance:
		case isContract(d.Path):
			found = true
		default:
			return false
		}
	}
	return found
}

func isContract(path string) bool {
	return strings.HasPrefix(path, "hash.") || strings.HasPrefix(path, "groups[") && strings.HasSuffix(path, ".page_tokens")
}

func (s Sibling) contractPath() string {
	i := slices.IndexFunc(s.Diff, func(d Difference) bool { return isContract(d.Path) })
	return s.Diff[i].Path
}

func valueOf(factors []Factor, path string) string {
	i, ok := slices.BinarySearchFunc(factors, path, func(f Factor, p string) int { return strings.Compare(f.Path, p) })
	if !ok {
		return ""
	}
	return factors[i].Value
}

// openTenant is the tenant to open for; only operators name another than their own.
func openTenant(by Principal, tenant string) (string, *Refusal) {
	tenant = cmp.Or(tenant, by.Tenant)
	switch {
	case by.Role != RoleEngine && by.Role != RoleOperator:
		return "", refuse(reason.Unauthorized, "", "opening needs the engine or the operator role")
	case tenant != by.Tenant && by.Role != RoleOperator:
		return "", refuse(reason.Unauthorized, "tenant", "only operators open for another tenant")
	case !isWord(tenant):
		return "", invalid("tenant", "%.64q: write a tenant of 1 to 64 of a-z, A-Z, 0-9, _, - and .", tenant)
	}
	return tenant, nil
}

// oldestRetired is what to forget when a tenant has too many namespaces; nil: none is retired.
func oldestRetired(spaces []*Namespace) *Namespace {
	var oldest *Namespace
	for _, n := range spaces {
		if n.State == Retired && (oldest == nil || cmp.Or(n.LastUse.Compare(oldest.LastUse), bytes.Compare(n.ID[:], oldest.ID[:])) < 0) {
			oldest = n
		}
	}
	return oldest
}
