package server

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quire-kv/quire/internal/auth"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// Around each call, outermost first: it is counted and timed, a panic becomes INTERNAL, the caller is authenticated,
// and only then is a message received: nobody unknown makes the server hold one.

var errPanicked = &rpc.Error{Code: codes.Internal, Reason: reason.Unknown, Text: "internal error"}

// longLivedMethods end with the node, not before: a graceful stop does not wait for them.
var longLivedMethods = map[string]bool{
	quirev1.PageService_Attach_FullMethodName: true, quirev1.PageService_WatchPages_FullMethodName: true,
	quirev1.NamespaceService_Watch_FullMethodName: true, quirev1.AdminService_Scrub_FullMethodName: true,
	healthpb.Health_Watch_FullMethodName: true,
}

func (n *node) observe(method string, call func() error) (err error) {
	start := n.clock.Now()
	if !longLivedMethods[method] {
		n.inflight.enter()
		defer n.inflight.leave()
	}
	defer func() {
		if v := recover(); v != nil {
			err = errPanicked
			n.metrics.panics.Inc()
			n.panicked(method, v, debug.Stack())
		}
		n.metrics.done(method, err, n.clock.Now().Sub(start))
	}()
	return call()
}

// guarded is d with its unary methods wrapped. An interceptor would not do: it runs when the message is there.
func (n *node) guarded(d *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *d
	out.Methods = slices.Clone(d.Methods)
	for i := range out.Methods {
		out.Methods[i].Handler = n.unary("/"+d.ServiceName+"/"+d.Methods[i].MethodName, d.Methods[i].Handler)
	}
	return &out
}

func (n *node) unary(method string, next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, receive func(any) error, more grpc.UnaryServerInterceptor) (resp any, err error) {
		err = n.observe(method, func() error {
			ctx, err := n.auth.Enter(ctx, method)
			if err != nil {
				return err
			}
			resp, err = next(srv, ctx, receive, more)
			return err
		})
		if err != nil {
			return nil, err
		}
		return resp, nil
	}
}

// stream is the interceptor of streams: those receive in their handlers.
func (n *node) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return n.observe(info.FullMethod, func() error {
		ctx, err := n.auth.Enter(s.Context(), info.FullMethod)
		if err != nil {
			return err
		}
		s := auth.StreamWithContext(s, ctx)
		if longLivedMethods[info.FullMethod] {
			return n.longLived(srv, s, next)
		}
		return next(srv, s)
	})
}

// inflight counts calls and tells when there are none.
type inflight struct {
	mu   sync.Mutex // guards all below
	n    int
	idle []chan struct{} // closed when n falls to 0
}

func (f *inflight) enter() {
	f.mu.Lock()
	f.n++
	f.mu.Unlock()
}

func (f *inflight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n > 0 {
		return
	}
	for _, c := range f.idle {
		close(c)
	}
	f.idle = nil
}

func (f *inflight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// whenIdle is closed as soon as no call is in flight.
func (f *inflight) whenIdle() <-chan struct{} {
	c := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 {
		close(c)
	} else {
		f.idle = append(f.idle, c)
	}
	return c
}

// after is a channel that closes after d, and its stop.
func (n *node) after(d time.Duration) (<-chan struct{}, func()) {
	c := make(chan struct{})
	stop := n.clock.AfterFunc(d, func() { close(c) })
	return c, func() { stop() }
}
