package replay

import (
	"fmt"

	"github.com/quire-kv/quire/evict"
)

// room of one page.
type room int

const (
	roomMade     room = iota
	roomNotWorth      // the next victim is worth more
	roomNone          // nothing may go
)

// maxClean bounds how many victims are looked at for one that is on disk too, as in the store.
const maxClean = 4096

// room finds a page's place in a tier: a free one, or that of a victim worth no more. In memory, what is on disk too goes
// first.
func (s *sim) room(now float64, t evict.Tier, worth evict.Score) (room, error) {
	if s.held[t] < s.capacity(t) {
		return roomMade, nil
	}
	sh, v := s.lowest(now, t)
	switch {
	case sh == nil:
		return roomNone, nil
	case v.Score > worth:
		return roomNotWorth, nil
	}
	if t == evict.Host && s.n.Disk > 0 {
		if clean := s.clean(now, sh, worth); clean != 0 {
			v.Ref = clean
		}
	}
	return roomMade, s.evict(now, sh, v.Ref, t)
}

// lowest is the shard whose next victim in a tier scores least.
func (s *sim) lowest(now float64, t evict.Tier) (best *shard, victim evict.Victim) {
	for i := range s.shards {
		sh := &s.shards[i]
		s.victims = sh.policy.Victims(now, t, 0, nil, s.victims[:0])
		if len(s.victims) > 0 && (best == nil || s.victims[0].Score < victim.Score) {
			best, victim = sh, s.victims[0]
		}
	}
	return best, victim
}

// clean is the first victim in memory that is on disk too; 0: none of those looked at.
func (s *sim) clean(now float64, sh *shard, worth evict.Score) evict.Ref {
	looked := 0
	for need := uint64(1); looked < maxClean; need = max(4*need, 1<<20) {
		s.victims = sh.policy.Victims(now, evict.Host, need, nil, s.victims[:0])
		for _, v := range s.victims {
			switch p, ok := sh.page(s, v.Ref); {
			case v.Score > worth:
				return 0
			case ok && s.at[p].has(evict.Disk):
				return v.Ref
			}
			looked++
		}
		if uint64(len(s.victims))*s.o.PageBytes < need { // there are no more
			return 0
		}
	}
	return 0
}

// records finds room for the records of a run of n pages, which stands on one that stays, and says how many of them there are
// records for.
func (s *sim) records(now float64, sh *shard, on int32, n int) (most int, err error) {
	fits := func() bool {
		return (s.n.Pages == 0 || s.pages+n <= s.n.Pages) && (s.n.Copies == 0 || s.copies()+n <= s.n.Copies)
	}
	if on >= 0 && !fits() {
		s.use(on, 1)
		defer s.use(on, -1)
	}
	for !fits() {
		if ok, err := s.evictLeast(now, sh); err != nil {
			return 0, err
		} else if !ok {
			break
		}
	}
	if s.n.Pages > 0 {
		n = min(n, max(0, s.n.Pages-s.pages))
	}
	if s.n.Copies > 0 {
		n = min(n, max(0, s.n.Copies-s.copies()))
	}
	return n, nil
}

func (s *sim) copies() (n int) {
	for _, held := range s.held {
		n += held
	}
	return n
}

// evictLeast evicts what is worth least in any tier of a shard.
func (s *sim) evictLeast(now float64, sh *shard) (ok bool, err error) {
	var least evict.Victim
	from := evict.NumTiers
	for _, t := range s.tiers {
		s.victims = sh.policy.Victims(now, t, 0, nil, s.victims[:0])
		if len(s.victims) > 0 && (from == evict.NumTiers || s.victims[0].Score < least.Score) {
			from, least = t, s.victims[0]
		}
	}
	if from == evict.NumTiers {
		return false, nil
	}
	if !sh.evicted[from] { // here nothing is waited for before it is told
		sh.evicted[from], sh.told[from] = true, 0
		s.resize()
	}
	return true, s.evict(now, sh, least.Ref, from)
}

// page is the one that a slot has.
func (sh *shard) page(s *sim, r evict.Ref) (p int32, ok bool) {
	if r == 0 || int(r) > len(sh.pages) {
		return 0, false
	}
	p = sh.pages[r-1]
	return p, s.at[p].there() && s.at[p].slot == r && s.shardOf(p) == sh
}

// evict takes a page out of a tier, and ends it where that was its last copy.
func (s *sim) evict(now float64, sh *shard, r evict.Ref, t evict.Tier) error {
	p, ok := sh.page(s, r)
	switch {
	case !ok:
		return fmt.Errorf("policy chose slot %d, which is empty", r)
	case !s.evictable(p, t):
		return fmt.Errorf("policy chose page %d, which is not evictable from the %v tier", p, t)
	}
	if !sh.evicted[t] { // now the policy shall know what the tier can hold
		sh.evicted[t], sh.told[t] = true, 0
	}
	at := &s.at[p]
	at.in &^= 1 << t
	s.held[t]--
	sh.held[t]--
	parent := s.w.Parents[p]
	if parent >= 0 {
		s.at[parent].children[1+t]--
	}
	switch {
	case at.in == 0:
		s.decide(decisionEvicted, p)
		s.res.Evicted++
		s.pages--
		at.slot = 0
		sh.free = append(sh.free, r)
		sh.policy.Remove(now, r, true)
		if parent >= 0 {
			s.at[parent].children[0]--
		}
	case t == evict.Host:
		s.decide(decisionLeft, p)
		sh.policy.SetEvictable(r, t, false)
		s.edge(p)
	default:
		s.decide(decisionErased, p)
		sh.policy.SetEvictable(r, t, false)
		s.edge(p)
	}
	if parent >= 0 {
		s.edge(parent)
	}
	return nil
}

// evictable says whether a page that is in a tier may leave it.
func (s *sim) evictable(p int32, t evict.Tier) bool {
	at := &s.at[p]
	return at.has(t) && at.using == 0 && at.children[1+t] == 0 && (at.in != 1<<t || at.children[0] == 0)
}

// edge tells the policy from where p may go.
func (s *sim) edge(p int32) {
	at := &s.at[p]
	if at.slot == 0 {
		return
	}
	for _, t := range s.tiers {
		if at.has(t) {
			s.shardOf(p).policy.SetEvictable(at.slot, t, s.evictable(p, t))
		}
	}
}

// occupy takes a place in a tier, enter puts a page there.
func (s *sim) occupy(sh *shard, t evict.Tier) {
	s.held[t]++
	sh.held[t]++
	s.res.HeldIn[t] = max(s.res.HeldIn[t], s.held[t])
}

func (s *sim) enter(p int32, t evict.Tier) {
	s.at[p].in |= 1 << t
	s.res.WrittenTo[t]++
	s.edge(p)
	if parent := s.w.Parents[p]; parent >= 0 {
		s.at[parent].children[1+t]++
		s.edge(parent)
	}
}

// writeBehind copies a page to disk, before it those of its ancestors that are not there; they are judged as one, by the
// best of them. What is on disk is always a prefix: where one finds no room, those behind it are not written either.
func (s *sim) writeBehind(now float64, p int32) error {
	if s.n.Disk <= 0 {
		return nil
	}
	s.path = s.path[:0]
	worth := evict.Score(0)
	for ; p >= 0 && !s.at[p].has(evict.Disk); p = s.w.Parents[p] {
		if !s.at[p].there() {
			return nil
		}
		s.path = append(s.path, p)
		worth = max(worth, s.worthIn(now, p, evict.Disk))
	}
	for i := range s.path {
		p := s.path[len(s.path)-1-i]
		if ok, err := s.copyTo(now, p, evict.Disk, worth); err != nil || !ok {
			return err
		}
		s.decide(decisionCopied, p)
	}
	return nil
}

// promote brings what is on disk alone of a run into memory, judged as one by the best of it.
func (s *sim) promote(now float64, run []int32) error {
	worth := evict.Score(0)
	for _, p := range run {
		if !s.at[p].has(evict.Host) {
			worth = max(worth, s.worthIn(now, p, evict.Host))
		}
	}
	for _, p := range run {
		if s.at[p].has(evict.Host) {
			continue
		}
		ok, err := s.copyTo(now, p, evict.Host, worth)
		if err != nil {
			return err
		}
		if ok {
			s.decide(decisionBrought, p)
		}
	}
	return nil
}

// worthIn is what a page that is there scores in a tier, or would.
func (s *sim) worthIn(now float64, p int32, t evict.Tier) evict.Score {
	return s.shardOf(p).policy.Worth(now, s.at[p].slot, t, s.attrs(p))
}

// copyTo makes a copy of a page in a tier, where it finds room that is worth no more. What is not worth its room in memory
// has to be there all the same to be served: it makes room, which is free again at once.
func (s *sim) copyTo(now float64, p int32, t evict.Tier, worth evict.Score) (ok bool, err error) {
	sh := s.shardOf(p)
	s.use(p, 1) // what is being read stays
	defer s.use(p, -1)
	for s.n.Copies > 0 && s.copies() >= s.n.Copies {
		if ok, err := s.evictLeast(now, sh); err != nil || !ok {
			return false, err
		}
	}
	room, err := s.room(now, t, worth)
	if err == nil && room == roomNotWorth && t == evict.Host {
		_, err = s.room(now, t, evict.MaxScore)
	}
	if err != nil || room != roomMade || s.at[p].slot == 0 {
		return false, err
	}
	s.occupy(sh, t)
	s.enter(p, t)
	s.resize()
	return true, nil
}

// resize tells the policies what the tiers hold.
func (s *sim) resize() {
	for i := range s.shards {
		sh := &s.shards[i]
		for _, t := range s.tiers {
			if told, held := &sh.told[t], sh.held[t]; max(*told, held)-min(*told, held) > *told/resizeShare {
				*told = held
				sh.policy.Resize(t, uint64(held)*s.o.PageBytes, uint64(held))
			}
		}
	}
}
