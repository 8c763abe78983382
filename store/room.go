package store

import (
	"errors"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// maxRoomRounds bounds the attempts to make room for one extent. A round drops at least one page or empties a slab,
// so only other writers that take the room at once can use many.
const maxRoomRounds = 1 << 12

// seeker is who needs room.
type seeker struct {
	tenant   uint32
	judge    bool // what is worth more than worth stays (core.Reclaim)
	worth    evict.Score
	at       clock.Instant // when last something was evicted for it; 0: nothing was
	patience *patience     // of room in memory
}

// patience is how long one call waits for write-behind: in vain once, however much room it needs.
type patience struct {
	gone        <-chan struct{} // closed with the call; nil: it has no end
	brief, long bool            // waits that were in vain
}

// errNotWorth is a tier that is full of what is worth more.
var errNotWorth = errors.New("store: all that could go is worth more")

// alloc finds places for the extents of one publication, in order: where room ends, the rest gets none.
func (s *Store) alloc(sh *shard, a core.Alloc, want core.Ticket) (core.Reply, bool) {
	var total uint64
	for _, it := range a.Items {
		total += uint64(tier.RoundUp(it.Bytes))
	}
	done := core.Allocated{ID: a.ID, Places: make([]core.Place, 0, len(a.Items))}
	who := seeker{tenant: a.Tenant, judge: true, worth: a.Worth, patience: &patience{gone: sh.waiting(want)}}
	for _, it := range a.Items {
		r, err := s.allocOne(a.Tier, s.classOf(a.Namespace, a.Epoch, it.Bytes), tier.Owner{Shard: sh.id, Extent: it.Extent}, total, &who)
		if err != nil {
			done.Err = allocReason(err)
			break
		}
		total -= uint64(tier.RoundUp(it.Bytes))
		done.Places = append(done.Places, placeOf(a.Tier, r))
	}
	r, ok := s.stepFor(sh, done, want, nil)
	if who.at != 0 {
		r.At = who.at
	}
	return r, ok
}

func allocReason(err error) reason.Reason {
	switch {
	case errors.Is(err, tier.ErrTooLarge):
		return reason.LimitExceeded
	case errors.Is(err, errNotWorth):
		return reason.NotWorth
	}
	return reason.Busy
}

// allocOne makes room until the driver has a place or nothing can go. want is what the caller still needs in all,
// so that one round of eviction serves a batch.
func (s *Store) allocOne(t evict.Tier, c tier.Class, o tier.Owner, want uint64, who *seeker) (tier.Region, error) {
	d := s.o.Tiers[t]
	for round := 0; ; round++ {
		r, err := d.Alloc(c, o)
		if !errors.Is(err, tier.ErrFull) || round == maxRoomRounds {
			return r, err
		}
		if made, notWorth := s.makeRoom(t, want, who); notWorth {
			return r, errNotWorth
		} else if !made {
			return r, err
		}
	}
}

// tenantOf is whose pages a namespace's are; 0: it is not known any more.
func (s *Store) tenantOf(id page.NamespaceID, e page.Epoch) uint32 {
	if sp := s.spaces.get(id, e); sp != nil {
		return sp.State.Tenant
	}
	return 0
}

// classOf is what may share memory with an extent: only its namespace's own once a client on this host maps it.
func (s *Store) classOf(id page.NamespaceID, e page.Epoch, bytes int64) tier.Class {
	if sp := s.spaces.get(id, e); sp != nil && sp.shared.Load() {
		return tier.Class{Namespace: id, Epoch: e, Bytes: bytes}
	}
	return tier.Class{Bytes: bytes}
}

// makeRoom evicts about bytes where they are worth least, or empties a slab or segment, which on disk is written anew for: so
// not for what is worth less than all that could go, while most of the tier lives. It evicts first out of what tenants have
// beyond their guarantees, then out of what the seeker is guaranteed. made is false when nothing can go; notWorth: what
// could is worth more.
func (s *Store) makeRoom(t evict.Tier, bytes uint64, who *seeker) (made, notWorth bool) {
	r := core.Reclaim{Tier: t, Bytes: bytes, Tenant: who.tenant, Judge: who.judge, Worth: who.worth}
	if t == evict.Disk {
		u := s.disk.d.Usage()
		if u.Live > u.Capacity/2 { // else there is room for what is worth little too
			if _, notWorth := s.lowest(r); notWorth {
				return false, true
			}
		}
		if s.cleanSegment() {
			return true, false
		}
		r.Bytes = max(bytes, uint64(u.Capacity/64)) // enough that a segment becomes worth cleaning
	} else if s.emptySlab() {
		return true, false
	}
	made, notWorth = s.makeRoomOf(r, who)
	if !made && s.ledger.Guarantees(t) > 0 {
		r.Own = true
		if own, no := s.makeRoomOf(r, who); own || no {
			return own, no
		}
		r.Own = false
	}
	if !made && !notWorth && t == evict.Host && s.disk != nil {
		made = s.reclaimWritten(r, maxRoomWait, &who.patience.long, who)
	}
	return made, notWorth
}

// makeRoomOf is makeRoom out of one of the two. In memory, what is on disk too goes first, and write-behind may make a
// little more of that.
func (s *Store) makeRoomOf(r core.Reclaim, who *seeker) (made, notWorth bool) {
	if _, notWorth := s.lowest(r); notWorth {
		return false, true
	}
	if r.Tier == evict.Host && s.disk != nil {
		clean := r
		clean.Clean = true
		if freed, _ := s.reclaimFrom(clean, who); freed > 0 || s.reclaimWritten(clean, roomWait, &who.patience.brief, who) {
			return true, false
		}
	}
	freed, notWorth := s.reclaimFrom(r, who)
	return freed > 0, notWorth
}

// reclaimWritten waits for write-behind while there is any: what it is at may not go before, and what it has done can
// go without a loss.
func (s *Store) reclaimWritten(r core.Reclaim, most time.Duration, vain *bool, who *seeker) bool {
	if *vain {
		return false
	}
	limit, cancel := timeout(s.clock, most)
	defer cancel()
	for s.disk.moved(limit, who.patience.gone) {
		if freed, _ := s.reclaimFrom(r, who); freed > 0 {
			return true
		}
	}
	freed, _ := s.reclaimFrom(r, who) // of what was written between the last look and this
	*vain = freed == 0 && (ended(limit) || ended(who.patience.gone))
	return freed > 0
}

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// reclaimFrom asks the shard with the lowest water level, then the next, for bytes; it answers what was freed. notWorth: nothing,
// for a shard found that all is worth more. It may though lowest did not: victims are drawn anew, and scores move with time.
func (s *Store) reclaimFrom(r core.Reclaim, who *seeker) (freed uint64, notWorth bool) {
	bytes := r.Bytes
	ask := func(sh *shard) bool {
		r.Bytes = bytes - freed
		s.stepFor(sh, r, 0, func(e core.Effect) {
			if got, ok := e.(core.Reclaimed); ok {
				if got.Bytes > 0 {
					freed, who.at = freed+got.Bytes, got.At
				}
				notWorth = notWorth || got.NotWorth
			}
		})
		return freed >= bytes
	}
	if r.Clean { // the lowest may have nothing clean
		for _, sh := range s.shards {
			if ask(sh) {
				break
			}
		}
		return freed, notWorth && freed == 0
	}
	for range s.shards {
		sh, no := s.lowest(r)
		notWorth = notWorth || no
		if sh == nil || ask(sh) {
			break
		}
	}
	return freed, notWorth && freed == 0
}

// lowest is the shard whose next victim for r is worth least; nil when nothing may go anywhere, or (notWorth) that is
// worth more than r may take.
func (s *Store) lowest(r core.Reclaim) (best *shard, notWorth bool) {
	var level evict.Score
	now := s.clock.Now()
	for _, sh := range s.shards {
		sh.mu.RLock()
		l, ok := sh.core.NextVictim(now, r)
		sh.mu.RUnlock()
		if ok && (best == nil || l < level) {
			best, level = sh, l
		}
	}
	if best != nil && level > s.ledger.MayTake(r) {
		return nil, true
	}
	return best, false
}

// emptySlab moves what lives in a sparse slab to free slots of the same size, so that its memory serves another.
func (s *Store) emptySlab() bool {
	if !s.compacting.TryLock() {
		return false
	}
	defer s.compacting.Unlock()
	d := s.o.Tiers[evict.Host]
	slab, live := d.Compact(nil)
	if slab == 0 {
		return false
	}
	for _, r := range live {
		if !s.move(r) {
			d.Keep(slab)
			return false
		}
	}
	return true
}

// move asks the owner's shard to move one extent; the Transfer is carried out before it returns.
func (s *Store) move(r tier.Resident) bool {
	if int(r.Owner.Shard) >= len(s.shards) {
		return false
	}
	moved := true
	s.stepFor(s.shards[r.Owner.Shard], core.Move{Extent: r.Owner.Extent, From: placeOf(evict.Host, r.Region)}, 0, func(e core.Effect) {
		if _, refused := e.(core.MoveRefused); refused {
			moved = false
		}
	})
	return moved
}

// transfer copies one extent to a new place in the host tier, verifies it there, and tells the core. The core keeps
// the old place until then.
func (s *Store) transfer(sh *shard, e core.Transfer) {
	done := core.TransferDone{ID: e.ID}
	to, why := s.copyExtent(e, tier.Owner{Shard: sh.id, Extent: e.Into})
	if why != reason.None {
		done.Err = why
	} else {
		done.To = placeOf(e.To, to)
	}
	s.step(sh, done)
	if why == reason.Corrupt {
		s.corrupt(sh, e.Extent, e.From)
	}
}

func (s *Store) copyExtent(e core.Transfer, o tier.Owner) (tier.Region, reason.Reason) {
	src, ok := s.region(e.From)
	if !ok {
		return tier.Region{}, reason.Absent
	}
	d := s.o.Tiers[e.To]
	dst, err := d.Alloc(s.classOf(e.Namespace, e.Epoch, src.Bytes), o)
	if err != nil {
		return tier.Region{}, allocReason(err)
	}
	copied := make(chan error, 1)
	d.Submit([]tier.Op{{Region: dst, Memory: src.Memory, Write: true, Done: func(err error) { copied <- err }}})
	if err := <-copied; err != nil {
		d.Free(dst)
		return tier.Region{}, reason.Busy
	}
	if !soundExtent(dst.Memory) {
		d.Free(dst)
		return tier.Region{}, reason.Corrupt
	}
	return dst, reason.None
}

// corrupt tells the core of an extent that failed the node's own verification.
func (s *Store) corrupt(sh *shard, extent uint32, p core.Place) {
	s.counts.corrupt.Add(1)
	s.step(sh, core.CorruptFound{Extent: extent, Place: p})
}

func (s *Store) free(p core.Place) {
	if r, ok := s.region(p); ok {
		s.o.Tiers[p.Tier].Free(r)
	}
}

func (s *Store) region(p core.Place) (tier.Region, bool) {
	if p.Handle == 0 || p.Tier >= evict.NumTiers || s.o.Tiers[p.Tier] == nil {
		return tier.Region{}, false
	}
	return s.o.Tiers[p.Tier].Lookup(p.Handle, p.Offset)
}

func placeOf(t evict.Tier, r tier.Region) core.Place {
	return core.Place{Tier: t, Handle: r.Handle, Offset: r.Offset, Bytes: r.Bytes}
}
