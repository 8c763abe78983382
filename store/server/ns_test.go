package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

func TestOpenListDiff(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	again := s.peer.open("w", "1")
	if again.open.Created || string(again.ref.Id) != string(s.ref.Id) {
		t.Error("the same spec opens another namespace")
	}
	neg, err := s.ns.Negotiate(ctx(t), &quirev1.NegotiateRequest{Spec: specText("other", "1")})
	if err != nil || neg.Exists || neg.Reason != quirev1.Reason_REASON_UNSPECIFIED {
		t.Errorf("negotiate: %v %v", neg, err)
	}
	other := s.peer.open("other", "1")
	if string(other.ref.Id) != string(neg.Id) || len(other.open.Siblings) != 1 {
		t.Fatalf("open: %v", other.open)
	}
	diff, err := s.ns.Diff(ctx(t), &quirev1.DiffRequest{
		A: &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: s.ref.Id}}, B: &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: other.ref.Id}},
	})
	if err != nil || len(diff.Differences) != 1 {
		t.Fatalf("diff: %v %v", diff, err)
	}
	if d := diff.Differences[0]; d.Path != "model.weights" || d.A != digest("w") || d.B != digest("other") || d.Class != "semantic" {
		t.Errorf("diff: %v", d)
	}
	hashes := storetest.Chain("x", 5)
	s.publish(hashes)
	s.mustExist(hashes, 5)
	other.mustExist(hashes, 0)
	list, err := s.ns.List(ctx(t), &quirev1.ListRequest{})
	if err != nil || len(list.Namespaces) != 2 {
		t.Fatalf("list: %v %v", list, err)
	}
	for _, n := range list.Namespaces {
		u := n.Usage
		if string(n.Id) == string(s.ref.Id) && (u.Pages != 5 || u.Bytes < 5*pageBytes || u.Hits != 5 || !u.LastWrite.AsTime().Equal(start)) {
			t.Errorf("usage: %v", u)
		}
		if string(n.Id) == string(other.ref.Id) && (u.Pages != 0 || u.Misses != 5 || u.LastWrite != nil) {
			t.Errorf("usage of the other: %v", u)
		}
		back, err := namespace.Parse([]byte(n.Spec))
		if err != nil || back.HashBytes() != int(n.HashBytes) {
			t.Errorf("the spec does not parse back: %v", err)
		}
	}
}

func TestSpecRefused(t *testing.T) {
	p := newWorld(t, server.Limits{}).as("a", namespace.RoleEngine)
	for spec, path := range map[string]string{
		"model: {id: auto}":             "model.id",
		specText("w", "1") + "\nfoo: 1": "foo",
	} {
		_, err := p.ns.Open(ctx(t), &quirev1.OpenRequest{Spec: spec})
		is(t, err, reason.InvalidSpec)
		if e := rpc.FromStatus(err).(*rpc.Error); e.Path != path || e.Text == "" {
			t.Errorf("%q: path %q, text %q", spec[:16], e.Path, e.Text)
		}
	}
	_, err := p.ns.Open(ctx(t), &quirev1.OpenRequest{Spec: string(make([]byte, 1<<20))})
	is(t, err, reason.LimitExceeded)
}

// A hash seed of its own is refused, loudly, until an operator says that the fork is meant.
func TestCase_C72_ForkUntilAllowed(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	op := s.w.as("ops", namespace.RoleOperator)
	spec, err := namespace.Parse([]byte(specText("w", "1")))
	if err != nil {
		t.Fatal(err)
	}
	spec.Hash.Seed, spec.Hash.Probe = namespace.DigestOf([]byte("seed")), namespace.DigestOf([]byte("its chain"))
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.peer.ns.Open(ctx(t), &quirev1.OpenRequest{Spec: string(text)})
	is(t, err, reason.HashContractFork)
	_, err = s.peer.ns.AllowFork(ctx(t), &quirev1.AllowForkRequest{Id: s.ref.Id})
	is(t, err, reason.Unauthorized)
	if _, err := op.ns.AllowFork(ctx(t), &quirev1.AllowForkRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	got, err := s.peer.ns.Open(ctx(t), &quirev1.OpenRequest{Spec: string(text)})
	if err != nil || bytes.Equal(got.Namespace.Id, s.ref.Id) {
		t.Errorf("after it was allowed: %v %v", got.GetNamespace(), err)
	}
}

// A draining namespace is read, not written; a retired one is neither, and opening it again begins another life.
func TestCase_C67_Lifecycle(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	op := s.w.as("ops", namespace.RoleOperator)
	hashes := storetest.Chain("x", 3)
	s.publish(hashes)
	if _, err := op.ns.Drain(ctx(t), &quirev1.DrainRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	s.mustServe(hashes)
	_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{
		Namespace: s.ref, Run: s.run(storetest.Chain("y", 1)), Pages: []*quirev1.PublishPage{{PayloadBytes: pageBytes}},
	})
	is(t, err, reason.Draining)
	if _, err := op.ns.Retire(ctx(t), &quirev1.RetireRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	_, err = s.exists(hashes)
	is(t, err, reason.Retired)
	again := s.peer.open("w", "1")
	if again.ref.Epoch == s.ref.Epoch {
		t.Fatal("opened again in the same epoch")
	}
	again.mustExist(hashes, 0)
	again.mustMiss(hashes, reason.Absent)
	_, err = s.exists(hashes)
	is(t, err, reason.StaleEpoch)
	again.publish(hashes)
	again.mustServe(hashes)
	s.w.eventually("the first life's bytes come back", func() bool {
		s.w.clock.Advance(time.Second)
		return s.w.metric("quire_pages") == 3
	})
}

func TestCase_C23_PurgeWhileLeased(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	op := s.w.as("ops", namespace.RoleOperator)
	hashes := storetest.Chain("x", 3)
	s.publish(hashes)
	if _, err := s.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes), Lease: durationpb.New(30 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	got, err := op.ns.Purge(ctx(t), &quirev1.PurgeRequest{Id: s.ref.Id})
	if err != nil || got.Namespace.Epoch != s.ref.Epoch+1 {
		t.Fatalf("%v %v", got, err)
	}
	_, err = s.exists(hashes)
	is(t, err, reason.StaleEpoch)
	if why := s.w.storeExists(s.w.store.Intern("x"), s, hashes); why != reason.Retired {
		t.Errorf("the store answers for the purged epoch: %v", why)
	}
	again := s.peer.open("w", "1")
	again.mustExist(hashes, 0)
	again.publish(hashes)
	again.mustServe(hashes)
}

// When a change is answered, the store knows it: nothing that runs on gets an OK from then on.
func TestAnsweredIsTold(t *testing.T) {
	w := newWorld(t, server.Limits{})
	engine, op := w.as("a", namespace.RoleEngine), w.as("ops", namespace.RoleOperator)
	for i := range 40 {
		s := engine.open(fmt.Sprint("weights ", i), "1")
		for _, change := range []func() error{
			func() error { _, err := op.ns.Drain(ctx(t), &quirev1.DrainRequest{Id: s.ref.Id}); return err },
			func() error { _, err := op.ns.Retire(ctx(t), &quirev1.RetireRequest{Id: s.ref.Id}); return err },
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
		}
		if why := w.storeExists(w.store.Intern("x"), s, storetest.Chain("x", 1)); why != reason.Retired {
			t.Fatalf("round %d: Retire has answered and the store says %v", i, why)
		}
	}
}

// Watchers see what they may, at once and as it changes.
func TestWatchNamespaces(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	op, stranger := s.w.as("ops", namespace.RoleOperator), s.w.as("b", namespace.RoleEngine)
	mine, err := s.ns.Watch(ctx(t), &quirev1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := stranger.ns.Watch(ctx(t), &quirev1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want quirev1.NamespaceState) {
		t.Helper()
		m, err := mine.Recv()
		if err != nil || m.Namespace.State != want || string(m.Namespace.Id) != string(s.ref.Id) {
			t.Fatalf("got %v %v, want %v", m, err, want)
		}
	}
	next(quirev1.NamespaceState_NAMESPACE_STATE_ACTIVE)
	if _, err := op.ns.Drain(ctx(t), &quirev1.DrainRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	next(quirev1.NamespaceState_NAMESPACE_STATE_DRAINING)
	own := stranger.open("w", "1")
	if m, err := theirs.Recv(); err != nil || string(m.Namespace.Id) != string(own.ref.Id) {
		t.Errorf("a stranger sees %v (%v)", m, err)
	}
}

// Changes that another node made reach the store by the follower alone.
func TestFollower(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 1)
	s.publish(hashes)
	id := s.fix.Namespace.State.ID
	for _, to := range []namespace.State{namespace.Draining, namespace.Retired} {
		if _, err := s.w.registry.SetState(ctx(t), root, id, to); err != nil {
			t.Fatal(err)
		}
	}
	caller := s.w.store.Intern("someone")
	s.w.eventually("the store knows", func() bool {
		why := s.w.storeExists(caller, s, hashes)
		return why == reason.Retired
	})
}

func TestWatchPages(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	st, err := s.page.WatchPages(ctx(t), &quirev1.WatchPagesRequest{Namespace: s.ref})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := st.Recv(); err != nil || len(m.Events) != 0 || m.Gap {
		t.Fatalf("hello: %v %v", m, err)
	}
	hashes := storetest.Chain("x", 2)
	s.publish(hashes)
	if _, err := s.page.BatchDelete(ctx(t), &quirev1.BatchDeleteRequest{Namespace: s.ref, Runs: s.runs(hashes)}); err != nil {
		t.Fatal(err)
	}
	var stored, removed int
	for stored+removed < 4 {
		m, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range m.Events {
			if e.Tier != "host" || string(e.Group) != string(s.fix.Group[:]) || len(e.Hash) != 32 || len(e.Scope) != 0 {
				t.Errorf("event %v", e)
			}
			if e.Kind == quirev1.PageEvent_KIND_STORED {
				stored++
			} else {
				removed++
			}
		}
	}
	if stored != 2 || removed != 2 {
		t.Errorf("%d stored, %d removed", stored, removed)
	}
}
