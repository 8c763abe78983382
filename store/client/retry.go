package client

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// once calls the page service with the default deadline, without repeating: for what must not be done twice.
func once[R any](ctx context.Context, c *Client, f func(context.Context, quirev1.PageServiceClient) (R, error)) (r R, err error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	r, err = f(ctx, c.link().pages)
	return r, rpc.FromStatus(err)
}

// repeated calls the page service with the default deadline, again while the outcome is unknown or the server says
// later: for what may be done twice.
func repeated[R any](ctx context.Context, c *Client, f func(context.Context, quirev1.PageServiceClient) (R, error)) (R, error) {
	return retried(ctx, c, func(ctx context.Context) (R, error) { return f(ctx, c.link().pages) })
}

func retried[R any](ctx context.Context, c *Client, f func(context.Context) (R, error)) (R, error) {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	for attempt := 0; ; attempt++ {
		r, err := f(ctx)
		err = rpc.FromStatus(err)
		if err == nil || attempt >= c.opt.Retries || !transient(err) {
			return r, err
		}
		c.stats.retries.Add(1)
		if !c.pause(ctx, attempt) {
			return r, err
		}
	}
}

func (c *Client) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.opt.CallTimeout)
}

// transient says whether the same call may succeed soon: the transport broke, or the server is busy.
func transient(err error) bool {
	var e *rpc.Error
	return errors.As(err, &e) && (e.Code == codes.Unavailable || e.Reason == reason.Busy)
}
