package core

import (
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// batch is one Begin while it is decided.
type batch struct {
	ev     *Begin
	ep     *epoch
	family uint32 // held until the batch is decided
	f      *family
	pub    *publication
	fps    []fingerprint
	slots  []uint32
	rects  []page.View
	have   []page.View
	closed reason.Reason // not None: no more grants, so that no hole comes to be inside the run
}

// begin decides all pages of a batch and asks for places for what it grants. With nothing granted the Reply comes at
// once, without a token.
func (s *Shard) begin(ev *Begin) {
	b := batch{ev: ev}
	if why := s.admit(&b); why != reason.None {
		results := make([]Result, len(ev.Pages))
		for i := range results {
			results[i] = Result{Outcome: Refused, Reason: why}
		}
		s.replyPublish(Reply{Ticket: ev.Ticket, Reason: why, Results: results})
		return
	}
	b.slots = s.slotsOf(&ev.Run, b.family, b.ep.state.HashBytes)
	b.fps = s.fps
	s.makeRoom(&b)
	b.pub = s.newPublication(&b)
	for i := range ev.Pages {
		r := s.beginPage(&b, i)
		b.pub.results = append(b.pub.results, r)
		b.pub.pages[i].outcome, b.pub.pages[i].ref = r.Outcome, r.Ref
	}
	s.families.release(b.family)
	s.askForPlaces(b.pub)
}

// admit checks what holds for the whole batch and takes a reference to its family.
func (s *Shard) admit(b *batch) (why reason.Reason) {
	ev := b.ev
	if _, b.ep, why = s.resolve(&ev.Run.Family); why != reason.None {
		return why
	}
	st := &b.ep.state
	switch {
	case st.Life == Draining:
		return reason.Draining
	case len(ev.Pages) == 0 || hashCount(&ev.Run, st.HashBytes) != len(ev.Pages):
		return reason.InvalidSpec
	case !accepts1(st.Accepts, ev.Provenance):
		return reason.Provenance
	case s.readOnly[s.o.Tier] || s.tenures.pubs >= s.o.MaxPublications:
		return reason.Busy
	}
	if b.family = s.families.hold(&ev.Run.Family, b.ep, st.Groups[ev.Run.Family.Group]); b.family == 0 {
		return reason.Busy
	}
	b.f = s.families.at(b.family)
	return reason.None
}

// makeRoom evicts leaves until there are records for the whole batch, if that can be. Pages of the batch, and the
// parents it names, are not for eviction meanwhile.
func (s *Shard) makeRoom(b *batch) {
	n, absent := uint64(len(b.slots)), uint64(0)
	for _, i := range b.slots {
		if i == 0 {
			absent++
		}
	}
	if s.o.Ledger.room(absent, n) {
		return
	}
	guarded := append(make([]uint32, 0, n+1), b.slots...)
	for i := range b.ev.Pages {
		if pg := &b.ev.Pages[i]; pg.Link == LinkHash {
			guarded = append(guarded, s.index.find(fingerprintOf(pg.Parent.Bytes(), s.o.FingerprintKey), b.family))
		}
	}
	s.roomFor(b.ep.state.Tenant, absent, n, guarded)
}

// roomFor evicts what is worth least in any tier, for a tenant, until there are so many records, or nothing may go but
// the guarded pages.
func (s *Shard) roomFor(tenant uint32, pages, extents uint64, guarded []uint32) {
	s.guard(guarded, true)
	for !s.o.Ledger.room(pages, extents) && s.evictLeast(tenant) > 0 {
	}
	s.guard(guarded, false)
}

// guard keeps pages from being victims, and lets them go again.
func (s *Shard) guard(slots []uint32, on bool) {
	for _, i := range slots {
		if i != 0 {
			s.pages.At(i).set(flagGuarded, on)
			s.reconsider(i)
		}
	}
}

// beginPage decides one page.
func (s *Shard) beginPage(b *batch, i int) Result {
	pg := &b.ev.Pages[i]
	b.slots[i] = s.index.find(b.fps[i], b.family) // an earlier page may be the same, or have made room in its place
	v, why := viewIn(&b.f.geo, pg.View)
	switch {
	case why != reason.None:
		return Result{Outcome: Refused, Reason: why}
	case pg.PayloadBytes != page.PayloadBytes(v, b.f.geo.CellBytes):
		return Result{Outcome: Refused, Reason: reason.SizeMismatch}
	case pg.Expiry != 0 && s.wall >= pg.Expiry:
		return Result{Outcome: Refused, Reason: reason.Expired}
	}
	if why := s.clearStale(b, i); why != reason.None {
		return Result{Outcome: Refused, Reason: why}
	}
	parent, why := b.resolveParent(s, i)
	switch {
	case why == reason.ParentMissing && b.closed != reason.None: // the tail of a run that was cut short
		return Result{Outcome: Refused, Reason: b.closed}
	case why == reason.ParentMissing:
		return Result{Outcome: Refused, Reason: why, Ancestor: b.ancestor(i)}
	case why != reason.None:
		return Result{Outcome: Refused, Reason: why}
	}
	if b.slots[i] != 0 {
		if !s.linkable(b.slots[i], parent) {
			return Result{Outcome: Refused, Reason: reason.ParentConflict}
		}
		s.link(b.slots[i], parent)
		s.settle(b.slots[i])
	}
	return s.grantUncovered(b, i, v, parent)
}

// clearStale ends a committed page that a new writer need not respect: one whose time is over, or, where all extents
// of a page must come from one writer group, what a group left that writes no more.
func (s *Shard) clearStale(b *batch, i int) reason.Reason {
	slot := b.slots[i]
	if slot == 0 {
		return reason.None
	}
	p := s.pages.At(slot)
	if p.expired(s.wall) {
		s.end(slot, reason.Expired, OrphanExpired)
	} else if b.ep.state.Strict && p.has(flagHeld) {
		if s.covers(p, b.ep, b.f.geo.Full()) == reason.None {
			return reason.None
		}
		switch group, known := s.groups[slot]; {
		case known && group == b.ev.WriterGroup:
			return reason.None
		case p.has(flagOpen) || known && b.ep.groups[group] > 0:
			return reason.Held
		}
		s.end(slot, reason.Incomplete, OrphanAborted)
	}
	b.slots[i] = s.index.find(b.fps[i], b.family)
	return reason.None
}

// grantUncovered opens an extent for each rectangle of v that is neither accepted and committed nor being written.
func (s *Shard) grantUncovered(b *batch, i int, v page.View, parent parentOf) Result {
	slot := b.slots[i]
	extents := 0
	b.have = b.have[:0]
	if slot != 0 {
		p := s.pages.At(slot)
		if s.covers(p, b.ep, v) == reason.None {
			return Result{Outcome: Present, Ref: p.ref(slot)}
		}
		last := page.View{}
		for x := p.extents; x != 0; x = s.extents.At(x).next {
			e := s.extents.At(x)
			if e.state() != extentOpen {
				if e.view == last { // another copy
					continue
				}
				last = e.view
			}
			extents++
			if e.state() == extentOpen || b.ep.lineages.accepted(e.lineage) {
				b.have = append(b.have, e.view)
			}
		}
	}
	rects, ok := v.Uncovered(b.rects[:0], b.have)
	b.rects = rects
	switch {
	case len(rects) == 0:
		return Result{Outcome: Refused, Reason: reason.Held, Ref: s.pages.At(slot).ref(slot)}
	case b.closed != reason.None:
		return Result{Outcome: Refused, Reason: b.closed}
	case !ok || extents+len(rects) >= page.MaxRects:
		return Result{Outcome: Refused, Reason: reason.LimitExceeded}
	}
	if why := b.fitsQuota(rects); why != reason.None {
		if why == reason.QuotaExceeded {
			b.closed = why
		}
		return Result{Outcome: Refused, Reason: why}
	}
	return s.grant(b, i, rects, parent)
}

// fitsQuota sizes the regions of the rectangles and holds their sum against the namespace's quota.
func (b *batch) fitsQuota(rects []page.View) reason.Reason {
	total := uint64(0)
	for _, v := range rects {
		n := page.RegionBytes(v, b.f.geo.CellBytes, b.ev.ProvBytes)
		if n <= 0 || n > maxExtentBytes || page.PieceCount(v, b.f.geo.CellBytes) > page.MaxPieces {
			return reason.LimitExceeded
		}
		total += roundUp(uint64(n))
	}
	if q := b.ep.state.Quota; q != 0 && b.ep.charged+total > q {
		return reason.QuotaExceeded
	}
	return reason.None
}

// grant opens the rectangles, or none of them.
func (s *Shard) grant(b *batch, i int, rects []page.View, parent parentOf) Result {
	slot := b.slots[i]
	if slot == 0 {
		if slot = s.newPage(b.fps[i], b.family); slot == 0 {
			b.closed = reason.Busy
			return Result{Outcome: Refused, Reason: reason.Busy}
		}
		b.slots[i] = slot
		s.setParent(slot, parent.slot, !parent.known)
	}
	p := s.pages.At(slot)
	pp := &b.pub.pages[i]
	r := Result{Outcome: Granted, Ref: p.ref(slot), Grants: make([]Grant, 0, len(rects))}
	for _, v := range rects {
		why := reason.Busy
		lineage := s.lineageFor(b.ep, b.ev.Provenance, p.parent, 0)
		x := uint32(0)
		if lineage == 0 {
			why = reason.LimitExceeded
		} else if x, why = s.newExtent(slot, v, s.o.Tier, uint32(page.RegionBytes(v, b.f.geo.CellBytes, b.ev.ProvBytes)), lineage, true); x == 0 {
			b.ep.lineages.release(lineage)
		}
		if x == 0 {
			for _, x := range pp.grants {
				s.dropOpen(x)
			}
			pp.grants = nil
			s.settle(slot)
			b.closed = why
			b.slots[i] = s.index.find(b.fps[i], b.family)
			return Result{Outcome: Refused, Reason: why}
		}
		pp.grants = append(pp.grants, x)
		r.Grants = append(r.Grants, Grant{View: v, Extent: x, Depth: p.depth})
	}
	pp.slot, pp.expiry, pp.declared = slot, b.ev.Pages[i].Expiry, float32(b.ev.Pages[i].DeclaredFLOPs)
	s.open[slot] = append(s.open[slot], openPage{b.pub, i})
	if b.ep.state.Strict {
		s.groups[slot] = b.ev.WriterGroup
	}
	s.settle(slot)
	return r
}
