package server

import (
	"context"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// errStranger answers a caller that may not see the namespace and one that named none that exists: alike. Calls that
// answer per page turn it into misses.
var errStranger = rpc.Errorf(reason.Absent, "no such namespace")

// errRole is a caller that sees what it asks for and may not do it.
var errRole = rpc.Errorf(reason.Unauthorized, "the role of this principal does not allow this")

// asked is a request whose caller, namespace, epoch and provenance are in order.
type asked struct {
	ns     *namespace.Namespace
	space  *space
	caller store.Caller
	who    namespace.Principal
}

func principal(ctx context.Context) (namespace.Principal, error) {
	p, ok := auth.PrincipalFrom(ctx)
	if !ok {
		return p, errRole
	}
	return p, nil
}

// principalName is how the store, leases and reports name a principal: unique in the node.
func principalName(p namespace.Principal) string {
	return p.Tenant + "/" + auth.RoleName(p.Role) + "/" + p.Name
}

// admit checks who calls and what on. The error is errStranger itself for one who may not see the namespace.
func (n *node) admit(ctx context.Context, ref *quirev1.NamespaceRef, right namespace.Right, session []byte) (asked, error) {
	who, err := principal(ctx)
	if err != nil {
		return asked{}, err
	}
	id, err := digest32[page.NamespaceID]("namespace.id", ref.GetId(), false)
	if err != nil {
		return asked{}, err
	}
	prov, err := digest32[namespace.ProvenanceID]("namespace.provenance", ref.GetProvenance(), true)
	if err != nil {
		return asked{}, err
	}
	ns, err := n.access(who, id, right)
	if err != nil {
		return asked{}, err
	}
	if page.Epoch(ref.GetEpoch()) != ns.Epoch {
		return asked{}, answer(reason.StaleEpoch, nil)
	}
	a := asked{ns: ns, space: n.spaces.of(ns), who: who}
	a.space.used.Store(true)
	a.caller.Principal = n.store.Intern(principalName(who))
	if a.caller.Session, err = n.sessions.of(session, a.caller.Principal); err != nil {
		return asked{}, err
	}
	if rpc.SharingFrom(ctx) != nil { // what it publishes and fetches from now on must be mappable
		n.store.SetShared(ns.ID, ns.Epoch)
	}
	a.caller.Provenance, err = n.provenance(a.space, prov)
	return a, err
}

// access is the namespace if who may do what right asks.
func (n *node) access(who namespace.Principal, id page.NamespaceID, right namespace.Right) (*namespace.Namespace, error) {
	ns, why := n.registry.Access(who, id, right)
	switch why {
	case reason.None:
		return ns, nil
	case reason.Absent, reason.NotFound:
		return nil, errStranger
	case reason.Unauthorized:
		return nil, errRole
	}
	return nil, answer(why, nil)
}

// provenance is the store's number of a provenance that some Open registered for the namespace.
func (n *node) provenance(s *space, p namespace.ProvenanceID) (uint16, error) {
	if p == (namespace.ProvenanceID{}) {
		return 0, nil
	}
	if known, ok := s.provenances.Load(p); ok {
		return known.(uint16), nil
	}
	canonical, ok := n.registry.Provenance(s.id, p)
	if !ok {
		return 0, rpc.Errorf(reason.Provenance, "this provenance was not registered by Open in this namespace")
	}
	number := n.store.Provenance(canonical)
	if number == 0 {
		return 0, rpc.Errorf(reason.LimitExceeded, "the node knows too many provenances")
	}
	s.provenances.Store(p, number)
	return number, nil
}

// runOf reads one run; its keys are counted already.
func (a *asked) runOf(r *quirev1.KeyRun) (core.Run, error) {
	scope, err := digest32[page.Scope]("run.scope", r.GetScope(), true)
	if err != nil {
		return core.Run{}, err
	}
	group, err := digest32[page.GroupID]("run.group", r.GetGroup(), false)
	if err != nil {
		return core.Run{}, err
	}
	family := page.Family{Namespace: a.ns.ID, Epoch: a.ns.Epoch, Scope: scope, Group: group}
	return core.Run{Family: family, Hashes: r.GetHashes()}, nil
}

// runsOf appends all runs to dst.
func (a *asked) runsOf(dst []core.Run, runs []*quirev1.KeyRun) ([]core.Run, error) {
	for _, r := range runs {
		run, err := a.runOf(r)
		if err != nil {
			return dst, err
		}
		dst = append(dst, run)
	}
	return dst, nil
}
