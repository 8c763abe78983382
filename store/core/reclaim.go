package core

import (
	"runtime"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// maxCleanVictims bounds how many victims one clean Reclaim looks at in vain.
const maxCleanVictims = 4096

// maxStaleVictims bounds how many pages one eviction finds in a leaf set where they no longer belong.
const maxStaleVictims = 4096

// claim is on whose behalf room is made, and out of what.
type claim struct {
	tenant uint32
	own    bool        // out of what the tenant is guaranteed (Ledger.among)
	most   evict.Score // of what goes
}

// reclaim evicts leaves of a tier until enough bytes are on their way back, or nothing may go.
func (s *Shard) reclaim(ev *Reclaim) {
	if ev.Tier >= evict.NumTiers {
		s.emit(Reclaimed{})
		return
	}
	c := claim{ev.Tenant, ev.Own, s.o.Ledger.MayTake(*ev)}
	r := Reclaimed{At: s.now}
	if ev.Clean {
		r.Bytes, r.NotWorth = s.reclaimClean(c, ev.Tier, ev.Bytes)
	} else {
		for r.Bytes < ev.Bytes && !r.NotWorth {
			n := uint64(0)
			if n, r.NotWorth = s.evictNext(c, ev.Tier); n == 0 {
				break
			}
			r.Bytes += n
		}
	}
	s.emit(r)
}

// victimsOf lists victims for a claim, at least the next if there is one.
func (s *Shard) victimsOf(c claim, t evict.Tier, need uint64) []evict.Victim {
	var ok bool
	s.victims = s.victims[:0]
	if s.among, ok = s.o.Ledger.among(c.tenant, t, c.own); ok {
		s.victims = s.o.Policy.Victims(seconds(s.now), t, need, &s.among, s.victims)
	}
	return s.victims
}

// evictNext evicts the one page that is worth least from a tier and says what it held there; 0 when nothing is evictable,
// or that page is worth more than the claim. One at a time: its parent may be a leaf now, and worth less than all
// others, and its tenant may be within its guarantee.
func (s *Shard) evictNext(c claim, t evict.Tier) (held uint64, notWorth bool) {
	for range maxStaleVictims {
		v := s.victimsOf(c, t, 1)
		switch {
		case len(v) == 0:
			return 0, false
		case v[0].Score > c.most:
			return 0, true
		}
		i := uint32(v[0].Ref)
		if s.mayGo(c, t, i) {
			return s.evictFrom(i, t, v[0].Score), false
		}
		s.settle(i) // into the leaf set where it belongs
	}
	return 0, false
}

// reclaimClean evicts, in the order of victims, what a lower tier has too. It goes over the first victims again while that
// frees something, since parents follow their children, and else over more of them.
func (s *Shard) reclaimClean(c claim, t evict.Tier, bytes uint64) (got uint64, notWorth bool) {
	looked := 0
	for need := uint64(1); got < bytes && looked < maxCleanVictims; {
		before, found := got, uint64(0)
		for _, v := range s.victimsOf(c, t, need) {
			if v.Score > c.most {
				return got, true
			}
			i := uint32(v.Ref)
			n := s.tally(s.pages.At(i), s.epochOf(i))
			found += n.bytes
			switch {
			case got >= bytes || n.last.has(t):
				looked++
			case !s.mayGo(c, t, i):
				looked++
				s.settle(i)
			default:
				got += s.evictFrom(i, t, v.Score)
			}
		}
		if got == before {
			if found < need { // there are no more
				return got, false
			}
			need = max(4*need, 1<<20)
		}
	}
	return got, false
}

// mayGo says whether a page is among those of a claim: its tenant may have got a guarantee since it was put into a leaf
// set, what went before it of one list may have brought its tenant back within it, and it itself may lie across its end.
func (s *Shard) mayGo(c claim, t evict.Tier, i uint32) bool {
	p := s.pages.At(i)
	f := s.families.at(p.family)
	among, ok := s.o.Ledger.among(c.tenant, t, c.own)
	if share := evict.Share(f.ep.account.share.Load()); ok && among.Has(share) && (c.own || share == 0 || s.o.Ledger.spares(f.ep.account, t, s.pageBytes(p)[t])) {
		return true
	}
	n := s.tally(p, f.ep)
	return s.attrs(p, f, &n).Doomed
}

// evictLeast evicts the one page that is worth least in any tier, for a tenant; 0 when nothing may go.
func (s *Shard) evictLeast(tenant uint32) (held uint64) {
	for _, own := range [...]bool{false, true} {
		from, least := evict.NumTiers, evict.Score(0)
		c := claim{tenant, own, evict.MaxScore}
		for t := range evict.NumTiers {
			if v := s.victimsOf(c, t, 0); len(v) > 0 && (from == evict.NumTiers || v[0].Score < least) {
				from, least = t, v[0].Score
			}
		}
		if from < evict.NumTiers {
			held, _ = s.evictNext(c, from)
			return held
		}
	}
	return 0
}

// evictFrom takes an evictable page out of a tier and says what it held there. Its life ends with the last copy.
func (s *Shard) evictFrom(i uint32, t evict.Tier, score evict.Score) (held uint64) {
	s.totals.Tiers[t].Evicted++
	s.totals.Tiers[t].Victims.add(score)
	if !s.evicted[t] { // now the policy shall know what the tier can hold
		s.evicted[t] = true
		s.told[t] = holding{}
		s.resize()
	}
	p := s.pages.At(i)
	ep := s.epochOf(i)
	if c := s.tally(p, ep); c.in == 1<<t {
		s.totals.Evicted++
		ep.evicted++
		ep.account.evicted.Add(1)
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

// WaterLevel is the score of the next victim of tier t; ok is false when nothing is evictable. What tenants are
// guaranteed counts only when nothing else is left.
func (s *Shard) WaterLevel(now clock.Instant, t evict.Tier) (score evict.Score, ok bool) {
	if score, ok = s.NextVictim(now, Reclaim{Tier: t}); ok {
		return score, true
	}
	v := s.o.Policy.Victims(seconds(now), t, 0, nil, nil)
	runtime.KeepAlive(s)
	if len(v) == 0 {
		return 0, false
	}
	return v[0].Score, true
}

// NextVictim is the score of what r, were it not to judge, would evict next; ok is false when nothing may go.
func (s *Shard) NextVictim(now clock.Instant, r Reclaim) (score evict.Score, ok bool) {
	among, ok := s.o.Ledger.among(r.Tenant, r.Tier, r.Own)
	if !ok {
		return 0, false
	}
	var next [1]evict.Victim
	v := s.o.Policy.Victims(seconds(now), r.Tier, 0, &among, next[:0])
	runtime.KeepAlive(s)
	if len(v) == 0 {
		return 0, false
	}
	return v[0].Score, true
}
