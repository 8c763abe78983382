package host

import (
	"fmt"
	"slices"

	"github.com/quire-kv/quire/store/tier"
)

// restedHandles wait before one is used again, so that a stale handle finds nothing rather than another's slab.
const restedHandles = 64

// maxRecutWaste is the part of a blank mapping that may be lost in cutting it for a class: one in so many.
const maxRecutWaste = 16

// costOfSlab is what a slab takes of the capacity, its class's own bookkeeping included.
func costOfSlab(slots int64, c tier.Class) int64 {
	n := slots * c.Bytes
	return n + mappingCost(n) + slots*slotMetadata + classMetadata + costOfSharing(slots, c)
}

// costOfSharing is what handing out a slab takes: nothing of one that is mixed.
func costOfSharing(slots int64, c tier.Class) int64 {
	if mixed(c) {
		return 0
	}
	return generationBytes(slots) + exportMetadata
}

// mayGrow reports whether takeInNewSlab could find memory. Under mu.
func (d *Driver) mayGrow(c tier.Class) bool {
	return len(d.blank) > 0 || len(d.ready) > 0 || len(d.empty) > 0 || d.room() >= costOfSlab(fewestSlots(c.Bytes), c)
}

// fewestSlots of a slab that takes the last of the room.
func fewestSlots(classBytes int64) int64 { return max(1, smallestSlabBytes/classBytes) }

// takeInNewSlab gives the class a slab and takes a slot of it. In order of preference:
//
//	a blank mapping of about the right size      no system call, populated already
//	ready memory, cut to the size that is due    for a slab that is shared
//	fresh memory, of the size that is due
//	any blank mapping that is not too large
//	fresh memory, after blank mappings were unmapped: as much as there is
func (d *Driver) takeInNewSlab(c tier.Class, n int64, o tier.Owner) (tier.Region, error) {
	d.growing.Lock()
	defer d.growing.Unlock()
	d.mu.Lock()
	if r, err := d.take(c, n, o); err != errNoSlot {
		d.mu.Unlock()
		return r, err // another made room meanwhile
	}
	due := d.dueBytes(c)
	if m := d.fittingBlank(c, due/2, due*2); m != nil {
		return d.cutAndTake(m, c, n, o)
	}
	slots := max(1, due/c.Bytes)
	if m := d.readyFor(c, slots); m != nil {
		return d.cutAndTake(m, c, n, o)
	}
	gone := []*mapping(nil)
	if d.room() < costOfSlab(slots, c) {
		gone = d.blankEmpties()
		if m := d.fittingBlank(c, 0, due*2); m != nil {
			r, err := d.cutAndTake(m, c, n, o)
			d.discard(gone...)
			return r, err
		}
		gone = append(gone, d.dropBlanks(costOfSlab(slots, c)-d.room())...)
		gone = append(gone, d.dropReady(costOfSlab(slots, c)-d.room()-sizeOf(gone))...)
	}
	d.makingSlab = true
	d.mu.Unlock()
	d.discard(gone...)
	m, err := d.freshMapping(c, slots)
	d.mu.Lock()
	d.makingSlab = false
	if err != nil {
		d.mu.Unlock()
		return tier.Region{}, err
	}
	return d.cutAndTake(m, c, n, o)
}

// dueBytes is the size of the class's next slab. Under mu.
func (d *Driver) dueBytes(c tier.Class) int64 {
	if cl := d.classes[c]; cl != nil {
		return cl.nextBytes
	}
	return d.firstBytes
}

// cutAndTake makes a slab of m, takes its first slot and unlocks mu.
func (d *Driver) cutAndTake(m *mapping, c tier.Class, n int64, o tier.Owner) (tier.Region, error) {
	defer d.mu.Unlock()
	if d.closed {
		d.blank = append(d.blank, m) // Close waits for growing, then unmaps it
		return tier.Region{}, tier.ErrClosed
	}
	d.cut(m, c)
	return d.take(c, n, o)
}

// cut makes a slab of m for class c. Under mu.
func (d *Driver) cut(m *mapping, c tier.Class) {
	cl := d.classes[c]
	if cl == nil {
		cl = newClass(c, d.firstBytes)
		d.classes[c] = cl
	}
	s := newSlab(0, cl, m)
	d.enter(s)
	m.used = true
	cl.slabs++
	cl.newest = s
	cl.free += len(s.slots)
	cl.nextBytes = min(cl.nextBytes*2, d.slabBytes)
	cl.pushFront(s)
	d.slots += int64(len(s.slots))
	s.emptyAt = len(d.empty)
	d.empty = append(d.empty, s)
}

// enter gives s a handle and a place in a new table. Under mu.
func (d *Driver) enter(s *slab) {
	table := slices.Clone(*d.table.Load())
	if len(d.oldHandles) > restedHandles {
		s.handle = d.oldHandles[0]
		d.oldHandles = d.oldHandles[1:]
		table[s.handle-1] = s
	} else {
		table = append(table, s)
		s.handle = uint32(len(table))
	}
	d.table.Store(&table)
	if s.mapping.export != nil {
		d.listExported()
	}
}

// retire takes s, which has no live region, out of its class. Its mapping turns blank, or is answered when it must
// be unmapped: no other namespace may ever see memory whose descriptor one was given. Under mu.
func (d *Driver) retire(s *slab) (gone *mapping) {
	table := slices.Clone(*d.table.Load())
	table[s.handle-1] = nil
	d.table.Store(&table)
	if s.mapping.export != nil {
		d.listExported()
	}
	d.oldHandles = append(d.oldHandles, s.handle)
	d.removeEmpty(s)
	s.unlink()
	d.slots -= int64(len(s.slots))
	d.leaveClass(s)
	m := s.mapping
	m.used = false
	if m.private {
		return m
	}
	d.blank = append(d.blank, m)
	return nil
}

func (d *Driver) leaveClass(s *slab) {
	cl := s.class
	cl.slabs--
	if !s.emptying {
		cl.free -= len(s.slots)
	}
	if cl.slabs == 0 {
		delete(d.classes, cl.key)
		return
	}
	if cl.newest == s {
		cl.newest = d.anySlab(cl)
	}
}

// anySlab finds another slab of cl. Under mu.
func (d *Driver) anySlab(cl *class) *slab {
	for _, s := range *d.table.Load() {
		if s != nil && s.class == cl {
			return s
		}
	}
	return nil
}

// blankEmpties takes every empty slab from its class; gone are those whose mappings must be unmapped. Under mu.
func (d *Driver) blankEmpties() (gone []*mapping) {
	for len(d.empty) > 0 {
		if m := d.retire(d.empty[len(d.empty)-1]); m != nil {
			gone = append(gone, m)
		}
	}
	return gone
}

// fittingBlank takes the largest blank mapping within sizes that can be cut for c. Under mu.
func (d *Driver) fittingBlank(c tier.Class, least, most int64) *mapping {
	if !mixed(c) {
		return nil // needs a descriptor of its own
	}
	best := -1
	for i, m := range d.blank {
		slots := m.bytes / c.Bytes
		fits := slots > 0 && m.bytes >= least && m.bytes <= max(most, c.Bytes) && m.bytes%c.Bytes <= m.bytes/maxRecutWaste
		if fits && d.room() >= slots*slotMetadata+classMetadata && (best < 0 || m.bytes > d.blank[best].bytes) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	return d.takeBlank(best)
}

func (d *Driver) takeBlank(i int) *mapping {
	m := d.blank[i]
	last := len(d.blank) - 1
	d.blank[i], d.blank[last] = d.blank[last], nil
	d.blank = d.blank[:last]
	return m
}

// dropBlanks takes blank mappings, largest first, until need bytes come free. One that is being populated stays.
// Under mu.
func (d *Driver) dropBlanks(need int64) (gone []*mapping) {
	slices.SortFunc(d.blank, func(a, b *mapping) int { return int(a.bytes>>12) - int(b.bytes>>12) })
	for i := len(d.blank) - 1; i >= 0 && need > 0; i-- {
		if d.blank[i].busy {
			continue
		}
		m := d.takeBlank(i)
		need -= m.bytes + mappingCost(m.bytes)
		gone = append(gone, m)
	}
	return gone
}

// sizeOf is what unmapping brings.
func sizeOf(gone []*mapping) (n int64) {
	for _, m := range gone {
		if m != nil {
			n += m.bytes + mappingCost(m.bytes)
		}
	}
	return n
}

// freshMapping asks the system for memory for up to slots slots, fewer when the room is short of them. With growing.
func (d *Driver) freshMapping(c tier.Class, slots int64) (*mapping, error) {
	d.mu.Lock()
	size := d.sizeWithin(d.room(), c, slots)
	if size == 0 {
		d.mu.Unlock()
		return nil, tier.ErrFull
	}
	slots = size / c.Bytes
	extra, private := costOfSharing(slots, c), !mixed(c)
	d.reserve(size, extra)
	d.exports++
	number := d.exports
	d.mu.Unlock()
	m, err := d.o.memory.mapping(size, private)
	var e *export
	var unshared error
	if err == nil && private {
		e, unshared = d.o.memory.share(m, number, c.Bytes, slots)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.unreserve(size, extra)
		return nil, fmt.Errorf("%w: map a slab of %d bytes: %w", tier.ErrFull, size, err)
	}
	m.private, m.export, m.extra = private, e, extra
	if unshared != nil {
		d.shareErr = unshared
	}
	d.cold = append(d.cold, m)
	d.wakePopulator()
	return m, nil
}

// sizeWithin is the size of a slab of at most slots slots that fits into room; 0 if not even the fewest do.
func (d *Driver) sizeWithin(room int64, c tier.Class, slots int64) int64 {
	perSlot, fixed := c.Bytes+c.Bytes/pageTableFactor+slotMetadata, slabMetadata+classMetadata
	if !mixed(c) {
		perSlot, fixed = perSlot+8, fixed+costOfSharing(0, c)+tier.Align
	}
	slots = min(slots, (room-fixed)/perSlot)
	if slots < fewestSlots(c.Bytes) {
		return 0
	}
	size := slots * c.Bytes
	if d.o.memory.reservesHuge() {
		whole := (size + hugePageBytes - 1) &^ (hugePageBytes - 1)
		slots := whole / c.Bytes
		cost := whole + mappingCost(whole) + slots*slotMetadata + classMetadata + costOfSharing(slots, c)
		if whole-size <= whole/maxRecutWaste && cost <= room {
			return whole
		}
	}
	return size
}

// reserve and unreserve keep the account of memory that is on its way: n bytes, and what sharing them takes. Under mu.
func (d *Driver) reserve(n, extra int64) {
	d.held += n
	d.sharing += extra
	d.slabs++
}

func (d *Driver) unreserve(n, extra int64) {
	d.held -= n
	d.sharing -= extra
	d.slabs--
}

// discard unmaps what nothing uses any more; nils are skipped. Without mu.
func (d *Driver) discard(gone ...*mapping) {
	for _, m := range gone {
		if m == nil || d.leaveToPopulator(m) {
			continue
		}
		// A failure leaves the memory mapped: it stays accounted for.
		err := d.o.memory.unmap(m)
		d.mu.Lock()
		d.forget(m, err)
		d.mu.Unlock()
	}
}

// leaveToPopulator reports whether m is being populated: then it is unmapped after that.
func (d *Driver) leaveToPopulator(m *mapping) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.doomed = m.busy
	if !m.busy {
		d.warm(m)
	}
	return m.busy
}

// forget ends the account of an unmapped mapping. Under mu.
func (d *Driver) forget(m *mapping, err error) {
	if err != nil {
		d.unmapErr = err
		return
	}
	d.unreserve(m.bytes, m.extra)
	d.resident -= m.populated
	d.huge -= m.huge
	if m.private {
		d.refillSoon()
	}
}
