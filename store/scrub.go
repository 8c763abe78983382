package store

import (
	"context"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
)

// ScrubProgress is how far a scrub is.
type ScrubProgress struct {
	Extents, Bytes uint64 // verified
	Total          uint64 // bytes that were stored when it began
	Corrupt        uint64 // found and dropped
}

// Bounds of a scrub.
const (
	scrubRecords  = 1024 // index records looked at a time
	scrubPause    = 100 * time.Millisecond
	scrubExtents  = 16 // pinned at a time
	maxScrubBytes = 64 << 20
)

// Scrub re-reads and verifies all that tier t holds, at most bytesPerSecond (0: as fast as it goes), and drops what
// fails. It calls each with its progress, several times a second at most, and once at the end.
func (s *Store) Scrub(ctx context.Context, t evict.Tier, bytesPerSecond uint64, each func(ScrubProgress) error) error {
	if s.o.Tiers[t] == nil {
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	c := scrub{s: s, tier: t, rate: bytesPerSecond, each: each, began: s.clock.Now()}
	c.told = c.began
	c.progress.Total = uint64(s.o.Tiers[t].Usage().Live)
	for _, sh := range s.shards {
		if err := c.shard(ctx, sh); err != nil {
			return err
		}
	}
	return each(c.progress)
}

// scrub is one Scrub.
type scrub struct {
	s           *Store
	tier        evict.Tier
	rate        uint64
	each        func(ScrubProgress) error
	progress    ScrubProgress
	began, told clock.Instant
}

func (c *scrub) shard(ctx context.Context, sh *shard) error {
	var found []core.Stored
	for from := uint32(0); ; {
		sh.mu.RLock()
		from, found = sh.core.Scan(c.tier, from, scrubRecords, found[:0])
		sh.mu.RUnlock()
		for at := 0; at < len(found); {
			n, bytes := 0, int64(0)
			for ; at+n < len(found) && n < scrubExtents && (n == 0 || bytes+found[at+n].Place.Bytes <= maxScrubBytes); n++ {
				bytes += found[at+n].Place.Bytes
			}
			c.verify(ctx, sh, found[at:at+n])
			if err := c.pace(ctx); err != nil {
				return err
			}
			at += n
		}
		if from == 0 {
			return nil
		}
	}
}

// verify looks at a few copies, pinned meanwhile.
func (c *scrub) verify(ctx context.Context, sh *shard, copies []core.Stored) {
	t := c.s.ticket()
	r := c.s.now(sh, t, core.Hold{Ticket: t, Copies: copies})
	defer c.s.step(sh, core.ReadDone{Ticket: t})
	for i, held := range r.Results {
		if held.Outcome != core.OK {
			continue
		}
		p := copies[i].Place
		switch c.s.soundPlace(ctx, p) {
		case reason.Corrupt:
			c.progress.Corrupt++
			c.s.corrupt(sh, copies[i].Extent, p)
		case reason.None:
			c.progress.Extents++
			c.progress.Bytes += uint64(p.Bytes)
		}
	}
}

// pace tells of progress and waits for what is ahead of the rate.
func (c *scrub) pace(ctx context.Context) error {
	now := c.s.clock.Now()
	if now.Sub(c.told) >= scrubPause {
		c.told = now
		if err := c.each(c.progress); err != nil {
			return err
		}
	}
	if c.rate == 0 {
		return ctx.Err()
	}
	due := time.Duration(float64(c.progress.Bytes) / float64(c.rate) * float64(time.Second))
	ahead := due - now.Sub(c.began)
	if ahead <= 0 {
		return ctx.Err()
	}
	slept, cancel := timeout(c.s.clock, ahead)
	defer cancel()
	select {
	case <-slept:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
