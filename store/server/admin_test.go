package server_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

func TestTokens(t *testing.T) {
	w := newWorld(t, server.Limits{})
	op := w.as("ops", namespace.RoleOperator)
	got, err := op.admin.CreateToken(ctx(t), &quirev1.CreateTokenRequest{Name: "e1", Tenant: "a", Role: "engine", Lifetime: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	secret, err := auth.ParseSecret(got.Secret)
	if err != nil {
		t.Fatal(err)
	}
	list, err := op.admin.ListTokens(ctx(t), &quirev1.ListTokensRequest{})
	if err != nil || strings.Contains(list.String(), got.Secret) {
		t.Errorf("the list tells a secret (%v)", err)
	}
	record, ok := w.registry.TokenByHash(secret.Hash())
	if !ok || record.By != (namespace.Principal{Name: "e1", Tenant: "a", Role: namespace.RoleEngine}) {
		t.Errorf("kept %+v", record)
	}
	bearer := w.dial(grpc.WithPerRPCCredentials(auth.PerRPC(secret, true)))
	s := bearer.open("w", "1")
	attached, err := bearer.page.Attach(ctx(t), &quirev1.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attached.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := op.admin.RevokeToken(ctx(t), &quirev1.RevokeTokenRequest{Name: "e1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.exists(storetest.Chain("x", 1)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a revoked token: %v", err)
	}
	w.eventually("the session of a revoked token ends", func() bool {
		w.clock.Advance(20 * time.Second)
		return w.store.Status().Sessions == 0
	})
	for {
		if _, err = attached.Recv(); err != nil {
			break
		}
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("the stream of a revoked token ends with %v", err)
	}
	for _, r := range []*quirev1.CreateTokenRequest{
		{Name: "", Tenant: "a", Role: "engine"}, {Name: "x", Tenant: "a/b", Role: "engine"}, {Name: "x", Tenant: "a", Role: "root"},
		{Name: "x", Tenant: "a", Role: "engine", Lifetime: durationpb.New(-time.Second)},
	} {
		_, err := op.admin.CreateToken(ctx(t), r)
		is(t, err, reason.InvalidSpec)
	}
}

func TestTokenExpires(t *testing.T) {
	w := newWorld(t, server.Limits{})
	op := w.as("ops", namespace.RoleOperator)
	got, err := op.admin.CreateToken(ctx(t), &quirev1.CreateTokenRequest{Name: "e1", Tenant: "a", Role: "engine", Lifetime: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	secret, _ := auth.ParseSecret(got.Secret)
	p := w.dial(grpc.WithPerRPCCredentials(auth.PerRPC(secret, true)))
	call := func() error {
		_, err := p.page.GetCapabilities(ctx(t), &quirev1.GetCapabilitiesRequest{})
		return err
	}
	w.clock.Advance(time.Hour - time.Second)
	if err := call(); err != nil {
		t.Error(err)
	}
	w.clock.Advance(time.Second)
	if err := call(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("after its time: %v", err)
	}
}

func TestCase_C51_Explain(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	other := s.peer.open("w2", "1")
	foreign := w.as("b", namespace.RoleEngine).open("w", "1")
	hashes := storetest.Chain("x", 2)
	s.publish(hashes)
	other.publish(hashes[:32])
	foreign.publish(hashes[:32])
	ask := func(p *peer, hashes []byte) []*quirev1.PageExplanation {
		t.Helper()
		got, err := p.admin.Explain(ctx(t), &quirev1.ExplainRequest{Namespace: &quirev1.NamespaceRef{Id: s.ref.Id}, Run: s.run(hashes)})
		if err != nil {
			t.Fatal(err)
		}
		return got.Pages
	}
	viewer, op := w.as("a", namespace.RoleReadOnly), w.as("ops", namespace.RoleOperator)
	// A grant lets read, not look around.
	if _, err := op.ns.Grant(ctx(t), &quirev1.GrantRequest{Id: foreign.ref.Id, Tenant: "a", Right: quirev1.GrantRight_GRANT_RIGHT_READ}); err != nil {
		t.Fatal(err)
	}
	x := ask(viewer, append(hashes[:64:64], storetest.Chain("absent", 1)...))
	if p := x[0]; !p.Served || len(p.Extents) != 1 || p.Extents[0].Tier != "host" || p.Children != 1 || !p.Extents[0].Accepted {
		t.Errorf("a stored page: %v", p)
	}
	if p := x[0]; len(p.Elsewhere) != 1 || string(p.Elsewhere[0].Namespace) != string(other.ref.Id) || len(p.Elsewhere[0].Differences) != 1 {
		t.Errorf("elsewhere, for its tenant: %v", p.Elsewhere)
	}
	if want := "Served from host by 1 extent; the same hash lives in 1 other place, the first of which differs in model.weights."; x[0].Text != want {
		t.Errorf("text %q", x[0].Text)
	}
	if p := x[0]; p.ScoreUnit != "FLOP per byte-second" || p.ScoreTier != "host" || p.RankedPages == 0 || p.RankedBelow > p.RankedPages {
		t.Errorf("what it is worth: %v", p)
	}
	if p := x[2]; p.ScoreUnit != "" || p.ScoreTier != "" || p.RankedPages != 0 {
		t.Errorf("what a page that is not there is worth: %v", p)
	}
	if st, err := op.admin.Status(ctx(t), &quirev1.StatusRequest{}); err != nil || len(st.GetEviction().GetModes()) != 3 || st.Eviction.UsedFlops <= 0 {
		t.Errorf("what eviction knows: %v, %v", st.GetEviction(), err)
	}
	if p := x[2]; p.Served || p.Reason != quirev1.Reason_REASON_ABSENT || !strings.HasPrefix(p.Text, "Not served: ") {
		t.Errorf("an absent page: %v", p)
	}
	if p := ask(op, hashes)[0]; len(p.Elsewhere) != 2 {
		t.Errorf("elsewhere, for an operator: %v", p.Elsewhere)
	}
	_, err := w.as("b", namespace.RoleReadOnly).admin.Explain(ctx(t), &quirev1.ExplainRequest{Namespace: s.ref, Run: s.run(hashes)})
	is(t, err, reason.Absent)
}

func TestStatusAndLeases(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s, foreign := w.as("a", namespace.RoleEngine).open("w", "1"), w.as("b", namespace.RoleEngine).open("w", "1")
	hashes := storetest.Chain("x", 2)
	for _, x := range []*space{s, foreign} {
		x.publish(hashes)
		if _, err := x.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: x.ref, Runs: x.runs(hashes), Lease: durationpb.New(5 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		x.begin(storetest.Chain("open", 1))
	}
	op, viewer := w.as("ops", namespace.RoleOperator), w.as("a", namespace.RoleReadOnly)
	st, err := op.admin.Status(ctx(t), &quirev1.StatusRequest{})
	if err != nil || st.Version != "test" || len(st.BootId) != 16 || st.Pages != 4 || st.ReadLeases != 2 || st.Publications != 2 || len(st.Tiers) != 1 {
		t.Errorf("%v %v", st, err)
	}
	if tier := st.Tiers[0]; tier.Tier != "host" || !tier.Writable || tier.LiveBytes < 4*pageBytes || tier.CapacityBytes != 64<<20 {
		t.Errorf("%v", tier)
	}
	count := func(p *peer, ref *quirev1.NamespaceRef) int {
		t.Helper()
		got, err := p.admin.ListLeases(ctx(t), &quirev1.ListLeasesRequest{Namespace: ref})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range got.Leases {
			if l.Kind == quirev1.Lease_KIND_UNSPECIFIED || len(l.Id) == 0 || !strings.Contains(l.Principal, "/engine/") || l.Remaining.AsDuration() <= 0 {
				t.Errorf("lease %v", l)
			}
		}
		return len(got.Leases)
	}
	if all, own, one := count(op, nil), count(viewer, nil), count(op, s.ref); all != 4 || own != 2 || one != 2 {
		t.Errorf("leases: all %d, own %d, of one namespace %d", all, own, one)
	}
}
