package core

import (
	"maps"
	"slices"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// delayed is a Reply that waits for transfers.
type delayed struct {
	Reply
	waits int
}

// answer sends the Reply when nothing is left to wait for.
func (d *delayed) answer(s *Shard) {
	if d.waits == 0 {
		s.emit(d.Reply)
	}
}

// persisting is one page of a Persist that waits for one transfer.
type persisting struct {
	of   *delayed
	page int
}

// persist copies to Disk what is not there of pages. Its Reply comes with the last transfer, or at once.
func (s *Shard) persist(ev *Persist) {
	family, ep, why := s.resolve(&ev.Run.Family)
	var v page.View
	if why == reason.None {
		geo := ep.state.Groups[ev.Run.Family.Group]
		v, why = viewIn(&geo, ev.View)
	}
	if why == reason.None && hashCount(&ev.Run, ep.state.HashBytes) == 0 {
		why = reason.InvalidSpec
	}
	if why != reason.None {
		results := missAll(&ev.Run, ep, why)
		for j := range results {
			results[j].Outcome = Refused
		}
		s.emit(Reply{Ticket: ev.Ticket, Reason: why, Results: results})
		return
	}
	slots := s.slotsOf(&ev.Run, family, ep.state.HashBytes)
	d := &delayed{Reply: Reply{Ticket: ev.Ticket, Results: make([]Result, len(slots))}}
	for j := range slots {
		i := uint32(0)
		if slots[j] != 0 { // making room may have freed the record
			i = s.index.find(s.fps[j], family)
		}
		s.persistPage(d, j, i, v)
	}
	d.answer(s)
}

func (s *Shard) persistPage(d *delayed, j int, i uint32, v page.View) {
	r := &d.Results[j]
	*r = Result{Outcome: Refused, Reason: reason.Absent}
	if i == 0 || !s.pages.At(i).has(flagCommitted) {
		return
	}
	p := s.pages.At(i)
	r.Ref = p.ref(i)
	if p.expired(s.wall) {
		r.Reason = reason.Expired
		return
	}
	if r.Reason = s.stored(p, v); r.Reason != reason.None {
		return
	}
	r.Outcome = Committed
	s.eachMissing(i, p, func(x uint32) {
		if s.extents.At(x).view.Intersect(v).Empty() {
			return
		}
		if s.readOnly[evict.Disk] { // nor is it waited for what is on its way
			r.Outcome, r.Reason = Refused, reason.Busy
			return
		}
		t, why := s.startCopy(x, evict.Disk, evict.MaxScore)
		if t == nil {
			r.Outcome, r.Reason = Refused, why
			return
		}
		t.persists = append(t.persists, persisting{d, j})
		d.waits++
	})
}

// stored says whether an accepted extent of a page lies within v: None, Provenance when only hidden ones do, or Absent.
func (s *Shard) stored(p *pageRecord, v page.View) reason.Reason {
	c := coverage{view: v}
	for x := p.extents; x != 0; x = s.extents.At(x).next {
		c.add(s.extents.At(x), &s.families.at(p.family).ep.lineages)
	}
	switch {
	case c.accepted > 0:
		return reason.None
	case c.hidden > 0:
		return reason.Provenance
	}
	return reason.Absent
}

// persisted ends the wait of a page for one transfer.
func (s *Shard) persisted(w persisting, why reason.Reason) {
	if r := &w.of.Results[w.page]; why != reason.None && r.Outcome == Committed {
		r.Outcome, r.Reason = Refused, why
	}
	w.of.waits--
	w.of.answer(s)
}

// waitNoMore answers all who wait for a Disk that takes nothing now: what is under way may never end. Pages are not durable,
// and what was deleted is gone but may come back with a restart.
func (s *Shard) waitNoMore() {
	for _, id := range slices.Sorted(maps.Keys(s.transfers)) {
		t := s.transfers[id]
		if t.to != evict.Disk {
			continue
		}
		persists, deletes := t.persists, t.deletes
		t.persists, t.deletes = nil, nil
		for _, w := range persists {
			s.persisted(w, reason.Busy)
		}
		for _, d := range deletes {
			d.Reason = reason.Busy
			d.waits--
			d.answer(s)
		}
	}
}
