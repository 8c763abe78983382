package evict

import (
	"math"
	"unsafe"

	"github.com/quire-kv/quire/internal/offheap"
)

// VBR (value, benefit, room) evicts the page whose bytes are expected to save least:
//
//	score = value x rate     value  FLOPs that a use saves, less loading them, for each byte
//	                         rate   uses per second that keeping the page is expected to bring (reuse.go)
//
// in FLOPs saved per byte-second, so that pages of shards, tiers and nodes compare. A victim is the least of 128 pages
// drawn from those that may go. What rate is made of, how much the value counts, and whether a page worth less than the
// next victim is taken in at all is a mode, and the one that saves most in a simulation of a sample is used (shadow.go).
//
//	Insert, Touch ──every use──> page's record: uses, turn, last use
//	                    └─ of sampled pages ──> sample: lives of pages by class ──> reuse: rates
//	                                                └──> shadows: one cache for each mode ──> the mode
//	Victims, Worth <── score of a record in that mode
//
// Memory: 56 bytes a page, 16 bytes for each tier and page that may go from it, 128 to 256 bytes of ghosts a page up to
// 256 MiB, and up to 6 MiB of sample, or what WatchWithin says.
type VBR struct {
	pages   *offheap.Array[vbrPage]
	leaves  [vbrTiers]leaves // copies of what pages' scores are made of: refresh
	ghosts  ghosts
	sample  *sample
	loading [vbrTiers]float32 // FLOPs for each unit
	seed    uint64
	moves   uint64 // changes so far: victims are drawn by it
	known   int
	top     Ref
	offered vbrPage // the last that was
}

var _ Policy = (*VBR)(nil)

type vbrPage struct {
	tag    uint64 // mixed KeyTag
	above  uint64 // tag of the nearest sampled page above; 0: none
	value  float32
	lean   float32 // what writer and client say, as a factor of the score
	units  uint32  // size
	used   uint32  // last use in ticks
	due    uint32  // next use as the client expects it, in ticks; 0: not known
	tenant uint32
	at     [vbrTiers]uint32 // place among the leaves, from 1; 0: not there
	uses   uint8
	turn   uint8
	flags  uint8
	share  Share
	said   said
	answer answered
	traits traits
}

const (
	vbrFirst = Host
	vbrTiers = int(NumTiers - vbrFirst)

	vbrKnown  = 1 << 0
	vbrDoomed = 1 << 1
	vbrFresh  = 1 << 2 // not used since it came
	vbrParent = 1 << 3 // had a child

	unitBytes  = 4 << 10
	drawn      = 128 // pages, to find one victim
	stretch    = 8   // of them lie side by side
	drawnMore  = 16  // in the place of others, for each further one
	maxVictims = 256

	leastOfValue = 1 << 10 // remains where loading costs more than recomputing: enough to rank such pages among themselves
)

// NewVBR returns an empty policy for refs below maxRefs (0: MaxRefs). Equal seeds and calls give equal victims.
func NewVBR(maxRefs int, seed uint64) *VBR {
	if maxRefs <= 0 || maxRefs > MaxRefs {
		maxRefs = MaxRefs
	}
	v := &VBR{pages: offheap.New[vbrPage](maxRefs), ghosts: newGhosts(maxRefs), sample: newSample(seed, samplePages), seed: seed}
	for t := range v.leaves {
		v.leaves[t] = leaves{maxRefs: maxRefs, rng: splitmix(mix(seed + uint64(t)))}
	}
	return v
}

// WatchWithin bounds the memory of the sample, from which reuse and mode are learned: the less there is, the coarser. It is
// for an empty policy. Below VBRLeastSampleBytes it takes those.
func (v *VBR) WatchWithin(bytes uint64) {
	n := leastSample
	for n < samplePages && learnedBytes+2*uint64(n)*sampledBytes <= bytes { // a power of two
		n *= 2
	}
	v.sample = newSample(v.seed, n)
}

// Bounds of the memory of a VBR, in bytes.
const (
	VBRPageBytes        = uint64(unsafe.Sizeof(vbrPage{})) + leafBytes*uint64(vbrTiers) // of each page that is there
	VBRGhostsPageBytes  = 2 * ghostsPer * uint64(unsafe.Sizeof(ghost{}))                // of the ghosts of each, after a doubling
	VBRLeastGhostsBytes = firstBuckets * ghostWays * uint64(unsafe.Sizeof(ghost{}))     // of those of few
	VBRMostGhostsBytes  = maxGhosts * uint64(unsafe.Sizeof(ghost{}))                    // of those of many
	VBRLeastSampleBytes = learnedBytes + leastSample*sampledBytes
	VBRSampleBytes      = learnedBytes + samplePages*sampledBytes

	leafBytes    = uint64(unsafe.Sizeof(leaf{}))
	learnedBytes = uint64(unsafe.Sizeof(sample{}))
	sampledBytes = uint64(unsafe.Sizeof(sampled{})) + 4*uint64(modes) + 4*slotsPer
)

// SetLoading says what bringing a page back from a tier costs, which is taken off what its pages save there.
func (v *VBR) SetLoading(t Tier, l Loading) {
	if t >= vbrFirst && t < NumTiers {
		v.loading[t-vbrFirst] = float32(l.FLOPs(unitBytes))
	}
}

// Resize tells what a tier holds of this policy's pages. The shadows are as large as the largest tier: what that one
// lacks is what must be recomputed.
func (v *VBR) Resize(t Tier, bytes, pages uint64) {
	if t >= vbrFirst && t < NumTiers {
		v.sample.resize(int(t-vbrFirst), float64(bytes)/unitBytes, pages)
	}
}

// Insert makes or updates a page.
func (v *VBR) Insert(now float64, r Ref, a Attrs) {
	p := v.pages.At(uint32(r))
	p.units = unitsOf(a.Bytes)
	p.value = valueOf(a)
	if p.flags&vbrKnown != 0 {
		v.list(r, p, a.Doomed, a.Share)
		v.advise(now, p, a)
		v.refresh(r, p)
		return
	}
	v.moves++
	v.top = max(v.top, r)
	v.known++
	v.ghosts.grow(v.known)
	p.tag, p.flags, p.tenant = mix(a.KeyTag), vbrKnown|vbrFresh, a.Tenant
	p.uses, p.turn = v.recall(p.tag, a.Parent, true)
	p.traits = v.family(p.tag, a.Parent).at(a.Depth, a.Tokens)
	if a.Parent != 0 {
		parent := v.pages.At(uint32(a.Parent))
		parent.flags |= vbrParent
		p.above = v.near(parent)
	}
	v.list(r, p, a.Doomed, a.Share)
	v.use(ticksOf(now), p, false)
	v.advise(now, p, a)
}

// Touch records a use. It ends what was said of the page's next use.
func (v *VBR) Touch(now float64, r Ref) {
	p := v.pages.At(uint32(r))
	if p.flags&vbrKnown == 0 || p.flags&vbrDoomed != 0 {
		return
	}
	v.moves++
	p.flags &^= vbrFresh
	v.use(ticksOf(now), p, true)
	p.served()
	v.refresh(r, p)
}

// Pass counts the uses of a run that was offered and not taken.
func (v *VBR) Pass(now float64, run []Attrs) {
	v.moves++
	tick := ticksOf(now)
	var before vbrPage
	for i := range run {
		a, on := &run[i], (*vbrPage)(nil)
		if a.Parent == 0 && i > 0 {
			on = &before
		}
		p := v.coming(a, on, true)
		switch {
		case a.Parent != 0:
			p.above = v.near(v.pages.At(uint32(a.Parent)))
		case on != nil:
			p.above = v.near(on)
		}
		v.use(tick, &p, false)
		v.ghosts.put(ghost{tag: p.tag, used: p.used, uses: p.uses, turn: p.turn})
		before = p
	}
}

// coming is a page that is offered, before its use is counted: what is not known of it itself is as of the page that it goes
// on with in its run; nil: none. It may take its ghost.
func (v *VBR) coming(a *Attrs, on *vbrPage, take bool) vbrPage {
	p := vbrPage{tag: mix(a.KeyTag), value: valueOf(*a), units: unitsOf(a.Bytes)}
	p.uses, p.turn = v.recall(p.tag, a.Parent, take)
	family := v.family(p.tag, a.Parent)
	if on != nil {
		if family = on.traits; p.uses == 0 {
			p.turn = on.turn
		}
	}
	p.traits = family.at(a.Depth, a.Tokens)
	return p
}

// use counts one of p; hit: it was there.
func (v *VBR) use(tick uint32, p *vbrPage, hit bool) {
	p.uses += uint8(min(1, math.MaxUint8-int(p.uses)))
	p.used, p.answer = tick, 0
	if v.sample.takes(p.tag) {
		v.sample.use(tick, p, hit)
	}
}

// near is the tag of the nearest sampled page: p itself, or one above it.
func (v *VBR) near(p *vbrPage) uint64 {
	if v.sample.takes(p.tag) {
		return p.tag
	}
	return p.above
}

// recall is what is known of a page that comes: from its ghost, which it may take, else from its parent.
func (v *VBR) recall(tag uint64, parent Ref, take bool) (uses, turn uint8) {
	if g := v.ghosts.find(tag); g != nil {
		uses, turn = g.uses, g.turn
		if take {
			*g = ghost{}
		}
		return uses, turn
	}
	if parent != 0 {
		switch p := v.pages.At(uint32(parent)); {
		case p.flags&vbrKnown == 0: // on its way, as in a run that is being offered
		case p.flags&vbrFresh != 0:
			return 0, p.turn
		case p.flags&vbrParent == 0:
			return 0, min(p.turn+1, turnClasses-1)
		}
	}
	return 0, 0
}

// family of a page that comes: its parent's, or that of its own as a root.
func (v *VBR) family(tag uint64, parent Ref) traits {
	if parent != 0 {
		return v.pages.At(uint32(parent)).traits.family()
	}
	return familyOf(tag)
}

// Remove forgets a page; one that was evicted leaves a ghost.
func (v *VBR) Remove(_ float64, r Ref, evicted bool) {
	p := v.pages.At(uint32(r))
	if p.flags&vbrKnown == 0 {
		return
	}
	v.moves++
	v.known--
	for t := range vbrTiers {
		v.unleaf(t, p)
	}
	if evicted {
		v.ghosts.put(ghost{tag: p.tag, used: p.used, uses: p.uses, turn: p.turn})
	}
	*p = vbrPage{}
}

// SetEvictable says whether r may be a victim of t.
func (v *VBR) SetEvictable(r Ref, t Tier, ok bool) {
	p := v.pages.At(uint32(r))
	if p.flags&vbrKnown == 0 || t < vbrFirst || t >= NumTiers {
		return
	}
	if ok {
		v.leaf(int(t-vbrFirst), r, p)
	} else {
		v.unleaf(int(t-vbrFirst), p)
	}
}

// list moves a page to the lists it belongs to.
func (v *VBR) list(r Ref, p *vbrPage, doomed bool, share Share) {
	if doomed == (p.flags&vbrDoomed != 0) && share == p.share {
		return
	}
	was := p.at
	for t := range vbrTiers {
		v.unleaf(t, p)
	}
	p.share = share
	if p.flags &^= vbrDoomed; doomed {
		p.flags |= vbrDoomed
	}
	for t := range vbrTiers {
		if was[t] != 0 {
			v.leaf(t, r, p)
		}
	}
}

func (v *VBR) leaf(t int, r Ref, p *vbrPage) {
	if p.at[t] != 0 {
		return
	}
	l := &v.leaves[t]
	list := l.of(p.flags&vbrDoomed != 0, p.share)
	at := list.n + 1
	if list != &l.doomed { // so the list stays in random order, and what lies side by side is a fair draw
		at = 1 + l.rng.below(at)
	}
	if moved := list.push(r, p, at, l.maxRefs); moved != 0 {
		v.pages.At(uint32(moved)).at[t] = list.n
	}
	p.at[t] = at
}

func (v *VBR) unleaf(t int, p *vbrPage) {
	if p.at[t] != 0 {
		moved := v.leaves[t].of(p.flags&vbrDoomed != 0, p.share).pull(p.at[t])
		v.pages.At(uint32(moved)).at[t] = p.at[t]
		p.at[t] = 0
	}
}

// refresh copies what has changed of a page to where it is a leaf.
func (v *VBR) refresh(r Ref, p *vbrPage) {
	for t, at := range p.at {
		if at != 0 {
			v.leaves[t].of(p.flags&vbrDoomed != 0, p.share).list.At(at).set(r, p)
		}
	}
}

// Victims appends victims of t, doomed ones first. It changes nothing.
func (v *VBR) Victims(now float64, t Tier, need uint64, among *Shares, dst []Victim) []Victim {
	if t < vbrFirst || t >= NumTiers {
		return dst
	}
	got, first := uint64(0), len(dst)
	doomed := &v.leaves[t-vbrFirst].doomed
	for i := doomed.n; i > 0; i-- {
		r := doomed.list.At(i).ref()
		dst = append(dst, Victim{r, doomedScore})
		if got += v.pages.At(uint32(r)).bytes(); got >= need || len(dst)-first == maxVictims {
			return dst
		}
	}
	d := drawing{v: v, tick: ticksOf(now), tier: int(t - vbrFirst), from: v.leaves[t-vbrFirst].reader(among), rng: splitmix(v.seed ^ mix(v.moves))}
	if d.from.total == 0 {
		return dst
	}
	d.from.from(0)
	d.draw(drawn)
	for len(dst)-first < maxVictims {
		x, ok := d.next(dst[first:])
		if !ok {
			break
		}
		dst = append(dst, x)
		if got += v.pages.At(uint32(x.Ref)).bytes(); got >= need {
			break
		}
		d.draw(drawnMore)
	}
	return dst
}

// drawing is pages that were drawn from those that may go, of which victims are chosen; new ones take the place of
// those drawn before.
type drawing struct {
	v    *VBR
	from reader
	tick uint32
	tier int
	rng  splitmix
	some [drawn]candidate
	n    int  // of them
	at   int  // the next to be replaced
	all  bool // were drawn
}

type candidate struct {
	score float64
	ref   Ref
	whose uint32 // as of the leaf
}

// draw draws so many pages, stretch by stretch, or once all, where there are no more than are looked at together.
func (d *drawing) draw(n uint32) {
	few := d.from.total <= drawn
	switch {
	case d.all:
		return
	case few:
		n, d.all = d.from.total, true
	}
	for n > 0 {
		if !few {
			d.from.from(d.rng.below(d.from.total))
		}
		some := d.from.next(min(n, stretch))
		for i := range some {
			l := &some[i]
			x := candidate{d.v.score(d.tick, d.tier, l.used, l.class(), l.traits(), l.value), l.ref(), l.whose}
			if d.n < drawn {
				d.some[d.n] = x
				d.n++
				continue
			}
			d.some[d.at] = x
			d.at = (d.at + 1) % drawn
		}
		n -= uint32(len(some))
	}
}

func (d *drawing) drop(i int) {
	d.n--
	d.some[i] = d.some[d.n]
}

// next finds the page that scores least, and so whose tenant loses one: which of those drawn it is, is up to what that
// tenant said of them. The score is that of the first.
func (d *drawing) next(taken []Victim) (Victim, bool) {
	for d.n > 0 {
		low := 0
		for i := range d.some[:d.n] {
			if d.some[i].score < d.some[low].score {
				low = i
			}
		}
		if has(taken, d.some[low].ref) { // drawn twice
			d.drop(low)
			continue
		}
		level, whose := d.some[low].score, d.some[low].whose>>leafTenantShift
		p := d.v.pages.At(uint32(d.some[low].ref))
		answers := d.v.sample.answers.of(p.tenant)
		best, least := low, p.leaning(d.tick, level*answers.of(p.answer))
		for i := range d.some[:d.n] {
			x := &d.some[i]
			if x.whose>>leafTenantShift != whose {
				continue
			}
			s := x.score * answers.of(answered(x.whose>>leafAnswerShift%answerRows))
			if x.whose&1 != 0 {
				s = d.v.pages.At(uint32(x.ref)).leaning(d.tick, s)
			}
			if s < least && d.v.pages.At(uint32(x.ref)).tenant == p.tenant && !has(taken, x.ref) {
				best, least = i, s
			}
		}
		r := d.some[best].ref
		d.drop(best)
		return Victim{r, Score(level)}, true
	}
	return Victim{}, false
}

func has(vs []Victim, r Ref) bool {
	for i := range vs {
		if vs[i].Ref == r {
			return true
		}
	}
	return false
}

func (v *VBR) score(tick uint32, t int, used uint32, class uint8, x traits, value float32) float64 {
	if value == 0 {
		value = v.sample.typical()
	} else {
		value = max(value-v.loading[t], value/leastOfValue)
	}
	return v.sample.score(v.sample.mode, tick, used, class, x, value) / unitBytes
}

// Worth of a page as a victim, or of one about to be published.
func (v *VBR) Worth(now float64, r Ref, t Tier, a Attrs) Score {
	if a.Doomed {
		return doomedScore
	}
	if t < vbrFirst || t >= NumTiers {
		return 0
	}
	tick := ticksOf(now)
	if p := v.pages.At(uint32(r)); r != 0 && p.flags&vbrKnown != 0 {
		return Score(v.score(tick, int(t-vbrFirst), p.used, p.class(), p.traits, p.value))
	}
	if v.sample.mode != modeStrict {
		return MaxScore
	}
	on := (*vbrPage)(nil)
	if a.Parent != 0 && v.pages.At(uint32(a.Parent)).flags&vbrKnown == 0 { // the page before it in the run
		on = &v.offered
	}
	p := v.coming(&a, on, false)
	p.used = tick
	p.uses += uint8(min(1, math.MaxUint8-int(p.uses)))
	v.offered = p
	return Score(v.score(tick, int(t-vbrFirst), p.used, p.class(), p.traits, p.value))
}

// FootprintBytes is the memory touched.
func (v *VBR) FootprintBytes() uint64 {
	n := (uint64(v.top)+1)*uint64(unsafe.Sizeof(vbrPage{})) + v.ghosts.footprint() + v.sample.footprint()
	for t := range v.leaves {
		n += v.leaves[t].footprint()
	}
	return n
}

func (p *vbrPage) class() uint8 { return classOf(p.uses, p.turn) }

func (p *vbrPage) bytes() uint64 { return uint64(p.units) * unitBytes }

// valueOf a page is what recomputing it costs, for each unit of its size; 0: not known.
func valueOf(a Attrs) float32 { return float32(a.FLOPs / float64(unitsOf(a.Bytes))) }

func unitsOf(bytes uint64) uint32 {
	return uint32(min(max((bytes+unitBytes-1)/unitBytes, 1), math.MaxUint32))
}

func ticksOf(now float64) uint32 { return uint32(min(max(now, 0)*ticksPerSecond, math.MaxUint32)) }
