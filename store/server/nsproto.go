package server

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/page"
)

// namespaceToProto is ns with what this node holds of it.
func (n *node) namespaceToProto(ns *namespace.Namespace) *quirev1.Namespace {
	spec, _ := ns.Spec.MarshalJSON() // never fails on a spec that was parsed
	out := &quirev1.Namespace{
		Id: ns.ID[:], Epoch: uint64(ns.Epoch), Tenant: ns.Tenant, State: stateToProto(ns.State), Spec: string(spec),
		Policy:  policyToProto(ns.Policy),
		Created: timeToProto(ns.Created), LastUse: timeToProto(ns.LastUse), HashBytes: uint32(ns.Spec.HashBytes()),
		Usage: usageToProto(n.store.Usage(ns.ID, ns.Epoch)),
	}
	for _, w := range ns.Waivers {
		out.Waivers = append(out.Waivers, &quirev1.Waiver{
			Factor: w.Factor, Anchor: w.Anchor, Values: w.Values, Author: w.Author, Reason: w.Reason,
			Expiry: timeToProto(w.Expiry), Id: w.ID,
		})
	}
	for _, g := range ns.Grants {
		out.Grants = append(out.Grants, &quirev1.NamespaceGrant{Tenant: g.Tenant, Right: rightToProto(g.Right)})
	}
	for _, g := range ns.Spec.GroupInfos() {
		out.Groups = append(out.Groups, &quirev1.Group{
			Id: g.ID[:], Kind: g.Kind, PageTokens: g.PageTokens, KvHeads: uint32(g.Heads), Layers: uint32(g.Layers),
			CellBytes: uint64(g.CellBytes), Grade: gradeName(g.Grade),
		})
	}
	return out
}

func usageToProto(u store.Usage) *quirev1.NamespaceUsage {
	out := &quirev1.NamespaceUsage{Pages: u.Pages, Bytes: u.Bytes, Hits: u.Hits, Misses: u.Misses, LastWrite: timeToProto(u.LastWrite), NeverHit: u.NeverHit, EvictedPages: u.Evicted}
	for _, n := range u.Orphans {
		out.Orphans += n
	}
	return out
}

func policyToProto(p namespace.Policy) *quirev1.NamespacePolicy {
	out := &quirev1.NamespacePolicy{
		DefaultExpiry: durationOrNil(p.DefaultExpiry), QuotaBytes: p.QuotaBytes, DefaultDurability: quirev1.Durability_DURABILITY_MEMORY,
	}
	if p.Durable {
		out.DefaultDurability = quirev1.Durability_DURABILITY_DISK
	}
	return out
}

func policyOf(p *quirev1.NamespacePolicy) (namespace.Policy, error) {
	out := namespace.Policy{QuotaBytes: p.GetQuotaBytes()}
	if d := p.GetDefaultExpiry(); d != nil {
		if d.CheckValid() != nil || d.AsDuration() < 0 {
			return out, badField("policy.default_expiry", "pages live for some time, or for ever (0)")
		}
		out.DefaultExpiry = d.AsDuration()
	}
	switch p.GetDefaultDurability() {
	case quirev1.Durability_DURABILITY_UNSPECIFIED, quirev1.Durability_DURABILITY_MEMORY:
	case quirev1.Durability_DURABILITY_DISK:
		out.Durable = true
	default:
		return out, badField("policy.default_durability", "publications are kept in memory or on disk")
	}
	return out, nil
}

func stateToProto(s namespace.State) quirev1.NamespaceState {
	switch s {
	case namespace.Active:
		return quirev1.NamespaceState_NAMESPACE_STATE_ACTIVE
	case namespace.Draining:
		return quirev1.NamespaceState_NAMESPACE_STATE_DRAINING
	case namespace.Retired:
		return quirev1.NamespaceState_NAMESPACE_STATE_RETIRED
	}
	return quirev1.NamespaceState_NAMESPACE_STATE_UNSPECIFIED
}

func rightToProto(r namespace.Right) quirev1.GrantRight {
	switch r {
	case namespace.RightRead:
		return quirev1.GrantRight_GRANT_RIGHT_READ
	case namespace.RightPublish:
		return quirev1.GrantRight_GRANT_RIGHT_READ_PUBLISH
	}
	return quirev1.GrantRight_GRANT_RIGHT_UNSPECIFIED
}

func rightOf(r quirev1.GrantRight) (namespace.Right, bool) {
	switch r {
	case quirev1.GrantRight_GRANT_RIGHT_READ:
		return namespace.RightRead, true
	case quirev1.GrantRight_GRANT_RIGHT_READ_PUBLISH:
		return namespace.RightPublish, true
	}
	return 0, false
}

func gradeName(g page.Grade) string {
	switch g {
	case page.Elements:
		return "elements"
	case page.Cell:
		return "cell"
	case page.Whole:
		return "whole"
	}
	return ""
}

func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
