package server

import (
	"cmp"
	"context"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/rpc"
)

// defaultScrubRate is what a scrub reads in a second unless told otherwise: a twentieth of what a disk of today gives.
const defaultScrubRate = 100e6

// scrubs is the one scrub that may run, and what all of them found.
type scrubs struct {
	running           atomic.Bool
	left              atomic.Uint64 // bytes to go, 0 when none runs
	verified, corrupt atomic.Uint64 // bytes and extents, since start
}

// Scrub re-reads and verifies a tier, or all, and tells of its progress until it has been through. One at a time.
// Operators only: it costs the disk what the caller asks for.
func (s adminService) Scrub(r *quirev1.ScrubRequest, stream grpc.ServerStreamingServer[quirev1.ScrubResponse]) error {
	who, err := principal(stream.Context())
	if err != nil {
		return err
	}
	if who.Role != namespace.RoleOperator {
		return errRole
	}
	tiers, total, err := s.node.scrubTiers(r.GetTier())
	if err != nil {
		return err
	}
	if !s.node.scrubs.running.CompareAndSwap(false, true) {
		return rpc.Errorf(reason.Busy, "a scrub is running already; there is one at a time")
	}
	defer s.node.scrubs.running.Store(false)
	return s.node.scrub(stream.Context(), tiers, total, cmp.Or(r.GetBytesPerSecond(), defaultScrubRate), stream.Send)
}

// scrubTiers finds a tier by name, all for "", and what they hold.
func (n *node) scrubTiers(name string) (tiers []evict.Tier, total uint64, err error) {
	var names []string
	for _, t := range n.store.Status().Tiers {
		names = append(names, t.Tier.String())
		if name == "" || name == t.Tier.String() {
			tiers = append(tiers, t.Tier)
			total += uint64(t.Live)
		}
	}
	if len(tiers) == 0 {
		return nil, 0, badField("tier", "the node has no such tier; it has %s", strings.Join(names, ", "))
	}
	return tiers, total, nil
}

// scrub goes through tiers one after the other; send gets the progress over all.
func (n *node) scrub(ctx context.Context, tiers []evict.Tier, total, rate uint64, send func(*quirev1.ScrubResponse) error) error {
	all := &quirev1.ScrubResponse{TotalBytes: total} // encoded before send returns
	n.scrubs.left.Store(total)
	defer n.scrubs.left.Store(0)
	for _, t := range tiers {
		var told store.ScrubProgress
		err := n.store.Scrub(ctx, t, rate, func(p store.ScrubProgress) error {
			all.VerifiedExtents += p.Extents - told.Extents
			all.VerifiedBytes += p.Bytes - told.Bytes
			all.CorruptExtents += p.Corrupt - told.Corrupt
			n.scrubs.verified.Add(p.Bytes - told.Bytes)
			n.scrubs.corrupt.Add(p.Corrupt - told.Corrupt)
			n.scrubs.left.Store(total - min(total, all.VerifiedBytes))
			told = p
			return send(all)
		})
		if err != nil {
			return err
		}
	}
	all.Done = true
	return send(all)
}
