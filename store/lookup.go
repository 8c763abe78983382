package store

import (
	"context"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// Exists answers a bare probe: one bit a key, runs joined, least significant first, into bits (zeroed by the
// caller, at least (n+7)/8 long); leading has one entry per run. All runs are of one namespace epoch. Zero view:
// whole pages. Counts hits and misses. Allocates nothing.
func (s *Store) Exists(c Caller, runs []core.Run, v page.View, bits []byte, leading []uint32) reason.Reason {
	if len(runs) == 0 {
		return reason.None
	}
	f := &runs[0].Family
	sp, why := s.admit(c, f.Namespace, f.Epoch)
	if why != reason.None {
		return why
	}
	sh, wall := s.shardOf(f.Namespace, f.Epoch), s.clock.Wall()
	at, all := 0, 0
	for i := range runs {
		sh.mu.RLock()
		lead, hits, w := sh.core.Exists(wall, &runs[i], v, bits, at)
		sh.mu.RUnlock()
		if w == reason.Retired || w == reason.StaleEpoch {
			return w
		}
		leading[i] = uint32(lead)
		at += len(runs[i].Hashes) / sp.State.HashBytes
		all += hits
	}
	sp.count(all, at)
	return reason.None
}

func (st *spaceStats) count(hits, of int) {
	st.hits.Add(uint64(hits))
	st.misses.Add(uint64(of - hits))
}

// LeaseResult is what Lookup answers. Present holds one bit a key, runs joined; Covered are the leading pages of
// each run that the lease pins.
type LeaseResult struct {
	Lease   core.LeaseID
	TTL     time.Duration
	At      clock.Instant // when it was decided
	Leading []uint32
	Covered []uint32
	Present []byte
}

// Lookup is Exists with a read lease on the longest prefixes that fit the budgets; h is of the pages that it pins. Lease
// is zero when nothing was pinned.
func (s *Store) Lookup(ctx context.Context, c Caller, runs []core.Run, v page.View, ttl time.Duration, h evict.Hint) (LeaseResult, reason.Reason, error) {
	if len(runs) == 0 {
		return LeaseResult{}, reason.None, nil
	}
	f := &runs[0].Family
	sp, sh, why, err := s.begin(c, f)
	if err != nil || why != reason.None {
		return LeaseResult{}, why, err
	}
	defer s.leave()
	n := sp.pages(runs)
	out := LeaseResult{Present: make([]byte, (n+7)/8), Leading: make([]uint32, len(runs)), Covered: make([]uint32, len(runs))}
	if why := s.Exists(c, runs, v, out.Present, out.Leading); why != reason.None {
		return LeaseResult{}, why, nil
	}
	t := s.ticket()
	r, err := s.ask(ctx, sh, t, core.Lookup{
		Ticket: t, Principal: c.Principal, Session: c.Session, Runs: runs, View: v, TTL: ttl, Link: c.Provenance != 0, Hint: h,
	}, func(r core.Reply) { s.step(sh, core.Release{Principal: c.Principal, Lease: r.Lease}) })
	if err != nil || r.Reason != reason.None {
		return LeaseResult{}, r.Reason, err
	}
	out.Lease, out.TTL, out.At = r.Lease, r.TTL, r.At
	copy(out.Covered, r.Covered)
	return out, reason.None, nil
}

// begin counts a call in and finds its namespace and shard. On success the caller must leave.
func (s *Store) begin(c Caller, f *page.Family) (*space, *shard, reason.Reason, error) {
	if err := s.enter(); err != nil {
		return nil, nil, reason.None, err
	}
	sp, why := s.admit(c, f.Namespace, f.Epoch)
	if why != reason.None {
		s.leave()
		return nil, nil, why, nil
	}
	return sp, s.shardOf(f.Namespace, f.Epoch), reason.None, nil
}

// Renew extends a read lease, or a publication lease when t is not zero.
func (s *Store) Renew(ctx context.Context, c Caller, id page.NamespaceID, e page.Epoch, l core.LeaseID, t core.Token, ttl time.Duration) (time.Duration, reason.Reason, error) {
	_, sh, why, err := s.begin(c, &page.Family{Namespace: id, Epoch: e})
	if err != nil || why != reason.None {
		return 0, why, err
	}
	defer s.leave()
	k := s.ticket()
	r, err := s.ask(ctx, sh, k, core.Renew{Ticket: k, Principal: c.Principal, Lease: l, Token: t, TTL: ttl}, nil)
	return r.TTL, r.Reason, err
}

// Release gives back a lease, or the named pages of it.
func (s *Store) Release(c Caller, id page.NamespaceID, e page.Epoch, l core.LeaseID, runs []core.Run) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	s.step(s.shardOf(id, e), core.Release{Principal: c.Principal, Lease: l, Runs: runs})
}

// Delete hides pages at once; running leases and reads finish. It is answered when it is durable: Busy says that the
// pages are gone and that the disk tier, which cannot be written to, might bring them back with a restart.
func (s *Store) Delete(ctx context.Context, c Caller, runs []core.Run) ([]PageResult, reason.Reason, error) {
	out, why, err := s.each(ctx, c, runs, func(t core.Ticket) core.Event { return core.Delete{Ticket: t, Runs: runs} })
	if err != nil || why != reason.None {
		return out, why, err
	}
	if err := s.barrier(ctx); ctx.Err() != nil {
		return nil, reason.None, ctx.Err()
	} else if err != nil {
		return nil, reason.Busy, nil
	}
	return out, reason.None, nil
}

// Touch refreshes recency, and passes on what is known of the pages' future. hintOnly: it is no use.
func (s *Store) Touch(ctx context.Context, c Caller, runs []core.Run, h evict.Hint, hintOnly bool) (TouchResult, reason.Reason, error) {
	r, why, err := s.replyOf(ctx, c, runs, func(t core.Ticket) core.Event {
		return core.Touch{Ticket: t, Runs: runs, Hint: h, HintOnly: hintOnly}
	})
	return TouchResult{Pages: resultsOf(r.Results), At: r.At}, why, err
}

// TouchResult is the outcome of a Touch.
type TouchResult struct {
	Pages []PageResult
	At    clock.Instant // when it was decided
}

// Pin keeps pages from eviction within the pin budgets; unpin lets go.
func (s *Store) Pin(ctx context.Context, c Caller, runs []core.Run, unpin bool) ([]PageResult, reason.Reason, error) {
	return s.each(ctx, c, runs, func(t core.Ticket) core.Event {
		return core.Pin{Ticket: t, Principal: c.Principal, Runs: runs, Unpin: unpin}
	})
}

// each asks an event that answers per page.
func (s *Store) each(ctx context.Context, c Caller, runs []core.Run, ev func(core.Ticket) core.Event) ([]PageResult, reason.Reason, error) {
	r, why, err := s.replyOf(ctx, c, runs, ev)
	return resultsOf(r.Results), why, err
}

func (s *Store) replyOf(ctx context.Context, c Caller, runs []core.Run, ev func(core.Ticket) core.Event) (core.Reply, reason.Reason, error) {
	if len(runs) == 0 {
		return core.Reply{}, reason.None, nil
	}
	_, sh, why, err := s.begin(c, &runs[0].Family)
	if err != nil || why != reason.None {
		return core.Reply{}, why, err
	}
	defer s.leave()
	t := s.ticket()
	r, err := s.ask(ctx, sh, t, ev(t), nil)
	if err != nil || r.Reason != reason.None {
		return core.Reply{}, r.Reason, err
	}
	return r, reason.None, nil
}

// PageResult is one page's outcome, aligned with the request.
type PageResult struct {
	Outcome  core.Outcome
	Reason   reason.Reason
	Ancestor page.Hash       // ParentMissing
	Grants   []page.View     // Granted
	Stored   []page.ExtentID // Present, Committed, OK of a read: the extents that are stored
}

func resultsOf(rs []core.Result) []PageResult {
	out := make([]PageResult, len(rs))
	for i, r := range rs {
		out[i] = PageResult{Outcome: r.Outcome, Reason: r.Reason, Ancestor: r.Ancestor}
		for _, g := range r.Grants {
			out[i].Grants = append(out[i].Grants, g.View)
		}
	}
	return out
}
