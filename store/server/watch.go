package server

import (
	"google.golang.org/grpc"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/rpc"
)

// watchBatch bounds the events of one message.
const watchBatch = 1024

// WatchPages tells what is stored and removed. The first message is empty: what changes after it is told.
func (s pageService) WatchPages(r *quirev1.WatchPagesRequest, stream grpc.ServerStreamingServer[quirev1.WatchPagesResponse]) error {
	n := s.node
	a, err := n.admit(stream.Context(), r.Namespace, namespace.RightRead, nil)
	if err != nil {
		return err
	}
	give, err := n.watchers.take(a.caller.Principal, 0)
	if err != nil {
		return err
	}
	defer give()
	return n.store.Watch(stream.Context(), a.ns.ID, a.ns.Epoch, func(events []store.PageEvent, gap bool) error {
		// A grant may have been revoked, or the epoch be over, since the stream began.
		now, err := n.access(a.who, a.ns.ID, namespace.RightRead)
		if err != nil {
			return err
		}
		if now.Epoch != a.ns.Epoch {
			return answer(reason.StaleEpoch, nil)
		}
		return sendEvents(stream, events, gap)
	})
}

func sendEvents(stream grpc.ServerStreamingServer[quirev1.WatchPagesResponse], events []store.PageEvent, gap bool) error {
	for first := true; first || len(events) > 0; first = false {
		n := min(len(events), watchBatch)
		out := &quirev1.WatchPagesResponse{Events: make([]*quirev1.PageEvent, n), Gap: gap && first}
		for i := range n {
			out.Events[i] = eventToProto(&events[i])
		}
		events = events[n:]
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	return nil
}

func eventToProto(e *store.PageEvent) *quirev1.PageEvent {
	kind := quirev1.PageEvent_KIND_STORED
	if e.Removed {
		kind = quirev1.PageEvent_KIND_REMOVED
	}
	out := &quirev1.PageEvent{
		Kind: kind, Group: e.Key.Group[:], Hash: e.Key.Hash.Bytes(),
		View: viewToProto(e.View), Tier: e.Tier.String(), Reason: rpc.ToProto(e.Reason),
	}
	if e.Key.Scope != ([32]byte{}) {
		out.Scope = e.Key.Scope[:]
	}
	return out
}
