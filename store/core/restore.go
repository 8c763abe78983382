package core

import (
	"math"
	"slices"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// restorer is a Restore under way. Neighbours are mostly alike, so it keeps what it looked up last.
type restorer struct {
	s *Shard

	key    page.Family
	ep     *epoch // nil: nothing of key is taken
	family uint32 // held while it is current
	geo    Geometry

	view        page.View
	least, most int64 // bytes of a region of it: by the length of its provenance

	members []uint16
	lineage uint16 // held while it is current; 0: none
}

// restore files copies of earlier lives, in order. Nothing is announced: nobody was told that they were gone. The
// order is that of the policy, as if they had just been used one after the other.
func (s *Shard) restore(ev *Restore) {
	s.restoring = true
	s.restored = s.restored[:0]
	r := restorer{s: s}
	for i := range ev.Extents {
		s.restored = append(s.restored, r.one(&ev.Extents[i]))
	}
	r.leaveFamily()
	s.emit(Restored{Extents: s.restored})
}

// one files one copy; 0: it is not taken, and nothing has changed.
func (r *restorer) one(e *RestoredExtent) uint32 {
	s := r.s
	v, ok := r.check(e)
	if !ok {
		return 0
	}
	lineage := r.holdLineage(e.Lineage)
	if lineage == 0 {
		return 0
	}
	fp := fingerprintOf(e.Hash.Bytes(), s.o.FingerprintKey)
	slot := s.index.find(fp, r.family)
	parent, fits := r.parent(e, fp)
	if p := s.pages.At(slot); fits && slot != 0 { // whether links go round in a circle is for Settle to see
		fits = (!parent.known || p.has(flagUnknown) || p.parent == parent.slot) && s.uncut(slot, v)
	}
	if fits && slot == 0 {
		slot = s.newPage(fp, r.family)
	}
	x := uint32(0)
	if fits && slot != 0 {
		x, _ = s.newExtent(slot, v, e.Place.Tier, uint32(e.Place.Bytes), lineage, false)
	}
	if x == 0 {
		r.ep.lineages.release(lineage)
		s.tidy(slot)
		s.tidy(parent.slot)
		return 0
	}
	c := s.extents.At(x)
	c.setPlace(e.Place)
	c.setState(extentCommitted)
	s.count(x)
	p := s.pages.At(slot)
	if e.Expiry != 0 {
		p.expiry = sooner(p.expiry, e.Expiry)
		s.sweep.noteExpiry(p.expiry)
	}
	p.declared = max(p.declared, float32(e.Declared))
	s.link(slot, parent)
	s.settle(slot)
	return x
}

// check says whether a copy fits what is known of its namespace, and resolves its view.
func (r *restorer) check(e *RestoredExtent) (page.View, bool) {
	if e.Family != r.key {
		r.enterFamily(&e.Family)
	}
	if r.ep == nil {
		return page.View{}, false
	}
	v, why := viewIn(&r.geo, e.View)
	if why != reason.None || r.ep.state.Strict && v != r.geo.Full() {
		return v, false // whether one writer group wrote all of a page is not known any more
	}
	if v != r.view {
		r.view, r.most = v, 0
		if page.PieceCount(v, r.geo.CellBytes) <= page.MaxPieces {
			r.least, r.most = page.RegionBytes(v, r.geo.CellBytes, 0), page.RegionBytes(v, r.geo.CellBytes, page.MaxProvenance)
		}
	}
	n := e.Place.Bytes
	x := extentRecord{bytes: uint32(n)}
	return v, n >= r.least && n <= r.most && (n-r.least)%page.PayloadAlign == 0 && n <= maxExtentBytes &&
		e.Place.Tier == evict.Disk && x.setPlace(e.Place) && len(e.Lineage) > 0 &&
		e.Hash.Len() == r.ep.state.HashBytes && (e.Expiry == 0 || r.s.wall < e.Expiry)
}

func (r *restorer) enterFamily(key *page.Family) {
	r.leaveFamily()
	r.key = *key
	ep, why := r.s.epochs.open(key.Namespace, key.Epoch)
	if why != reason.None {
		return
	}
	geo, ok := ep.state.Groups[key.Group]
	if !ok {
		return
	}
	if r.family = r.s.families.hold(key, ep, geo); r.family != 0 {
		r.ep, r.geo = ep, geo
	}
}

func (r *restorer) leaveFamily() {
	if r.lineage != 0 {
		r.ep.lineages.release(r.lineage)
	}
	if r.family != 0 {
		r.s.families.release(r.family)
	}
	*r = restorer{s: r.s, members: r.members}
}

// holdLineage takes a reference to the lineage of a set; 0 when the table is full.
func (r *restorer) holdLineage(members []uint16) uint16 {
	t := &r.ep.lineages
	if r.lineage == 0 || !slices.Equal(members, r.members) {
		if r.lineage != 0 {
			t.release(r.lineage)
		}
		r.members = append(r.members[:0], members...)
		r.s.members = append(r.s.members[:0], members...)
		r.lineage = t.hold(r.s.members, r.ep.state.Accepts)
	}
	if r.lineage != 0 {
		t.retain(r.lineage)
	}
	return r.lineage
}

// parent finds the record of the parent that a copy names, or files a placeholder. fits is false when there is no record
// for it, or the page names itself.
func (r *restorer) parent(e *RestoredExtent, fp fingerprint) (_ parentOf, fits bool) {
	s := r.s
	switch {
	case r.geo.Parents == ParentNone:
		return parentOf{}, true
	case e.Link != LinkHash:
		return parentOf{known: e.Link == LinkRoot}, true
	}
	of := fingerprintOf(e.Parent.Bytes(), s.o.FingerprintKey)
	if of == fp {
		return parentOf{}, false
	}
	slot := s.index.find(of, r.family)
	if slot == 0 {
		if slot = s.newPage(of, r.family); slot != 0 {
			s.pages.At(slot).setCause(OrphanLost)
		}
	}
	return parentOf{slot, true}, slot != 0
}

// uncut says whether no extent of a page, committed or not, lies within v, and it can have another.
func (s *Shard) uncut(slot uint32, v page.View) bool {
	n := 0
	for x := s.pages.At(slot).extents; x != 0; x = s.extents.At(x).next {
		if n++; n >= page.MaxRects || !s.extents.At(x).view.Intersect(v).Empty() {
			return false
		}
	}
	return true
}

// tidy frees a record that holds nothing and is named by nobody.
func (s *Shard) tidy(slot uint32) {
	if slot != 0 {
		s.settle(slot)
	}
}

// settleAll ends the Restores. Their order says nothing of parents and children, so depths and orphans follow now, in
// one pass: from each page up to an ancestor that is settled, and down the same way to write down what follows from it,
// with the cause of what is absent there. Every page is gone over twice.
func (s *Shard) settleAll() {
	s.restoring = false
	for i := uint32(1); i <= s.pages.top; i++ {
		if s.pages.At(i).family != 0 {
			s.settlePath(i)
		}
	}
	for i := uint32(1); i <= s.pages.top; i++ {
		p := s.pages.At(i)
		p.set(flagSettled, false)
		if p.family == 0 {
			continue
		}
		if p.has(flagAbsent) && s.epochOf(i).state.Life != Retired {
			s.totals.Orphaned[p.cause()] += uint64(p.live)
		}
		if p.has(flagCommitted) && !p.has(flagComplete) {
			s.watchIncomplete(i)
		}
	}
}

// settlePath gives the page at slot, and its ancestors that are not settled, their depth and whether they are orphans.
func (s *Shard) settlePath(slot uint32) {
	s.path = s.path[:0]
	i := slot
	for i != 0 && !s.pages.At(i).has(flagSettled) {
		if uint32(len(s.path)) == s.pages.used { // a circle, which only what came back from the dead can close: cut it
			s.setParent(i, 0, true)
			s.settle(i)
			i, s.path = slot, s.path[:0]
		}
		s.path = append(s.path, i)
		i = s.pages.At(i).parent
	}
	for _, i := range slices.Backward(s.path) { // parents first: what is below one follows from it
		p := s.pages.At(i)
		f := s.families.at(p.family)
		depth, orphan, cause := uint32(0), false, OrphanCause(0)
		if p.parent != 0 {
			above := s.pages.At(p.parent)
			depth = uint32(min(uint64(above.depth)+1, math.MaxUint32))
			orphan = above.has(flagAbsent|flagOrphan) && f.geo.Parents == ParentPrefix && p.has(flagHeld)
			cause = above.cause()
		}
		if p.depth != depth || p.has(flagOrphan) != orphan {
			p.depth = depth
			if orphan && !p.has(flagOrphan) {
				s.countOrphan(p, cause)
			}
			p.set(flagOrphan, orphan)
			if p.has(flagCommitted) {
				t := s.tally(p, f.ep)
				s.settlePolicy(i, p, f, &t, p)
			}
		}
		p.set(flagSettled, true)
	}
}
