package server_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

// Every method of every service, but health, refuses a caller without a token.
func TestCase_C53_NothingWithoutAToken(t *testing.T) {
	w := newWorld(t, server.Limits{})
	p := w.dial()
	tried := 0
	for _, d := range []*grpc.ServiceDesc{&quirev1.PageService_ServiceDesc, &quirev1.NamespaceService_ServiceDesc, &quirev1.AdminService_ServiceDesc} {
		for _, m := range d.Methods {
			err := p.cc.Invoke(ctx(t), "/"+d.ServiceName+"/"+m.MethodName, new(emptypb.Empty), new(emptypb.Empty))
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s: %v", m.MethodName, err)
			}
			tried++
		}
		for _, m := range d.Streams {
			st, err := p.cc.NewStream(ctx(t), &m, "/"+d.ServiceName+"/"+m.StreamName)
			if err == nil {
				if err = st.SendMsg(new(emptypb.Empty)); err == nil {
					err = st.CloseSend()
				}
			}
			if err == nil || status.Code(err) == codes.Unknown { // io.EOF: the status is with RecvMsg
				err = st.RecvMsg(new(emptypb.Empty))
			}
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s: %v", m.StreamName, err)
			}
			tried++
		}
	}
	if tried < 30 {
		t.Errorf("only %d methods tried", tried)
	}
	st, err := p.cc.NewStream(ctx(t), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
	if err == nil {
		err = st.RecvMsg(new(emptypb.Empty))
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("reflection: %v", err)
	}
	h, err := healthpb.NewHealthClient(p.cc).Check(ctx(t), &healthpb.HealthCheckRequest{})
	if err != nil || h.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", h, err)
	}
}

// A caller without a token is refused before it sent its message: the server never holds one of a stranger's.
func TestCase_C53_RefusedBeforeReceiving(t *testing.T) {
	w := newWorld(t, server.Limits{})
	p := w.dial()
	for _, method := range []string{quirev1.PageService_BatchExists_FullMethodName, quirev1.NamespaceService_Open_FullMethodName, quirev1.PageService_WritePages_FullMethodName} {
		st, err := p.cc.NewStream(ctx(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.RecvMsg(new(emptypb.Empty)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// answers makes each kind of call on a namespace and tells what came back, errors included.
func (s *space) answers(hashes []byte) map[string]string {
	out := map[string]string{}
	note := func(call string, m proto.Message, err error) {
		if err != nil {
			out[call] = prototext.Format(status.Convert(err).Proto())
			return
		}
		out[call] = prototext.Format(m)
	}
	t := s.w.t
	token := &quirev1.FencingToken{BootId: make([]byte, 16), Sequence: 1}
	exists, err := s.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes)})
	note("exists", exists, err)
	exists, err = s.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes), Lease: durationpb.New(time.Second)})
	note("lookup", exists, err)
	pages, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	out["fetch"] = fmt.Sprint(len(pages), err)
	for i, p := range pages {
		out["fetch"] += fmt.Sprintf("\n%d: %s %d %d", i, prototext.Format(p.status), len(p.headers), len(p.payload))
	}
	touch, err := s.page.Touch(ctx(t), &quirev1.TouchRequest{Namespace: s.ref, Runs: s.runs(hashes)})
	note("touch", touch, err)
	pin, err := s.page.Pin(ctx(t), &quirev1.PinRequest{Namespace: s.ref, Runs: s.runs(hashes)})
	note("pin", pin, err)
	del, err := s.page.BatchDelete(ctx(t), &quirev1.BatchDeleteRequest{Namespace: s.ref, Runs: s.runs(hashes)})
	note("delete", del, err)
	report, err := s.page.ReportCorrupt(ctx(t), &quirev1.ReportCorruptRequest{Namespace: s.ref, Run: s.run(hashes)})
	note("report", report, err)
	begin, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: s.ref, Run: s.run(hashes), Pages: make([]*quirev1.PublishPage, len(hashes)/32)})
	note("begin", begin, err)
	commit, err := s.page.CommitPublish(ctx(t), &quirev1.CommitPublishRequest{Namespace: s.ref, Token: token})
	note("commit", commit, err)
	abort, err := s.page.AbortPublish(ctx(t), &quirev1.AbortPublishRequest{Namespace: s.ref, Token: token})
	note("abort", abort, err)
	renew, err := s.page.RenewLease(ctx(t), &quirev1.RenewLeaseRequest{Namespace: s.ref, Lease: &quirev1.RenewLeaseRequest_LeaseId{LeaseId: make([]byte, 16)}})
	note("renew", renew, err)
	release, err := s.page.ReleaseLease(ctx(t), &quirev1.ReleaseLeaseRequest{Namespace: s.ref, LeaseId: make([]byte, 16)})
	note("release", release, err)
	write, err := s.write(&quirev1.BeginPublishResponse{Token: token}, hashes, nil)
	note("write", write, err)
	watch, err := s.page.WatchPages(ctx(t), &quirev1.WatchPagesRequest{Namespace: s.ref})
	if err != nil {
		t.Fatal(err)
	}
	event, err := watch.Recv()
	note("watch", event, err)
	get, err := s.ns.Get(ctx(t), &quirev1.GetRequest{Id: s.ref.Id})
	note("get", get, err)
	drain, err := s.ns.Drain(ctx(t), &quirev1.DrainRequest{Id: s.ref.Id})
	note("drain", drain, err)
	retire, err := s.ns.Retire(ctx(t), &quirev1.RetireRequest{Id: s.ref.Id})
	note("retire", retire, err)
	purge, err := s.ns.Purge(ctx(t), &quirev1.PurgeRequest{Id: s.ref.Id})
	note("purge", purge, err)
	waive, err := s.ns.Waive(ctx(t), &quirev1.WaiveRequest{Id: s.ref.Id, Factor: "engine_version", Values: []string{"1", "2"}, Lifetime: durationpb.New(time.Hour)})
	note("waive", waive, err)
	grant, err := s.ns.Grant(ctx(t), &quirev1.GrantRequest{Id: s.ref.Id, Tenant: "x", Right: quirev1.GrantRight_GRANT_RIGHT_READ})
	note("grant", grant, err)
	policy, err := s.ns.SetPolicy(ctx(t), &quirev1.SetPolicyRequest{Id: s.ref.Id})
	note("policy", policy, err)
	diff, err := s.ns.Diff(ctx(t), &quirev1.DiffRequest{A: &quirev1.DiffSide{Side: &quirev1.DiffSide_Id{Id: s.ref.Id}}, B: &quirev1.DiffSide{Side: &quirev1.DiffSide_Spec{Spec: specText("x", "1")}}})
	note("diff", diff, err)
	return out
}

// For every call, a stranger to a full namespace gets byte for byte what it gets for one that never existed; where
// pages are answered for, also what the owner gets for pages that are not there.
func TestCase_C68_StrangerIsAMiss(t *testing.T) {
	w := newWorld(t, server.Limits{})
	owner, stranger := w.as("a", namespace.RoleEngine).open("w", "1"), w.as("b", namespace.RoleEngine)
	there, absent := storetest.Chain("there", 11), storetest.Chain("absent", 11)
	owner.publish(there)

	seen := owner.seenBy(stranger)
	never := owner.seenBy(stranger)
	never.ref = &quirev1.NamespaceRef{Id: make([]byte, 32), Epoch: 1}
	got, want := seen.answers(there), never.answers(there)
	for call := range want {
		if got[call] != want[call] {
			t.Errorf("%s tells a stranger that the namespace exists:\n%s\nand of one that does not:\n%s", call, got[call], want[call])
		}
	}
	seen.ref.Epoch = 99
	if stale := seen.answers(there); stale["exists"] != want["exists"] || stale["begin"] != want["begin"] {
		t.Error("a wrong epoch tells a stranger that the namespace exists")
	}
	miss := owner.answersAbsent(absent)
	for call := range miss {
		if want[call] != miss[call] {
			t.Errorf("%s: a stranger gets\n%s\nthe owner for an absent page\n%s", call, want[call], miss[call])
		}
	}
	owner.mustExist(there, 11)
	if list, err := stranger.ns.List(ctx(t), &quirev1.ListRequest{}); err != nil || len(list.Namespaces) != 0 {
		t.Errorf("a stranger lists %d namespaces (%v)", len(list.GetNamespaces()), err)
	}
	if list, err := stranger.ns.List(ctx(t), &quirev1.ListRequest{Tenant: "a"}); err == nil && len(list.Namespaces) != 0 {
		t.Error("a stranger lists another tenant's namespaces")
	}
	// One spec of two tenants is two namespaces, and nothing is shared.
	other := stranger.open("w", "1")
	if string(other.ref.Id) == string(owner.ref.Id) {
		t.Fatal("two tenants have one namespace")
	}
	other.mustExist(there, 0)
	other.mustMiss(there, reason.Absent)
}

// answersAbsent are the calls that the owner of a namespace gets a miss from.
func (s *space) answersAbsent(hashes []byte) map[string]string {
	all := s.answers(hashes)
	out := map[string]string{}
	for _, call := range []string{"exists", "lookup", "fetch", "touch"} {
		out[call] = all[call]
	}
	return out
}

func TestCase_C68_Grant(t *testing.T) {
	w := newWorld(t, server.Limits{})
	owner, guest, op := w.as("a", namespace.RoleEngine).open("w", "1"), w.as("b", namespace.RoleEngine), w.as("ops", namespace.RoleOperator)
	hashes := storetest.Chain("x", 3)
	owner.publish(hashes)
	seen := owner.seenBy(guest)
	grant := func(r quirev1.GrantRight) {
		t.Helper()
		if _, err := op.ns.Grant(ctx(t), &quirev1.GrantRequest{Id: owner.ref.Id, Tenant: "b", Right: r}); err != nil {
			t.Fatal(err)
		}
	}
	grant(quirev1.GrantRight_GRANT_RIGHT_READ)
	seen.mustExist(hashes, 3)
	seen.mustServe(hashes)
	_, err := guest.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: seen.ref})
	is(t, err, reason.Unauthorized)
	grant(quirev1.GrantRight_GRANT_RIGHT_READ_PUBLISH)
	_, err = guest.page.BatchDelete(ctx(t), &quirev1.BatchDeleteRequest{Namespace: seen.ref, Runs: seen.runs(hashes)})
	is(t, err, reason.Unauthorized)
	if _, err := op.ns.RevokeGrant(ctx(t), &quirev1.RevokeGrantRequest{Id: owner.ref.Id, Tenant: "b"}); err != nil {
		t.Fatal(err)
	}
	seen.mustExist(hashes, 0)
	seen.mustMiss(hashes, reason.Absent)
}

func TestCase_C53_Roles(t *testing.T) {
	w := newWorld(t, server.Limits{})
	engine, viewer := w.as("a", namespace.RoleEngine), w.as("a", namespace.RoleReadOnly)
	s := engine.open("w", "1")
	hashes := storetest.Chain("x", 2)
	s.publish(hashes)
	v := s.seenBy(viewer)
	v.mustExist(hashes, 2)
	v.mustServe(hashes)
	if _, err := viewer.admin.Status(ctx(t), &quirev1.StatusRequest{}); err != nil {
		t.Errorf("read-only may look at status: %v", err)
	}
	for name, call := range map[string]func() error{
		"open": func() error {
			_, err := viewer.ns.Open(ctx(t), &quirev1.OpenRequest{Spec: specText("w2", "1")})
			return err
		},
		"begin": func() error {
			_, err := viewer.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{Namespace: v.ref})
			return err
		},
		"delete": func() error {
			_, err := viewer.page.BatchDelete(ctx(t), &quirev1.BatchDeleteRequest{Namespace: v.ref, Runs: v.runs(hashes)})
			return err
		},
		"pin": func() error {
			_, err := viewer.page.Pin(ctx(t), &quirev1.PinRequest{Namespace: v.ref, Runs: v.runs(hashes)})
			return err
		},
		"token": func() error {
			_, err := viewer.admin.CreateToken(ctx(t), &quirev1.CreateTokenRequest{Name: "n", Tenant: "a", Role: "operator"})
			return err
		},
		"engine status": func() error { _, err := engine.admin.Status(ctx(t), &quirev1.StatusRequest{}); return err },
		"engine token": func() error {
			_, err := engine.admin.CreateToken(ctx(t), &quirev1.CreateTokenRequest{Name: "n", Tenant: "a", Role: "engine"})
			return err
		},
		"engine waive": func() error {
			_, err := engine.ns.Waive(ctx(t), &quirev1.WaiveRequest{Id: s.ref.Id, Factor: "engine_version", Values: []string{"1", "2"}, Reason: "r", Lifetime: durationpb.New(time.Hour)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { is(t, call(), reason.Unauthorized) })
	}
}
