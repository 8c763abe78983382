package replay

import (
	"fmt"
	"slices"

	"github.com/quire-kv/quire/evict"
)

// Result is what one policy did with one workload at one capacity.
type Result struct {
	Policy   string
	Capacity int // pages, of all tiers

	Hits     int     // pages served: of each request the run from its root that was there
	FromDisk int     // of them those that were on disk alone
	Saved    float64 // FLOPs of the pages served, less loading those that were on disk alone
	Present  int     // pages that another request published between lookup and publication of one
	Written  int     // pages taken in
	Evicted  int     // pages whose last copy went
	Refused  int     // pages that were not worth their place, or found none
	Orphans  int     // pages left without their parent: none, or the policy is wrong
	Decision uint64  // FNV-1a hash of all decisions in order: equal for equal inputs

	WrittenTo [evict.NumTiers]int // copies made in each tier: published, brought back from disk; written behind
	HeldIn    [evict.NumTiers]int // copies that each tier had at most
}

// Node is what requests are replayed against: the tiers and bounds of a server.
type Node struct {
	// Policies are new ones, one for each shard. All pages of a namespace are in one shard.
	Policies []evict.Policy
	// ShardOf places the namespaces of a workload (Access.Space); nil: all are in the first.
	ShardOf func(space int32) int
	// Host and Disk are what the tiers have room for, in pages. Disk 0: there is none; else what is published is written
	// there too, at once, where it is worth its room, or is when it is used.
	Host, Disk int
	// Pages and Copies are how many records there are, of pages and of copies in tiers; 0: no bound. What is worth least
	// in any tier makes room for records, whatever it is worth.
	Pages, Copies int
}

// Step is one phase of a request: those of one come in this order, and others' may come between.
type Step struct {
	Request int
	Phase   Phase
	Seconds float64
}

// Phase of a request, as a store sees it.
type Phase uint8

const (
	LookUp Phase = iota // what is there is served, and stays until End
	Begin               // the rest is offered, and finds room
	Commit              // what found room is there from now on
	End                 // what was found may go
	Tell                // the answer has ended: how long it is is told of the pages that are there
)

// Options of a replay. The zero value is what the store does.
type Options struct {
	PageBytes uint64                   // of each page; 0: 1 MiB
	Tag       func(page int32) uint64  // by what policies know pages; nil: KeyTag
	Steps     []Step                   // in order, where requests overlap or took time; nil: each request at once, at its time, but for Tell
	Untold    bool                     // policies are not told how long answers were, unless Steps says so
	Fetch     bool                     // what is found on disk alone is brought into memory, where it is worth its room
	Loading   evict.Loading            // from disk
	Served    func(request, pages int) // called for each request, before what it lacks is published
	Stop      func() error             // asked now and then; an error ends the replay with it

	singly bool // judge each page of a run for itself
}

const (
	defaultPageBytes = 1 << 20
	stopEvery        = 1024 // steps between two looks at Stop
	tokenSeconds     = 0.03 // a token of an answer takes so long: it is told that much later than the request
	resizeShare      = 64   // as the store: the policy hears of each change by a 64th of what is held
)

// Replay runs a workload through a policy over one tier of so many pages of equal size: ReplayNode with nothing else.
func Replay(w *Workload, costs []float64, p evict.Policy, capacity int, o Options) (Result, error) {
	return ReplayNode(w, costs, Node{Policies: []evict.Policy{p}, Host: capacity}, o)
}

// ReplayNode runs a workload through the policies of a node. The tree is kept as the store keeps it: a page may go only
// while no child of it is resident and no request is using it. Slots are reused as the store reuses them, the one freed
// last first.
//
// Of each request, pages from the root on that are there are served and touched. The rest is offered as one run, whose
// worth is that of its best page: first each page is found a place, free or that of a victim worth no more, then those
// that have one are taken. What comes behind a page without one has no parent and is not taken either; where the worth
// was too little, the policy is told.
//
// The policies must be new. An error says which request a policy went wrong at.
func ReplayNode(w *Workload, costs []float64, n Node, o Options) (Result, error) {
	if o.PageBytes == 0 {
		o.PageBytes = defaultPageBytes
	}
	if o.Tag == nil {
		o.Tag = KeyTag
	}
	s := newSim(w, costs, n, o)
	steps := slices.Values(o.Steps)
	if o.Steps == nil {
		steps = w.Steps(!o.Untold)
	}
	i := 0
	for step := range steps {
		if i++; o.Stop != nil && i%stopEvery == 1 {
			if err := o.Stop(); err != nil {
				return s.res, err
			}
		}
		if err := s.step(step); err != nil {
			return s.res, fmt.Errorf("request %d: %w", step.Request, err)
		}
	}
	return s.res, nil
}

type sim struct {
	w     *Workload
	costs []float64
	n     Node
	o     Options

	shards []shard
	at     []place             // of each page
	open   map[int]*request    // by number
	tiers  []evict.Tier        // that there are
	held   [evict.NumTiers]int // copies: places that are taken
	pages  int                 // that are there, or have a place
	res    Result

	spare   []*request
	victims []evict.Victim
	path    []int32
}

// request is one that is under way.
type request struct {
	found   int           // pages from the first on, by its lookup
	granted []int32       // pages that found room and are not there yet
	offered []evict.Attrs // of them
	passed  []evict.Attrs // of those that were not worth it
}

// place is where a page is.
type place struct {
	slot     evict.Ref                 // of its shard; 0: nowhere
	in       uint8                     // bits of tiers; 0: it is not there, or not yet
	using    int16                     // requests
	children [1 + evict.NumTiers]int32 // that have a slot; from 1: are in a tier, or have a place there
}

func (p *place) there() bool { return p.in != 0 }

func (p *place) has(t evict.Tier) bool { return p.in&(1<<t) != 0 }

// shard is one policy and its pages.
type shard struct {
	policy  evict.Policy
	pages   []int32 // of each slot but 0
	free    []evict.Ref
	held    [evict.NumTiers]int
	told    [evict.NumTiers]int // what the policy last heard of held
	evicted [evict.NumTiers]bool
}

func newSim(w *Workload, costs []float64, n Node, o Options) *sim {
	s := &sim{
		w: w, costs: costs, n: n, o: o, at: make([]place, w.Pages()), open: map[int]*request{}, tiers: []evict.Tier{evict.Host},
		res: Result{Capacity: max(n.Host, 0) + max(n.Disk, 0), Decision: fnvOffset},
	}
	if n.Disk > 0 {
		s.tiers = append(s.tiers, evict.Disk)
	}
	for _, p := range n.Policies {
		p.SetLoading(evict.Disk, o.Loading)
		s.shards = append(s.shards, shard{policy: p})
	}
	return s
}

func (s *sim) shardOf(p int32) *shard {
	if s.n.ShardOf == nil || s.w.Spaces == nil {
		return &s.shards[0]
	}
	return &s.shards[s.n.ShardOf(s.w.Spaces[p])]
}

func (s *sim) capacity(t evict.Tier) int {
	if t == evict.Disk {
		return s.n.Disk
	}
	return s.n.Host
}

func (s *sim) step(e Step) error {
	switch e.Phase {
	case LookUp:
		return s.lookup(e)
	case Begin:
		return s.begin(e)
	case Commit:
		return s.commit(e)
	case Tell:
		s.tell(e)
		return nil
	}
	return s.end(e)
}

func (s *sim) lookup(e Step) error {
	now, pages := e.Seconds, s.w.Requests[e.Request].Pages
	hit := 0
	for hit < len(pages) && s.at[pages[hit]].there() {
		p := pages[hit]
		saved := s.costs[p]
		if !s.at[p].has(evict.Host) {
			s.res.FromDisk++
			saved = max(0, saved-s.o.Loading.FLOPs(s.o.PageBytes))
		}
		s.res.Saved += saved
		s.use(p, 1)
		hit++
	}
	s.res.Hits += hit
	s.open[e.Request] = s.request(hit)
	if s.o.Served != nil {
		s.o.Served(e.Request, hit)
	}
	for _, p := range pages[:hit] {
		s.shardOf(p).policy.Touch(now, s.at[p].slot)
	}
	for _, p := range pages[:hit] { // what was not worth its room on disk may be now
		if err := s.writeBehind(now, p); err != nil {
			return err
		}
	}
	if !s.o.Fetch {
		return nil
	}
	return s.promote(now, pages[:hit])
}

// begin offers what the lookup did not find. What another request has published meanwhile, or is about to, is present.
func (s *sim) begin(e Step) error {
	r := s.open[e.Request]
	run := s.w.Requests[e.Request].Pages[r.found:]
	for len(run) > 0 && s.at[run[0]].slot != 0 {
		run = run[1:]
		s.res.Present++
	}
	if len(run) == 0 {
		return nil
	}
	return s.offer(e.Seconds, r, run)
}

// offer finds room for a run, or for the first pages of it. As in the store, each has its slot from the start, and keeps
// what it stands on.
func (s *sim) offer(now float64, r *request, run []int32) error {
	sh := s.shardOf(run[0])
	most, err := s.records(now, sh, s.w.Parents[run[0]], len(run))
	if err != nil {
		return err
	}
	s.res.Refused += len(run) - most
	run = run[:most]
	var worth evict.Score
	for i, p := range run {
		a := s.attrs(p)
		r.offered = append(r.offered, a)
		s.at[p].slot = sh.slot(p)
		s.stand(p, 1)
		if v := sh.policy.Worth(now, 0, evict.Host, a); i == 0 || v > worth {
			worth = v
		}
	}
	taken := 0
	for taken < len(run) {
		if s.o.singly {
			worth = sh.policy.Worth(now, 0, evict.Host, r.offered[taken])
		}
		room, err := s.room(now, evict.Host, worth)
		if err != nil {
			return err
		}
		if room != roomMade {
			s.refuse(r, run, taken, room == roomNotWorth)
			break
		}
		s.occupy(sh, evict.Host)
		s.pages++
		taken++
	}
	s.resize()
	if r.granted, r.offered = run[:taken], r.offered[:taken]; taken == 0 {
		s.pass(now, sh, r)
	}
	return nil
}

// stand counts a page that has a place in memory among the children of what it stands on, or no more.
func (s *sim) stand(p int32, by int32) {
	if parent := s.w.Parents[p]; parent >= 0 {
		s.at[parent].children[0] += by
		s.at[parent].children[1+evict.Host] += by
		s.edge(parent)
	}
}

// refuse gives up the pages of a run behind those that were taken, the last first.
func (s *sim) refuse(r *request, run []int32, taken int, notWorth bool) {
	s.decide(decisionRefused, run[taken])
	s.res.Refused += len(run) - taken
	if notWorth {
		r.passed = append(r.passed, r.offered[taken:]...)
		for i := range r.passed[1:] {
			r.passed[1+i].Parent = 0 // the page before
		}
	}
	sh := s.shardOf(run[0])
	for i := len(run) - 1; i >= taken; i-- {
		sh.free = append(sh.free, s.at[run[i]].slot)
		s.at[run[i]].slot = 0
		s.stand(run[i], -1)
	}
}

// commit takes in what found room, and tells the policy of what was not worth it: what that follows is there now, or never
// will be.
func (s *sim) commit(e Step) error {
	r := s.open[e.Request]
	granted := r.granted
	if len(granted) == 0 {
		return nil
	}
	sh := s.shardOf(granted[0])
	for i, p := range granted {
		s.decide(decisionTaken, p)
		s.res.Written++
		if parent := s.w.Parents[p]; parent >= 0 && s.at[parent].slot == 0 {
			s.res.Orphans++
		}
		sh.policy.Insert(e.Seconds, s.at[p].slot, r.offered[i])
		s.at[p].in |= 1 << evict.Host
		s.res.WrittenTo[evict.Host]++
		s.edge(p)
	}
	s.pass(e.Seconds, sh, r)
	r.granted = nil
	for _, p := range granted {
		if err := s.writeBehind(e.Seconds, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *sim) pass(now float64, sh *shard, r *request) {
	if len(r.passed) > 0 {
		sh.policy.Pass(now, r.passed)
		r.passed = r.passed[:0]
	}
}

// end lets go of what the lookup found.
func (s *sim) end(e Step) error {
	for _, p := range s.w.Requests[e.Request].Pages[:s.open[e.Request].found] {
		s.use(p, -1)
	}
	s.spare = append(s.spare, s.open[e.Request])
	delete(s.open, e.Request)
	return nil
}

// request is one that has found so many pages.
func (s *sim) request(found int) *request {
	n := len(s.spare)
	if n == 0 {
		return &request{found: found}
	}
	r := s.spare[n-1]
	s.spare = s.spare[:n-1]
	*r = request{found: found, offered: r.offered[:0], passed: r.passed[:0]}
	return r
}

// slot gives a page a free one.
func (sh *shard) slot(p int32) (r evict.Ref) {
	if n := len(sh.free); n > 0 {
		r, sh.free = sh.free[n-1], sh.free[:n-1]
	} else {
		sh.pages = append(sh.pages, 0)
		r = evict.Ref(len(sh.pages))
	}
	sh.pages[r-1] = p
	return r
}

func (s *sim) use(p int32, by int16) {
	s.at[p].using += by
	s.edge(p)
}

// attrs is what the policy may know of page p. A parent that is not resident has no slot.
func (s *sim) attrs(p int32) evict.Attrs {
	a := evict.Attrs{
		Bytes: s.o.PageBytes, FLOPs: s.costs[p], Tokens: s.w.PageTokens, Depth: uint32(s.w.Depths[p]), KeyTag: s.o.Tag(p),
	}
	if parent := s.w.Parents[p]; parent >= 0 {
		a.Parent = s.at[parent].slot
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
	decisionLeft    // memory alone; its copy on disk stays
	decisionErased  // from disk alone; its copy in memory stays
	decisionCopied  // to disk
	decisionBrought // back into memory
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
