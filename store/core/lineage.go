package core

import (
	"encoding/binary"
	"slices"
)

// A lineage is the set of provenances that an extent rests on: its writer's, and those of all its known ancestors
// as they were committed. It is accepted while every member is. Extents keep a 16-bit handle, so hiding what came in
// through a waiver that ended, and all that was computed on top of it, costs one bit test a page.
//
//	page 0      page 1        page 2
//	{old} <---- {old, new} <- {old, new}     the waiver old = new ends: all three are hidden
type lineageTable struct {
	ids  map[string]uint16 // canonical set -> handle
	all  []lineage         // by handle, from 1
	free []uint16
	ok   []uint64 // bit per handle: accepted now
}

type lineage struct {
	members []uint16 // sorted, without repeats
	refs    uint32   // extents
}

const (
	mixedLineage uint16 = 1<<16 - 1 // of a page whose extents do not agree
	maxLineages         = 1<<16 - 2 // sets grow along chains, so a namespace has few
)

// hold interns a set and takes a reference; 0 when the table is full. members is sorted in place.
func (t *lineageTable) hold(members []uint16, accepts []uint64) uint16 {
	slices.Sort(members)
	members = slices.Compact(members)
	name := make([]byte, 0, 16)
	for _, m := range members {
		name = binary.LittleEndian.AppendUint16(name, m)
	}
	h, ok := t.ids[string(name)]
	if !ok {
		if h = t.slot(); h == 0 {
			return 0
		}
		if t.ids == nil {
			t.ids = map[string]uint16{}
		}
		t.ids[string(name)] = h
		t.all[h] = lineage{members: slices.Clone(members)}
		t.judge(h, accepts)
	}
	t.all[h].refs++
	return h
}

func (t *lineageTable) slot() uint16 {
	if n := len(t.free); n > 0 {
		h := t.free[n-1]
		t.free = t.free[:n-1]
		return h
	}
	if len(t.all) == 0 {
		t.all, t.ok = make([]lineage, 1), make([]uint64, 1)
	}
	if len(t.all) > maxLineages {
		return 0
	}
	t.all = append(t.all, lineage{})
	if len(t.ok)*64 < len(t.all) {
		t.ok = append(t.ok, 0)
	}
	return uint16(len(t.all) - 1)
}

// retain takes another reference to a handle that is held.
func (t *lineageTable) retain(h uint16) { t.all[h].refs++ }

func (t *lineageTable) release(h uint16) {
	l := &t.all[h]
	if l.refs--; l.refs > 0 {
		return
	}
	name := make([]byte, 0, 16)
	for _, m := range l.members {
		name = binary.LittleEndian.AppendUint16(name, m)
	}
	delete(t.ids, string(name))
	*l = lineage{}
	t.free = append(t.free, h)
}

// accepted says whether h is accepted now.
func (t *lineageTable) accepted(h uint16) bool {
	return int(h)>>6 < len(t.ok) && t.ok[h>>6]>>(h&63)&1 != 0
}

// rejudge computes all bits anew; changed says whether one moved.
func (t *lineageTable) rejudge(accepts []uint64) (changed bool) {
	for h := 1; h < len(t.all); h++ {
		if t.all[h].refs > 0 {
			changed = t.judge(uint16(h), accepts) || changed
		}
	}
	return changed
}

func (t *lineageTable) judge(h uint16, accepts []uint64) (changed bool) {
	ok := true
	for _, m := range t.all[h].members {
		ok = ok && accepts1(accepts, m)
	}
	changed = ok != t.accepted(h)
	t.ok[h>>6] &^= 1 << (h & 63)
	if ok {
		t.ok[h>>6] |= 1 << (h & 63)
	}
	return changed
}

// accepts1 tests one provenance.
func accepts1(accepts []uint64, provenance uint16) bool {
	return int(provenance)>>6 < len(accepts) && accepts[provenance>>6]>>(provenance&63)&1 != 0
}

// lineageFor interns the lineage of an extent about to be granted or committed: the writer's provenance, with those
// of the parent's extents that may be built on now, and those of an earlier lineage (0: none) of the same extent.
// It takes a reference; 0 when the table is full.
func (s *Shard) lineageFor(ep *epoch, provenance uint16, parent uint32, earlier uint16) uint16 {
	t := &ep.lineages
	s.members = append(s.members[:0], provenance)
	if earlier != 0 {
		s.members = append(s.members, t.all[earlier].members...)
	}
	last := earlier
	if parent != 0 {
		for i := s.pages.At(parent).extents; i != 0; i = s.extents.At(i).next {
			x := s.extents.At(i)
			if x.lineage != last && (x.state() == extentOpen || t.accepted(x.lineage)) {
				last = x.lineage
				s.members = append(s.members, t.all[last].members...)
			}
		}
	}
	return t.hold(s.members, ep.state.Accepts)
}
