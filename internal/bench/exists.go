package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/quire-kv/quire/store/client"
)

// benchExists asks which keys are stored, half of which are. A server of its own keeps no payloads, so that millions of
// pages fit.
func benchExists(ctx context.Context, o *Options) (_ []Figure, err error) {
	o.Transport = client.GRPC
	t, err := openTarget(ctx, o, Node{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var s sheet
	if err := t.measuredFill(ctx, o, &s); err != nil {
		return nil, err
	}
	asking := newAsking(t, o)
	end, err := t.profile(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	err = o.rounds(ctx, func(measured bool) error {
		w, err := t.window(ctx, func() (*tally, error) { return closedLoop(ctx, o.InFlight, o.Duration, asking.call) })
		if err != nil || !measured {
			return err
		}
		s.add("keys_per_second", "1/s", w.perSecond())
		if w.apart {
			s.add("keys_per_server_core_second", "1/s", float64(w.units)/w.server.CPUSeconds)
			s.add("server_collector_share_of_cpu", "%", w.server.collectorShare())
		}
		w.add(&s, "million_keys", float64(w.units)/1e6)
		w.addLatency(&s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	goals := map[string]goal{"server_collector_share_of_cpu": atMost(1)}
	if o.Resident >= 100_000 {
		goals["server_rss_per_page"] = atMost(pageGoalBytes + extentGoalBytes)
	}
	switch o.Batch {
	case 128:
		goals["keys_per_server_core_second"] = atLeast(1.2e6)
	case 1024:
		goals["keys_per_server_core_second"] = atLeast(3e6)
	}
	return s.figures(goals), nil
}

// measuredFill stores the resident pages and says what one costs the server, where that is known.
func (t *target) measuredFill(ctx context.Context, o *Options, s *sheet) error {
	if err := t.server(ctx, order{Settle: true}); err != nil {
		return err
	}
	before := t.usage
	if err := t.fill(ctx, o); err != nil {
		return err
	}
	if err := t.server(ctx, order{Settle: true}); err != nil {
		return err
	}
	if t.apart() {
		s.add("server_rss_per_page", "B", float64(t.usage.since(before).RSSBytes)/float64(o.Resident))
	}
	return nil
}

// asking is the callers of benchExists, each on a part of the pool of its own.
type asking struct {
	target *target
	probes *probes
	turn   []int
}

func newAsking(t *target, o *Options) *asking {
	a := &asking{target: t, probes: newProbes(o.Batch, o.Resident, false), turn: make([]int, o.InFlight)}
	for i := range a.turn {
		a.turn[i] = i * (poolKeys / o.Batch / o.InFlight)
	}
	return a
}

func (a *asking) call(ctx context.Context, caller int) (int, error) {
	keys := a.probes.at(a.turn[caller])
	a.turn[caller]++
	p, err := a.target.session.Exists(ctx, a.target.run(keys), 0)
	if err != nil {
		return 0, err
	}
	hits := 0
	for i := range a.probes.batch {
		if p.Has(i) {
			hits++
		}
	}
	if hits != a.probes.hits() {
		return 0, fmt.Errorf("%d of %d keys found, want %d", hits, a.probes.batch, a.probes.hits())
	}
	return a.probes.batch, nil
}
