package core

import (
	"runtime"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// maxCleanVictims bounds how many victims one clean Reclaim looks at in vain.
const maxCleanVictims = 4096

// reclaim evicts leaves of a tier until enough bytes are on their way back, or nothing is evictable.
func (s *Shard) reclaim(ev *Reclaim) {
	var got uint64
	if ev.Clean {
		got = s.reclaimClean(ev.Tier, ev.Bytes)
	} else {
		for got < ev.Bytes {
			n := s.evictNext(ev.Tier)
			if n == 0 {
				break
			}
			got += n
		}
	}
	s.emit(Reclaimed{Bytes: got})
}

// evictNext evicts the one page that is worth least from a tier and says what it held there; 0 when nothing is evictable.
// One at a time: its parent may be a leaf now, and worth less than all others.
func (s *Shard) evictNext(t evict.Tier) (held uint64) {
	if t >= evict.NumTiers {
		return 0
	}
	s.victims = s.o.Policy.Victims(seconds(s.now), t, 1, s.victims[:0])
	if len(s.victims) == 0 {
		return 0
	}
	return s.evictFrom(uint32(s.victims[0].Ref), t)
}

// reclaimClean evicts, in the order of victims, what a lower tier has too. It goes over the first victims again while that
// frees something, since parents follow their children, and else over more of them.
func (s *Shard) reclaimClean(t evict.Tier, bytes uint64) (got uint64) {
	if t >= evict.NumTiers {
		return 0
	}
	looked := 0
	for need := uint64(1); got < bytes && looked < maxCleanVictims; {
		s.victims = s.o.Policy.Victims(seconds(s.now), t, need, s.victims[:0])
		before, found := got, uint64(0)
		for _, v := range s.victims {
			i := uint32(v.Ref)
			c := s.tally(s.pages.At(i), s.epochOf(i))
			if found += c.bytes; got < bytes && !c.last.has(t) {
				got += s.evictFrom(i, t)
			} else {
				looked++
			}
		}
		if got == before {
			if found < need { // there are no more
				return got
			}
			need = max(4*need, 1<<20)
		}
	}
	return got
}

// evictLeast evicts the one page that is worth least in any tier; 0 when nothing is evictable.
func (s *Shard) evictLeast() (held uint64) {
	from, least := evict.NumTiers, evict.Score(0)
	for t := range evict.NumTiers {
		if score, ok := s.WaterLevel(s.now, t); ok && (from == evict.NumTiers || score < least) {
			from, least = t, score
		}
	}
	return s.evictNext(from)
}

// evictFrom takes an evictable page out of a tier and says what it held there. Its life ends with the last copy.
func (s *Shard) evictFrom(i uint32, t evict.Tier) (held uint64) {
	s.totals.Tiers[t].Evicted++
	p := s.pages.At(i)
	if c := s.tally(p, s.epochOf(i)); c.in == 1<<t {
		s.totals.Evicted++
		s.evicting = true
		held = s.end(i, reason.None, OrphanDeleted) // a leaf has no child that could be an orphan
		s.evicting = false
		return held
	}
	for _, x := range s.committedOf(p) {
		if e := s.extents.At(x); e.tier() == t {
			held += e.held()
			s.dropCommitted(x, reason.None)
		}
	}
	s.settle(i)
	if !p.has(flagComplete) {
		s.watchIncomplete(i)
	}
	return held
}

// WaterLevel is the score of the next victim of tier t; ok is false when nothing is evictable.
func (s *Shard) WaterLevel(now clock.Instant, t evict.Tier) (score evict.Score, ok bool) {
	var next [1]evict.Victim
	v := s.o.Policy.Victims(seconds(now), t, 0, next[:0])
	runtime.KeepAlive(s)
	if len(v) == 0 {
		return 0, false
	}
	return v[0].Score, true
}
