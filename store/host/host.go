package host

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// errNoSlot says that a class has no free slot now.
var errNoSlot = errors.New("no free slot")

// Driver is the host tier; it implements tier.Driver. Safe for concurrent use. Region.Memory must not be touched
// after Free, nor any after Close.
//
// Locks: growing before mu. Lookup takes neither.
type Driver struct {
	o          Options
	firstBytes int64 // a class's first slab
	slabBytes  int64 // its largest

	table    atomic.Pointer[[]*slab] // handle h at h-1; replaced as a whole, under mu
	exported atomic.Pointer[[]*slab] // those that are shared, by address; replaced as a whole, under mu

	growing sync.Mutex // one at a time asks the system for memory; held over system calls, never over populating

	mu          sync.Mutex // guards what follows, and slabs, classes and mappings
	classes     map[tier.Class]*class
	empty       []*slab    // without a live region, still of their class
	blank       []*mapping // of no class
	ready       []*mapping // of no class, never used by any, with a descriptor: see ready.go
	refill      bool       // ready is to be refilled
	cold        []*mapping // not populated to the end
	oldHandles  []uint32   // of slabs that are gone, oldest first
	wanted      *class     // will need a slab soon
	slots       int64      // slots of all slabs, for metadata
	slabs       int64      // mappings, for metadata
	live        int64      // bytes asked for
	held        int64      // bytes of mappings
	sharing     int64      // bytes held to share them
	exports     uint64     // numbers given to slabs so far
	resident    int64      // bytes populated
	huge        int64      // of those, in huge pages
	populateErr error      // the last
	unmapErr    error      // the last; that memory stays accounted for
	shareErr    error      // the last; that slab serves, but is not shared
	makingSlab  bool       // a slab is on its way
	closed      bool

	mover     mover
	wake      chan struct{} // to the populator; capacity 1
	stop      chan struct{}
	populator sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

var _ tier.Driver = (*Driver)(nil)

// New makes an empty tier and starts its goroutines; Close ends them. It populates its first slab (up to
// 2 MiB, a few milliseconds) before it returns, and so knows whether huge pages can be had.
func New(o Options) (*Driver, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Driver{
		o: o, firstBytes: min(firstSlabBytes, largestSlab(o.CapacityBytes)), slabBytes: largestSlab(o.CapacityBytes),
		classes: make(map[tier.Class]*class),
		wake:    make(chan struct{}, 1), stop: make(chan struct{}),
	}
	d.exports = firstNumber()
	d.table.Store(new([]*slab))
	d.exported.Store(new([]*slab))
	if err := d.prepare(d.firstBytes); err != nil {
		return nil, fmt.Errorf("host tier: first memory: %w", err)
	}
	d.populateAll()
	d.refillSoon()
	d.mover.start(d, o.Workers)
	d.populator.Go(d.runPopulator)
	return d, nil
}

// Alloc finds a place. It never waits for memory to be populated; a class's new slab costs a few system calls.
func (d *Driver) Alloc(c tier.Class, o tier.Owner) (tier.Region, error) {
	n := c.Bytes
	if n <= 0 {
		return tier.Region{}, fmt.Errorf("host tier: allocate %d bytes: must be positive", n)
	}
	if n > d.o.CapacityBytes {
		return tier.Region{}, tier.ErrTooLarge
	}
	c.Bytes = tier.RoundUp(n)
	if mixed(c) {
		c.Epoch = 0 // mixed slabs are mixed over epochs too
	}
	if costOfSlab(1, c) > d.o.CapacityBytes-driverMetadata {
		return tier.Region{}, tier.ErrTooLarge
	}
	d.mu.Lock()
	r, err := d.take(c, n, o)
	full := err == errNoSlot && !d.makingSlab && !d.mayGrow(c)
	d.mu.Unlock()
	if full {
		return tier.Region{}, tier.ErrFull
	}
	if err == errNoSlot {
		return d.takeInNewSlab(c, n, o)
	}
	return r, err
}

// take finds a free slot of a class. Under mu.
func (d *Driver) take(c tier.Class, n int64, o tier.Owner) (tier.Region, error) {
	if d.closed {
		return tier.Region{}, tier.ErrClosed
	}
	cl := d.classes[c]
	if cl == nil || cl.free == 0 {
		return tier.Region{}, errNoSlot
	}
	s := cl.first()
	r := s.take(n, o)
	d.live += n
	cl.free--
	if s.freeSlots() == 0 {
		s.unlink()
	}
	d.removeEmpty(s)
	if cl.free == len(cl.newest.slots)/2 && mixed(c) && d.room() > cl.nextBytes { // a full tier wakes nobody
		d.wanted = cl
		d.wakePopulator()
	}
	return r, nil
}

// Free gives a region back; only Handle and Offset are looked at.
func (d *Driver) Free(r tier.Region) {
	d.mu.Lock()
	ok, gone := d.giveBack(r)
	d.mu.Unlock()
	d.discard(gone)
	if !ok && invariant.Enabled {
		panic(fmt.Sprintf("host tier: free of %d+%d: no region lives there", r.Handle, r.Offset))
	}
}

// giveBack frees a slot; gone is a mapping that nothing uses any more. Under mu. After Close everything was freed.
func (d *Driver) giveBack(r tier.Region) (ok bool, gone *mapping) {
	if d.closed {
		return true, nil
	}
	s := d.slab(r.Handle)
	if s == nil {
		return false, nil
	}
	i, n, ok := s.at(r.Offset)
	if !ok {
		return false, nil
	}
	s.outdate(i)
	if invariant.Enabled {
		poison(s.region(i, n).Memory)
	}
	s.give(i)
	d.live -= n
	switch cl := s.class; {
	case s.emptying:
		cl.owed--
		if s.live == 0 {
			return true, d.retire(s)
		}
	default:
		cl.free++
		d.reorder(s)
		if s.live == 0 && s.outdated {
			return true, d.retire(s)
		}
	}
	return true, nil
}

// reorder keeps the ring of open slabs after a slot of s was freed: a slab that was full is the fullest there is and
// comes first, one that is empty comes last, so that it stays empty. Under mu.
func (d *Driver) reorder(s *slab) {
	if s.live == 0 {
		s.unlink()
		s.class.pushBack(s)
		s.emptyAt = len(d.empty)
		d.empty = append(d.empty, s)
	} else if s.freeSlots() == 1 {
		s.class.pushFront(s)
	}
}

func (d *Driver) removeEmpty(s *slab) {
	if s.emptyAt < 0 {
		return
	}
	last := d.empty[len(d.empty)-1]
	d.empty[s.emptyAt], last.emptyAt = last, s.emptyAt
	d.empty[len(d.empty)-1] = nil
	d.empty = d.empty[:len(d.empty)-1]
	s.emptyAt = -1
}

// Lookup answers the region at a handle and offset. It takes no lock.
func (d *Driver) Lookup(handle uint32, offset int64) (tier.Region, bool) {
	s := d.slab(handle)
	if s == nil {
		return tier.Region{}, false
	}
	i, n, ok := s.at(offset)
	if !ok {
		return tier.Region{}, false
	}
	return s.region(i, n), true
}

// slab finds a slab by handle; nil if there is none. Needs no lock.
func (d *Driver) slab(handle uint32) *slab {
	t := *d.table.Load()
	if handle == 0 || uint64(handle) > uint64(len(t)) {
		return nil
	}
	return t[handle-1]
}

// Usage counts now. Blank memory and free slots are Slack; page tables are in Metadata.
func (d *Driver) Usage() tier.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := tier.Usage{Capacity: d.o.CapacityBytes, Writable: !d.closed}
	if d.closed {
		return u
	}
	u.Live, u.Slack, u.Metadata = d.live, d.held-d.live, d.metadata()
	if d.resident > 0 {
		u.HugePages = float64(d.huge) / float64(d.resident)
	}
	return u
}

// metadata is what bookkeeping takes. Under mu.
func (d *Driver) metadata() int64 {
	return driverMetadata + int64(len(d.classes))*classMetadata + d.slabs*slabMetadata + d.slots*slotMetadata + d.held/pageTableFactor + d.sharing
}

// room is what can still be taken. Under mu.
func (d *Driver) room() int64 { return d.o.CapacityBytes - d.held - d.metadata() }

// Close carries out what was submitted, stops the goroutines and unmaps everything. Idempotent; a second call waits
// for the first.
func (d *Driver) Close() error {
	d.closeOnce.Do(func() {
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.mover.close()
		close(d.stop)
		d.populator.Wait()
		d.growing.Lock() // whoever is making a slab ends first
		defer d.growing.Unlock()
		d.closeErr = d.unmapAll()
	})
	return d.closeErr
}

func (d *Driver) unmapAll() error {
	d.mu.Lock()
	all := append(d.blank, d.ready...)
	for _, s := range *d.table.Load() {
		if s != nil {
			all = append(all, s.mapping)
		}
	}
	d.table.Store(new([]*slab))
	d.exported.Store(new([]*slab))
	d.classes, d.empty, d.blank, d.ready, d.cold, d.wanted = nil, nil, nil, nil, nil, nil
	d.mu.Unlock()
	errs := []error{d.unmapErr}
	for _, m := range all {
		errs = append(errs, d.o.memory.unmap(m))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close host tier: %w", err)
	}
	return nil
}

// mixed reports whether a class shares slabs among namespaces.
func mixed(c tier.Class) bool { return c.Namespace == page.NamespaceID{} }

// poison makes use after free show in tests.
func poison(b []byte) {
	for i := range b[:min(len(b), poisonBytes)] {
		b[i] = 0xDB
	}
}

const poisonBytes = 256
