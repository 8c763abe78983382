package host

import (
	"sync/atomic"
	"unsafe"

	"github.com/quire-kv/quire/store/tier"
)

// slot is what is kept of one region: 16 bytes, no pointer.
//
//	0       4        8      12      16
//	| shard | extent | next | state |
//
// state is 0 when free, else live | bytes of rounding (0 to 4,095). It alone is read without the lock.
type slot struct {
	owner tier.Owner
	next  uint32 // free slots: the next one, noSlot ends the list
	state atomic.Uint32
}

const (
	live   = 1 << 31
	noSlot = 1<<32 - 1
)

// slab is a mapping cut into slots of one class. Guarded by Driver.mu, save what never changes (handle, classBytes,
// mem, the slots slice) and slot.state.
//
//	         take                    last slot
//	empty ---------> partly live <-------------> full
//	  |   <---------      |  |
//	  |    last free      |  | Compact / Keep
//	  |                   v  v
//	  |               emptying --last free--+
//	  +--- room is needed, Compact ---------+--> blank mapping, or unmapped
type slab struct {
	handle     uint32
	classBytes int64
	mem        []byte
	slots      []slot

	class    *class
	mapping  *mapping
	live     int    // slots in use
	fresh    uint32 // slots never used, from here on: taken in order, so that the populator stays ahead
	free     uint32 // first of the list of freed slots
	emptying bool
	outdated bool // names of before an Invalidate: its memory goes as soon as it is empty
	emptyAt  int  // place in Driver.empty, or -1

	prev, next *slab // of class.open
}

// class is what shares slabs: equal tier.Class after rounding. It exists while it has a slab.
type class struct {
	key       tier.Class
	slabs     int
	nextBytes int64 // size of the next slab
	newest    *slab
	free      int // slots that Alloc may take: those of slabs that are not emptying
	owed      int // regions that live in slabs being emptied and will need a slot

	open slab // ring of slabs with free slots that are not emptying; fullest first, empty last
}

// What bookkeeping costs, by which the bound of the tier is kept. Rounded up; map buckets and table entries included.
const (
	slotMetadata    = int64(unsafe.Sizeof(slot{}))
	slabMetadata    = int64(unsafe.Sizeof(slab{})+unsafe.Sizeof(mapping{})) + 64
	exportMetadata  = int64(unsafe.Sizeof(export{})) + 64
	classMetadata   = int64(unsafe.Sizeof(class{})) + 256
	driverMetadata  = 8 << 10
	pageTableFactor = 512 // the kernel keeps 8 bytes for each 4 KiB that is mapped
)

// mappingCost is what holding n bytes of memory takes of the capacity beside them.
func mappingCost(n int64) int64 { return n/pageTableFactor + slabMetadata }

func newClass(key tier.Class, firstBytes int64) *class {
	c := &class{key: key, nextBytes: firstBytes}
	c.open.prev, c.open.next = &c.open, &c.open
	return c
}

func newSlab(handle uint32, c *class, m *mapping) *slab {
	return &slab{
		handle: handle, classBytes: c.key.Bytes, mem: m.mem, class: c, mapping: m,
		slots: make([]slot, m.bytes/c.key.Bytes), free: noSlot, emptyAt: -1,
	}
}

// freeSlots is the number of slots without a region.
func (s *slab) freeSlots() int { return len(s.slots) - s.live }

// take puts a region of n bytes into a free slot. The slab must have one.
func (s *slab) take(n int64, o tier.Owner) tier.Region {
	i := s.free
	if i != noSlot {
		s.free = s.slots[i].next
	} else {
		i = s.fresh
		s.fresh++
	}
	s.live++
	s.slots[i].owner = o
	s.slots[i].state.Store(live | uint32(s.classBytes-n))
	return s.region(i, n)
}

// give frees slot i.
func (s *slab) give(i uint32) {
	s.slots[i].state.Store(0)
	s.slots[i].next = s.free
	s.free = i
	s.live--
}

// at finds the live slot that begins at offset, and its bytes as asked for. Needs no lock.
func (s *slab) at(offset int64) (i uint32, bytes int64, ok bool) {
	n := offset / s.classBytes
	if offset < 0 || n >= int64(len(s.slots)) || n*s.classBytes != offset {
		return 0, 0, false
	}
	state := s.slots[n].state.Load()
	return uint32(n), s.classBytes - int64(state&^live), state&live != 0
}

func (s *slab) region(i uint32, bytes int64) tier.Region {
	at := int64(i) * s.classBytes
	return tier.Region{Handle: s.handle, Offset: at, Bytes: bytes, Memory: s.mem[at : at+bytes : at+bytes]}
}

// Ring of open slabs. Slots are taken from the first.

func (c *class) first() *slab {
	if c.open.next == &c.open {
		return nil
	}
	return c.open.next
}

func (c *class) pushFront(s *slab) { s.linkAfter(&c.open) }
func (c *class) pushBack(s *slab)  { s.linkAfter(c.open.prev) }

func (s *slab) linkAfter(p *slab) {
	s.prev, s.next = p, p.next
	p.next.prev = s
	p.next = s
}

// unlink takes s out of its ring, if it is in one.
func (s *slab) unlink() {
	if s.next == nil {
		return
	}
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
}
