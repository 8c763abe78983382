package core

import (
	"runtime"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// VictimLevel is the highest score among the pages that would go if tier t needed bytes and no guarantee were touched; 0
// when nothing is evictable.
func (s *Shard) VictimLevel(now clock.Instant, t evict.Tier, bytes uint64) evict.Score {
	var some [64]evict.Victim
	among, _ := s.o.Ledger.among(0, t, false)
	v := s.o.Policy.Victims(seconds(now), t, bytes, &among, some[:0])
	runtime.KeepAlive(s)
	if len(v) == 0 {
		return 0
	}
	return v[len(v)-1].Score
}

// Stored is one committed copy, as Scan lists it.
type Stored struct {
	Extent uint32
	Place  Place
}

// Scan appends committed copies in tier t from record from (0: the first) on, looking at no more than records of them,
// and answers where to go on; 0: that was the last.
func (s *Shard) Scan(t evict.Tier, from uint32, records int, dst []Stored) (next uint32, _ []Stored) {
	i := max(from, 1)
	for ; records > 0 && i <= s.extents.top; i, records = i+1, records-1 {
		if x := s.extents.At(i); x.state() == extentCommitted && x.tier() == t {
			dst = append(dst, Stored{i, x.place()})
		}
	}
	if i > s.extents.top {
		i = 0
	}
	runtime.KeepAlive(s)
	return i, dst
}

// holdCopies pins copies that Scan listed, those that are still where they were, like a Read: until ReadDone.
func (s *Shard) holdCopies(ev *Hold) {
	r := Reply{Ticket: ev.Ticket, Results: make([]Result, len(ev.Copies))}
	var used []uint32
	for j, c := range ev.Copies {
		r.Results[j] = Result{Outcome: Miss, Reason: reason.Absent}
		x := s.extentAt(c.Extent)
		if x == nil || x.state() != extentCommitted || x.place() != c.Place || x.users >= maxUsers {
			continue
		}
		x.users++
		used = append(used, c.Extent)
		r.Results[j] = Result{Outcome: OK}
	}
	if used != nil {
		s.reads[ev.Ticket] = used
	}
	s.emit(r)
}
