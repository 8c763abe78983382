package server

import (
	"context"
	"sync"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// runScratch is the runs of one lookup: reused, since a run is large and gone when the store has answered.
type runScratch struct{ runs []core.Run }

func (s *runScratch) free(to *sync.Pool) {
	clear(s.runs) // let go of the request
	s.runs = s.runs[:0]
	to.Put(s)
}

// BatchExists is the hot path: what it does per key is Store.Exists alone.
func (s pageService) BatchExists(ctx context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
	n := s.node
	a, err := n.admit(ctx, r.Namespace, namespace.RightRead, r.SessionId)
	if err == errStranger {
		keys, err := n.limits.strangerKeys(r.Runs)
		if err != nil {
			return nil, err
		}
		return existsNothing(keys, len(r.Runs)), nil
	}
	if err != nil {
		return nil, err
	}
	keys, err := n.limits.countKeys(r.Runs, a.space.hashBytes)
	if err != nil {
		return nil, err
	}
	view, err := viewOf(r.View)
	if err != nil {
		return nil, err
	}
	scratch := n.runScratches.Get().(*runScratch)
	defer scratch.free(&n.runScratches)
	if scratch.runs, err = a.runsOf(scratch.runs, r.Runs); err != nil {
		return nil, err
	}
	if r.Lease != nil {
		return n.lookup(ctx, &a, scratch.runs, view, r, keys)
	}
	out := existsNothing(keys, len(r.Runs))
	why := n.store.Exists(a.caller, scratch.runs, view, out.Present, out.Leading)
	if why != reason.None && why != reason.Absent {
		return nil, answer(why, nil)
	}
	n.metrics.lookups(keys, out.Present)
	n.record(AccessLookup, &a, scratch.runs...)
	return out, nil
}

// lookup is BatchExists with a lease.
func (n *node) lookup(ctx context.Context, a *asked, runs []core.Run, v page.View, r *quirev1.BatchExistsRequest, keys int) (*quirev1.BatchExistsResponse, error) {
	ttl, err := n.limits.lease(r.Lease)
	if err != nil {
		return nil, err
	}
	h, err := a.hintOf(r.Hint)
	if err != nil {
		return nil, err
	}
	got, why, err := n.store.Lookup(ctx, a.caller, runs, v, ttl, h)
	if why == reason.Absent && err == nil {
		return existsNothing(keys, len(r.Runs)), nil
	}
	if err := answer(why, err); err != nil {
		return nil, err
	}
	out := &quirev1.BatchExistsResponse{Present: got.Present, Leading: got.Leading, DecidedAt: uint64(got.At)}
	if got.Lease != (core.LeaseID{}) {
		out.Lease = &quirev1.LeaseGrant{LeaseId: got.Lease[:], Ttl: durationpb.New(got.TTL), Covered: got.Covered}
	}
	n.metrics.lookups(keys, got.Present)
	n.record(AccessLookup, a, runs...)
	return out, nil
}

// existsNothing is the answer of a namespace that holds none of the keys, one that the caller cannot see, and one
// that does not exist.
func existsNothing(keys, runs int) *quirev1.BatchExistsResponse {
	return &quirev1.BatchExistsResponse{Present: make([]byte, bitBytes(keys)), Leading: make([]uint32, runs)}
}

func bitBytes(n int) int { return (n + 7) / 8 }
