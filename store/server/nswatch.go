package server

import (
	"context"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// nsWatchQueue bounds the changes that wait for a slow watcher of namespaces; one that falls behind is cut off and
// watches anew.
const nsWatchQueue = 1024

// errSlowWatcher cuts off a watcher that fell behind.
var errSlowWatcher = rpc.Errorf(reason.Unknown, "this watcher fell behind; watch again")

// Watch sends every namespace that the caller may see, then each change. The registry is never held up: what it tells
// waits in a bounded queue.
func (s namespaceService) Watch(_ *quirev1.WatchRequest, stream grpc.ServerStreamingServer[quirev1.WatchResponse]) error {
	n := s.node
	who, err := principal(stream.Context())
	if err != nil {
		return err
	}
	give, err := n.watchers.take(n.store.Intern(principalName(who)), 0)
	if err != nil {
		return err
	}
	defer give()
	return n.watchNamespaces(stream.Context(), who, func(ns *namespace.Namespace) error {
		return stream.Send(&quirev1.WatchResponse{Namespace: n.namespaceToProto(ns)})
	})
}

// watchNamespaces calls send, on this goroutine, with what who may see.
func (n *node) watchNamespaces(ctx context.Context, who namespace.Principal, send func(*namespace.Namespace) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan *namespace.Namespace, nsWatchQueue+len(n.registry.List(who, "", true)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(n.registry.Watch(ctx, func(ns *namespace.Namespace) error {
			if _, why := n.registry.Access(who, ns.ID, namespace.RightRead); why != reason.None {
				return nil
			}
			select {
			case queue <- ns:
				return nil
			default:
				return errSlowWatcher
			}
		}))
	}()
	err := forward(ctx, queue, send)
	cancel(nil)
	<-done
	return err
}

func forward(ctx context.Context, queue <-chan *namespace.Namespace, send func(*namespace.Namespace) error) error {
	for {
		select {
		case ns := <-queue:
			if err := send(ns); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
