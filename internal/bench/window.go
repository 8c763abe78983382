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
