package classic

import (
	"math/bits"

	"github.com/quire-kv/quire/evict"
)

// tinylfu is a window before a segmented LRU:
//
//	new ──> window ──oldest──> contest ──wins──> probation ──used──> protected
//	                             │ loses             │  ^──────oldest────┘
//	                             v                   v
//	                            gone       gone, when it loses
type tinylfu struct {
	*table
	parts             [3]queue // by last use, or by the move into it
	window, protected int      // sizes wanted
	sketch            sketch
}

const (
	tinyWindow = iota
	tinyProbation
	tinyProtected

	tinyWindowPart    = 100 // the window is a hundredth
	tinyProtectedPart = 0.8 // of the rest
)

// NewWTinyLFU lets the page that leaves a small window stay only if it was used more often, by a sketch that forgets, than
// the next victim of the main cache (Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy",
// ACM TOS 2017; window of 1 %, protected 80 % of the rest, no doorkeeper). Frequencies are those of single pages. A page
// of the window that is not evictable goes over to the main cache without a contest.
func NewWTinyLFU(capacity int) *Policy {
	return newPolicy(func(t *table) rule {
		window := max(1, capacity/tinyWindowPart)
		return &tinylfu{
			table: t, window: window, protected: int(tinyProtectedPart * float64(max(0, capacity-window))),
			sketch: newSketch(max(1, capacity)),
		}
	})
}

func (w *tinylfu) insert(r evict.Ref) {
	w.sketch.add(w.at(r).tag)
	w.move(w.parts[:], r, tinyWindow)
	for w.parts[tinyWindow].len() > w.window { // before the cache is full
		w.move(w.parts[:], w.parts[tinyWindow].all.first(), tinyProbation)
	}
}

// touch takes a page out of probation, and edge, which follows, puts it where it belongs.
func (w *tinylfu) touch(r evict.Ref) {
	p := w.at(r)
	w.sketch.add(p.tag)
	p.entered = w.clock
	if p.part == tinyProbation {
		w.parts[tinyProbation].drop(r)
		p.part = tinyProtected
	}
}

func (w *tinylfu) edge(r evict.Ref) {
	p := w.at(r)
	w.parts[p.part].put(r, p.entered, p.evictable)
	for w.parts[tinyProtected].len() > w.protected {
		w.move(w.parts[:], w.parts[tinyProtected].all.first(), tinyProbation)
	}
}

func (w *tinylfu) remove(r evict.Ref, _ bool) { w.parts[w.at(r).part].drop(r) }

func (w *tinylfu) victim(float64) evict.Ref {
	main := w.parts[tinyProbation].free.first()
	if main == 0 {
		main = w.parts[tinyProtected].free.first()
	}
	for w.parts[tinyWindow].len() >= w.window {
		candidate := w.parts[tinyWindow].all.first()
		if w.at(candidate).evictable {
			return w.contest(candidate, main)
		}
		w.move(w.parts[:], candidate, tinyProbation)
	}
	if main == 0 {
		return w.parts[tinyWindow].free.first()
	}
	return main
}

// contest between the page that leaves the window and the main cache's victim: the loser goes.
func (w *tinylfu) contest(candidate, main evict.Ref) evict.Ref {
	if main == 0 || w.sketch.count(w.at(candidate).tag) <= w.sketch.count(w.at(main).tag) {
		return candidate
	}
	w.move(w.parts[:], candidate, tinyProbation)
	return main
}

func (w *tinylfu) footprint() uint64 {
	return w.parts[0].footprint() + w.parts[1].footprint() + w.parts[2].footprint() + uint64(len(w.sketch.counts))
}

// sketch counts uses, at most 15 of each, in four rows of which the least counts; all are halved after ten times as
// many uses as the cache has pages.
type sketch struct {
	counts []uint8 // rows one behind the other
	mask   uint64
	adds   int
	period int
}

const (
	sketchRows   = 4
	sketchMost   = 15
	sketchPeriod = 10
	sketchWidth  = 4 // counters of a row for each page
)

func newSketch(capacity int) sketch {
	width := 1 << bits.Len(uint(sketchWidth*capacity-1))
	return sketch{counts: make([]uint8, sketchRows*width), mask: uint64(width - 1), period: sketchPeriod * capacity}
}

func (s *sketch) at(tag uint64, row int) *uint8 {
	return &s.counts[uint64(row)*(s.mask+1)+mix(tag+uint64(row)<<56)&s.mask]
}

func (s *sketch) count(tag uint64) uint8 {
	least := uint8(sketchMost)
	for row := range sketchRows {
		least = min(least, *s.at(tag, row))
	}
	return least
}

func (s *sketch) add(tag uint64) {
	for row := range sketchRows {
		if c := s.at(tag, row); *c < sketchMost {
			*c++
		}
	}
	if s.adds++; s.adds >= s.period {
		s.adds /= 2
		for i := range s.counts {
			s.counts[i] /= 2
		}
	}
}
