package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// Metadata that a page with one extent may cost.
const (
	pageGoalBytes   = 100
	extentGoalBytes = 32
)

const fewResident = 1000 // what many resident pages are compared with

// benchIndex asks one shard's index directly: no network, no lock, one core.
func benchIndex(ctx context.Context, o *Options) ([]Figure, error) {
	var s sheet
	few, err := fillShard(ctx, fewResident)
	if err != nil {
		return nil, err
	}
	before := settled()
	many, err := fillShard(ctx, o.Resident)
	if err != nil {
		return nil, err
	}
	s.add("rss_per_page", "B", float64(settled().since(before).RSSBytes)/float64(o.Resident))
	batches := []int{128, 1024}
	for _, batch := range batches {
		fewProbes, manyProbes := newProbes(batch, fewResident, true), newProbes(batch, o.Resident, true)
		err := o.rounds(ctx, func(measured bool) error {
			slow, _, err := few.ask(fewProbes, o.Duration/4)
			if err != nil {
				return err
			}
			fast, collector, err := many.ask(manyProbes, o.Duration/4)
			if err == nil && measured {
				s.add(fmt.Sprintf("keys_per_cpu_second_%d_of_%d", batch, fewResident), "1/s", slow)
				s.add(fmt.Sprintf("keys_per_cpu_second_%d_of_%d", batch, o.Resident), "1/s", fast)
				s.add(fmt.Sprintf("many_to_few_%d", batch), "", fast/slow)
				s.add(fmt.Sprintf("collector_share_of_cpu_%d", batch), "%", collector)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	runtime.KeepAlive(many)
	goals := map[string]goal{"rss_per_page": atMost(pageGoalBytes + extentGoalBytes)}
	for _, batch := range batches {
		goals[fmt.Sprintf("collector_share_of_cpu_%d", batch)] = atMost(1)
	}
	return s.figures(goals), nil
}

// filled is a shard with pages of the stored keys, each of one extent.
type filled struct {
	shard  *core.Shard
	family page.Family
	ticket core.Ticket
	offset int64
	out    []core.Effect
}

func fillShard(ctx context.Context, pages int) (*filled, error) {
	f := &filled{
		shard:  core.New(core.Options{Boot: [16]byte{1}, FingerprintKey: 1, Policy: evict.NewLRU(0)}),
		family: page.Family{Namespace: page.NamespaceID{1}, Epoch: 1, Group: page.GroupID{1}},
	}
	geometry := core.Geometry{Heads: 8, Layers: 8, CellBytes: 64, Tokens: 16, Grade: page.Elements}
	f.step(core.NamespaceChanged{Namespace: core.NamespaceState{
		ID: f.family.Namespace, Epoch: f.family.Epoch, Life: core.Active, Tenant: 1, HashBytes: hashBytes,
		Groups: map[page.GroupID]core.Geometry{f.family.Group: geometry}, Accepts: []uint64{1 << 1},
	}})
	begin := make([]core.BeginPage, fillBatch)
	for i := range begin {
		begin[i].PayloadBytes = page.PayloadBytes(geometry.Full(), geometry.CellBytes)
	}
	begin[0].Link = core.LinkRoot
	hashes := make([]byte, 0, fillBatch*hashBytes)
	for at := 0; at < pages; at += fillBatch {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n := min(fillBatch, pages-at)
		hashes = hashes[:0]
		for i := range n {
			hashes = appendKey(hashes, storedKeys, uint64(at+i))
		}
		if err := f.publish(hashes, begin[:n]); err != nil {
			return nil, fmt.Errorf("fill the index at page %d: %w", at, err)
		}
	}
	return f, nil
}

// step takes one event; the effects are valid until the next.
func (f *filled) step(ev core.Event) []core.Effect {
	f.out = f.shard.Step(clock.Instant(f.ticket), 1, ev, f.out[:0])
	return f.out
}

// publish plays the runtime: it gives the places that are asked for and commits.
func (f *filled) publish(hashes []byte, pages []core.BeginPage) error {
	f.ticket++
	effects := f.step(core.Begin{
		Ticket: f.ticket, Principal: 1, Run: core.Run{Family: f.family, Hashes: hashes}, Pages: pages, TTL: time.Minute,
		Provenance: 1,
	})
	for {
		alloc, reply := find(effects)
		switch {
		case reply != nil && reply.Reason != reason.None:
			return reply.Reason
		case reply != nil && reply.Token != (core.Token{}):
			return f.commit(reply, pages)
		case reply != nil:
			return fmt.Errorf("nothing was granted: %w", reply.Results[0].Reason)
		case alloc == nil:
			return fmt.Errorf("neither places nor a reply: %w", reason.Unknown)
		}
		places := make([]core.Place, len(alloc.Items))
		for i, item := range alloc.Items {
			places[i] = core.Place{Tier: alloc.Tier, Handle: 1 + uint32(f.offset>>40), Offset: f.offset & (1<<40 - 1), Bytes: item.Bytes}
			f.offset += (item.Bytes + pageUnit - 1) &^ (pageUnit - 1)
		}
		effects = f.step(core.Allocated{ID: alloc.ID, Places: places})
	}
}

func (f *filled) commit(granted *core.Reply, pages []core.BeginPage) error {
	all := make([]uint32, len(pages))
	for i := range all {
		all[i] = uint32(i)
	}
	f.ticket++
	_, reply := find(f.step(core.Commit{
		Ticket: f.ticket, Principal: 1, Namespace: f.family.Namespace, Epoch: f.family.Epoch, Token: granted.Token, Pages: all,
	}))
	switch {
	case reply == nil:
		return fmt.Errorf("commit: no reply: %w", reason.Unknown)
	case reply.Reason != reason.None:
		return fmt.Errorf("commit: %w", reply.Reason)
	}
	for _, r := range reply.Results {
		if r.Outcome != core.Committed {
			return fmt.Errorf("commit: %w", r.Reason)
		}
	}
	return nil
}

// find is the request for places and the reply among effects, nil where there is none.
func find(effects []core.Effect) (alloc *core.Alloc, reply *core.Reply) {
	for _, e := range effects {
		switch e := e.(type) {
		case core.Alloc:
			alloc = &e
		case core.Reply:
			reply = &e
		}
	}
	return alloc, reply
}

// ask probes for about d and answers keys per second of CPU time, and which percentage of it went to the collector. Each
// call copies its keys into fresh memory, as a decoded request has them, so that the collector has work.
func (f *filled) ask(p *probes, d time.Duration) (perSecond, collector float64, err error) {
	bits := make([]byte, (p.batch+7)/8)
	before, begun, calls := ownUsage(), time.Now(), 0
	for time.Since(begun) < d {
		clear(bits)
		run := core.Run{Family: f.family, Hashes: append([]byte(nil), p.at(calls)...)}
		_, hits, why := f.shard.Exists(1, &run, page.View{}, bits, 0)
		if hits != p.hits() || why != reason.None {
			return 0, 0, fmt.Errorf("%d of %d keys found (%v), want %d", hits, p.batch, why, p.hits())
		}
		calls++
	}
	used := ownUsage().since(before)
	return float64(calls*p.batch) / max(used.CPUSeconds, 1e-3), used.collectorShare(), nil
}
