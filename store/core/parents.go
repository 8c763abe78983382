package core

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// countChild counts what changed of a child: which flags it had, and which it has.
func (s *Shard) countChild(parent uint32, was, now pageFlags) {
	p := s.pages.At(parent)
	if had, has := was&flagHeld != 0, now&flagHeld != 0; had != has {
		if has {
			p.live++
		} else {
			p.live--
		}
		if p.has(flagAbsent) {
			s.countOrphans(s.epochOf(parent), p, 1, has)
		}
	}
	for n := range p.near {
		switch near := nearIn(firstNear + evict.Tier(n)); {
		case was&near == now&near:
		case now&near != 0:
			p.near[n]++
		default:
			p.near[n]--
		}
	}
	s.reconsider(parent)
}

// countOrphans counts children of an absent page, by the cause of its absence. A retired epoch makes no orphans worth
// telling: all of it goes.
func (s *Shard) countOrphans(ep *epoch, parent *pageRecord, n int64, up bool) {
	cause := parent.cause()
	if !up {
		ep.orphans[cause] -= uint64(n)
		return
	}
	ep.orphans[cause] += uint64(n)
	if ep.state.Life != Retired && !s.restoring {
		s.totals.Orphaned[cause] += uint64(n)
	}
}

// setCause says why a page is, or is about to be, absent.
func (s *Shard) setCause(i uint32, c OrphanCause) {
	p := s.pages.At(i)
	if p.has(flagAbsent) {
		ep := s.epochOf(i)
		ep.orphans[p.cause()] -= uint64(p.live)
		ep.orphans[c] += uint64(p.live)
	}
	p.setCause(c)
}

// settleOrphan decides whether a page lost what it stands on. Only groups that need every page before can. While pages
// are restored, what seems lost may still come.
func (s *Shard) settleOrphan(p *pageRecord, g *Geometry) {
	if s.restoring {
		return
	}
	orphan := false
	if p.parent != 0 && g.Parents == ParentPrefix && p.has(flagHeld) {
		orphan = s.pages.At(p.parent).has(flagAbsent | flagOrphan)
	}
	if orphan && !p.has(flagOrphan) {
		s.countOrphan(p, s.pages.At(p.parent).cause())
	}
	p.set(flagOrphan, orphan)
}

// countOrphan counts the bytes of a page that became an orphan, by the cause of the absence that did it. The page hands the
// cause on to those below it.
func (s *Shard) countOrphan(p *pageRecord, c OrphanCause) {
	if !p.has(flagAbsent) {
		p.setCause(c)
	}
	if s.families.at(p.family).ep.state.Life != Retired {
		s.totals.OrphanedBytes[c] += s.pageBytes(p).sum()
	}
}

// setParent names (or, with parent 0, unnames) the parent of a record; unknown is kept when parent is 0. The caller
// settles the page.
func (s *Shard) setParent(i, parent uint32, unknown bool) {
	p := s.pages.At(i)
	old := p.parent
	if old != parent {
		if old != 0 && p.has(flagHeld) {
			s.countChild(old, p.flags, 0)
		}
		p.parent, p.depth = parent, 0
		if parent != 0 {
			q := s.pages.At(parent)
			q.children++
			if p.depth = q.depth + 1; p.depth == 0 {
				p.depth-- // saturates
			}
			if p.has(flagHeld) {
				s.countChild(parent, 0, p.flags)
			}
		}
		s.unname(old)
	}
	p.set(flagUnknown, parent == 0 && unknown)
}

// unname takes one name off a record and, while records are placeholders that nobody names any more, frees them,
// upwards.
func (s *Shard) unname(i uint32) {
	for i != 0 {
		p := s.pages.At(i)
		p.children--
		if p.children > 0 || p.has(flagHeld|flagPinned) {
			return
		}
		parent := p.parent
		s.freePage(i)
		i = parent
	}
}

// parentOf is what a Begin says of a page's parent.
type parentOf struct {
	slot  uint32
	known bool // slot 0 and known: the first page of a chain
}

// resolveParent finds the parent that page i of a batch names. why is ParentMissing when it is absent where it is
// needed, ParentConflict when the page names itself.
func (b *batch) resolveParent(s *Shard, i int) (_ parentOf, why reason.Reason) {
	rule, link := b.f.geo.Parents, b.ev.Pages[i].Link
	switch {
	case rule == ParentNone, link == LinkUnknown, link > LinkRoot, link == LinkPrevious && i == 0:
		return parentOf{}, reason.None
	case link == LinkRoot:
		return parentOf{known: true}, reason.None
	}
	var fp fingerprint
	var slot uint32
	if link == LinkPrevious {
		fp, slot = b.fps[i-1], b.slots[i-1]
	} else {
		fp = fingerprintOf(b.ev.Pages[i].Parent.Bytes(), s.o.FingerprintKey)
		slot = s.index.find(fp, b.family)
	}
	switch {
	case fp == b.fps[i] && link == LinkPrevious: // the same page twice: nothing new
		return parentOf{}, reason.None
	case fp == b.fps[i]:
		return parentOf{}, reason.ParentConflict
	case slot != 0 && s.stands(slot):
		return parentOf{slot, true}, reason.None
	case rule == ParentWindow: // linked later; its absence harms nobody
		return parentOf{}, reason.None
	}
	return parentOf{}, reason.ParentMissing
}

// ancestor is the hash of the parent that page i names.
func (b *batch) ancestor(i int) page.Hash {
	if b.ev.Pages[i].Link == LinkHash {
		return b.ev.Pages[i].Parent
	}
	return hashAt(&b.ev.Run, i-1, b.ep.state.HashBytes)
}

// linkable says whether the record at slot can take the parent that a Begin names: it does not know one yet, or knows
// the same.
func (s *Shard) linkable(slot uint32, to parentOf) bool {
	p := s.pages.At(slot)
	if !to.known {
		return true
	}
	if p.has(flagUnknown) {
		return !s.descends(to.slot, slot)
	}
	return p.parent == to.slot
}

// link gives a record the parent that a Begin or a chain lookup names. A placeholder of which no parent is named any more
// forgets the absent one it had: it starts anew. The caller settles the page.
func (s *Shard) link(slot uint32, to parentOf) {
	p := s.pages.At(slot)
	switch {
	case to.known && p.has(flagUnknown):
		s.setParent(slot, to.slot, false)
	case !to.known && !p.has(flagHeld) && p.parent != 0 && !s.stands(p.parent):
		s.setParent(slot, 0, true)
	}
}

// descends says whether i is root or a descendant of it: such a link would close a circle. Pages without children,
// which is what a writer adds, cost nothing.
func (s *Shard) descends(i, root uint32) bool {
	if s.pages.At(root).children == 0 {
		return i == root
	}
	for n := s.pages.used; i != 0; i = s.pages.At(i).parent {
		if i == root || n == 0 { // before Settle there may be circles
			return true
		}
		n--
	}
	return false
}
