package server

import (
	"context"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// Bounds of a report: what is kept of one is a kilobyte or two.
const (
	maxInstanceBytes  = 128 // a host's name and a process
	maxEngineBytes    = 64  // of engine and of adapter: a name and a version
	maxFailureEntries = 64  // reasons that later versions add included
)

// Report keeps how an engine instance fares. Reporting takes the right to read: who reports uses the namespace.
func (s pageService) Report(ctx context.Context, r *quirev1.ReportRequest) (*quirev1.ReportResponse, error) {
	n := s.node
	a, err := n.admit(ctx, r.Namespace, namespace.RightRead, r.SessionId)
	if err != nil {
		return nil, err
	}
	report, err := reportOf(r)
	if err != nil {
		return nil, err
	}
	n.nameEngine(&a, report)
	i := instance{tenant: a.who.Tenant, principal: principalName(a.who), report: report}
	if i.session = a.caller.Session != 0; i.session {
		i.attached = n.sessions.since(a.caller.Session)
	}
	k := instanceKey{lifeKey{a.ns.ID, a.ns.Epoch}, a.caller.Principal, a.caller.Session, r.Instance}
	if err := n.instances.put(k, i); err != nil {
		return nil, err
	}
	if _, err := n.sessions.of(r.SessionId, a.caller.Principal); err != nil { // it ended meanwhile, maybe before put
		n.instances.forget(a.caller.Session)
		return nil, err
	}
	return &quirev1.ReportResponse{Interval: durationpb.New(reportEvery)}, nil
}

// reportOf is r, checked, as it is kept.
func reportOf(r *quirev1.ReportRequest) (*quirev1.Instance, error) {
	for _, f := range []struct {
		path, text string
		least      int
		most       int
	}{{"instance", r.Instance, 1, maxInstanceBytes}, {"engine", r.Engine, 0, maxEngineBytes}, {"adapter", r.Adapter, 0, maxEngineBytes}} {
		if len(f.text) < f.least || len(f.text) > f.most {
			return nil, badField(f.path, "%d bytes; write %d to %d", len(f.text), f.least, f.most)
		}
		for _, c := range f.text { // people's terminals show it
			if !unicode.IsPrint(c) {
				return nil, badField(f.path, "%q is not printable text", f.text)
			}
		}
	}
	if r.Uptime != nil && (r.Uptime.CheckValid() != nil || r.Uptime.AsDuration() < 0) {
		return nil, badField("uptime", "an instance runs for some time")
	}
	counters, err := countersOf(r.Counters)
	if err != nil {
		return nil, err
	}
	breaker := r.Breaker
	if _, known := quirev1.BreakerState_name[int32(breaker)]; !known {
		breaker = quirev1.BreakerState_BREAKER_STATE_UNSPECIFIED
	}
	return &quirev1.Instance{
		Instance: r.Instance, Engine: r.Engine, Adapter: r.Adapter, Provenance: r.Namespace.GetProvenance(),
		Uptime: r.Uptime, Counters: counters, Breaker: breaker,
	}, nil
}

// countersOf is c with each reason once; those that this node does not know are summed as unknown.
func countersOf(c *quirev1.EngineCounters) (*quirev1.EngineCounters, error) {
	if len(c.GetFailures()) > maxFailureEntries {
		return nil, badField("counters.failures", "%d entries; each reason once, at most %d", len(c.GetFailures()), maxFailureEntries)
	}
	var by [reason.Count]uint64
	for _, f := range c.GetFailures() {
		why := rpc.FromProto(f.GetReason())
		if why == reason.None {
			why = reason.Unknown
		}
		by[why] += f.GetCount()
	}
	out := &quirev1.EngineCounters{
		Lookups: c.GetLookups(), LookupKeys: c.GetLookupKeys(), HitKeys: c.GetHitKeys(),
		LoadedPages: c.GetLoadedPages(), LoadedBytes: c.GetLoadedBytes(), SavedPages: c.GetSavedPages(), SavedBytes: c.GetSavedBytes(),
		RecomputeFallbacks: c.GetRecomputeFallbacks(),
	}
	for _, why := range reason.All() {
		if by[why] > 0 {
			out.Failures = append(out.Failures, &quirev1.FailureCount{Reason: rpc.ToProto(why), Count: by[why]})
		}
	}
	return out, nil
}

// nameEngine puts what the stated provenance names over the instance's own word.
func (n *node) nameEngine(a *asked, report *quirev1.Instance) {
	if len(report.GetProvenance()) == 0 {
		return
	}
	canonical, ok := n.registry.Provenance(a.ns.ID, namespace.ProvenanceID(report.GetProvenance()))
	if !ok {
		return
	}
	factors, err := namespace.ParseProvenance(canonical)
	if err != nil {
		return
	}
	for _, f := range factors {
		switch f.Path {
		case "engine":
			report.Engine = f.Value
		case "engine_version":
			report.EngineVersion = f.Value
		}
	}
}
