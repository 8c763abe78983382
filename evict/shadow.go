package evict

import (
	"math"

	"github.com/quire-kv/quire/internal/offheap"
)

// A mode is one way to rank pages.
type mode uint8

const (
	modeLRU    mode = iota // all pages cost the same, the rate is 1/age
	modeValue              // learned rate x value
	modeStrict             // as modeValue, and a run worth less than the next victim is not taken in: used to begin with
	modes
)

var modeNames = [modes]string{"lru", "value", "strict"}

func (m mode) String() string { return modeNames[m] }

// The strict mode is used unless another one is significantly better: what it saved more, in the stretches between two
// learnings, is more than so many standard deviations of that sum. A mode in use stays until its lead is within one.
// What modes save differs less on most traffic than it swings, and a choice that follows the swings is worse than either.
const (
	toEnter  = 2
	toStay   = 1
	keepLead = 0.995 // of the sum, with each stretch
)

// score of a page in a mode, in FLOPs per second and unit.
func (s *sample) score(m mode, now, used uint32, class uint8, x traits, value float32) float64 {
	if m == modeLRU {
		return float64(s.typical()) * ticksPerSecond / float64(now-used+1)
	}
	return float64(s.reuse.rate(class, now-used)*s.reuse.factors.of(x)) * float64(value)
}

// shadows are small caches of the sampled pages, one for each mode, that play through what the cache would do in that
// mode: a page is kept only with its parent, victims are leaves, a request is judged as one run.
type shadows struct {
	capacity float64 // in units
	caches   [modes]shadow
	run      []uint32 // slots of the request under way, from the root on
	runAt    uint32
	runs     uint32
	rng      splitmix
}

type shadow struct {
	leaves *offheap.Array[uint32]
	n      uint32  // leaves
	units  float64 // held
	saved  float64 // FLOPs, since the last choice
	lead   float64 // FLOPs saved more than in the strict mode, fading
	spread float64 // the variance of that sum
}

// placed is what a shadow has of a sampled page.
type placed struct {
	at       uint32 // among its leaves, from 1
	children uint16 // sampled ones that are there
	resident bool
}

const (
	longestRun    = 1 << 10 // a longer request is judged in parts
	shadowVictims = 16      // drawn for a victim of a shadow
)

func newShadows(seed uint64, sampled int) shadows {
	h := shadows{rng: splitmix(seed), run: make([]uint32, 0, longestRun)}
	for m := range h.caches {
		h.caches[m].leaves = offheap.New[uint32](sampled)
	}
	return h
}

// count makes the caches of what is left of the sample.
func (h *shadows) count(s *sample) {
	for m := range h.caches {
		h.caches[m].n, h.caches[m].units = 0, 0
	}
	each := func(f func(m mode, slot uint32, p *sampled)) {
		for i := uint32(1); i < s.n; i++ {
			for m := range modes {
				if p := s.pages.At(i); p.in[m].resident {
					f(m, i, p)
				}
			}
		}
	}
	each(func(m mode, _ uint32, p *sampled) {
		p.in[m] = placed{resident: true}
		h.caches[m].units += float64(p.units)
	})
	each(func(m mode, _ uint32, p *sampled) {
		if parent := s.parent(p); parent != 0 {
			s.pages.At(parent).in[m].children++
		}
	})
	each(func(m mode, slot uint32, p *sampled) {
		if p.in[m].children == 0 {
			h.caches[m].leaf(m, slot, p)
		}
	})
}

// reshape takes in that a page has another size.
func (h *shadows) reshape(p *sampled, units uint32) {
	for m := range modes {
		if p.in[m].resident {
			h.caches[m].units += float64(units) - float64(p.units)
		}
	}
	p.units = units
}

// add counts a use of a page. Pages of one request come one after the other, each with the one before as its parent.
func (h *shadows) add(s *sample, now, slot uint32) {
	if n := len(h.run); n > 0 && (n == longestRun || h.runAt != now || h.run[n-1] != s.parent(s.pages.At(slot))) {
		h.play(s)
	}
	h.runAt = now
	h.run = append(h.run, slot)
}

// play is one request in each shadow.
func (h *shadows) play(s *sample) {
	h.runs++
	for _, slot := range h.run {
		s.pages.At(slot).run = h.runs
	}
	for m := range modes {
		h.request(s, m)
	}
	h.run = h.run[:0]
}

func (h *shadows) request(s *sample, m mode) {
	c, rest, now := &h.caches[m], h.run, h.runAt
	for len(rest) > 0 && s.pages.At(rest[0]).in[m].resident {
		saved := s.pages.At(rest[0]).flops()
		c.saved += saved
		s.sums.Modes[m].Saved += saved * s.scale()
		rest = rest[1:]
	}
	worth := math.Inf(1)
	if m == modeStrict {
		worth = 0
		for _, slot := range rest {
			p := s.pages.At(slot)
			worth = max(worth, s.score(m, now, now, p.class, p.traits, p.value))
		}
	}
	for _, slot := range rest {
		p := s.pages.At(slot)
		parent := s.parent(p)
		if p.in[m].resident || parent != 0 && !s.pages.At(parent).in[m].resident {
			return
		}
		for c.units+float64(p.units) > h.capacity {
			victim, score := h.victim(s, m, now)
			if victim == 0 || worth < score {
				return
			}
			h.drop(s, m, victim)
		}
		p.in[m].resident = true
		c.units += float64(p.units)
		if parent != 0 {
			above := s.pages.At(parent)
			c.unleaf(s, m, above)
			above.in[m].children++
		}
		c.leaf(m, slot, p)
	}
}

// victim is the least of some leaves that the request under way does not use; 0 if there is none among them.
func (h *shadows) victim(s *sample, m mode, now uint32) (slot uint32, score float64) {
	c := &h.caches[m]
	score = math.Inf(1)
	for i := range uint32(min(shadowVictims, c.n)) {
		if c.n > shadowVictims {
			i = h.rng.below(c.n)
		}
		l := *c.leaves.At(i)
		p := s.pages.At(l)
		if p.run == h.runs {
			continue
		}
		if x := s.score(m, now, p.used, p.class, p.traits, p.value); x < score {
			slot, score = l, x
		}
	}
	return slot, score
}

// drop takes a page out of a shadow. One that has children there, which goes only when the sample forgets it, leaves
// them without a parent.
func (h *shadows) drop(s *sample, m mode, slot uint32) {
	c, p := &h.caches[m], s.pages.At(slot)
	if !p.in[m].resident {
		return
	}
	c.unleaf(s, m, p)
	p.in[m] = placed{}
	c.units -= float64(p.units)
	if parent := s.parent(p); parent != 0 {
		above := s.pages.At(parent)
		if above.in[m].children > 0 {
			if above.in[m].children--; above.in[m].children == 0 && above.in[m].resident {
				c.leaf(m, parent, above)
			}
		}
	}
}

func (c *shadow) leaf(m mode, slot uint32, p *sampled) {
	if p.in[m].at == 0 {
		*c.leaves.At(c.n) = slot
		c.n++
		p.in[m].at = c.n
	}
}

func (c *shadow) unleaf(s *sample, m mode, p *sampled) {
	at := p.in[m].at
	if at == 0 {
		return
	}
	c.n--
	last := *c.leaves.At(c.n)
	*c.leaves.At(at - 1) = last
	s.pages.At(last).in[m].at = at
	p.in[m].at = 0
}

// choose is the mode to be used, after another stretch.
func (h *shadows) choose(now mode) mode {
	best, most := modeStrict, 0.0
	base := h.caches[modeStrict].saved
	for m := range modes {
		c := &h.caches[m]
		d := c.saved - base
		c.saved = 0
		c.lead = c.lead*keepLead + d
		c.spread = c.spread*keepLead*keepLead + d*d
		need := toEnter * math.Sqrt(c.spread)
		if m == now {
			need = toStay * math.Sqrt(c.spread)
		}
		if c.lead > max(need, most) {
			best, most = m, c.lead
		}
	}
	return best
}

func (p *sampled) flops() float64 { return float64(p.value) * float64(p.units) }
