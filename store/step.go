package store

import (
	"context"
	"sync"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/core"
)

// wait is a caller whose Reply may come from another goroutine's Step.
type wait struct {
	reply chan core.Reply // one slot
	ended <-chan struct{} // closed with the caller's context
	undo  func(core.Reply)
	gone  bool // the caller left: undo instead of answering
}

// wakeup is one armed timer of a shard.
type wakeup struct {
	at   clock.Instant
	stop func() bool
}

var effectPool = sync.Pool{New: func() any { e := make([]core.Effect, 0, 64); return &e }}

// step applies ev to sh and carries out its effects on the calling goroutine.
func (s *Store) step(sh *shard, ev core.Event) { s.stepFor(sh, ev, 0, nil) }

// stepFor is step for a caller that waits for something: the Reply that answers ticket want is returned, other
// Replies go to their waiters, and each (if not nil) sees every effect once it was carried out.
func (s *Store) stepFor(sh *shard, ev core.Event, want core.Ticket, each func(core.Effect)) (answer core.Reply, answered bool) {
	buf := effectPool.Get().(*[]core.Effect)
	sh.mu.Lock()
	effects := sh.core.Step(s.clock.Now(), s.clock.Wall(), ev, (*buf)[:0])
	for i, e := range effects { // the core's scratch memory is ours only under its lock
		if r, ok := e.(core.Revoke); ok && r.Pages != nil {
			r.Pages = append([]uint32(nil), r.Pages...)
			effects[i] = r
		}
	}
	sh.mu.Unlock()
	for _, e := range effects {
		r, ok := e.(core.Reply)
		if !ok || want == 0 || r.Ticket != want {
			r, ok = s.perform(sh, e, want)
		}
		if ok {
			answer, answered = r, true
		}
		if each != nil {
			each(e)
		}
	}
	clear(effects)
	*buf = effects[:0]
	effectPool.Put(buf)
	return answer, answered
}

// perform carries out one effect. An Alloc leads to another Step, which may answer want.
func (s *Store) perform(sh *shard, e core.Effect, want core.Ticket) (core.Reply, bool) {
	switch e := e.(type) {
	case core.Reply:
		s.deliver(sh, e)
	case core.Alloc:
		return s.alloc(sh, e, want)
	case core.Free:
		s.free(e.Place)
	case core.Revoke:
		s.revoke(sh, e)
	case core.Transfer:
		switch {
		case e.From.Tier == evict.Host && e.To == evict.Host:
			s.transfer(sh, e)
		case e.From.Tier == evict.Host && e.To == evict.Disk:
			s.disk.enqueue(sh, e)
		}
	case core.Landed:
		s.landed(sh, e)
	case core.Behind:
		s.disk.behind(sh)
	case core.Announce:
		s.announce(e)
	case core.Wake:
		s.arm(sh, e.At)
	case core.MoveRefused, core.Reclaimed, core.Restored: // for who asked, and so are transfers out of the disk tier
	}
	return core.Reply{}, false
}

// ask steps an event whose Reply the caller needs. When ctx ends first, undo runs on the Reply that still comes.
func (s *Store) ask(ctx context.Context, sh *shard, t core.Ticket, ev core.Event, undo func(core.Reply)) (core.Reply, error) {
	if err := ctx.Err(); err != nil {
		return core.Reply{}, err
	}
	w := &wait{reply: make(chan core.Reply, 1), ended: ctx.Done(), undo: undo}
	sh.rt.Lock()
	sh.waits[t] = w
	sh.rt.Unlock()
	if r, ok := s.stepFor(sh, ev, t, nil); ok {
		sh.rt.Lock()
		delete(sh.waits, t)
		sh.rt.Unlock()
		return r, nil
	}
	select {
	case r := <-w.reply:
		return r, nil
	case <-ctx.Done():
	}
	sh.rt.Lock()
	w.gone = true
	sh.rt.Unlock()
	select {
	case r := <-w.reply: // it came between
		if undo != nil {
			undo(r)
		}
	default:
	}
	return core.Reply{}, ctx.Err()
}

// waiting is closed when who waits for a ticket's Reply does no more; nil: nobody does, or without an end.
func (sh *shard) waiting(t core.Ticket) <-chan struct{} {
	sh.rt.Lock()
	defer sh.rt.Unlock()
	if w := sh.waits[t]; w != nil {
		return w.ended
	}
	return nil
}

// now steps an event that the core answers in the same Step.
func (s *Store) now(sh *shard, t core.Ticket, ev core.Event) core.Reply {
	r, _ := s.stepFor(sh, ev, t, nil)
	return r
}

func (s *Store) deliver(sh *shard, r core.Reply) {
	sh.rt.Lock()
	w := sh.waits[r.Ticket]
	delete(sh.waits, r.Ticket)
	gone := w != nil && w.gone
	if w != nil && !gone {
		w.reply <- r
	}
	sh.rt.Unlock()
	if gone && w.undo != nil {
		w.undo(r)
	}
}

func (s *Store) ticket() core.Ticket { return core.Ticket(s.tickets.Add(1)) }

// arm makes sure that sh gets a Tick no later than at.
func (s *Store) arm(sh *shard, at clock.Instant) {
	sh.rt.Lock()
	defer sh.rt.Unlock()
	if sh.still || sh.wake != nil && sh.wake.at <= at {
		return
	}
	s.stopWake(sh)
	w := &wakeup{at: at}
	sh.wake = w
	s.timers.Add(1)
	w.stop = s.clock.AfterFunc(max(at.Sub(s.clock.Now()), minTick), func() { s.fire(sh, w) })
}

// minTick keeps a shard with work left over from taking a whole core: it sweeps some records every millisecond.
const minTick = time.Millisecond

func (s *Store) fire(sh *shard, w *wakeup) {
	defer s.timers.Done()
	sh.rt.Lock()
	still := sh.still
	if sh.wake == w {
		sh.wake = nil
	}
	sh.rt.Unlock()
	if !still {
		s.step(sh, core.Tick{})
	}
}

func (s *Store) stopWake(sh *shard) {
	if sh.wake != nil && sh.wake.stop() {
		s.timers.Done()
	}
	sh.wake = nil
}

// disarm ends a shard's timer for good.
func (s *Store) disarm(sh *shard) {
	sh.rt.Lock()
	defer sh.rt.Unlock()
	sh.still = true
	s.stopWake(sh)
}
