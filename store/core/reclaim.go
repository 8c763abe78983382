package core

import (
	"runtime"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// reclaim evicts leaves of a tier until enough bytes are on their way back, or nothing is evictable.
func (s *Shard) reclaim(ev *Reclaim) {
	var got uint64
	for got < ev.Bytes {
		n := s.evictNext(ev.Tier)
		if n == 0 {
			break
		}
		got += n
	}
	s.emit(Reclaimed{Bytes: got})
}

// evictNext evicts the one page that is worth least and says what it held; 0 when nothing is evictable. One at a time:
// its parent may be a leaf now, and worth less than all others.
func (s *Shard) evictNext(t evict.Tier) (held uint64) {
	if t >= evict.NumTiers {
		return 0
	}
	s.victims = s.o.Policy.Victims(seconds(s.now), t, 1, s.victims[:0])
	if len(s.victims) == 0 {
		return 0
	}
	s.totals.Evicted++
	s.evicting = true
	held = s.end(uint32(s.victims[0].Ref), reason.None, OrphanDeleted) // a leaf has no child that could be an orphan
	s.evicting = false
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
