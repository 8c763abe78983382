package evict

import (
	"math"
	"unsafe"

	"github.com/quire-kv/quire/internal/offheap"
)

// sample is the pages whose tags end in so many zero bits: always the same ones, a part of all that is as it is
// (spatial sampling: Waldspurger et al., FAST 2015). Their lives are watched whether they are in the cache or not, so
// that what the cache itself evicts is learned about too.
//
//	            pages of a chain     . . o . o . . . o        . not sampled
//	nearest sampled page above           ^---'<------'
//
// The larger the cache, the fewer are sampled: about an eighth of the sample is of what it holds.
type sample struct {
	shift   uint8 // one page of 2^shift is sampled
	tiers   [vbrTiers]struct{ units, pages float64 }
	pages   *offheap.Array[sampled]
	slots   *offheap.Array[uint32] // by tag: open addressing, linear probing
	most    uint32                 // of pages: a power of two
	n       uint32                 // of pages, 0 included, which is none
	free    uint32                 // first of the list of free slots
	reuse   reuse
	answers answers
	alive   ages
	uses    uint32  // since the last learning
	mean    float32 // value of a page, about; 0: none has had one
	mode    mode
	shadows shadows
	sums    Simulated
}

type sampled struct {
	tag      uint64
	aboveTag uint64
	above    uint32 // slot of the nearest sampled page above, if it still has that tag; 0: none. Of a free slot: the next
	used     uint32
	value    float32
	units    uint32
	run      uint32 // the request that used it last
	traits   traits
	class    uint8
	told     told
	in       [modes]placed
}

const (
	samplePages = 1 << 16 // watched at most, where there is memory for them
	leastSample = 1 << 10
	shadowShare = 8       // of the sample is what a shadow holds, about
	slotsPer    = 2       // a page
	forgetShare = 4       // of the sample that is forgotten when it is full
	maxClimb    = 64      // steps up to the next page that is still sampled: links of pages long gone may lead in circles
	meanOf      = 1 << 10 // uses that mean is of, about
)

func newSample(seed uint64, most int) *sample {
	s := &sample{
		pages: offheap.New[sampled](most + 1), slots: offheap.New[uint32](slotsPer * most),
		most: uint32(most), n: 1, mode: modeStrict, shadows: newShadows(seed, most),
	}
	s.reuse.factors.learn(&traitSums{})
	s.reuse.learn(&s.alive)
	return s
}

func (s *sample) footprint() uint64 {
	return uint64(unsafe.Sizeof(*s)) + s.answers.footprint() + uint64(s.n)*(uint64(unsafe.Sizeof(sampled{}))+4*uint64(modes)) + min(uint64(s.n)*4096, uint64(s.nSlots())*4)
}

// resize tells what a tier holds; the shadows are as the one with most.
func (s *sample) resize(t int, units float64, pages uint64) {
	s.tiers[t].units, s.tiers[t].pages = units, float64(pages)
	most := s.tiers[0]
	for _, t := range s.tiers[1:] {
		if t.units > most.units {
			most = t
		}
	}
	shift := uint8(0)
	for n := most.pages; n > 2*float64(s.most/shadowShare); n /= 2 {
		shift++
	}
	s.shadows.capacity = most.units / math.Exp2(float64(shift))
	more := shift > s.shift
	if s.shift = shift; more {
		s.thin()
	}
}

// thin leaves out the pages that are sampled no more.
func (s *sample) thin() {
	s.shadows.play(s)
	for i := uint32(1); i < s.n; i++ {
		p := s.pages.At(i)
		above := s.parent(p)
		for range maxClimb {
			if above == 0 || s.takes(s.pages.At(above).tag) {
				break
			}
			above = s.parent(s.pages.At(above))
		}
		if !s.takes(s.pages.At(above).tag) {
			above = 0
		}
		if p.tag != 0 {
			p.above, p.aboveTag = above, s.pages.At(above).tag
		}
	}
	for i := uint32(1); i < s.n; i++ {
		if p := s.pages.At(i); p.tag != 0 && !s.takes(p.tag) {
			s.leave(i, p)
		}
	}
	s.shadows.count(s)
}

func (s *sample) takes(tag uint64) bool { return tag&(1<<s.shift-1) == 0 }

// use counts one of a sampled page.
func (s *sample) use(now uint32, page *vbrPage, hit bool) {
	if page.tag == 0 {
		return
	}
	slot := s.find(page.tag)
	known := slot != 0
	if known {
		p := s.pages.At(slot)
		s.reuse.hit(p.class, p.traits, now-p.used)
		s.sawAnswer(p, 1, now-p.used)
	} else {
		slot = s.enter(now, page.tag)
	}
	p := s.pages.At(slot)
	s.shadows.reshape(p, page.units)
	p.used, p.class, p.traits, p.value, p.told = now, page.class(), page.traits, page.value, told{}
	switch {
	case p.value == 0:
		p.value = s.typical()
	case s.mean == 0:
		s.mean = p.value
	default:
		s.mean += (p.value - s.mean) / meanOf
	}
	if above := s.find(page.above); above != 0 || !known {
		p.above, p.aboveTag = above, s.pages.At(above).tag
	}
	s.count(p, known, hit)
	s.shadows.add(s, now, slot)
	if s.uses++; s.uses == learnEvery {
		s.uses = 0
		s.learn(now)
	}
}

// typical is the value of a page whose own is not known.
func (s *sample) typical() float32 {
	if s.mean == 0 {
		return 1
	}
	return s.mean
}

// enter makes room for a tag that is not known.
func (s *sample) enter(now uint32, tag uint64) uint32 {
	if s.free == 0 && s.n > s.most {
		s.forget(now)
	}
	slot := s.free
	if slot != 0 {
		s.free = s.pages.At(slot).above
	} else {
		slot = s.n
		s.n++
	}
	*s.pages.At(slot) = sampled{tag: tag}
	at := s.home(tag)
	for *s.slots.At(at) != 0 {
		at = (at + 1) % s.nSlots()
	}
	*s.slots.At(at) = slot
	return slot
}

func (s *sample) home(tag uint64) uint32 { return uint32(tag>>32) % s.nSlots() }

func (s *sample) nSlots() uint32 { return slotsPer * s.most }

// find is the slot of a tag, 0 if it is not known.
func (s *sample) find(tag uint64) uint32 {
	if tag == 0 {
		return 0
	}
	for at := s.home(tag); ; at = (at + 1) % s.nSlots() {
		if slot := *s.slots.At(at); slot == 0 || s.pages.At(slot).tag == tag {
			return slot
		}
	}
}

// remove takes a tag out of the table: what stands behind it and would no longer be found moves up (Knuth, volume 3,
// algorithm 6.4R).
func (s *sample) remove(tag uint64) {
	at := s.home(tag)
	for s.pages.At(*s.slots.At(at)).tag != tag {
		at = (at + 1) % s.nSlots()
	}
	for next := at; ; {
		next = (next + 1) % s.nSlots()
		slot := *s.slots.At(next)
		if slot == 0 {
			break
		}
		if (next-s.home(s.pages.At(slot).tag))%s.nSlots() >= (next-at)%s.nSlots() {
			*s.slots.At(at) = slot
			at = next
		}
	}
	*s.slots.At(at) = 0
}

// forget drops what was not used for longest: their lives are censored.
func (s *sample) forget(now uint32) {
	s.shadows.play(s)
	var by [ageBins]int
	for i := uint32(1); i < s.n; i++ {
		by[ageBin(now-s.pages.At(i).used)]++
	}
	cut := ageBins - 1
	for n := by[cut]; cut > 0 && n < int(s.most)/forgetShare; n += by[cut] {
		cut--
	}
	for i := uint32(1); i < s.n; i++ {
		p := s.pages.At(i)
		if p.tag == 0 || ageBin(now-p.used) < cut {
			continue
		}
		s.reuse.censor(p.class, p.traits, now-p.used)
		s.sawAnswer(p, 0, now-p.used)
		for m := range modes {
			s.shadows.drop(s, m, i)
		}
		s.leave(i, p)
	}
}

// leave frees the slot of a page.
func (s *sample) leave(slot uint32, p *sampled) {
	s.remove(p.tag)
	*p = sampled{above: s.free}
	s.free = slot
}

// learn makes the index anew and chooses the mode.
func (s *sample) learn(now uint32) {
	s.shadows.play(s)
	s.alive = ages{}
	var expected traitSums
	for i := uint32(1); i < s.n; i++ {
		if p := s.pages.At(i); p.tag != 0 {
			b := ageBin(now - p.used)
			s.alive[p.class][b]++
			s.reuse.factors.expect(&expected, p.traits, s.reuse.expected[p.class][b])
			s.awaitAnswer(p, b)
		}
	}
	s.answers.learn()
	s.reuse.factors.learn(&expected)
	s.reuse.learn(&s.alive)
	s.mode = s.shadows.choose(s.mode)
}

// parent is the slot of the nearest sampled page above, 0 if there is none or it was forgotten.
func (s *sample) parent(p *sampled) uint32 {
	if p.above != 0 && s.pages.At(p.above).tag == p.aboveTag {
		return p.above
	}
	return 0
}
