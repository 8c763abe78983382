package playback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// Options of a play. Zero values are defaults.
type Options struct {
	Group page.GroupID // of the pages
	Fetch bool         // get the bytes of hits too, and compare them; else the lookup alone is their use
	Clock clock.Clock  // by which requests are timed, best that of the store; default clock.System
	// Before is called before each request, with its time in the trace: it waits for it, or moves a clock. nil: requests
	// follow each other at once.
	Before func(ctx context.Context, request int, seconds float64) error
	// After is called when all of a request is done, with what was done so far.
	After func(ctx context.Context, request int, so *Result) error
}

// leaseTTL is longer than one request takes.
const leaseTTL = 30 * time.Second

// Result is what the store did with the requests.
type Result struct {
	Requests int
	Accesses int       // of pages
	FLOPs    float64   // of all accesses
	Hits     int       // pages served: of each request the run from its root that was there
	Saved    float64   // FLOPs of the pages served
	Written  int       // pages that were published
	NotWorth int       // pages refused as not worth their place, with what is behind them
	NoRoom   int       // pages refused for want of room, with what is behind them
	Unleased int       // hits beyond what a lease may hold: used without one
	Lost     int       // pages that were there at the lookup and could not be fetched
	Seconds  []float64 // when each request was made, since the play began
}

var errWrong = errors.New("a page has other bytes than were published")

// Play makes all requests. costs are those of the workload's pages. An error says which request it ended at; what was
// done before is in the result.
func Play(ctx context.Context, w *replay.Workload, costs []float64, s *client.Session, o Options) (Result, error) {
	geo, ok := s.Geometry(o.Group)
	if !ok {
		return Result{}, fmt.Errorf("the namespace has no group %v", o.Group)
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	p := &play{w: w, costs: costs, s: s, o: o, bytes: int(geo.CellBytes) * int(geo.Heads) * int(geo.Layers), began: o.Clock.Now()}
	for i := range w.Requests {
		if err := p.request(ctx, i); err != nil {
			return p.res, fmt.Errorf("request %d: %w", i, err)
		}
	}
	return p.res, nil
}

type play struct {
	w     *replay.Workload
	costs []float64
	s     *client.Session
	o     Options
	bytes int // of a page's payload
	began clock.Instant
	keys  []byte
	items []client.Item
	pages [][]byte // buffers
	want  []byte
	res   Result
}

func (p *play) request(ctx context.Context, i int) (err error) {
	r := &p.w.Requests[i]
	if p.o.Before != nil {
		if err := p.o.Before(ctx, i, r.Seconds); err != nil {
			return err
		}
	}
	p.res.Seconds = append(p.res.Seconds, p.o.Clock.Now().Sub(p.began).Seconds())
	p.res.Requests++
	p.res.Accesses += len(r.Pages)
	for _, x := range r.Pages {
		p.res.FLOPs += p.costs[x]
	}
	if len(r.Pages) > 0 {
		if err := p.serve(ctx, r.Pages); err != nil {
			return err
		}
	}
	if p.o.After != nil {
		return p.o.After(ctx, i, &p.res)
	}
	return nil
}

// serve is one request: the lease is held until what was lacking is published.
func (p *play) serve(ctx context.Context, pages []int32) (err error) {
	p.keys = p.keys[:0]
	for _, x := range pages {
		p.keys = appendHash(p.keys, x)
	}
	run := client.Run{Group: p.o.Group, Hashes: p.keys}
	there, err := p.s.Exists(ctx, run, leaseTTL)
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	if there.Lease != nil {
		defer func() { err = errors.Join(err, there.Lease.Release(ctx)) }()
	}
	hits, err := p.use(ctx, run, &there)
	if err != nil {
		return err
	}
	p.res.Hits += hits
	for _, x := range pages[:hits] {
		p.res.Saved += p.costs[x]
	}
	return p.publish(ctx, run, hits, len(pages))
}

// use makes use of the pages that are there, once, and says how many could be used.
func (p *play) use(ctx context.Context, run client.Run, there *client.Presence) (hits int, err error) {
	p.res.Unleased += there.Leading - there.Leased
	leased, rest := p.s.First(run, there.Leased), p.s.Rest(p.s.First(run, there.Leading), there.Leased)
	if !p.o.Fetch {
		if len(rest.Hashes) > 0 { // what is leased was used by the lookup
			if _, err := p.s.Touch(ctx, rest); err != nil {
				return 0, fmt.Errorf("touch: %w", err)
			}
		}
		return there.Leading, nil
	}
	good, err := p.fetch(ctx, leased, there.Lease)
	if err == nil && good == there.Leased {
		var more int
		more, err = p.fetch(ctx, rest, nil)
		good += more
	}
	p.res.Lost += there.Leading - good
	return good, err
}

// fetch gets the bytes of a run and says of how many pages from the first on it got them.
func (p *play) fetch(ctx context.Context, run client.Run, lease *client.Lease) (good int, err error) {
	n := len(run.Hashes) / hashBytes
	if n == 0 {
		return 0, nil
	}
	got, err := p.s.FetchInto(ctx, run, page.View{}, nil, p.buffers(n), lease)
	if err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	good = client.GoodPrefix(got)
	for i := range good {
		if fill(p.want, run.Hashes[i*hashBytes:][:hashBytes]); !bytes.Equal(p.want, p.pages[i]) {
			return 0, fmt.Errorf("fetch: page %x: %w", run.Hashes[i*hashBytes:][:4], errWrong)
		}
	}
	return good, nil
}

// publish offers the pages of a run from the given one on.
func (p *play) publish(ctx context.Context, run client.Run, from, to int) error {
	if from == to {
		return nil
	}
	buffers := p.buffers(to - from)
	p.items = p.items[:0]
	for i := range to - from {
		fill(buffers[i], p.key(from+i))
		p.items = append(p.items, client.Item{Bytes: buffers[i]})
	}
	if first := &p.items[0]; from == 0 {
		first.Root = true
	} else {
		first.Parent, _ = page.MakeHash(p.key(from - 1))
	}
	results, err := p.s.Publish(ctx, p.s.Rest(run, from), page.View{}, nil, p.items, client.PublishOptions{})
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	taken := client.GoodPrefix(results)
	p.res.Written += taken
	if taken == len(results) {
		return nil
	}
	refused := len(results) - taken
	switch why := results[taken].Reason; why {
	case reason.NotWorth:
		p.res.NotWorth += refused
	case reason.Busy, reason.QuotaExceeded:
		p.res.NoRoom += refused
	default:
		return fmt.Errorf("publish: page %d of the request: %w", from+taken, why)
	}
	return nil
}

func (p *play) key(i int) []byte { return p.keys[i*hashBytes : (i+1)*hashBytes] }

// buffers are n buffers of a page each, used again and again.
func (p *play) buffers(n int) [][]byte {
	for len(p.pages) < n {
		p.pages = append(p.pages, make([]byte, p.bytes))
	}
	if p.want == nil {
		p.want = make([]byte, p.bytes)
	}
	return p.pages[:n]
}

// Predict replays the same requests, at the times when they were made, over one tier of so many pages.
func Predict(w *replay.Workload, costs []float64, played *Result, policy evict.Policy, capacity int, o replay.Options) (replay.Result, error) {
	asMade := *w
	asMade.Requests = append([]replay.Access(nil), w.Requests[:len(played.Seconds)]...)
	for i, at := range played.Seconds {
		asMade.Requests[i].Seconds = at
	}
	return replay.Replay(&asMade, costs, policy, capacity, o)
}
