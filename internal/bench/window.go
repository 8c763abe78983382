package bench

import "context"

// window is one measured closed loop with what both sides used meanwhile.
type window struct {
	*tally
	client, server Usage
	apart          bool // the two are different processes, and both are known
}

func (t *target) window(ctx context.Context, loop func() (*tally, error)) (*window, error) {
	if err := t.server(ctx, order{Usage: true}); err != nil {
		return nil, err
	}
	server, client := t.usage, ownUsage()
	tally, err := loop()
	if err != nil {
		return nil, err
	}
	used := ownUsage().since(client)
	if err := t.server(ctx, order{Usage: true}); err != nil {
		return nil, err
	}
	return &window{tally, used, t.usage.since(server), t.apart()}, nil
}

// join adds another window to w, whose zero value is empty.
func (w *window) join(o *window) {
	if w.tally == nil {
		w.tally = &tally{}
	}
	w.calls, w.units, w.wall = w.calls+o.calls, w.units+o.units, w.wall+o.wall
	w.latency.merge(&o.latency)
	w.client, w.server, w.apart = w.client.plus(o.client), w.server.plus(o.server), o.apart
}

// cpuSeconds are both sides', or those of this process where the server's are not known.
func (w *window) cpuSeconds() float64 {
	if w.apart {
		return w.client.CPUSeconds + w.server.CPUSeconds
	}
	return w.client.CPUSeconds
}

// add adds CPU seconds per amount (named per), and allocations per call, of both sides or of what is known.
func (w *window) add(s *sheet, per string, amount float64) {
	if !w.apart {
		s.add("cpu_seconds_per_"+per, "s", w.client.CPUSeconds/amount)
		s.add("allocations_per_call", "", float64(w.client.Allocations)/float64(w.calls))
		return
	}
	s.add("client_cpu_seconds_per_"+per, "s", w.client.CPUSeconds/amount)
	s.add("server_cpu_seconds_per_"+per, "s", w.server.CPUSeconds/amount)
	s.add("client_allocations_per_call", "", float64(w.client.Allocations)/float64(w.calls))
	s.add("server_allocations_per_call", "", float64(w.server.Allocations)/float64(w.calls))
}
