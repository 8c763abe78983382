package core

import (
	"math"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// never is after all instants.
const never clock.Instant = math.MaxInt64

// sweeper walks all records in passes of SweepRecords a Tick, and finds what time, retirement, ended waivers and lost
// parents have done to them. A pass that finds that more has changed asks for another.
type sweeper struct {
	cursor  uint32 // next slot; 0: resting
	again   bool   // something changed behind the cursor
	started clock.Instant
	passes  uint64
	catchUp bool // the next pass queues for write-behind what fell out of its queue
	queues  bool // this one does

	nextExpiry clock.Wall // no page expires before; 0: none does
	found      clock.Wall // the same, of the pass under way
}

// sweepPause keeps a stream of changes, each of which asks for a pass, from becoming a stream of passes.
const sweepPause = time.Second

func (w *sweeper) request() { w.again = true }

func (w *sweeper) noteExpiry(at clock.Wall) {
	w.nextExpiry, w.found = sooner(w.nextExpiry, at), sooner(w.found, at)
}

// sooner treats 0 as never.
func sooner(a, b clock.Wall) clock.Wall {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// start begins a pass if there is reason to, and the last one was long enough ago.
func (w *sweeper) start(now clock.Instant, wall clock.Wall) {
	due := w.again || w.nextExpiry != 0 && wall >= w.nextExpiry
	if w.cursor != 0 || !due || now < w.earliest() {
		return
	}
	w.cursor, w.again, w.found = 1, false, 0
	w.queues, w.catchUp = w.catchUp, false
	w.started = now
	w.passes++
}

// earliest is when the next pass may start.
func (w *sweeper) earliest() clock.Instant {
	if w.passes == 0 {
		return 0
	}
	return w.started.Add(sweepPause)
}

// wakeAt is when the sweeper wants a Tick.
func (w *sweeper) wakeAt(now clock.Instant, wall clock.Wall) clock.Instant {
	switch {
	case w.cursor != 0:
		return now
	case w.again:
		return max(now, w.earliest())
	case w.nextExpiry == 0:
		return never
	case w.nextExpiry <= wall:
		return max(now, w.earliest())
	}
	return max(now.Add(time.Duration(w.nextExpiry-wall)*time.Second), w.earliest())
}

// tick lets time act on the shard, a bounded amount of work at a time.
func (s *Shard) tick() {
	s.lastWake = never
	s.giveUpIncomplete()
	s.sweep.start(s.now, s.wall)
	if s.sweep.cursor != 0 {
		s.sweepSome()
	}
}

func (s *Shard) sweepSome() {
	for range s.o.SweepRecords {
		if s.sweep.cursor > s.pages.top {
			s.sweep.cursor, s.sweep.nextExpiry = 0, s.sweep.found
			return
		}
		i := s.sweep.cursor
		s.sweep.cursor++
		if s.pages.At(i).family != 0 {
			s.sweepPage(i)
		}
	}
}

func (s *Shard) sweepPage(i uint32) {
	p := s.pages.At(i)
	committed := p.has(flagCommitted)
	switch {
	case s.epochOf(i).state.Life == Retired:
		if committed {
			s.end(i, reason.Retired, OrphanDeleted)
		}
	case committed && p.expired(s.wall) && !p.has(flagPinned):
		s.end(i, reason.Expired, OrphanExpired)
	default:
		if committed && p.expiry != 0 {
			s.sweep.found = sooner(s.sweep.found, max(p.expiry, s.wall+1)) // pinned ones: look again
		}
		s.settle(i)
		if s.sweep.queues && p.has(flagCommitted) {
			if t := s.tally(p, s.epochOf(i)); t.last.has(evict.Host) {
				s.queueBehind(i)
			}
		}
	}
}

// incompletePage is a page that was not whole after a commit, or after it lost an extent.
type incompletePage struct {
	ref PageRef
	seq uint64 // stale once the page has another
	due clock.Instant
}

// incompleteQueue is in order of due: all wait equally long.
type incompleteQueue struct {
	items  []incompletePage
	head   int
	seq    uint64
	newest map[uint32]uint64 // by slot: seq of its last entry
}

func (q *incompleteQueue) push(ref PageRef, due clock.Instant) {
	if q.head > 64 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	q.seq++
	q.newest[ref.Slot] = q.seq
	q.items = append(q.items, incompletePage{ref, q.seq, due})
}

// pop takes the first entry; ok is false when the page has a later one.
func (q *incompleteQueue) pop() (ref PageRef, ok bool) {
	e := q.items[q.head]
	q.head++
	if ok = q.newest[e.ref.Slot] == e.seq; ok {
		delete(q.newest, e.ref.Slot)
	}
	return e.ref, ok
}

func (q *incompleteQueue) nextDue() clock.Instant {
	if q.head == len(q.items) {
		return never
	}
	return q.items[q.head].due
}

// watchIncomplete starts the time in which a page must become whole.
func (s *Shard) watchIncomplete(i uint32) {
	s.incomplete.push(s.pages.At(i).ref(i), s.now.Add(s.o.IncompleteTTL))
}

// giveUpIncomplete dooms pages that nobody completed in time.
func (s *Shard) giveUpIncomplete() {
	q := &s.incomplete
	for n := 0; n < s.o.SweepRecords && q.nextDue() <= s.now; n++ {
		ref, ok := q.pop()
		p := s.pages.At(ref.Slot)
		if ok && p.gen == ref.Gen && p.has(flagCommitted) && !p.has(flagComplete) {
			p.set(flagGivenUp, true)
			s.settle(ref.Slot)
		}
	}
}

// wake asks for the Tick that time will need next, unless an earlier one is on its way.
func (s *Shard) wake() {
	at := min(s.incomplete.nextDue(), s.sweep.wakeAt(s.now, s.wall))
	if len(s.tenures.heap) > 0 {
		at = min(at, s.tenures.heap[0].until)
	}
	if at < s.lastWake && !(at <= s.now && s.lastWake <= s.now) {
		s.lastWake = at
		s.emit(Wake{At: at})
	}
}
