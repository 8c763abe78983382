package client

import (
	"sync/atomic"

	"github.com/quire-kv/quire/reason"
)

// Stats is what a client did since Dial.
type Stats struct {
	FetchedBytes   uint64 // payload received
	VerifiedBytes  uint64 // of which checked at the destination
	SharedBytes    uint64 // of which read in memory of the node
	PublishedBytes uint64 // payload committed
	StagedBytes    uint64 // payload that the node read in memory of this client
	Hits           uint64 // pages fetched whole
	Misses         map[reason.Reason]uint64
	Committed      uint64                   // pages
	Refused        map[reason.Reason]uint64 // pages not taken
	Corrupt        uint64                   // pages that failed here
	Reported       uint64                   // of which the server was told
	Divergent      uint64                   // publications whose stored bytes are known to differ
	Retries        uint64
	Fallbacks      uint64 // calls that found a better transport without a connection

	Transport Transport // that the next call takes
	Why       string    // nothing better is taken; empty: nothing better is allowed
}

type counters struct {
	fetched, verified, shared, published, staged, hits, committed, corrupt, reported, divergent, retries, fallbacks atomic.Uint64
	misses, refused                                                                                                 [reason.Count]atomic.Uint64
}

func countReason(c *[reason.Count]atomic.Uint64, r reason.Reason) {
	if int(r) < reason.Count {
		c[r].Add(1)
	}
}

func byReason(c *[reason.Count]atomic.Uint64) map[reason.Reason]uint64 {
	m := map[reason.Reason]uint64{}
	for r := range c {
		if n := c[r].Load(); n > 0 {
			m[reason.Reason(r)] = n
		}
	}
	return m
}

// Stats counts now.
func (c *Client) Stats() Stats {
	s := &c.stats
	t, why := c.transport()
	out := Stats{Transport: t, Fallbacks: s.fallbacks.Load(),
		FetchedBytes: s.fetched.Load(), VerifiedBytes: s.verified.Load(), SharedBytes: s.shared.Load(),
		PublishedBytes: s.published.Load(), StagedBytes: s.staged.Load(),
		Hits: s.hits.Load(), Misses: byReason(&s.misses), Committed: s.committed.Load(), Refused: byReason(&s.refused),
		Corrupt: s.corrupt.Load(), Reported: s.reported.Load(), Divergent: s.divergent.Load(), Retries: s.retries.Load(),
	}
	if why != nil {
		out.Why = why.Error()
	}
	return out
}
