package server

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Every call here that changes a namespace tells the store before it answers.

// maxSpecBytes bounds the text of a spec: what a thousand layers with a hundred options need.
const maxSpecBytes = 256 << 10

func parseSpec(text string) (*namespace.Spec, error) {
	if len(text) > maxSpecBytes {
		return nil, rpc.Errorf(reason.LimitExceeded, "a spec of %d bytes; at most %d", len(text), maxSpecBytes)
	}
	s, err := namespace.Parse([]byte(text))
	return s, rpc.Refused(err)
}

// Open is create-or-get by spec.
func (s namespaceService) Open(ctx context.Context, r *quirev1.OpenRequest) (*quirev1.OpenResponse, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := parseSpec(r.Spec)
	if err != nil {
		return nil, err
	}
	opened, err := s.node.registry.Open(ctx, who, r.Tenant, spec)
	if err != nil {
		return nil, rpc.Refused(err)
	}
	s.node.spaces.set(opened.Namespace).used.Store(true)
	return &quirev1.OpenResponse{
		Namespace: s.node.namespaceToProto(opened.Namespace), Created: opened.Created,
		Provenance: opened.Provenance[:], CanonicalProvenance: opened.Canonical, Siblings: siblingsToProto(opened.Siblings),
	}, nil
}

// Negotiate is Open without effect.
func (s namespaceService) Negotiate(ctx context.Context, r *quirev1.NegotiateRequest) (*quirev1.NegotiateResponse, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	spec, err := parseSpec(r.Spec)
	if err != nil {
		return nil, err
	}
	id, exists, siblings, would := s.node.registry.Negotiate(who, r.Tenant, spec)
	out := &quirev1.NegotiateResponse{Id: id[:], Exists: exists, Siblings: siblingsToProto(siblings)}
	if would != nil {
		if would.Reason == reason.Unauthorized {
			return nil, rpc.Refused(would)
		}
		out.Reason = rpc.ToProto(would.Reason)
	}
	return out, nil
}

// Get answers one namespace, with the instances that report from it.
func (s namespaceService) Get(ctx context.Context, r *quirev1.GetRequest) (*quirev1.GetResponse, error) {
	ns, err := s.node.visible(ctx, r.Id)
	if err != nil {
		return nil, err
	}
	who, _ := principal(ctx)
	out := s.node.namespaceToProto(ns)
	out.Instances = s.node.instances.seen(who, ns, s.node.instances.all())
	return &quirev1.GetResponse{Namespace: out}, nil
}

// visible is the namespace named, if the caller may read it.
func (n *node) visible(ctx context.Context, id []byte) (*namespace.Namespace, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	nsID, err := digest32[page.NamespaceID]("id", id, false)
	if err != nil {
		return nil, err
	}
	return n.access(who, nsID, namespace.RightRead)
}

// List answers what the caller may see, with what this node holds of it and who reports from it.
func (s namespaceService) List(ctx context.Context, r *quirev1.ListRequest) (*quirev1.ListResponse, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	out, reports := &quirev1.ListResponse{}, s.node.instances.all()
	for _, ns := range s.node.registry.List(who, r.Tenant, r.IncludeRetired) {
		p := s.node.namespaceToProto(ns)
		p.Instances = s.node.instances.seen(who, ns, reports)
		out.Namespaces = append(out.Namespaces, p)
	}
	return out, nil
}

// Diff compares two specs, each by text or by the id of a namespace that the caller may read.
func (s namespaceService) Diff(ctx context.Context, r *quirev1.DiffRequest) (*quirev1.DiffResponse, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	a, err := s.side(ctx, r.A)
	if err != nil {
		return nil, err
	}
	b, err := s.side(ctx, r.B)
	if err != nil {
		return nil, err
	}
	return &quirev1.DiffResponse{Differences: rpc.DifferencesToProto(namespace.Diff(a, b))}, nil
}

func (s namespaceService) side(ctx context.Context, d *quirev1.DiffSide) (*namespace.Spec, error) {
	switch d := d.GetSide().(type) {
	case *quirev1.DiffSide_Id:
		ns, err := s.node.visible(ctx, d.Id)
		if err != nil {
			return nil, err
		}
		return ns.Spec, nil
	case *quirev1.DiffSide_Spec:
		return parseSpec(d.Spec)
	}
	return nil, badField("side", "name a namespace or give a spec")
}

// change runs one change of a namespace and tells the store of its outcome. A stranger gets what it would get for a
// namespace that does not exist.
func (s namespaceService) change(ctx context.Context, id []byte,
	do func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error)) (*quirev1.Namespace, error) {
	ns, err := s.node.visible(ctx, id)
	if err != nil {
		return nil, err
	}
	who, _ := principal(ctx)
	changed, err := do(who, ns.ID)
	if err != nil {
		return nil, rpc.Refused(err)
	}
	s.node.spaces.set(changed)
	return s.node.namespaceToProto(changed), nil
}

// Waive accepts named values of one provenance factor as one.
func (s namespaceService) Waive(ctx context.Context, r *quirev1.WaiveRequest) (*quirev1.WaiveResponse, error) {
	if len(r.Values) == 0 {
		return nil, badField("values", "name the anchor and at least one value more")
	}
	if r.Lifetime.CheckValid() != nil || r.Lifetime.AsDuration() <= 0 {
		return nil, badField("lifetime", "a waiver ends: say after how long")
	}
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.Waive(ctx, who, id, namespace.Waiver{
			Factor: r.Factor, Anchor: r.Values[0], Values: r.Values, Author: principalName(who), Reason: r.Reason,
			Expiry: s.node.clock.Wall().Time().Add(r.Lifetime.AsDuration()),
		})
	})
	return &quirev1.WaiveResponse{Namespace: ns}, err
}

// RevokeWaiver ends a waiver now.
func (s namespaceService) RevokeWaiver(ctx context.Context, r *quirev1.RevokeWaiverRequest) (*quirev1.RevokeWaiverResponse, error) {
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.RevokeWaiver(ctx, who, id, r.WaiverId)
	})
	return &quirev1.RevokeWaiverResponse{Namespace: ns}, err
}

// Grant lets another tenant in.
func (s namespaceService) Grant(ctx context.Context, r *quirev1.GrantRequest) (*quirev1.GrantResponse, error) {
	right, ok := rightOf(r.Right)
	if !ok {
		return nil, badField("right", "a grant is to read, or to read and publish")
	}
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.Grant(ctx, who, id, namespace.Grant{Tenant: r.Tenant, Right: right})
	})
	return &quirev1.GrantResponse{Namespace: ns}, err
}

// RevokeGrant ends a grant.
func (s namespaceService) RevokeGrant(ctx context.Context, r *quirev1.RevokeGrantRequest) (*quirev1.RevokeGrantResponse, error) {
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.RevokeGrant(ctx, who, id, r.Tenant)
	})
	return &quirev1.RevokeGrantResponse{Namespace: ns}, err
}

// SetPolicy changes default expiry, quota and default durability.
func (s namespaceService) SetPolicy(ctx context.Context, r *quirev1.SetPolicyRequest) (*quirev1.SetPolicyResponse, error) {
	policy, err := policyOf(r.GetPolicy())
	if err != nil {
		return nil, err
	}
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.SetPolicy(ctx, who, id, policy)
	})
	return &quirev1.SetPolicyResponse{Namespace: ns}, err
}

// Drain stops new publications.
func (s namespaceService) Drain(ctx context.Context, r *quirev1.DrainRequest) (*quirev1.DrainResponse, error) {
	ns, err := s.setState(ctx, r.Id, namespace.Draining)
	return &quirev1.DrainResponse{Namespace: ns}, err
}

// Retire puts every page out of reach.
func (s namespaceService) Retire(ctx context.Context, r *quirev1.RetireRequest) (*quirev1.RetireResponse, error) {
	ns, err := s.setState(ctx, r.Id, namespace.Retired)
	return &quirev1.RetireResponse{Namespace: ns}, err
}

func (s namespaceService) setState(ctx context.Context, id []byte, to namespace.State) (*quirev1.Namespace, error) {
	return s.change(ctx, id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.SetState(ctx, who, id, to)
	})
}

// Purge begins a new epoch.
func (s namespaceService) Purge(ctx context.Context, r *quirev1.PurgeRequest) (*quirev1.PurgeResponse, error) {
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.Purge(ctx, who, id)
	})
	return &quirev1.PurgeResponse{Namespace: ns}, err
}

// AllowFork lets a sibling with another hash contract be opened.
func (s namespaceService) AllowFork(ctx context.Context, r *quirev1.AllowForkRequest) (*quirev1.AllowForkResponse, error) {
	ns, err := s.change(ctx, r.Id, func(who namespace.Principal, id page.NamespaceID) (*namespace.Namespace, error) {
		return s.node.registry.AllowFork(ctx, who, id)
	})
	return &quirev1.AllowForkResponse{Namespace: ns}, err
}

func siblingsToProto(siblings []namespace.Sibling) []*quirev1.Sibling {
	out := make([]*quirev1.Sibling, len(siblings))
	for i, s := range siblings {
		out[i] = &quirev1.Sibling{
			Id: s.Namespace.ID[:], Epoch: uint64(s.Namespace.Epoch), State: stateToProto(s.Namespace.State),
			Differences: rpc.DifferencesToProto(s.Diff),
		}
	}
	return out
}

func durationOrNil[D ~int64](d D) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return &durationpb.Duration{Seconds: int64(d) / 1e9, Nanos: int32(int64(d) % 1e9)}
}
