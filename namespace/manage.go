package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// Opened is what Open answers.
type Opened struct {
	Namespace  *Namespace
	Created    bool // a life began: a new namespace, or the next epoch of a retired one
	Provenance ProvenanceID
	Canonical  []byte    // the opener's canonical provenance
	Siblings   []Sibling // nearest first
}

// checkOpen judges what can be judged without the registry, and copies s so that it is nobody else's.
func checkOpen(by Principal, tenant string, s *Spec) (*Spec, string, *Refusal) {
	tenant, r := openTenant(by, tenant)
	if r != nil {
		return nil, "", r
	}
	if s == nil {
		return nil, "", invalid("spec", "missing")
	}
	if r := s.validate(); r != nil {
		return nil, "", r
	}
	text, _ := s.MarshalJSON() // never fails
	s, r = decodeSpec(text)
	return s, tenant, r
}

// Open is create-or-get by spec, for tenant (operators; empty: the principal's own). Whether it may, what it finds
// and what it creates is decided and written as one transaction. It registers the opener's provenance, so that
// Provenance knows it at every node from then on.
func (r *Registry) Open(ctx context.Context, by Principal, tenant string, s *Spec) (Opened, error) {
	s, tenant, refused := checkOpen(by, tenant, s)
	if refused != nil {
		return Opened{}, refused
	}
	canonical := s.CanonicalProvenance()
	rec := provenanceRecord{Canonical: string(canonical), By: by.Name, Host: s.Record.Host}
	var out Opened
	var written *Namespace
	tries := make(map[int]Opened) // what each decided
	at, err := r.commit(ctx, func(c *change) error {
		written = nil
		spaces, err := c.spaces(tenant)
		if err != nil {
			return err
		}
		for _, n := range spaces {
			if try, ok := c.made(n); ok {
				out = tries[try]
				out.Namespace.Revision = n.Revision
				return errMade
			}
		}
		floor, err := c.floor(tenant)
		if err != nil {
			return err
		}
		p, refused := planOpen(spaces, tenant, s, floor, r.wall())
		if refused != nil {
			return refused
		}
		out = Opened{p.have, p.created, ProvenanceIDOf(canonical), canonical, p.siblings}
		if p.have == nil && len(spaces) >= r.o.MaxNamespaces {
			if err := c.forget(spaces, floor); err != nil {
				return err
			}
		}
		if p.next != nil {
			c.put(p.next)
			out.Namespace, written = p.next, p.next
			tries[c.try] = out
		}
		rec.At = r.wall()
		return c.register(p.id, out.Provenance, rec, r.o.MaxProvenances)
	})
	if err != nil {
		return Opened{}, err
	}
	if written != nil {
		written.Revision = at
	}
	return out, nil
}

// register keeps a provenance with its namespace, once, and at most limit of them.
func (c *change) register(id page.NamespaceID, p ProvenanceID, rec provenanceRecord, limit int) error {
	have, err := c.records(provenancePrefixKey(id))
	if err != nil {
		return err
	}
	key := provenanceKey(id, p)
	switch {
	case slices.ContainsFunc(have, func(r Record) bool { return string(r.Key) == string(key) }):
		return nil
	case len(have) >= limit:
		return refuse(reason.LimitExceeded, "provenance", "the namespace has known %d provenances: check what changes from one start to the next (options, recorded)", len(have))
	}
	c.puts = append(c.puts, Record{Key: key, Value: encodeRecord(rec)})
	return nil
}

// forget makes room for a namespace: the oldest retired one goes, and its epoch raises the floor of the tenant's later
// ones, so that no epoch of any id is used twice.
func (c *change) forget(spaces []*Namespace, floor page.Epoch) error {
	n := oldestRetired(spaces)
	if n == nil {
		return refuse(reason.LimitExceeded, "", "the tenant has %d namespaces: retire some first", len(spaces))
	}
	provenances, err := c.records(provenancePrefixKey(n.ID))
	if err != nil {
		return err
	}
	c.puts = append(c.puts,
		Record{Key: namespaceKey(n.Tenant, n.ID)},
		Record{Key: tenantPrefix(kindEpochs, n.Tenant), Value: encodeRecord(epochsRecord{max(floor, n.Epoch)})})
	for _, p := range provenances {
		c.puts = append(c.puts, Record{Key: p.Key})
	}
	return nil
}

// Waive accepts values (the anchor first) of one provenance factor as one, until w.Expiry. Operators only. The author
// is the caller where none is named; the id is given here.
func (r *Registry) Waive(ctx context.Context, by Principal, id page.NamespaceID, w Waiver) (*Namespace, error) {
	w = w.normalise()
	w.Author = cmp.Or(w.Author, by.Name)
	return r.update(ctx, by, id, func(c *change, n *Namespace, spaces []*Namespace) (*Namespace, *Refusal) {
		now := r.wall()
		if refused := onlyOperator(by); refused != nil {
			return nil, refused
		}
		if n.State == Retired {
			return nil, refuse(reason.Retired, "", "the namespace is retired")
		}
		if refused := checkWaiver(n, w, spaces, now); refused != nil {
			return nil, refused
		}
		w.ID = c.id[:8]
		next := n.clone()
		next.Waivers = append(slices.DeleteFunc(next.Waivers, func(o Waiver) bool { return !o.live(now) }), w)
		return next, nil
	})
}

// RevokeWaiver ends a waiver now: it is gone from the namespace, whatever a node's clock says. Operators only.
func (r *Registry) RevokeWaiver(ctx context.Context, by Principal, id page.NamespaceID, waiverID string) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := onlyOperator(by); refused != nil {
			return nil, refused
		}
		next := n.clone()
		next.Waivers = slices.DeleteFunc(next.Waivers, func(w Waiver) bool { return w.ID == waiverID })
		if len(next.Waivers) == len(n.Waivers) {
			return nil, refuse(reason.NotFound, "waiver_id", "no waiver %.32q: ns show lists them", waiverID)
		}
		return next, nil
	})
}

// Grant shares a namespace with another tenant, in place of an earlier grant to it. Operators only.
func (r *Registry) Grant(ctx context.Context, by Principal, id page.NamespaceID, g Grant) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := onlyOperator(by); refused != nil {
			return nil, refused
		}
		if refused := n.checkGrant(g); refused != nil {
			return nil, refused
		}
		if slices.Contains(n.Grants, g) {
			return nil, nil
		}
		next := n.clone()
		next.Grants = append(slices.DeleteFunc(next.Grants, func(o Grant) bool { return o.Tenant == g.Tenant }), g)
		return next, nil
	})
}

// RevokeGrant ends a grant. Operators only.
func (r *Registry) RevokeGrant(ctx context.Context, by Principal, id page.NamespaceID, tenant string) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := onlyOperator(by); refused != nil {
			return nil, refused
		}
		next := n.clone()
		next.Grants = slices.DeleteFunc(next.Grants, func(g Grant) bool { return g.Tenant == tenant })
		if len(next.Grants) == len(n.Grants) {
			return nil, refuse(reason.NotFound, "tenant", "no grant to %.64q: ns show lists them", tenant)
		}
		return next, nil
	})
}

// SetPolicy replaces the policy. Operators only.
func (r *Registry) SetPolicy(ctx context.Context, by Principal, id page.NamespaceID, p Policy) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := onlyOperator(by); refused != nil {
			return nil, refused
		}
		if refused := p.check(); refused != nil || p == n.Policy {
			return nil, refused
		}
		next := n.clone()
		next.Policy = p
		return next, nil
	})
}

// SetState moves Active -> Draining -> Retired; other moves are refused, staying is not. Operators, and an engine for
// what nobody else can be using.
func (r *Registry) SetState(ctx context.Context, by Principal, id page.NamespaceID, s State) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := n.mayEnd(by, r.wall()); refused != nil {
			return nil, refused
		}
		return n.moveTo(s)
	})
}

// Purge begins a new epoch of an active namespace. Operators, and an engine for what nobody else can be using.
func (r *Registry) Purge(ctx context.Context, by Principal, id page.NamespaceID) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := n.mayEnd(by, r.wall()); refused != nil {
			return nil, refused
		}
		return n.purged()
	})
}

// AllowFork lets the tenant open namespaces whose hash contract differs from that of sibling id, and id beside them.
// Operators only.
func (r *Registry) AllowFork(ctx context.Context, by Principal, id page.NamespaceID) (*Namespace, error) {
	return r.update(ctx, by, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
		if refused := onlyOperator(by); refused != nil || n.AllowFork {
			return nil, refused
		}
		next := n.clone()
		next.AllowFork = true
		return next, nil
	})
}

// Used records that sessions use these namespaces now; written at most once in five minutes for each. Those that are
// unknown or retired are passed over; the first failure ends it.
func (r *Registry) Used(ctx context.Context, ids []page.NamespaceID) error {
	node := Principal{Role: RoleOperator} // the node itself, after its own checks
	for _, id := range ids {
		if e := r.snap.Load().spaces[id]; e == nil || e.State == Retired || !e.useIsStale(r.wall()) {
			continue
		}
		_, err := r.update(ctx, node, id, func(_ *change, n *Namespace, _ []*Namespace) (*Namespace, *Refusal) {
			now := r.wall()
			if n.State == Retired || !n.useIsStale(now) {
				return nil, nil
			}
			next := n.clone()
			next.LastUse = now
			return next, nil
		})
		if err != nil && !errors.Is(err, reason.NotFound) {
			return fmt.Errorf("record use of namespace %v: %w", id, err)
		}
	}
	return nil
}
