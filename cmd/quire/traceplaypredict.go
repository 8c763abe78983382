package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/playback"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/page"
)

// sweepWait is how long a play waits at most for what the server still sweeps, and sweepLook the time between two looks.
const (
	sweepWait = 5 * time.Second
	sweepLook = 50 * time.Millisecond
)

// predictions is how many there are of a server of whose draws nobody knows.
const predictions = 8

// seen is what a play saw of the server.
type seen struct {
	before, last *quirev1.StatusResponse
	held         [evict.NumTiers]uint64 // copies of ours, at most
	records      uint64                 // pages of all, at most
	pages        uint64                 // of ours, at most
	slot         uint64                 // bytes that a page takes
	evicted      uint64
}

// begin looks at the server as it is without us, and says when its clock began. What it still sweeps, as the pages of a play
// that has just ended, would count as others': for a moment, until there are no fewer, this is waited for.
func (p *tracePlaying) begin(ctx context.Context, c clock.Clock) (start clock.Instant, err error) {
	asked := c.Now()
	for fewer, until := true, asked.Add(sweepWait); fewer && c.Now() < until; {
		was := p.seen.before
		if was != nil {
			if err := wait(ctx, sweepLook); err != nil {
				return 0, err
			}
		}
		asked = c.Now()
		if p.seen.before, err = p.remote.admin.Status(ctx, &quirev1.StatusRequest{}); err != nil {
			return 0, fmt.Errorf("ask for the server's settings: %w", err)
		}
		fewer = was == nil || p.seen.before.GetPages() < was.GetPages()
	}
	answered := c.Now()
	middle := asked.Add(answered.Sub(asked) / 2)
	return middle.Add(-p.seen.before.GetEvictionSetting().GetClock().AsDuration()), nil
}

// look asks what the store holds of ours.
func (p *tracePlaying) look(ctx context.Context) error {
	s := &p.seen
	var err error
	if s.last, err = p.remote.admin.Status(ctx, &quirev1.StatusRequest{}); err != nil {
		return fmt.Errorf("ask what the store holds: %w", err)
	}
	s.records = max(s.records, s.last.GetPages())
	for t := evict.Host; t < evict.NumTiers; t++ {
		if now, before := tierOf(s.last, t).GetExtents(), tierOf(s.before, t).GetExtents(); now > before {
			s.held[t] = max(s.held[t], now-before)
		}
	}
	pages := uint64(0)
	s.evicted = 0
	for _, session := range p.sessions {
		id := session.ID()
		r, err := p.remote.namespaces.Get(ctx, &quirev1.GetRequest{Id: id[:]})
		if err != nil {
			return fmt.Errorf("ask what the store holds: %w", err)
		}
		u := r.GetNamespace().GetUsage()
		pages, s.evicted = pages+u.GetPages(), s.evicted+u.GetEvictedPages()
	}
	s.pages = max(s.pages, pages)
	memory, was := tierOf(s.last, evict.Host), tierOf(s.before, evict.Host)
	if n := int64(memory.GetExtents() - was.GetExtents()); n > 0 && memory.GetLiveBytes() > was.GetLiveBytes() {
		s.slot = (memory.GetLiveBytes() - was.GetLiveBytes()) / uint64(n) // with nothing under way at the last look
	}
	return nil
}

// tierOf is the status of a tier; nil: there is none.
func tierOf(s *quirev1.StatusResponse, t evict.Tier) *quirev1.TierStatus {
	for _, x := range s.GetTiers() {
		if x.GetTier() == t.String() {
			return x
		}
	}
	return nil
}

// evictedFrom is how many pages left a tier for room during the play.
func (s *seen) evictedFrom(t evict.Tier) uint64 {
	return tierOf(s.last, t).GetEvictedPages() - tierOf(s.before, t).GetEvictedPages()
}

// node is the server as a replay has it, without its policies.
func (p *tracePlaying) node() replay.Node {
	s := &p.seen
	setting := s.before.GetEvictionSetting()
	room := func(t evict.Tier) int {
		if s.evictedFrom(t) == 0 {
			return p.w.Pages() // nobody knows how much more there was
		}
		return int(s.held[t])
	}
	n := replay.Node{Host: room(evict.Host)}
	if tierOf(s.before, evict.Disk) != nil {
		n.Disk = room(evict.Disk)
	}
	if most := setting.GetMaxPages(); most > 0 {
		n.Pages = int(min(most-min(most, s.before.GetPages()), math.MaxInt32))
		if s.records >= most { // these ended first
			n.Host = p.w.Pages()
		}
	}
	if most := setting.GetMaxExtents(); most > 0 {
		n.Copies = int(min(most-min(most, s.before.GetExtents()), math.MaxInt32))
	}
	if shards := int(setting.GetShards()); shards > 1 {
		n.ShardOf = func(space int32) int {
			x := p.sessions[space]
			return page.ShardOf(x.ID(), x.Epoch(), shards)
		}
	}
	return n
}

// predict replays what was played, several times where the server does not say what it draws.
func (p *tracePlaying) predict(ctx context.Context, chosen []replay.Named, out *playReport) error {
	setting := p.seen.before.GetEvictionSetting()
	out.ServerPolicy, out.Policy = setting.GetPolicy(), setting.GetPolicy()
	if len(chosen) > 0 {
		out.Policy = chosen[0].Name
	} else {
		var err error
		if out.Policy == "" {
			out.Policy = "vbr" // a server that does not say
		}
		if chosen, err = (&replayOptions{policies: []string{out.Policy}}).chosen(); err != nil {
			return fmt.Errorf("the server evicts by a policy that is not known here: %w", err)
		}
	}
	n := p.node()
	if n.Disk > 0 && !knowsTiers(out.Policy) {
		return usagef("the server has a disk tier, which policy %s knows nothing of; predict with %s", out.Policy, tierPolicies)
	}
	seeds := []uint64{setting.GetSeed()}
	if out.Seeded = seeds[0] != 0; !out.Seeded {
		seeds[0] = p.o.load.Seed
		for i := uint64(1); i < predictions && out.Policy != "lru"; i++ {
			seeds = append(seeds, p.o.load.Seed+i<<32)
		}
	}
	bar := p.a.progress(len(seeds), "predict")
	defer bar.end()
	shares := make([]playShare, 0, len(seeds))
	for _, seed := range seeds {
		got, err := playback.Predict(p.w, p.costs, &p.played, p.policies(n, chosen[0], seed), replay.Options{
			PageBytes: p.seen.slot, Fetch: p.o.fetch, Tag: p.tags(seed), Stop: ctx.Err,
		})
		if err != nil {
			return err
		}
		shares = append(shares, p.shareOf(&got))
		bar.step()
	}
	out.fill(shares)
	return nil
}

// policies gives a node its policies, as the server has them.
func (p *tracePlaying) policies(n replay.Node, chosen replay.Named, seed uint64) replay.Node {
	setting := p.seen.before.GetEvictionSetting()
	refs := int(min(setting.GetMaxPages(), evict.MaxRefs-1)) + 1
	if setting.GetMaxPages() == 0 {
		refs = evict.MaxRefs
	}
	shards := 1
	if n.ShardOf != nil {
		shards = int(setting.GetShards())
	}
	n.Policies = nil
	for i := range shards {
		if chosen.Name == "vbr" {
			v := evict.NewVBR(refs, seed+uint64(p.shard(i)))
			if most := setting.GetSampleBytes(); most > 0 {
				v.WatchWithin(most)
			}
			n.Policies = append(n.Policies, v)
		} else {
			n.Policies = append(n.Policies, chosen.New(n.Host+n.Disk, p.w, seed+uint64(i)))
		}
	}
	return n
}

// shard is which one of the server's has the policy of this number: where there is one alone, that of the namespace.
func (p *tracePlaying) shard(i int) int {
	if shards := int(p.seen.before.GetEvictionSetting().GetShards()); shards > 0 && len(p.sessions) == 1 {
		return page.ShardOf(p.sessions[0].ID(), p.sessions[0].Epoch(), shards)
	}
	return i
}

// tags are by what the policies of a server with this seed know pages.
func (p *tracePlaying) tags(seed uint64) func(page int32) uint64 {
	all := make([]uint64, p.w.Pages())
	for x := range all {
		all[x] = playback.KeyTag(seed, int32(x))
	}
	return func(x int32) uint64 { return all[x] }
}

func (p *tracePlaying) shareOf(r *replay.Result) playShare {
	return playShare{
		Hits: r.Hits, HitRate: ratio(float64(r.Hits), float64(p.played.Accesses)), Saved: r.Saved,
		Written: r.Written, Evicted: r.Evicted, Refused: r.Refused,
		MemoryBytes: uint64(r.WrittenTo[evict.Host]) * p.seen.slot, DiskBytes: uint64(r.WrittenTo[evict.Disk]) * p.seen.slot,
	}
}

func (p *tracePlaying) report() playReport {
	r, took, s := &p.played, p.took.Seconds(), &p.seen
	grown := func(of func(*quirev1.NodeCounters) uint64) uint64 {
		return of(s.last.GetCounters()) - of(s.before.GetCounters())
	}
	out := playReport{
		Requests: r.Requests, Accesses: r.Accesses, FLOPs: r.FLOPs, Namespaces: len(p.sessions), InFlight: p.o.inFlight,
		PageBytes: int(p.o.pageBytes), Seconds: took, Held: int(s.pages), Unleased: r.Unleased, Lost: r.Lost, Present: r.Present,
		Live: playShare{
			Hits: r.Hits, HitRate: ratio(float64(r.Hits), float64(r.Accesses)), Saved: r.Saved,
			Written: r.Written, Evicted: int(s.evicted), Refused: r.NotWorth + r.NoRoom,
			MemoryBytes: uint64(r.Written)*s.slot + grown((*quirev1.NodeCounters).GetPromotedBytes),
			DiskBytes:   grown((*quirev1.NodeCounters).GetPersistedBytes),
		},
		disk: tierOf(s.before, evict.Disk) != nil,
	}
	if n := len(p.w.Requests); n > 0 {
		out.Speed = ratio(p.w.Requests[n-1].Seconds, took)
	}
	return out
}
