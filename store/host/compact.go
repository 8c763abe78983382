package host

import "github.com/quire-kv/quire/store/tier"

// Compact releases an empty slab at once (no residents), or picks the sparsest slab whose regions fit into the free
// slots of the other slabs of its class. It looks at every slab, and at every slot of one.
func (d *Driver) Compact(dst []tier.Resident) (uint32, []tier.Resident) {
	d.mu.Lock()
	if n := len(d.empty); n > 0 {
		s := d.empty[n-1]
		gone := d.retire(s)
		d.mu.Unlock()
		d.discard(gone)
		return s.handle, dst
	}
	defer d.mu.Unlock()
	s := d.sparsest()
	if s == nil {
		return 0, dst
	}
	s.emptying = true
	s.unlink()
	s.class.free -= s.freeSlots()
	s.class.owed += s.live
	for i := range s.fresh {
		if _, n, ok := s.at(int64(i) * s.classBytes); ok {
			dst = append(dst, tier.Resident{Owner: s.slots[i].owner, Region: s.region(i, n)})
		}
	}
	return s.handle, dst
}

// sparsest is the slab with the smallest share of live slots of those that can be emptied. Under mu.
func (d *Driver) sparsest() (best *slab) {
	for _, s := range *d.table.Load() {
		if s == nil || s.emptying || s.live > s.class.free-s.freeSlots()-s.class.owed {
			continue
		}
		if best == nil || s.live*len(best.slots) < best.live*len(s.slots) {
			best = s
		}
	}
	return best
}

// Keep ends the emptying of a slab that Compact picked. A slab that is gone, or was never picked, is left alone.
func (d *Driver) Keep(handle uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.slab(handle)
	if s == nil || !s.emptying {
		return
	}
	s.emptying = false
	s.class.owed -= s.live
	s.class.free += s.freeSlots()
	if s.freeSlots() > 0 {
		s.class.pushBack(s)
	}
}
