package replay

import (
	"fmt"

	"github.com/quire-kv/quire/evict"
)

// Result is what one policy did with one workload at one capacity.
type Result struct {
	Policy   string
	Capacity int // pages

	Hits     int     // pages served: of each request the run from its root that was there
	Saved    float64 // FLOPs of the pages served
	Written  int     // pages taken in
	Evicted  int
	Refused  int    // pages that were not worth their place, or found none
	Orphans  int    // pages left without their parent: none, or the policy is wrong
	Decision uint64 // FNV-1a hash of all decisions in order: equal for equal inputs
}

// Options of a replay. The zero value is what the store does.
type Options struct {
	PageBytes uint64                   // of each page; 0: 1 MiB
	Served    func(request, pages int) // called for each request, before what it lacks is published
	Stop      func() error             // asked now and then; an error ends the replay with it

	singly bool // judge each page of a run for itself
}

const (
	defaultPageBytes = 1 << 20
	stopEvery        = 256 // requests between two looks at Stop
	resizeShare      = 64  // as the store: the policy hears of each change by a 64th of what is held
)

// Replay runs a workload through a policy over one tier of so many pages of equal size. The tree is kept as the store
// keeps it: a page may go only while no child of it is resident and no request is using it. Slots are reused as the
// store reuses them, the one freed last first.
//
// Of each request, pages from the root on that are there are served and touched. The rest is offered as one run, whose
// worth is that of its best page: first each page is found a place, free or that of a victim worth no more, then those
// that have one are taken. What comes behind a page without one has no parent and is not taken either; where the worth
// was too little, the policy is told.
//
// The policy must be new. An error says which request the policy went wrong at.
func Replay(w *Workload, costs []float64, p evict.Policy, capacity int, o Options) (Result, error) {
	if o.PageBytes == 0 {
		o.PageBytes = defaultPageBytes
	}
	s := &sim{
		w: w, costs: costs, policy: p, capacity: max(capacity, 0), o: o,
		slots: make([]evict.Ref, w.Pages()), children: make([]int32, w.Pages()), using: make([]bool, w.Pages()),
		res: Result{Capacity: capacity, Decision: fnvOffset},
	}
	for i := range w.Requests {
		if o.Stop != nil && i%stopEvery == 0 {
			if err := o.Stop(); err != nil {
				return s.res, err
			}
		}
		if err := s.request(i); err != nil {
			return s.res, fmt.Errorf("request %d: %w", i, err)
		}
	}
	return s.res, nil
}

type sim struct {
	w        *Workload
	costs    []float64
	policy   evict.Policy
	capacity int
	o        Options

	slots    []evict.Ref // of each page; 0: not resident
	pages    []int32     // of each slot but 0
	free     []evict.Ref
	children []int32       // resident ones
	using    []bool        // by the request under way
	held     int           // places that are taken
	told     int           // what the policy last heard of held
	offered  []evict.Attrs // the run under way
	granted  []evict.Ref   // its slots
	victims  []evict.Victim
	res      Result
}

func (s *sim) request(i int) error {
	now, pages := s.w.Requests[i].Seconds, s.w.Requests[i].Pages
	hit := 0
	for hit < len(pages) && s.slots[pages[hit]] != 0 {
		s.res.Saved += s.costs[pages[hit]]
		s.use(pages[hit], true)
		hit++
	}
	s.res.Hits += hit
	if s.o.Served != nil {
		s.o.Served(i, hit)
	}
	for _, p := range pages[:hit] {
		s.policy.Touch(now, s.slots[p])
	}
	taken, err := s.publish(now, pages[hit:])
	if err != nil {
		return err
	}
	for _, p := range pages[:hit+taken] {
		s.use(p, false)
	}
	return nil
}

// publish offers a run and says how many of its pages were taken. As in the store, each has its slot from the start.
func (s *sim) publish(now float64, run []int32) (taken int, err error) {
	if len(run) == 0 {
		return 0, nil
	}
	var worth evict.Score
	s.offered, s.granted = s.offered[:0], s.granted[:0]
	for i, p := range run {
		a := s.attrs(p)
		if i > 0 {
			a.Parent = s.granted[i-1]
		}
		s.offered, s.granted = append(s.offered, a), append(s.granted, s.slot())
		if v := s.policy.Worth(now, 0, evict.Host, a); i == 0 || v > worth {
			worth = v
		}
	}
	for taken < len(run) {
		if s.o.singly {
			worth = s.policy.Worth(now, 0, evict.Host, s.offered[taken])
		}
		room, err := s.room(now, worth)
		if err != nil {
			return 0, err
		}
		if room != roomMade {
			s.refuse(now, run[taken], taken, room == roomNotWorth)
			break
		}
		s.held++
		taken++
	}
	s.resize()
	for i, p := range run[:taken] {
		s.take(now, p, s.granted[i], s.offered[i])
	}
	return taken, nil
}

// slot is a free one.
func (s *sim) slot() evict.Ref {
	if n := len(s.free); n > 0 {
		r := s.free[n-1]
		s.free = s.free[:n-1]
		return r
	}
	s.pages = append(s.pages, 0)
	return evict.Ref(len(s.pages))
}

// refuse gives up page p and all of the run behind it.
func (s *sim) refuse(now float64, p int32, taken int, notWorth bool) {
	s.decide(decisionRefused, p)
	s.res.Refused += len(s.offered) - taken
	for i := len(s.granted) - 1; i >= taken; i-- {
		s.free = append(s.free, s.granted[i])
	}
	if notWorth {
		rest := s.offered[taken:]
		for i := range rest[1:] {
			rest[1+i].Parent = 0 // the page before
		}
		s.policy.Pass(now, rest)
	}
}

// room of one page.
type room int

const (
	roomMade     room = iota
	roomNotWorth      // the next victim is worth more
	roomNone          // nothing may go
)

func (s *sim) room(now float64, worth evict.Score) (room, error) {
	if s.held < s.capacity {
		return roomMade, nil
	}
	s.victims = s.policy.Victims(now, evict.Host, 0, nil, s.victims[:0])
	if len(s.victims) == 0 {
		return roomNone, nil
	}
	if s.victims[0].Score > worth {
		return roomNotWorth, nil
	}
	return roomMade, s.evict(now, s.victims[0].Ref)
}

func (s *sim) take(now float64, p int32, r evict.Ref, a evict.Attrs) {
	s.decide(decisionTaken, p)
	s.pages[r-1], s.slots[p] = p, r
	s.res.Written++
	s.policy.Insert(now, r, a)
	s.use(p, true)
	if parent := s.w.Parents[p]; parent >= 0 {
		if s.slots[parent] == 0 {
			s.res.Orphans++
		}
		s.children[parent]++
		s.edge(parent)
	}
}

func (s *sim) evict(now float64, r evict.Ref) error {
	if r == 0 || int(r) > len(s.pages) || s.slots[s.pages[r-1]] != r {
		return fmt.Errorf("policy chose slot %d, which is empty", r)
	}
	p := s.pages[r-1]
	if s.children[p] > 0 || s.using[p] {
		return fmt.Errorf("policy chose page %d, which is not evictable", p)
	}
	s.decide(decisionEvicted, p)
	s.slots[p] = 0
	s.free = append(s.free, r)
	s.held--
	if s.res.Evicted++; s.res.Evicted == 1 {
		s.told = 0 // now the policy shall know what the tier can hold
	}
	s.policy.Remove(now, r, true)
	if parent := s.w.Parents[p]; parent >= 0 {
		s.children[parent]--
		s.edge(parent)
	}
	return nil
}

func (s *sim) resize() {
	if change := max(s.told, s.held) - min(s.told, s.held); change > s.told/resizeShare {
		s.told = s.held
		s.policy.Resize(evict.Host, uint64(s.held)*s.o.PageBytes, uint64(s.held))
	}
}

func (s *sim) use(p int32, using bool) {
	s.using[p] = using
	s.edge(p)
}

// edge tells the policy whether p may go.
func (s *sim) edge(p int32) {
	if r := s.slots[p]; r != 0 {
		s.policy.SetEvictable(r, evict.Host, s.children[p] == 0 && !s.using[p])
	}
}

// attrs is what the policy may know of page p. A parent that is not resident has no slot.
func (s *sim) attrs(p int32) evict.Attrs {
	a := evict.Attrs{
		Bytes: s.o.PageBytes, FLOPs: s.costs[p], Tokens: s.w.PageTokens, Depth: uint32(s.w.Depths[p]),
		KeyTag: KeyTag(p),
	}
	if parent := s.w.Parents[p]; parent >= 0 {
		a.Parent = s.slots[parent]
	}
	return a
}

// KeyTag is by what policies know page p in a replay.
func KeyTag(p int32) uint64 { return mix(uint64(p) + 1) }

// What is decided, as it enters the hash.
const (
	decisionEvicted byte = iota
	decisionTaken
	decisionRefused // it and the rest of its run
)

func (s *sim) decide(what byte, page int32) {
	h := s.res.Decision
	for _, b := range [...]byte{what, byte(page), byte(page >> 8), byte(page >> 16), byte(page >> 24)} {
		h = (h ^ uint64(b)) * fnvPrime
	}
	s.res.Decision = h
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// mix spreads a number over 64 bits, one to one (the finisher of SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
