package demo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Trials of identity: the same prompt, and something about who computed or who asks is not the same.

// otherSpec asks for the stage's pages as an engine that differs in what change does to the spec.
func otherSpec(change func(*namespace.Spec) error) func(context.Context, *stage) (seen, error) {
	return func(ctx context.Context, s *stage) (seen, error) {
		spec, err := newSpec()
		if err != nil {
			return seen{}, err
		}
		if err := change(spec); err != nil {
			return seen{}, err
		}
		session, err := s.open(ctx, s.b.client, spec)
		if err != nil {
			return seen{}, err
		}
		got, err := s.read(ctx, session, client.Run{Group: spec.Groups[0].ID(), Hashes: s.hashes})
		if err != nil {
			return seen{}, err
		}
		got.detail, err = s.diff(ctx, session)
		return got, err
	}
}

func (s *stage) open(ctx context.Context, c *client.Client, spec *namespace.Spec) (*client.Session, error) {
	session, err := c.Open(ctx, spec)
	if err == nil {
		s.sessions = append(s.sessions, session)
	}
	return session, err
}

// diff is what the server says about the difference between the stage's namespace and another.
func (s *stage) diff(ctx context.Context, other *client.Session) (string, error) {
	a, b := s.a.session.ID(), other.ID()
	r, err := s.operator.Namespaces().Diff(ctx, &quirev1.DiffRequest{
		A: &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: a[:]}}, B: &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: b[:]}},
	})
	if err != nil {
		return "", fmt.Errorf("diff: %w", err)
	}
	return differences(rpc.DifferencesFromProto(r.GetDifferences())), nil
}

// otherAdapter publishes pages under one content of an adapter and asks under another. Name and path, and so the
// engine's page hashes, are the same.
func otherAdapter(ctx context.Context, s *stage) (seen, error) {
	hashes, err := s.chain(page.VLLMRequest{LoRA: &page.VLLMLoRA{Name: "support-bot", Path: "/adapters/support-bot"}})
	if err != nil {
		return seen{}, err
	}
	first := page.MakeScope([]page.AdapterDigest{page.AdapterDigest(digest("adapter, first training"))}, "")
	second := page.MakeScope([]page.AdapterDigest{page.AdapterDigest(digest("adapter, second training"))}, "")
	if err := s.publishAndCheck(ctx, s.a.session, first, hashes); err != nil {
		return seen{}, err
	}
	got, err := s.read(ctx, s.a.session, client.Run{Group: s.group.ID, Scope: second, Hashes: hashes})
	got.detail = fmt.Sprintf("scope %.8s, not %.8s: digests of the adapters' content", second, first)
	return got, err
}

// otherTenant has opened the very same spec: that is a namespace of its own.
func otherTenant(ctx context.Context, s *stage) (seen, error) {
	got, err := s.read(ctx, s.c.session, s.run(s.hashes))
	got.detail = fmt.Sprintf("namespace %.8s, not %.8s: one spec of two tenants", s.c.session.ID(), s.a.session.ID())
	return got, err
}

// otherTenantByID knows both the id and the hashes. It is answered as if there were no such namespace.
func otherTenantByID(ctx context.Context, s *stage) (seen, error) {
	run, ref := s.run(s.hashes), namespaceRef(s.a.session)
	ask := func(ref *quirev1.NamespaceRef) (*quirev1.BatchExistsResponse, error) {
		return s.c.client.Pages().BatchExists(ctx, &quirev1.BatchExistsRequest{
			Namespace: ref, Runs: []*quirev1.KeyRun{{Group: run.Group[:], Hashes: run.Hashes}},
		})
	}
	there, err := ask(ref)
	if err != nil {
		return refused(err), nil
	}
	nowhere, err := ask(&quirev1.NamespaceRef{Id: make([]byte, len(ref.GetId())), Epoch: ref.GetEpoch(), Provenance: ref.GetProvenance()})
	if err != nil {
		return refused(err), nil
	}
	if !proto.Equal(there, nowhere) {
		return seen{answer: answerHit, detail: "the answer differs from that for a namespace that does not exist"}, nil
	}
	return seen{answer: answerMiss, why: reason.Absent, detail: "answered exactly as for a namespace that does not exist"}, nil
}

// otherSeed would never hit: it is told so when it opens.
func otherSeed(ctx context.Context, s *stage) (seen, error) {
	spec, err := newSpec()
	if err != nil {
		return seen{}, err
	}
	if err := setHash(spec, "1234"); err != nil {
		return seen{}, err
	}
	_, err = s.open(ctx, s.b.client, spec)
	return refused(err), nil
}

const (
	newerBuild  = "0.32.1"
	waiverLives = time.Hour
)

// revokedWaiver lets a newer engine version publish under a waiver, and takes the waiver back.
func revokedWaiver(ctx context.Context, s *stage) (seen, error) {
	id := s.a.session.ID()
	w, err := s.operator.Namespaces().Waive(ctx, &quirev1.WaiveRequest{
		Id: id[:], Factor: "engine_version", Values: []string{engineBuild, newerBuild}, Reason: "patch release, same kernels",
		Lifetime: durationpb.New(waiverLives),
	})
	if err != nil {
		return seen{}, fmt.Errorf("waive: %w", err)
	}
	waivers := w.GetNamespace().GetWaivers()
	if len(waivers) == 0 {
		return seen{}, fmt.Errorf("waive: the answer names no waiver")
	}
	spec, err := newSpec()
	if err != nil {
		return seen{}, err
	}
	spec.Prov.Version = newerBuild
	newer, err := s.open(ctx, s.b.client, spec)
	if err != nil {
		return seen{}, err
	}
	hashes, err := s.chain(page.VLLMRequest{})
	if err != nil {
		return seen{}, err
	}
	if err := s.publishAndCheck(ctx, newer, page.Scope{}, hashes); err != nil {
		return seen{}, err
	}
	if got, err := s.read(ctx, s.a.session, s.run(hashes)); err != nil || got.answer != answerHit {
		return seen{answer: "before it was revoked: " + got.answer, why: got.why}, err
	}
	_, err = s.operator.Namespaces().RevokeWaiver(ctx, &quirev1.RevokeWaiverRequest{Id: id[:], WaiverId: waivers[len(waivers)-1].GetId()})
	if err != nil {
		return seen{}, fmt.Errorf("revoke the waiver: %w", err)
	}
	got, err := s.read(ctx, s.a.session, s.run(hashes))
	got.detail = "engine_version " + newerBuild + " was accepted as " + engineBuild + " and served until the waiver ended"
	return got, err
}
