package demo

import (
	"context"
	"sync"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// engineKind is how many ranks an instance has for its n-th request; an instance of a real engine has one answer.
type engineKind struct{ shapes []int }

var (
	engineA = engineKind{[]int{4}}
	engineB = engineKind{[]int{2, 1}}
)

func (k engineKind) tp(n int) int { return k.shapes[n%len(k.shapes)] }

// engine is one instance of an inference engine: a scheduler that looks up, and ranks that fetch and publish what is
// theirs. The ranks share the instance's session, so the lease that the scheduler takes serves them.
type engine struct {
	engineKind
	name      string
	client    *client.Client
	session   *client.Session
	cellBytes int
	served    int // requests
	ranks     []rank
}

// rank is what one worker keeps from request to request.
type rank struct {
	view    page.View
	slab    slab
	results []client.PageResult
	err     error
}

const (
	leaseTTL    = 10 * time.Second
	windowPages = 64 // of one fetch or publish: bounds the memory of an engine
)

// shape prepares for a request at tp ranks.
func (e *engine) shape(tp int, full page.View) error {
	for len(e.ranks) < tp {
		e.ranks = append(e.ranks, rank{})
	}
	e.ranks = e.ranks[:tp]
	for i := range e.ranks {
		v, err := page.TPView(i, tp, full.H1, full.L1)
		if err != nil {
			return err
		}
		e.ranks[i].view = v.View
	}
	return nil
}

func (e *engine) viewBytes() int { return e.ranks[0].view.Cells() * e.cellBytes }

// each runs f for every rank at once and answers the first error.
func (e *engine) each(f func(r *rank) error) error {
	var ranks sync.WaitGroup
	for i := range e.ranks {
		ranks.Go(func() { e.ranks[i].err = f(&e.ranks[i]) })
	}
	ranks.Wait()
	for i := range e.ranks {
		if e.ranks[i].err != nil {
			return e.ranks[i].err
		}
	}
	return nil
}

// fetch loads a window of pages into every rank and compares each byte with what was generated. good is the number of
// leading pages that every rank has.
func (e *engine) fetch(ctx context.Context, run client.Run, n int, lease *client.Lease, t *totals) (good int, err error) {
	bytes := e.viewBytes()
	begun := time.Now()
	err = e.each(func(r *rank) (err error) {
		r.results, err = e.session.FetchInto(ctx, run, r.view, nil, r.slab.of(n, bytes), lease)
		return err
	})
	t.fetchWall += time.Since(begun)
	if err != nil {
		return 0, err
	}
	good = n
	var mu sync.Mutex // guards good and t
	err = e.each(func(r *rank) error {
		ok := client.GoodPrefix(r.results)
		wrong := uint64(0)
		for i := range ok {
			wrong += wrongBytes(r.slab.buffers[i], run.Hashes[i*hashBytes:], r.view, e.cellBytes)
		}
		mu.Lock()
		defer mu.Unlock()
		good = min(good, ok)
		t.fetched += uint64(ok * bytes)
		t.wrong += wrong
		if ok < n {
			t.misses[r.results[ok].Reason]++
		}
		return nil
	})
	t.readBy[len(e.ranks)] += uint64(good)
	return good, err
}

// publish stores a window of pages, every rank its view, behind parent (zero: the first page is a root).
func (e *engine) publish(ctx context.Context, run client.Run, n int, parent page.Hash, t *totals) error {
	bytes := e.viewBytes()
	err := e.each(func(r *rank) error {
		r.slab.items = r.slab.items[:0]
		for i, b := range r.slab.of(n, bytes) {
			fillView(b, run.Hashes[i*hashBytes:], r.view, e.cellBytes)
			r.slab.items = append(r.slab.items, client.Item{Bytes: b})
		}
		r.slab.items[0].Parent, r.slab.items[0].Root = parent, parent.IsZero()
		return nil
	})
	if err != nil {
		return err
	}
	begun := time.Now()
	err = e.each(func(r *rank) (err error) {
		r.results, err = e.session.Publish(ctx, run, r.view, nil, r.slab.items, client.PublishOptions{})
		return err
	})
	t.publishWall += time.Since(begun)
	if err != nil {
		return err
	}
	for i := range n {
		whole := true
		for k := range e.ranks {
			switch res := e.ranks[k].results[i]; res.Outcome {
			case client.Committed:
				t.published += uint64(bytes)
			case client.Present:
			default:
				whole = false
				t.refused[res.Reason]++
			}
		}
		if whole {
			t.writtenBy[len(e.ranks)]++
		}
	}
	return nil
}

// totals is what the replay moved.
type totals struct {
	fetched, published, wrong uint64 // bytes
	fetchWall, publishWall    time.Duration
	readBy, writtenBy         map[int]uint64           // pages, by number of ranks
	misses                    map[reason.Reason]uint64 // of leased pages
	refused                   map[reason.Reason]uint64 // publications of one rank's view
}

func newTotals() *totals {
	return &totals{
		readBy: map[int]uint64{}, writtenBy: map[int]uint64{}, misses: map[reason.Reason]uint64{}, refused: map[reason.Reason]uint64{},
	}
}
