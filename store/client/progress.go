package client

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// errStalled ends a stream that made no progress for CallTimeout.
var errStalled = errors.New("client: no progress")

// watch cancels a stream whose counter stands still for CallTimeout. It costs nothing per message: the timer looks at
// the counter. stop waits for a look that is running.
func (c *Client) watch(ctx context.Context, counter *atomic.Uint64, cancel context.CancelCauseFunc) (stop func()) {
	var last uint64
	return c.every(ctx, c.opt.CallTimeout, func() {
		now := counter.Load()
		if now == last {
			cancel(errStalled)
		}
		last = now
	})
}

// stalled names the cause where err is only the cancellation that followed.
func (c *Client) stalled(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return &rpc.Error{Code: codes.Unavailable, Reason: reason.Unknown, Text: "no progress for " + c.opt.CallTimeout.String()}
	}
	return err
}

// keepAlive calls renew three times in a ttl as long as counter moves: what makes no progress runs out by itself.
func (c *Client) keepAlive(ctx context.Context, ttl time.Duration, counter *atomic.Uint64, renew func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var last uint64
	end := c.every(ctx, max(ttl/3, time.Millisecond), func() {
		if now := counter.Load(); now != last {
			last = now
			renew(ctx)
		}
	})
	return func() { cancel(); end() }
}

// every runs f once in each interval, on one goroutine, until stop, which waits for it.
func (c *Client) every(ctx context.Context, interval time.Duration, f func()) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c.sleep(ctx, interval) {
			f()
		}
	}()
	return func() { cancel(); <-done }
}

// sleep waits for d by the client's clock; false when ctx ended first.
func (c *Client) sleep(ctx context.Context, d time.Duration) bool {
	woken := make(chan struct{})
	stop := c.opt.Clock.AfterFunc(d, func() { close(woken) })
	select {
	case <-woken:
		return ctx.Err() == nil
	case <-ctx.Done():
		stop()
		return false
	}
}

// pause waits before another attempt, twice as long each time; false when ctx ended first.
func (c *Client) pause(ctx context.Context, attempt int) bool {
	return c.sleep(ctx, retryPause<<min(attempt, 6))
}
