package main

import (
	"context"
	"encoding/hex"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// topSample is what the server said at one moment.
type topSample struct {
	status     *quirev1.StatusResponse
	namespaces []*quirev1.Namespace
	tenants    []*quirev1.Tenant // none: the server is older than they
}

// sample asks the server for all that top shows.
func (r *remote) sample(ctx context.Context) (*topSample, error) {
	s := &topSample{}
	var err error
	if s.status, err = r.admin.Status(ctx, &quirev1.StatusRequest{}); err != nil {
		return nil, err
	}
	if s.namespaces, err = r.list(ctx, "", false); err != nil {
		return nil, err
	}
	tenants, err := r.admin.ListTenants(ctx, &quirev1.ListTenantsRequest{})
	switch status.Code(err) {
	case codes.OK:
		s.tenants = tenants.GetTenants()
	case codes.Unimplemented:
	default:
		return nil, err
	}
	return s, nil
}

// topNews is what the sampler tells: a sample, or why there is none.
type topNews struct {
	sample *topSample
	err    error
}

// watchTop samples on a connection of its own, one call at a time, until ctx ends. After an error it connects anew.
func (a *app) watchTop(ctx context.Context, interval time.Duration, news chan<- topNews) {
	for {
		err := a.sampleUntilLost(ctx, interval, news)
		if !tell(ctx, news, topNews{err: err}) || !pause(ctx, interval) {
			return
		}
	}
}

// sampleUntilLost answers why no more samples come.
func (a *app) sampleUntilLost(ctx context.Context, interval time.Duration, news chan<- topNews) error {
	r, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		s, err := r.sampleWithin(ctx, a.timeout)
		if status.Code(err) == codes.Unavailable {
			return &exitError{exitUnavailable, "the server is lost (" + cause(status.Convert(err).Message()) + ")"}
		}
		if err != nil {
			return err
		}
		if !tell(ctx, news, topNews{sample: s}) || !pause(ctx, interval) {
			return ctx.Err()
		}
	}
}

func (r *remote) sampleWithin(ctx context.Context, timeout time.Duration) (*topSample, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return r.sample(ctx)
}

func tell(ctx context.Context, news chan<- topNews, n topNews) bool {
	select {
	case news <- n:
		return true
	case <-ctx.Done():
		return false
	}
}

// pause is false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// topRates are changes in a second between two samples of one life of a server.
type topRates struct {
	Lookups        float64 `json:"lookups"`
	HitKeys        float64 `json:"hit_keys"`
	MissedKeys     float64 `json:"missed_keys"`
	FetchedPages   float64 `json:"fetched_pages"`
	FetchedBytes   float64 `json:"fetched_bytes"`
	CommittedPages float64 `json:"committed_pages"`
	WrittenBytes   float64 `json:"written_bytes"`
	EvictedPages   float64 `json:"evicted_pages"` // last copies

	tiers  map[string]float64      // evicted pages, by tier
	spaces map[spaceKey][2]float64 // keys found and missed
}

// spaceKey is one life of a namespace.
type spaceKey struct {
	id    string
	epoch uint64
}

func spaceKeyOf(n *quirev1.Namespace) spaceKey { return spaceKey{string(n.GetId()), n.GetEpoch()} }

// ratesOf is nil where nothing can be said: there is no earlier sample, or the server was started anew since.
func ratesOf(from, to *topSample) *topRates {
	if from == nil || to == nil || !slices.Equal(from.status.GetBootId(), to.status.GetBootId()) {
		return nil
	}
	seconds := (to.status.GetUptime().AsDuration() - from.status.GetUptime().AsDuration()).Seconds()
	if seconds <= 0 {
		return nil
	}
	rate := func(x, y uint64) float64 { return float64(max(x, y)-x) / seconds }
	x, y := from.status.GetCounters(), to.status.GetCounters()
	r := &topRates{
		Lookups: rate(x.GetLookups(), y.GetLookups()), HitKeys: rate(x.GetHitKeys(), y.GetHitKeys()), MissedKeys: rate(x.GetMissedKeys(), y.GetMissedKeys()),
		FetchedPages: rate(x.GetFetchedPages(), y.GetFetchedPages()), FetchedBytes: rate(x.GetFetchedBytes(), y.GetFetchedBytes()),
		CommittedPages: rate(x.GetCommittedPages(), y.GetCommittedPages()), WrittenBytes: rate(x.GetWrittenBytes(), y.GetWrittenBytes()),
		EvictedPages: rate(x.GetEvictedPages(), y.GetEvictedPages()),
		tiers:        map[string]float64{}, spaces: map[spaceKey][2]float64{},
	}
	before := map[string]uint64{}
	for _, t := range from.status.GetTiers() {
		before[t.GetTier()] = t.GetEvictedPages()
	}
	for _, t := range to.status.GetTiers() {
		r.tiers[t.GetTier()] = rate(before[t.GetTier()], t.GetEvictedPages())
	}
	old := map[spaceKey]*quirev1.NamespaceUsage{}
	for _, n := range from.namespaces {
		old[spaceKeyOf(n)] = n.GetUsage()
	}
	for _, n := range to.namespaces {
		was, now := old[spaceKeyOf(n)], n.GetUsage()
		r.spaces[spaceKeyOf(n)] = [2]float64{rate(was.GetHits(), now.GetHits()), rate(was.GetMisses(), now.GetMisses())}
	}
	return r
}

// reasonsView is counts by reason as -o json gives them.
func reasonsView(counts []*quirev1.ReasonCount) map[string]uint64 {
	out := map[string]uint64{}
	for _, c := range counts {
		out[reasonText(c.GetReason())] += c.GetCount()
	}
	return out
}

// countersView is quirev1.NodeCounters as -o json gives it.
type countersView struct {
	Lookups        uint64            `json:"lookups"`
	HitKeys        uint64            `json:"hit_keys"`
	MissedKeys     uint64            `json:"missed_keys"`
	FetchedPages   uint64            `json:"fetched_pages"`
	FetchedBytes   uint64            `json:"fetched_bytes"`
	MissedPages    map[string]uint64 `json:"missed_pages"` // by reason
	CommittedPages uint64            `json:"committed_pages"`
	WrittenBytes   uint64            `json:"written_bytes"`
	RefusedPages   map[string]uint64 `json:"refused_pages"` // by reason
	NotWorthPages  uint64            `json:"not_worth_pages"`
	EvictedPages   uint64            `json:"evicted_pages"`
	RemovedExtents map[string]uint64 `json:"removed_extents"` // by reason
	PromotedBytes  uint64            `json:"promoted_bytes"`
	PersistedBytes uint64            `json:"persisted_bytes"`
}

func countersViewOf(c *quirev1.NodeCounters) countersView {
	return countersView{
		c.GetLookups(), c.GetHitKeys(), c.GetMissedKeys(), c.GetFetchedPages(), c.GetFetchedBytes(), reasonsView(c.GetMissedPages()),
		c.GetCommittedPages(), c.GetWrittenBytes(), reasonsView(c.GetRefusedPages()), c.GetNotWorthPages(), c.GetEvictedPages(),
		reasonsView(c.GetRemovedExtents()), c.GetPromotedBytes(), c.GetPersistedBytes(),
	}
}

// topView is a snapshot as -o json gives it.
type topView struct {
	statusView
	Counters   countersView  `json:"counters"`
	Rates      *topRates     `json:"per_second"` // null: there was no earlier sample
	Namespaces []topSpace    `json:"namespaces"`
	Tenants    []tenantView  `json:"tenants"`
	Instances  []topInstance `json:"instances"`
}

// topSpace is a namespace by its use.
type topSpace struct {
	ID       string   `json:"id"`
	Epoch    uint64   `json:"epoch"`
	Tenant   string   `json:"tenant"`
	Model    string   `json:"model"`
	State    string   `json:"state"`
	Pages    uint64   `json:"pages"`
	Bytes    uint64   `json:"bytes"`
	Hits     uint64   `json:"hits"`
	Misses   uint64   `json:"misses"`
	HitRate  *float64 `json:"hits_per_second"` // null: there was no earlier sample
	MissRate *float64 `json:"misses_per_second"`

	lastWrite time.Time // zero: never
}

type topInstance struct {
	instanceView
	Namespace string `json:"namespace"`
}

// viewOfTop joins two samples; from may be nil.
func viewOfTop(from, to *topSample) topView {
	v := topView{
		statusView: statusViewOf(to.status), Counters: countersViewOf(to.status.GetCounters()), Rates: ratesOf(from, to),
		Namespaces: []topSpace{}, Tenants: []tenantView{}, Instances: []topInstance{},
	}
	for _, n := range to.namespaces {
		u := n.GetUsage()
		s := topSpace{
			ID: hex.EncodeToString(n.GetId()), Epoch: n.GetEpoch(), Tenant: n.GetTenant(), State: stateName(n.GetState()),
			Pages: u.GetPages(), Bytes: u.GetBytes(), Hits: u.GetHits(), Misses: u.GetMisses(),
		}
		s.Model, _ = modelOf(n)
		if at := u.GetLastWrite(); at.GetSeconds() != 0 {
			s.lastWrite = at.AsTime()
		}
		if v.Rates != nil {
			r := v.Rates.spaces[spaceKeyOf(n)]
			s.HitRate, s.MissRate = &r[0], &r[1]
		}
		v.Namespaces = append(v.Namespaces, s)
		for _, i := range instanceViews(n.GetInstances()) {
			v.Instances = append(v.Instances, topInstance{i, s.ID})
		}
	}
	for _, t := range to.tenants {
		v.Tenants = append(v.Tenants, tenantViewOf(t))
	}
	return v
}
