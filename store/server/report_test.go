package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/server"
)

// counters is what an instance that did something has counted.
func counters() *quirev1.EngineCounters {
	return &quirev1.EngineCounters{
		Lookups: 3, LookupKeys: 100, HitKeys: 60, LoadedPages: 60, LoadedBytes: 60 << 10, SavedPages: 40, SavedBytes: 40 << 10,
		Failures:           []*quirev1.FailureCount{{Reason: quirev1.Reason_REASON_BUSY, Count: 2}, {Reason: quirev1.Reason_REASON_CORRUPT, Count: 1}},
		RecomputeFallbacks: 1,
	}
}

func (s *space) report(instance string, session []byte, change ...func(*quirev1.ReportRequest)) error {
	r := &quirev1.ReportRequest{
		Namespace: s.ref, SessionId: session, Instance: instance, Engine: "something 1", Adapter: "adapter 0.1", Counters: counters(),
		Breaker: quirev1.BreakerState_BREAKER_STATE_CLOSED, Uptime: durationpb.New(time.Hour),
	}
	for _, c := range change {
		c(r)
	}
	got, err := s.page.Report(ctx(s.w.t), r)
	if err == nil && got.GetInterval().AsDuration() <= 0 {
		s.w.t.Errorf("report again after %v", got.GetInterval().AsDuration())
	}
	return err
}

// attach opens a session; close ends it.
func (p *peer) attach() (id []byte, close func()) {
	p.w.t.Helper()
	c, cancel := cancelable(p.w.t)
	stream, err := p.page.Attach(c, &quirev1.AttachRequest{})
	if err != nil {
		p.w.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		p.w.t.Fatal(err)
	}
	return first.GetSessionId(), cancel
}

// instances is what a caller sees by List and by Get, which agree.
func (s *space) instances() []*quirev1.Instance {
	s.w.t.Helper()
	list, err := s.ns.List(ctx(s.w.t), &quirev1.ListRequest{})
	if err != nil {
		s.w.t.Fatal(err)
	}
	got, err := s.ns.Get(ctx(s.w.t), &quirev1.GetRequest{Id: s.ref.Id})
	if err != nil {
		s.w.t.Fatal(err)
	}
	for _, n := range list.Namespaces {
		if string(n.Id) == string(s.ref.Id) {
			if len(n.Instances) != len(got.Namespace.Instances) {
				s.w.t.Errorf("List has %d instances, Get %d", len(n.Instances), len(got.Namespace.Instances))
			}
			return n.Instances
		}
	}
	s.w.t.Fatal("the namespace is not in the list")
	return nil
}

func names(all []*quirev1.Instance) (out string) {
	for _, i := range all {
		out += i.GetInstance() + " "
	}
	return strings.TrimSpace(out)
}

func TestReport(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "0.32.0")
	session, _ := s.attach()
	w.clock.Advance(time.Minute)
	if err := s.report("gpu-1:7", session); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(10 * time.Second)
	all := s.instances()
	if len(all) != 1 {
		t.Fatalf("%d instances", len(all))
	}
	got := all[0]
	if got.Engine != "vllm" || got.EngineVersion != "0.32.0" || string(got.Provenance) != string(s.ref.Provenance) {
		t.Errorf("the engine is not that of the provenance: %v", got)
	}
	if got.Adapter != "adapter 0.1" || got.Instance != "gpu-1:7" || !strings.HasPrefix(got.Principal, "a/engine/") || got.Breaker != quirev1.BreakerState_BREAKER_STATE_CLOSED {
		t.Errorf("%v", got)
	}
	if got.SessionAge.AsDuration() != 70*time.Second || got.ReportAge.AsDuration() != 10*time.Second || got.Uptime.AsDuration() != time.Hour {
		t.Errorf("ages %v, %v, %v", got.SessionAge, got.ReportAge, got.Uptime)
	}
	want := counters()
	want.Failures[0], want.Failures[1] = want.Failures[1], want.Failures[0] // by number
	if !proto.Equal(got.Counters, want) {
		t.Errorf("kept %v, reported %v", got.Counters, want)
	}

	// Counters are totals: the next report stands for the one before.
	if err := s.report("gpu-1:7", session, func(r *quirev1.ReportRequest) {
		r.Counters.HitKeys = 99
		r.Breaker = quirev1.BreakerState_BREAKER_STATE_OPEN
		r.Counters.Failures = append(r.Counters.Failures, &quirev1.FailureCount{Reason: 9999, Count: 4}, &quirev1.FailureCount{Reason: quirev1.Reason_REASON_UNKNOWN, Count: 1})
	}); err != nil {
		t.Fatal(err)
	}
	all = s.instances()
	if len(all) != 1 || all[0].Counters.HitKeys != 99 || all[0].ReportAge.AsDuration() != 0 {
		t.Fatalf("after the second report: %v", all)
	}
	if f := all[0].Counters.Failures; len(f) != 3 || f[2].Reason != quirev1.Reason_REASON_UNKNOWN || f[2].Count != 5 {
		t.Errorf("a reason of a later version is not counted as unknown: %v", f)
	}
	if all, open := w.metric("quire_instances"), w.metric("quire_instances_breaker_open"); all != 1 || open != 1 {
		t.Errorf("metrics say %v instances, %v open breakers", all, open)
	}

	// Without a stated provenance the instance's own word counts.
	if err := s.report("other", nil, func(r *quirev1.ReportRequest) {
		r.Namespace = &quirev1.NamespaceRef{Id: s.ref.Id, Epoch: s.ref.Epoch}
	}); err != nil {
		t.Fatal(err)
	}
	if all = s.instances(); names(all) != "gpu-1:7 other" || all[1].Engine != "something 1" || all[1].EngineVersion != "" || all[1].SessionAge != nil {
		t.Errorf("%v", all)
	}
}

// An instance goes with its session, or when it reports no more. Two processes of one name are two.
func TestReportsEnd(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	one, end := s.attach()
	two, _ := s.attach()
	for _, session := range [][]byte{one, two, nil} {
		if err := s.report("same", session); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(s.instances()); got != "same same same" {
		t.Fatalf("instances: %s", got)
	}
	end()
	w.eventually("the session's instance goes", func() bool { return w.metric("quire_instances") == 2 })
	is(t, s.report("same", one), reason.LeaseExpired)

	w.clock.Advance(4 * time.Minute)
	if err := s.report("same", two); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(2 * time.Minute)
	all := s.instances()
	if len(all) != 1 || all[0].SessionAge == nil {
		t.Errorf("after minutes without a report: %v", all)
	}
	if got := w.metric("quire_instances"); got != 1 {
		t.Errorf("the metric says %v", got)
	}
	// Another life of the namespace begins without them.
	op := s.seenBy(w.as("ops", namespace.RoleOperator))
	if _, err := op.ns.Purge(ctx(t), &quirev1.PurgeRequest{Id: s.ref.Id}); err != nil {
		t.Fatal(err)
	}
	is(t, s.report("same", two), reason.StaleEpoch)
	if all := s.instances(); len(all) != 0 {
		t.Errorf("of the life before: %v", all)
	}
}

// A tenant has so many instances and no more; those that are kept go on being told of, and other tenants have their own.
func TestReportsAreBounded(t *testing.T) {
	const most = 3
	w := newWorld(t, server.Limits{InstancesPerTenant: most})
	a, b := w.as("a", namespace.RoleEngine).open("w", "1"), w.as("b", namespace.RoleEngine).open("w", "1")
	for i := range most {
		if err := a.report(fmt.Sprint("i", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	is(t, a.report("one more", nil), reason.LimitExceeded)
	for _, ok := range []error{a.report("i0", nil), b.report("i0", nil)} {
		if ok != nil {
			t.Error(ok)
		}
	}
	if got := names(a.instances()); got != "i0 i1 i2" {
		t.Errorf("instances: %s", got)
	}
	w.clock.Advance(6 * time.Minute)
	if err := a.report("one more", nil); err != nil {
		t.Errorf("the silent ones still take their places: %v", err)
	}
}

func TestReportsAreChecked(t *testing.T) {
	w := newWorld(t, server.Limits{})
	s := w.as("a", namespace.RoleEngine).open("w", "1")
	for what, change := range map[string]func(*quirev1.ReportRequest){
		"no instance":          func(r *quirev1.ReportRequest) { r.Instance = "" },
		"a long instance":      func(r *quirev1.ReportRequest) { r.Instance = strings.Repeat("x", 129) },
		"a terminal's escapes": func(r *quirev1.ReportRequest) { r.Instance = "\x1b[2J" },
		"two lines":            func(r *quirev1.ReportRequest) { r.Adapter = "a\nb" },
		"a long engine":        func(r *quirev1.ReportRequest) { r.Engine = strings.Repeat("x", 65) },
		"a long adapter":       func(r *quirev1.ReportRequest) { r.Adapter = strings.Repeat("x", 65) },
		"negative uptime":      func(r *quirev1.ReportRequest) { r.Uptime = durationpb.New(-1) },
		"many failures": func(r *quirev1.ReportRequest) {
			r.Counters.Failures = slices.Repeat([]*quirev1.FailureCount{{}}, 65)
		},
	} {
		t.Run(what, func(t *testing.T) {
			is(t, s.report("i", nil, change), reason.InvalidSpec)
		})
	}
	if err := s.report(strings.Repeat("ü", 64), nil, func(r *quirev1.ReportRequest) { r.Counters, r.Engine, r.Adapter, r.Uptime = nil, "", "", nil }); err != nil {
		t.Errorf("the least that a report may say: %v", err)
	}
	if all := s.instances(); len(all) != 1 {
		t.Errorf("kept %v", all)
	}
}

// TestCase_C53_ReportsOfOthers: nobody reports on, or sees instances of, a namespace that they may not see; of another
// tenant's namespace that was granted one sees one's own instances.
func TestCase_C53_ReportsOfOthers(t *testing.T) {
	w := newWorld(t, server.Limits{})
	a := w.as("a", namespace.RoleEngine)
	s := a.open("w", "1")
	if err := s.report("owner", nil); err != nil {
		t.Fatal(err)
	}
	b := s.seenBy(w.as("b", namespace.RoleEngine))
	is(t, b.report("stranger", nil), reason.Absent)
	if _, err := b.ns.Get(ctx(t), &quirev1.GetRequest{Id: s.ref.Id}); err == nil {
		t.Error("a stranger gets the namespace")
	}
	list, err := b.ns.List(ctx(t), &quirev1.ListRequest{})
	if err != nil || len(list.Namespaces) != 0 {
		t.Errorf("a stranger's list: %v, %v", list, err)
	}
	if got := names(s.instances()); got != "owner" {
		t.Errorf("instances: %s", got)
	}

	op := s.seenBy(w.as("ops", namespace.RoleOperator))
	if _, err := op.ns.Grant(ctx(t), &quirev1.GrantRequest{Id: s.ref.Id, Tenant: "b", Right: quirev1.GrantRight_GRANT_RIGHT_READ}); err != nil {
		t.Fatal(err)
	}
	if err := b.report("guest", nil); err != nil {
		t.Fatal(err)
	}
	for who, c := range map[string]struct {
		s    *space
		want string
	}{"owner": {s, "guest owner"}, "guest": {b, "guest"}, "operator": {op, "guest owner"}} {
		if got := names(c.s.instances()); got != c.want {
			t.Errorf("the %s sees %q, want %q", who, got, c.want)
		}
	}

	// A session of one principal is of no use to another.
	session, _ := s.attach()
	is(t, b.report("guest", session), reason.LeaseExpired)
}
