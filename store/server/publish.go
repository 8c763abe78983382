package server

import (
	"context"
	"math"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// BeginPublish asks the store for grants.
func (s pageService) BeginPublish(ctx context.Context, r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
	n := s.node
	a, err := n.admit(ctx, r.Namespace, namespace.RightPublish, r.SessionId)
	if err != nil {
		return nil, err
	}
	req, err := n.beginRequest(&a, r)
	if err != nil {
		return nil, err
	}
	got, why, err := n.store.Begin(ctx, a.caller, req)
	if err := answer(why, err); err != nil {
		return nil, err
	}
	n.recordPublish(&a, &req)
	out := &quirev1.BeginPublishResponse{Token: tokenToProto(got.Token), Pages: n.pageStatuses(n.metrics.begin, got.Pages), DecidedAt: uint64(got.At)}
	if out.Token != nil {
		out.Lease = durationpb.New(got.TTL)
	}
	if b := rpc.BegunFrom(ctx); b != nil {
		b.Token = out.Token
	}
	return out, nil
}

// beginRequest checks counts and bytes before it allocates.
func (n *node) beginRequest(a *asked, r *quirev1.BeginPublishRequest) (store.BeginRequest, error) {
	if a.caller.Provenance == 0 {
		e := rpc.Errorf(reason.Provenance, "publishing needs the provenance that Open answered")
		e.Path = "namespace.provenance"
		return store.BeginRequest{}, e
	}
	keys, err := n.limits.keysOf(r.Run, a.space.hashBytes)
	if err != nil {
		return store.BeginRequest{}, err
	}
	if keys != len(r.Pages) {
		return store.BeginRequest{}, badField("pages", "%d pages for %d hashes", len(r.Pages), keys)
	}
	left := uint64(n.limits.MaxBatchBytes)
	for _, p := range r.Pages {
		if p.GetPayloadBytes() > left {
			return store.BeginRequest{}, n.limits.tooManyBytes()
		}
		left -= p.GetPayloadBytes()
	}
	var out store.BeginRequest
	if out.Durable, err = n.durable(r.Durability, a.ns); err != nil {
		return out, err
	}
	if out.Run, err = a.runOf(r.Run); err != nil {
		return out, err
	}
	if _, ok := a.space.groups[out.Run.Family.Group]; !ok {
		return out, badField("run.group", "the namespace has no such group")
	}
	if out.TTL, err = n.limits.lease(r.Lease); err != nil {
		return out, err
	}
	if out.WriterGroup, err = bytes16("writer_group", r.WriterGroup, true); err != nil {
		return out, err
	}
	if out.Hint, err = a.hintOf(r.Hint); err != nil {
		return out, err
	}
	out.Pages = make([]core.BeginPage, keys)
	wall := n.clock.Wall()
	for i, p := range r.Pages {
		if out.Pages[i], err = beginPage(p, wall); err != nil {
			return out, err
		}
		if !a.advises() {
			out.Pages[i].DeclaredFLOPs = 0
		}
	}
	return out, nil
}

// durable says whether a publication into ns that asks for d has to reach the disk. It refuses what the node cannot
// keep: a durability that is granted and not kept is worse than none.
func (n *node) durable(d quirev1.Durability, ns *namespace.Namespace) (bool, error) {
	whose := ""
	switch d {
	case quirev1.Durability_DURABILITY_MEMORY:
		return false, nil
	case quirev1.Durability_DURABILITY_UNSPECIFIED:
		if !ns.Policy.Durable {
			return false, nil
		}
		whose = ", which is the namespace's default"
	case quirev1.Durability_DURABILITY_DISK:
	default:
		return false, badField("durability", "write memory, disk or nothing for the namespace's default")
	}
	if !n.hasDisk {
		return false, rpc.Errorf(reason.Unsupported, "this node has no disk tier and cannot keep durability disk%s; ask for durability memory", whose)
	}
	return true, nil
}

func beginPage(p *quirev1.PublishPage, now clock.Wall) (out core.BeginPage, err error) {
	switch parent := p.GetParent().(type) {
	case *quirev1.PublishPage_ParentHash:
		if out.Parent, err = page.MakeHash(parent.ParentHash); err != nil {
			return out, badField("pages.parent_hash", "%v", err)
		}
		out.Link = core.LinkHash
	case *quirev1.PublishPage_ParentUnknown:
		out.Link = core.LinkUnknown
	case *quirev1.PublishPage_Root:
		out.Link = core.LinkRoot
	}
	if out.View, err = viewOf(p.GetView()); err != nil {
		return out, err
	}
	if f := p.GetDeclaredFlops(); f > 0 && !math.IsInf(f, 0) { // NaN is not > 0
		out.DeclaredFLOPs = f
	}
	out.PayloadBytes = p.GetPayloadBytes()
	if life := p.GetExpireSeconds(); life > 0 {
		out.Expiry = now + min(clock.Wall(life), math.MaxUint32-now)
	}
	return out, nil
}

// CommitPublish makes pages visible.
func (s pageService) CommitPublish(ctx context.Context, r *quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
	n := s.node
	a, token, err := n.admitToken(ctx, r.Namespace, r.Token)
	if err != nil {
		return nil, err
	}
	pages, err := n.commitPages(r.Pages)
	if err != nil {
		return nil, err
	}
	got, why, err := n.store.Commit(ctx, a.caller, a.ns.ID, a.ns.Epoch, token, pages)
	if err := answer(why, err); err != nil {
		return nil, err
	}
	return &quirev1.CommitPublishResponse{Pages: n.pageStatuses(n.metrics.commit, got.Pages), DecidedAt: uint64(got.At)}, nil
}

func (n *node) commitPages(pages []*quirev1.CommitPage) ([]store.CommitPage, error) {
	if len(pages) > n.limits.MaxKeys {
		return nil, n.limits.tooManyKeys()
	}
	out := make([]store.CommitPage, len(pages))
	for i, p := range pages {
		if len(p.GetHeaders()) > page.MaxRects {
			return nil, rpc.Errorf(reason.LimitExceeded, "more than %d extents of one page", page.MaxRects)
		}
		out[i] = store.CommitPage{Page: p.GetPage(), Headers: p.GetHeaders()}
	}
	return out, nil
}

// AbortPublish gives up what is not committed. What is not there is given up already.
func (s pageService) AbortPublish(ctx context.Context, r *quirev1.AbortPublishRequest) (*quirev1.AbortPublishResponse, error) {
	a, token, err := s.node.admitToken(ctx, r.Namespace, r.Token)
	if err != nil {
		return nil, err
	}
	if len(r.Pages) > s.node.limits.MaxKeys {
		return nil, s.node.limits.tooManyKeys()
	}
	var pages []uint32 // nil: all
	if len(r.Pages) > 0 {
		pages = r.Pages
	}
	s.node.store.Abort(a.caller, a.ns.ID, a.ns.Epoch, token, pages)
	return &quirev1.AbortPublishResponse{}, nil
}

// admitToken is admit for a call that names a publication, or none: that is the one which was begun before it.
func (n *node) admitToken(ctx context.Context, ref *quirev1.NamespaceRef, t *quirev1.FencingToken) (asked, core.Token, error) {
	a, err := n.admit(ctx, ref, namespace.RightPublish, nil)
	if err != nil {
		return a, core.Token{}, err
	}
	if b := rpc.BegunFrom(ctx); t == nil && b != nil {
		t = b.Token
	}
	token, err := tokenOf(t)
	return a, token, err
}
