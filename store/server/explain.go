package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Explain says of each key where it is, why it would or would not be served, and where else the same hash lives.
func (s adminService) Explain(ctx context.Context, r *quirev1.ExplainRequest) (*quirev1.ExplainResponse, error) {
	who, err := admin(ctx)
	if err != nil {
		return nil, err
	}
	n := s.node
	ns, err := n.visible(ctx, r.GetNamespace().GetId())
	if err != nil {
		return nil, err
	}
	a := asked{ns: ns, space: n.spaces.of(ns), who: who}
	keys, err := n.limits.keysOf(r.Run, a.space.hashBytes)
	if err != nil {
		return nil, err
	}
	if keys > maxExplainKeys {
		return nil, rpc.Errorf(reason.LimitExceeded, "more than %d keys to explain in one call", maxExplainKeys)
	}
	run, err := a.runOf(r.Run)
	if err != nil {
		return nil, err
	}
	if e := r.Namespace.Epoch; e != 0 {
		run.Family.Epoch = page.Epoch(e)
	}
	out := &quirev1.ExplainResponse{Pages: make([]*quirev1.PageExplanation, keys)}
	for i := range keys {
		hash, err := page.MakeHash(run.Hashes[i*a.space.hashBytes : (i+1)*a.space.hashBytes])
		if err != nil {
			return nil, badField("run.hashes", "%v", err)
		}
		out.Pages[i] = n.explain(ctx, &a, &page.Key{Family: run.Family, Hash: hash})
	}
	return out, nil
}

func (n *node) explain(ctx context.Context, a *asked, k *page.Key) *quirev1.PageExplanation {
	x := n.store.Explain(ctx, k)
	why := x.Reason
	switch {
	case k.Epoch != a.ns.Epoch:
		why = reason.StaleEpoch
	case a.ns.State == namespace.Retired:
		why = reason.Retired
	}
	out := &quirev1.PageExplanation{
		Hash: k.Hash.Bytes(), Served: x.Served && why == reason.None, Reason: rpc.ToProto(why),
		Depth: x.Depth, Children: x.Children, Pins: x.Pins, Orphan: x.Orphan, Score: float64(x.Score),
		ScoreUnit: x.Unit, RankedBelow: uint32(x.Below), RankedPages: uint32(x.Sampled),
		Expires: timeToProto(x.Expiry.Time()), Elsewhere: n.elsewhere(a, k),
	}
	if x.Known {
		out.ScoreTier = x.RankTier.String()
	}
	for i := range x.Extents {
		e := &x.Extents[i]
		out.Extents = append(out.Extents, &quirev1.StoredExtent{
			ExtentId: appendExtentID(nil, e.ID), View: viewToProto(e.View), Tier: e.Tier.String(), Bytes: uint64(e.Bytes),
			Provenance: string(e.Provenance), Accepted: e.Accepted, Created: timeToProto(e.Created),
		})
		if p := e.Parent.Bytes(); len(p) > 0 {
			out.ParentHash = p
		}
	}
	out.Text = sentence(&x, why, out.Elsewhere)
	return out
}

// elsewhere lists where else the same hash is stored, of what the caller may see.
func (n *node) elsewhere(a *asked, k *page.Key) []*quirev1.SameHash {
	var out []*quirev1.SameHash
	for _, s := range n.store.SameHash(k.Hash) {
		if s.Family == k.Family {
			continue
		}
		other, why := n.registry.Access(a.who, s.Family.Namespace, namespace.RightRead)
		if why != reason.None || a.who.Role != namespace.RoleOperator && other.Tenant != a.who.Tenant {
			continue
		}
		out = append(out, &quirev1.SameHash{
			Namespace: other.ID[:], Epoch: uint64(s.Family.Epoch), Tenant: other.Tenant, Complete: s.Complete,
			Differences: rpc.DifferencesToProto(namespace.Diff(a.ns.Spec, other.Spec)),
		})
	}
	return out
}

// sentence says it to people in one sentence.
func sentence(x *store.Explanation, why reason.Reason, elsewhere []*quirev1.SameHash) string {
	var b strings.Builder
	if x.Served && why == reason.None {
		fmt.Fprintf(&b, "Served from %s", tiersOf(x.Extents))
	} else {
		b.WriteString("Not served: " + whyText(x, why))
	}
	if n := len(elsewhere); n > 0 {
		fmt.Fprintf(&b, "; the same hash lives in %d other place%s", n, plural(n))
		if d := elsewhere[0].GetDifferences(); len(d) > 0 {
			fmt.Fprintf(&b, ", the first of which differs in %s", d[0].Path)
		}
	}
	return b.String() + "."
}

func whyText(x *store.Explanation, why reason.Reason) string {
	switch why {
	case reason.None, reason.Absent:
		if x.Open > 0 {
			return fmt.Sprintf("nothing is committed yet, %d extent%s being written", x.Open, plural(x.Open))
		}
		return "no page of this hash was committed here, or it is gone"
	case reason.Incomplete:
		n := extentsOf(x.Extents)
		return fmt.Sprintf("the %d committed extent%s do not cover the page", n, plural(n))
	case reason.Provenance:
		return "it was computed by, or on top of, something that is not accepted here now"
	case reason.Expired:
		return "its time is over"
	case reason.Retired:
		return "the namespace is retired"
	case reason.StaleEpoch:
		return "the namespace has begun another life since"
	case reason.Corrupt:
		return "it was found corrupt and is gone"
	}
	return why.String()
}

func tiersOf(copies []store.ExtentInfo) string {
	var tiers []string
	for i := range copies {
		if t := copies[i].Tier.String(); !slices.Contains(tiers, t) {
			tiers = append(tiers, t)
		}
	}
	if len(tiers) == 0 {
		return "memory"
	}
	n := extentsOf(copies)
	return strings.Join(tiers, " and ") + fmt.Sprintf(" by %d extent%s", n, plural(n))
}

// extentsOf counts the extents that copies are of.
func extentsOf(copies []store.ExtentInfo) int {
	ids := make(map[page.ExtentID]struct{}, len(copies))
	for i := range copies {
		ids[copies[i].ID] = struct{}{}
	}
	return len(ids)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
