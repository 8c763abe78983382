package host

import (
	"slices"

	"github.com/quire-kv/quire/store/tier"
)

// Ready memory is made and populated before anybody asks for it, for the slabs of namespaces: those cannot be cut from
// blank memory, which others had, and what a purge takes back is unmapped. First writes into fresh memory would wait
// for the kernel to clear it.
//
//	New, memory given up ──> one of each size that a class grows through, then largest ones up to Options.ReadyBytes
//	takeInNewSlab        ──> the smallest that is large enough, cut to size, shared
//	room is short        ──> unmapped
//
// It is refilled when less than a part of it is left and when memory was given up, not after each slab: a burst of
// writes would share its cores with the refilling.

// refillBelow is the part of ReadyBytes below which it is refilled at once: one in so many.
const refillBelow = 4

// fittingReady takes the smallest ready mapping that holds n bytes and is not half empty then. Under mu.
func (d *Driver) fittingReady(n int64) *mapping {
	best := -1
	for i, m := range d.ready {
		if !m.busy && m.bytes >= n && m.bytes/2 < n && (best < 0 || m.bytes < d.ready[best].bytes) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	m := d.ready[best]
	d.ready = slices.Delete(d.ready, best, best+1)
	d.warm(m) // nobody populates it while it is cut
	if d.sumReady() < d.o.ReadyBytes/refillBelow {
		d.refill = true
		d.wakePopulator()
	}
	return m
}

// sumReady is how much is ready. Under mu.
func (d *Driver) sumReady() (n int64) {
	for _, m := range d.ready {
		n += m.bytes
	}
	return n
}

// dropReady takes ready mappings until need bytes come free. One that is being populated stays. Under mu.
func (d *Driver) dropReady(need int64) (gone []*mapping) {
	d.ready = slices.DeleteFunc(d.ready, func(m *mapping) bool {
		if need <= 0 || m.busy {
			return false
		}
		need -= m.bytes + mappingCost(m.bytes)
		gone = append(gone, m)
		return true
	})
	return gone
}

// shareReady cuts a ready mapping to size and shares it as a slab of slots slots. What could not be cut is unmapped;
// nil then. It is in no list; with growing, without mu.
func (d *Driver) shareReady(m *mapping, slotBytes, slots int64) *mapping {
	whole := m.bytes
	err := d.o.memory.trim(m, slots*slotBytes)
	if err != nil {
		d.discard(m)
		return nil
	}
	d.mu.Lock()
	d.held -= whole - m.bytes
	if m.populated >= m.bytes {
		d.resident -= m.populated - m.bytes
		m.populated = m.bytes
	} else {
		d.cold = append(d.cold, m)
		d.wakePopulator()
	}
	huge := min(m.huge, m.bytes&^(hugePageBytes-1))
	d.huge -= m.huge - huge
	m.huge = huge
	m.extra = generationBytes(slots) + exportMetadata
	d.sharing += m.extra
	d.exports++
	number := d.exports
	d.mu.Unlock()
	e, unshared := d.o.memory.share(m, number, slotBytes, slots)
	d.mu.Lock()
	defer d.mu.Unlock()
	m.private, m.export = true, e
	if unshared != nil {
		d.shareErr = unshared
	}
	return m
}

// refillReady makes the next mapping that is missing; false: nothing is, or there is no room for it.
func (d *Driver) refillReady() bool {
	d.growing.Lock()
	defer d.growing.Unlock()
	d.mu.Lock()
	n := d.missingReady()
	if d.closed || !d.refill || n == 0 || d.room() < 2*(n+mappingCost(n)) {
		d.refill = false
		d.mu.Unlock()
		return false
	}
	d.reserve(n, 0)
	d.mu.Unlock()
	m, err := d.o.memory.reserve(n)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.unreserve(n, 0)
		d.refill = false
		return false
	}
	d.ready = append(d.ready, m)
	d.cold = append(d.cold, m)
	return true
}

// missingReady is the size of the mapping to make next; 0: none. Under mu.
func (d *Driver) missingReady() int64 {
	if d.sumReady() >= d.o.ReadyBytes {
		return 0
	}
	for n := d.firstBytes; n < d.slabBytes; n *= 2 {
		if !slices.ContainsFunc(d.ready, func(m *mapping) bool { return m.bytes == n }) {
			return n
		}
	}
	return d.slabBytes
}

// refillSoon has the populator refill what is ready, memory having been given up. Under mu.
func (d *Driver) refillSoon() {
	if d.o.ReadyBytes > 0 && !d.closed {
		d.refill = true
		d.wakePopulator()
	}
}

// readyFor takes and shares ready memory for a slab of c. nil: there is none, or it is not worth it. With growing, under
// mu, which it gives up meanwhile.
func (d *Driver) readyFor(c tier.Class, slots int64) *mapping {
	if mixed(c) || d.room() < costOfSharing(slots, c)+slots*slotMetadata+classMetadata {
		return nil
	}
	m := d.fittingReady(slots * c.Bytes)
	if m == nil {
		return nil
	}
	d.makingSlab = true
	d.mu.Unlock()
	m = d.shareReady(m, c.Bytes, slots)
	d.mu.Lock()
	d.makingSlab = false
	return m
}
