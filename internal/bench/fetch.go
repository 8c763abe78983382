package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// benchFetch fetches whole pages into touched buffers, each byte verified by the client.
func benchFetch(ctx context.Context, o *Options) (_ []Figure, err error) {
	o.Transport = client.GRPC
	t, err := openTarget(ctx, o, Node{MemoryBytes: roomFor(o.Resident, o.PageBytes)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.fill(ctx, o); err != nil {
		return nil, err
	}
	fetching := newFetching(t, o)
	reference := newReference(fetching.all, newArena(o.arena))
	end, err := t.profile(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	var s sheet
	err = o.rounds(ctx, func(measured bool) error {
		memcpy := reference.rate(ctx, o.Duration/4)
		w, err := t.window(ctx, func() (*tally, error) {
			return closedLoop(ctx, o.InFlight, o.Duration, fetching.call)
		})
		if err != nil || !measured {
			return err
		}
		bytes := float64(w.units) * float64(o.PageBytes)
		rate := bytes / w.wall.Seconds()
		s.add("memcpy", "GB/s", memcpy/1e9)
		s.add("fetch", "GB/s", rate/1e9)
		s.add("ratio_to_memcpy", "", rate/memcpy)
		w.add(&s, "gb", bytes/1e9)
		w.addLatency(&s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	goals := map[string]goal{}
	if o.PageBytes == 1<<20 && o.InFlight*o.Batch == 8 && !o.InProcess {
		goals["ratio_to_memcpy"] = atLeast(0.07)
	}
	return s.figures(goals), nil
}

// fetching is what each caller of benchFetch keeps from call to call.
type fetching struct {
	target   *target
	resident int
	callers  []fetchCaller
	all      [][]byte // the destinations of all callers
}

type fetchCaller struct {
	rng  *rand.Rand
	keys []byte
	dst  [][]byte
}

func newFetching(t *target, o *Options) *fetching {
	f := &fetching{target: t, resident: o.Resident, all: buffers(o.InFlight*o.Batch, o.PageBytes)}
	for i := range o.InFlight {
		f.callers = append(f.callers, fetchCaller{
			rng: rand.New(rand.NewPCG(4, uint64(i))), keys: make([]byte, o.Batch*hashBytes), dst: f.all[i*o.Batch : (i+1)*o.Batch],
		})
	}
	return f
}

// draw takes stored keys at random for the next call of a caller.
func (f *fetching) draw(caller int) *fetchCaller {
	c := &f.callers[caller]
	c.keys = c.keys[:0]
	for range c.dst {
		c.keys = appendKey(c.keys, storedKeys, c.rng.Uint64N(uint64(f.resident)))
	}
	return c
}

func (f *fetching) call(ctx context.Context, caller int) (int, error) {
	c := f.draw(caller)
	results, err := f.target.session.FetchInto(ctx, f.target.run(c.keys), page.View{}, nil, c.dst, nil)
	if err != nil {
		return 0, err
	}
	if good := client.GoodPrefix(results); good < len(results) {
		return 0, fmt.Errorf("a stored page is a miss: %w", results[good].Reason)
	}
	return len(results), nil
}
