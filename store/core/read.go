package core

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// maxUsers bounds the reads and transfers of one extent at a time.
const maxUsers = 1<<16 - 2

// read pins the places of what it serves until ReadDone.
func (s *Shard) read(ev *Read) {
	r := Reply{Ticket: ev.Ticket, Lease: ev.Lease}
	r.Results, r.Reason = s.readRun(ev)
	used := make([]uint32, 0, len(r.Results))
	for j := range r.Results {
		for k := range r.Results[j].Parts {
			used = append(used, r.Results[j].Parts[k].Extent)
		}
	}
	if len(used) > 0 {
		s.reads[ev.Ticket] = used
	}
	s.emit(r)
}

func (s *Shard) readDone(ev *ReadDone) {
	used := s.reads[ev.Ticket]
	delete(s.reads, ev.Ticket)
	for _, x := range used {
		s.unuse(x)
	}
}

func (s *Shard) readRun(ev *Read) ([]Result, reason.Reason) {
	family, ep, why := s.resolve(&ev.Run.Family)
	if why != reason.None {
		return missAll(&ev.Run, ep, why), why
	}
	geo := ep.state.Groups[ev.Run.Family.Group]
	v, why := viewIn(&geo, ev.View)
	if why == reason.None && hashCount(&ev.Run, ep.state.HashBytes) == 0 {
		why = reason.InvalidSpec
	}
	if why != reason.None {
		return missAll(&ev.Run, ep, why), why
	}
	var l *lease
	if ev.Lease != (LeaseID{}) {
		if l = s.liveLease(ev.Lease, ev.Principal); l == nil {
			return missAll(&ev.Run, ep, reason.LeaseExpired), reason.LeaseExpired
		}
	}
	slots := s.slotsOf(&ev.Run, family, ep.state.HashBytes)
	results := make([]Result, len(slots))
	for j, i := range slots {
		results[j] = s.readPage(ev, ep, v, l, pageKey{family, s.fps[j]}, i)
		if results[j].Outcome != OK {
			slots[j] = 0
		}
	}
	if !ev.NoTouch && l == nil { // what is read under a lease was used when the lease was taken
		s.touchRun(slots)
	}
	return results, reason.None
}

// readPage serves one page: of the life that the lease pinned, if one is named.
func (s *Shard) readPage(ev *Read, ep *epoch, v page.View, l *lease, key pageKey, i uint32) Result {
	if l != nil {
		at, ok := l.at[key]
		if !ok {
			return Result{Outcome: Miss, Reason: reason.LeaseExpired}
		}
		ref := l.pages[at].ref
		if g := s.gone[ref]; g != nil {
			return s.assemble(ev, ep, v, ref, g.extents, g.expiry)
		}
	}
	if i == 0 {
		return Result{Outcome: Miss, Reason: reason.Absent}
	}
	p := s.pages.At(i)
	return s.assemble(ev, ep, v, p.ref(i), s.committedOf(p), p.expiry)
}

// assemble takes from each extent what serves v, out of its best copy, and counts as its user. Extents of a page are
// disjoint, so together these tile the view, one rectangle an extent, in order of head and layer.
func (s *Shard) assemble(ev *Read, ep *epoch, v page.View, ref PageRef, extents []uint32, expiry clock.Wall) Result {
	miss := Result{Outcome: Miss, Ref: ref}
	switch {
	case len(extents) == 0:
		miss.Reason = reason.Absent
		return miss
	case expiry != 0 && s.wall >= expiry && !ev.AnyView:
		miss.Reason = reason.Expired
		return miss
	}
	c := coverage{view: v}
	var parts []Part
	for len(extents) > 0 {
		i, copies := s.bestCopy(extents)
		extents = extents[copies:]
		x := s.extents.At(i)
		c.add(x, &ep.lineages)
		take := v.Intersect(x.view)
		if take.Empty() {
			continue
		}
		if x.users >= maxUsers {
			miss.Reason = reason.Busy
			return miss
		}
		ok := ep.lineages.accepted(x.lineage)
		if ok || ev.AnyView {
			parts = append(parts, Part{Extent: i, Place: x.place(), View: x.view, Take: take, Accepted: ok})
		}
	}
	if miss.Reason = c.reason(); miss.Reason != reason.None && !ev.AnyView {
		return miss
	}
	if len(parts) == 0 { // AnyView: nothing within the view
		return miss
	}
	for _, p := range parts {
		s.extents.At(p.Extent).users++
	}
	return Result{Outcome: OK, Ref: ref, Parts: parts}
}

// bestCopy is the copy that serves readers of the extent that a list begins with, and how many it has: the one in Host,
// else that of the dearest tier.
func (s *Shard) bestCopy(extents []uint32) (best uint32, copies int) {
	best = extents[0]
	view := s.extents.At(best).view
	for copies = 1; copies < len(extents) && s.extents.At(extents[copies]).view == view; copies++ {
		if s.extents.At(extents[copies]).tier() == evict.Host {
			best = extents[copies]
		}
	}
	return best, copies
}
