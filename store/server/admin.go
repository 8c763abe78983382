package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// admin is the caller if it may look at the node: an operator, or read-only.
func admin(ctx context.Context) (namespace.Principal, error) {
	who, err := principal(ctx)
	if err == nil && who.Role != namespace.RoleOperator && who.Role != namespace.RoleReadOnly {
		err = errRole
	}
	return who, err
}

// Status is the node at a glance.
func (s adminService) Status(ctx context.Context, _ *quirev1.StatusRequest) (*quirev1.StatusResponse, error) {
	if _, err := admin(ctx); err != nil {
		return nil, err
	}
	n := s.node
	st := n.store.Status()
	out := &quirev1.StatusResponse{
		Version: n.version, BootId: st.Boot[:], Uptime: durationpb.New(st.Uptime),
		MetadataBytes: st.Totals.MetadataBytes, MetadataCapacityBytes: st.MetadataCapacity, Pages: st.Totals.Pages, Extents: st.Totals.Extents,
		ReadLeases: st.Totals.ReadLeases, Publications: st.Totals.Publications, Sessions: uint64(st.Sessions),
		PinnedBytes: st.Totals.PinnedBytes, Counters: n.counters(&st),
	}
	for _, t := range st.Tiers {
		out.Tiers = append(out.Tiers, tierToProto(&t, &st.Totals.Tiers[t.Tier]))
	}
	if e := &st.Eviction; e.Modes != nil {
		out.Eviction = &quirev1.EvictionStatus{UsedFlops: e.Used, ContentFlops: e.Content, SavedFlops: e.Saved}
		for _, m := range e.Modes {
			out.Eviction.Modes = append(out.Eviction.Modes, &quirev1.EvictionMode{Mode: m.Name, Shards: uint32(m.Shards), SavedFlops: m.Saved})
		}
	}
	if e := &n.eviction; e.Policy != "" {
		out.EvictionSetting = &quirev1.EvictionSetting{
			Policy: e.Policy, Shards: uint32(e.Shards), MaxPages: e.Pages, MaxExtents: e.Extents, SampleBytes: e.SampleBytes, Seed: e.Seed,
			Clock: durationpb.New(time.Duration(n.clock.Now())),
		}
	}
	return out, nil
}

// counters are the totals that rates are made of.
func (n *node) counters(st *store.Status) *quirev1.NodeCounters {
	m := n.metrics
	var missed [reason.Count]uint64
	for why := range missed {
		missed[why] = m.fetch.byPage[core.Miss][why].Load()
	}
	return &quirev1.NodeCounters{
		Lookups: m.answered.Load(), HitKeys: m.hits.Load(), MissedKeys: m.misses.Load(),
		FetchedPages: m.fetch.byPage[core.OK][reason.None].Load(), FetchedBytes: m.fetchBytes.all(), MissedPages: reasonCounts(missed[:]),
		CommittedPages: st.Totals.CommittedPages, WrittenBytes: m.writeBytes.all(), RefusedPages: reasonCounts(st.Totals.RefusedPages[:]),
		NotWorthPages: st.Totals.NotWorth, EvictedPages: st.Totals.Evicted, RemovedExtents: reasonCounts(st.Totals.Removed[:]),
		PromotedBytes: st.PromotedBytes, PersistedBytes: st.PersistedBytes,
	}
}

// reasonCounts are those above 0.
func reasonCounts(byReason []uint64) (out []*quirev1.ReasonCount) {
	for _, why := range reason.All() {
		if n := byReason[why]; n > 0 {
			out = append(out, &quirev1.ReasonCount{Reason: rpc.ToProto(why), Count: n})
		}
	}
	return out
}

func tierToProto(t *store.TierStatus, totals *core.TierTotals) *quirev1.TierStatus {
	return &quirev1.TierStatus{
		Tier: t.Tier.String(), CapacityBytes: uint64(t.Capacity), LiveBytes: uint64(t.Live), SlackBytes: uint64(t.Slack),
		MetadataBytes: uint64(t.Metadata), Writable: t.Writable, WaterLevel: float64(t.WaterLevel), Trouble: t.Trouble,
		Extents: totals.Extents, EvictedPages: totals.Evicted,
	}
}

// ListLeases lists live leases of a namespace, or of all that the caller may see.
func (s adminService) ListLeases(ctx context.Context, r *quirev1.ListLeasesRequest) (*quirev1.ListLeasesResponse, error) {
	who, err := admin(ctx)
	if err != nil {
		return nil, err
	}
	n := s.node
	var id page.NamespaceID
	var epoch page.Epoch
	if len(r.GetNamespace().GetId()) > 0 {
		ns, err := n.visible(ctx, r.Namespace.Id)
		if err != nil {
			return nil, err
		}
		id, epoch = ns.ID, ns.Epoch
	}
	out := &quirev1.ListLeasesResponse{}
	for _, l := range n.store.Leases(id, epoch) {
		if _, why := n.registry.Access(who, l.Namespace, namespace.RightRead); why == reason.None {
			out.Leases = append(out.Leases, n.leaseToProto(&l))
		}
	}
	return out, nil
}

func (n *node) leaseToProto(l *store.LeaseInfo) *quirev1.Lease {
	out := &quirev1.Lease{
		Kind: quirev1.Lease_KIND_READ, Id: l.Lease[:], Namespace: l.Namespace[:], Principal: l.PrincipalName,
		Pages: uint32(l.Pages), Bytes: l.Bytes, Remaining: durationpb.New(l.Remaining), SessionId: n.sessions.idOf(l.Session),
	}
	if l.Publish {
		out.Kind, out.Id = quirev1.Lease_KIND_PUBLISH, publicationID(l.Token)
	}
	return out
}

// publicationID is a publication's sequence, eight bytes big-endian: how people name it. The boot is the node's.
func publicationID(t core.Token) []byte {
	var b [8]byte
	for i := range b {
		b[i] = byte(t.Seq >> (56 - 8*i))
	}
	return b[:]
}
