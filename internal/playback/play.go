package playback

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// Options of a play. Zero values are defaults.
type Options struct {
	Group page.GroupID  // of the pages
	Fetch bool          // get the bytes of hits too, and compare them; else the lookup alone is their use
	Clock clock.Clock   // by which requests are timed, best that of the store; default clock.System
	Start clock.Instant // of Clock, when the store began: what is made later has its time since then. Default: when the play began
	// InFlight is how many requests may be under way at once, those beyond wait; default 1: one after the other.
	InFlight int
	// Untold: how long answers were is not told.
	Untold bool
	// Before is called before each request, and before its answer is told, with the time in the trace: it waits for it, or moves a
	// clock. nil: they follow each other at once.
	Before func(ctx context.Context, request int, seconds float64) error
	// Compute is called between lookup and publication with the FLOPs of what was not there, from several goroutines: it
	// takes the time that a prefill takes. nil: none.
	Compute func(ctx context.Context, flops float64) error
	// After is called when all of a request is done, with what was done so far; never twice at once.
	After func(ctx context.Context, request int, so *Result) error
}

// leaseTTL is longer than one request takes.
const leaseTTL = 30 * time.Second

// Result is what the store did with the requests.
type Result struct {
	Requests int
	Accesses int           // of pages
	FLOPs    float64       // of all accesses
	Hits     int           // pages served: of each request the run from its root that was there
	Saved    float64       // FLOPs of the pages served
	Written  int           // pages that were published
	Present  int           // pages that others had published, or were at, when their turn came
	NotWorth int           // pages refused as not worth their place, with what is behind them
	NoRoom   int           // pages refused for want of room, with what is behind them
	Unleased int           // hits beyond what a lease may hold: used without one
	Lost     int           // pages that were there at the lookup and could not be fetched
	Steps    []replay.Step // what was decided, in the order of the answers: at the times that the server says, else of these
}

var errWrong = errors.New("a page has other bytes than were published")

// Play makes all requests, each in the session of its namespace (replay.Access.Space). costs are those of the workload's
// pages. An error says which request it ended at; what was done before is in the result.
func Play(ctx context.Context, w *replay.Workload, costs []float64, sessions []*client.Session, o Options) (Result, error) {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Start == 0 {
		o.Start = o.Clock.Now()
	}
	p := &play{w: w, costs: costs, sessions: sessions, o: o}
	for _, s := range sessions {
		geo, ok := s.Geometry(o.Group)
		if !ok {
			return Result{}, fmt.Errorf("the namespace has no group %v", o.Group)
		}
		p.bytes = int(geo.CellBytes) * int(geo.Heads) * int(geo.Layers)
	}
	for i := range w.Requests {
		if n := w.Requests[i].Space; int(n) >= len(sessions) {
			return Result{}, fmt.Errorf("request %d is of namespace %d, and there are %d sessions", i, n, len(sessions))
		}
	}
	under, inner := errgroup.WithContext(ctx)
	under.SetLimit(max(1, o.InFlight))
	err := p.all(inner, under)
	if ended := under.Wait(); ended != nil { // what came of it is no cause
		err = ended
	}
	return p.res, err
}

// all begins the requests, in the order of the trace, and tells of their answers when these have ended.
func (p *play) all(ctx context.Context, under *errgroup.Group) error {
	for step := range p.w.Steps(!p.o.Untold) {
		do, i := p.request, step.Request
		switch step.Phase {
		case replay.LookUp:
		case replay.Tell:
			do = p.answered
		default: // of the request
			continue
		}
		if p.o.Before != nil {
			if err := p.o.Before(ctx, i, step.Seconds); err != nil {
				return fmt.Errorf("request %d: %w", i, err)
			}
		}
		one := func() error {
			if err := do(ctx, i); err != nil {
				return fmt.Errorf("request %d: %w", i, err)
			}
			return nil
		}
		if p.o.InFlight > 1 {
			under.Go(one)
		} else if err := one(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// play is shared by the requests under way.
type play struct {
	w        *replay.Workload
	costs    []float64
	sessions []*client.Session
	o        Options
	bytes    int       // of a page's payload
	spare    sync.Pool // of *buffers

	mu  sync.Mutex // guards what follows
	res Result
}

// buffers are those of one request at a time, used again and again.
type buffers struct {
	keys     []byte
	items    []client.Item
	payloads [][]byte
	want     []byte
}

// one is one request.
type one struct {
	*play
	*buffers
	s     *client.Session
	index int
	pages []int32
	begun bool    // its publication
	last  float64 // of its steps
}

func (p *play) request(ctx context.Context, i int) (err error) {
	r := &p.w.Requests[i]
	flops := 0.0
	for _, x := range r.Pages {
		flops += p.costs[x]
	}
	p.count(func(res *Result) {
		res.Requests++
		res.Accesses += len(r.Pages)
		res.FLOPs += flops
	})
	if len(r.Pages) > 0 {
		q := p.one(i)
		defer p.spare.Put(q.buffers)
		if err := q.serve(ctx); err != nil {
			return err
		}
	}
	if p.o.After == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.o.After(ctx, i, &p.res)
}

// answered tells how long the answer to a request was.
func (p *play) answered(ctx context.Context, i int) error {
	if len(p.w.Requests[i].Pages) == 0 {
		return nil
	}
	q := p.one(i)
	defer p.spare.Put(q.buffers)
	at, err := q.s.Answered(ctx, q.run(), int(p.w.Requests[i].Output))
	if err != nil {
		return fmt.Errorf("tell of the answer: %w", err)
	}
	q.step(replay.Tell, at)
	return nil
}

// one is request i, with buffers that are to be given back.
func (p *play) one(i int) *one {
	b, _ := p.spare.Get().(*buffers)
	if b == nil {
		b = &buffers{}
	}
	r := &p.w.Requests[i]
	return &one{play: p, buffers: b, s: p.sessions[r.Space], index: i, pages: r.Pages}
}

// run is all pages of the request.
func (q *one) run() client.Run {
	q.keys = q.keys[:0]
	for _, x := range q.pages {
		q.keys = appendHash(q.keys, x)
	}
	return client.Run{Group: q.o.Group, Hashes: q.keys}
}

func (p *play) count(f func(*Result)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.res)
}

// step notes a phase that the server decided at the given time; 0: it does not say, and it was about now.
func (q *one) step(p replay.Phase, at time.Duration) {
	if at == 0 {
		at = q.o.Clock.Now().Sub(q.o.Start)
	}
	q.last = float64(at) / 1e9 // as the store has it for its policies
	q.note(p)
}

func (q *one) note(p replay.Phase) {
	q.count(func(res *Result) {
		res.Steps = append(res.Steps, replay.Step{Request: q.index, Phase: p, Seconds: q.last})
	})
}

// serve is the request: the lease is held until what was lacking is published.
func (q *one) serve(ctx context.Context) (err error) {
	run := q.run()
	there, err := q.s.Exists(ctx, run, leaseTTL)
	if err != nil {
		return fmt.Errorf("look up: %w", err)
	}
	q.step(replay.LookUp, there.DecidedAt)
	defer q.note(replay.End) // the lease goes at once
	if there.Lease != nil {
		defer func() { err = errors.Join(err, there.Lease.Release(ctx)) }()
	}
	hits, err := q.use(ctx, run, &there)
	if err != nil {
		return err
	}
	saved, lacking := 0.0, 0.0
	for i, x := range q.pages {
		if i < hits {
			saved += q.costs[x]
		} else {
			lacking += q.costs[x]
		}
	}
	q.count(func(res *Result) {
		res.Hits += hits
		res.Saved += saved
	})
	if q.o.Compute != nil {
		if err := q.o.Compute(ctx, lacking); err != nil {
			return err
		}
	}
	return q.publish(ctx, run, hits, len(q.pages))
}

// use makes use of the pages that are there, once, and says how many could be used.
func (q *one) use(ctx context.Context, run client.Run, there *client.Presence) (hits int, err error) {
	found := max(there.Leading, there.Leased) // the lease was taken after the look, and more may have come between
	q.count(func(res *Result) { res.Unleased += found - there.Leased })
	leased, rest := q.s.First(run, there.Leased), q.s.Rest(q.s.First(run, found), there.Leased)
	if !q.o.Fetch {
		if len(rest.Hashes) > 0 { // what is leased was used by the lookup
			if _, err := q.s.Touch(ctx, rest); err != nil {
				return 0, fmt.Errorf("touch: %w", err)
			}
		}
		return found, nil
	}
	good, err := q.fetch(ctx, leased, there.Lease)
	if err == nil && good == there.Leased {
		var more int
		more, err = q.fetch(ctx, rest, nil)
		good += more
	}
	q.count(func(res *Result) { res.Lost += found - good })
	return good, err
}

// fetch gets the bytes of a run and says of how many pages from the first on it got them.
func (q *one) fetch(ctx context.Context, run client.Run, lease *client.Lease) (good int, err error) {
	n := len(run.Hashes) / hashBytes
	if n == 0 {
		return 0, nil
	}
	into := q.room(n)
	got, err := q.s.FetchInto(ctx, run, page.View{}, nil, into, lease)
	if err != nil {
		return 0, fmt.Errorf("fetch: %w", err)
	}
	good = client.GoodPrefix(got)
	for i := range good {
		if fill(q.want, run.Hashes[i*hashBytes:][:hashBytes]); !bytes.Equal(q.want, into[i]) {
			return 0, fmt.Errorf("fetch: page %x: %w", run.Hashes[i*hashBytes:][:4], errWrong)
		}
	}
	return good, nil
}

// publish offers the pages of a run from the given one on.
func (q *one) publish(ctx context.Context, run client.Run, from, to int) error {
	if from == to {
		return nil
	}
	room := q.room(to - from)
	q.items = q.items[:0]
	for i := range room {
		fill(room[i], q.key(from+i))
		q.items = append(q.items, client.Item{Bytes: room[i]})
	}
	if first := &q.items[0]; from == 0 {
		first.Root = true
	} else {
		first.Parent, _ = page.MakeHash(q.key(from - 1))
	}
	results, err := q.s.Publish(ctx, q.s.Rest(run, from), page.View{}, nil, q.items, client.PublishOptions{Decided: q.published})
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	q.count(func(res *Result) {
		for i, r := range results {
			switch {
			case r.Outcome == client.Committed:
				res.Written++
			case r.Outcome == client.Present || r.Reason == reason.Held || r.Reason == reason.ParentMissing: // by one that overlaps
				res.Present++
			case r.Reason == reason.NotWorth:
				res.NotWorth++
			case r.Reason == reason.Busy || r.Reason == reason.QuotaExceeded:
				res.NoRoom++
			default:
				err = fmt.Errorf("publish: page %d of the request: %w", from+i, r.Reason)
			}
		}
	})
	return err
}

// published notes a begin or a commit. A run that is published in several goes is offered with the first.
func (q *one) published(committed bool, at time.Duration) {
	switch {
	case committed:
		q.step(replay.Commit, at)
	case !q.begun:
		q.begun = true
		q.step(replay.Begin, at)
	}
}

func (q *one) key(i int) []byte { return q.keys[i*hashBytes : (i+1)*hashBytes] }

// room is n buffers of a page each.
func (q *one) room(n int) [][]byte {
	for len(q.payloads) < n {
		q.payloads = append(q.payloads, make([]byte, q.bytes))
	}
	if q.want == nil {
		q.want = make([]byte, q.bytes)
	}
	return q.payloads[:n]
}

// Predict replays what was played against a node, at the times at which the server decided it and in their order.
func Predict(w *replay.Workload, costs []float64, played *Result, n replay.Node, o replay.Options) (replay.Result, error) {
	o.Steps = append([]replay.Step{}, played.Steps...)
	slices.SortStableFunc(o.Steps, func(a, b replay.Step) int { return cmp.Compare(a.Seconds, b.Seconds) })
	return replay.ReplayNode(w, costs, n, o)
}

// KeyTag is by what the policies of a store with this seed (page.KeyTag) know page p.
func KeyTag(seed uint64, p int32) uint64 { return page.KeyTag(seed, appendHash(nil, p)) }
