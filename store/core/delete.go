package core

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
)

// delete hides pages at once. Grants in flight on them are revoked, so that what was deleted does not come back. Its Reply
// waits until what is being written of them to Disk has been freed there: else a crash could bring it back. While Disk takes
// nothing that may never be, and it is Busy.
func (s *Shard) delete(ev *Delete) {
	d := &delayed{Reply: Reply{Ticket: ev.Ticket}}
	for n := range ev.Runs {
		d.Reason = s.eachPage(&ev.Runs[n], &d.Results, func(i uint32) Result {
			s.awaitWrites(i, d)
			return s.deletePage(i)
		})
	}
	if d.waits > 0 && s.readOnly[evict.Disk] {
		s.waitNoMore()
		return
	}
	d.answer(s)
}

// awaitWrites makes a Reply wait for the transfers of a page's extents to Disk.
func (s *Shard) awaitWrites(i uint32, d *delayed) {
	for x := s.pages.At(i).extents; x != 0; x = s.extents.At(x).next {
		if t := s.copies[copying{x, evict.Disk}]; t != nil {
			t.deletes = append(t.deletes, d)
			d.waits++
		}
	}
}

func (s *Shard) deletePage(i uint32) Result {
	p := s.pages.At(i)
	ref := p.ref(i)
	if !p.has(flagHeld) {
		return Result{Outcome: Miss, Reason: reason.Absent}
	}
	s.setCause(i, OrphanDeleted)
	for _, w := range append([]openPage(nil), s.open[i]...) {
		if w.pub.allocID != 0 { // not answered yet: there is no right to revoke
			s.giveUpPage(w.pub, w.index)
			continue
		}
		s.revoke(w.pub, []uint32{uint32(w.index)})
		if w.pub.openNow == 0 {
			s.closePublication(w.pub)
		}
	}
	if p.has(flagCommitted) {
		s.end(i, reason.Absent, OrphanDeleted)
	}
	return Result{Outcome: OK, Ref: ref}
}

// touch refreshes recency, and passes on a hint.
func (s *Shard) touch(ev *Touch) {
	r := Reply{Ticket: ev.Ticket, At: s.now}
	for n := range ev.Runs {
		r.Reason = s.eachPage(&ev.Runs[n], &r.Results, s.touchPage)
		if !ev.HintOnly {
			s.touchRun(s.slots)
		}
		s.adviseRun(s.slots, ev.Hint)
	}
	s.emit(r)
}

func (s *Shard) touchPage(i uint32) Result {
	p := s.pages.At(i)
	if !p.has(flagCommitted) || p.expired(s.wall) {
		return Result{Outcome: Miss, Reason: reason.Absent}
	}
	return Result{Outcome: OK, Ref: p.ref(i)}
}

// eachPage calls f with the records that a run names; the others are misses. The slots stay in s.slots.
// The reason is of the whole run.
func (s *Shard) eachPage(run *Run, results *[]Result, f func(i uint32) Result) reason.Reason {
	s.slots = s.slots[:0]
	family, ep, why := s.resolve(&run.Family)
	if why == reason.None && hashCount(run, ep.state.HashBytes) == 0 {
		why = reason.InvalidSpec
	}
	if why != reason.None {
		*results = append(*results, missAll(run, ep, why)...)
		return why
	}
	slots := s.slotsOf(run, family, ep.state.HashBytes)
	for j := range slots {
		// Earlier pages of the run may have freed records: look again.
		i := uint32(0)
		if slots[j] != 0 {
			i = s.index.find(s.fps[j], family)
		}
		if slots[j] = i; i == 0 {
			*results = append(*results, Result{Outcome: Miss, Reason: reason.Absent})
			continue
		}
		*results = append(*results, f(i))
	}
	return reason.None
}
