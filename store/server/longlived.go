package server

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// recheckEvery is how often a stream that lives long asks whether its caller would still be let in.
const recheckEvery = 15 * time.Second

var (
	errStopping = &rpc.Error{Code: codes.Unavailable, Reason: reason.Unknown, Text: "the node is stopping"}
	// errRevoked ends the streams of a caller that would no longer be let in.
	errRevoked = &rpc.Error{Code: codes.Unauthenticated, Reason: reason.Unauthorized, Text: "the token or certificate is no longer valid"}
)

// longLived runs a stream under a context that ends with the stream's, with the node, and with the caller's right to
// be here. Its handler returns when its context ends.
func (n *node) longLived(srv any, s grpc.ServerStream, next grpc.StreamHandler) error {
	ctx, cancel := context.WithCancelCause(s.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(n.guard(ctx))
	}()
	err := next(srv, auth.StreamWithContext(s, ctx))
	cause := context.Cause(ctx)
	cancel(nil)
	<-done
	if cause != nil && s.Context().Err() == nil {
		return cause
	}
	return answer(reason.None, err)
}

// guard returns when a long-lived stream has to end, and why.
func (n *node) guard(ctx context.Context) error {
	_, known := auth.PrincipalFrom(ctx)
	for {
		tick, stop := n.after(recheckEvery)
		select {
		case <-ctx.Done():
			stop()
			return ctx.Err()
		case <-n.stopping:
			stop()
			return errStopping
		case <-tick:
			if known && !auth.Live(ctx) {
				return errRevoked
			}
		}
	}
}
