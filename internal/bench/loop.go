package bench

import (
	"context"
	"math"
	"sync"
	"time"
)

// tally is what a closed loop did.
type tally struct {
	calls, units int64
	wall         time.Duration
	latency      latencies
}

// closedLoop keeps inFlight calls going for d: each caller calls again as soon as it is answered. It returns when the
// last call has ended, with the first error if there was one.
func closedLoop(ctx context.Context, inFlight int, d time.Duration, call func(ctx context.Context, caller int) (units int, err error)) (*tally, error) {
	return closedLoopOf(ctx, inFlight, d, math.MaxInt, call)
}

// closedLoopOf is closedLoop that also ends when the callers together have done so many units.
func closedLoopOf(ctx context.Context, inFlight int, d time.Duration, units int, call func(ctx context.Context, caller int) (units int, err error)) (*tally, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := make([]tally, inFlight)
	begun := time.Now()
	end := begun.Add(d)
	var callers sync.WaitGroup
	for i := range all {
		callers.Go(func() {
			t := &all[i]
			for at := time.Now(); at.Before(end) && t.units < int64(max(1, units/inFlight)) && ctx.Err() == nil; {
				units, err := call(ctx, i)
				if err != nil {
					cancel(err)
					return
				}
				now := time.Now()
				t.latency.add(now.Sub(at))
				t.calls, t.units, at = t.calls+1, t.units+int64(units), now
			}
		})
	}
	callers.Wait()
	sum := &tally{wall: time.Since(begun)}
	for i := range all {
		sum.calls, sum.units = sum.calls+all[i].calls, sum.units+all[i].units
		sum.latency.merge(&all[i].latency)
	}
	return sum, context.Cause(ctx)
}

func (t *tally) perSecond() float64 { return float64(t.units) / t.wall.Seconds() }

// addLatency adds the three percentiles.
func (t *tally) addLatency(s *sheet) {
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", .5}, {"p90", .9}, {"p99", .99}} {
		s.add("latency_"+q.name, "us", float64(t.latency.quantile(q.q))/1e3)
	}
}
