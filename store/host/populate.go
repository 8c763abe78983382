package host

import (
	"fmt"
	"slices"
)

// populateBytes are made resident at a time: what an unmapping may have to wait for.
const populateBytes = 2 << 20

// runPopulator makes memory resident ahead of its use: slabs that are in use from front to back, as slots are taken,
// then the blank mapping that a class will need next.
func (d *Driver) runPopulator() {
	for {
		select {
		case <-d.stop:
			return
		case <-d.wake:
			d.prepareWanted()
			d.populateAll()
			for d.refillReady() {
				d.populateAll()
			}
		}
	}
}

func (d *Driver) wakePopulator() {
	select {
	case d.wake <- struct{}{}:
	default: // it is awake, or will be
	}
}

// populateAll works until nothing is cold or the tier closes.
func (d *Driver) populateAll() {
	for {
		m, from, to := d.coldest()
		if m == nil {
			return
		}
		huge, err := d.o.memory.populate(m, from, to)
		d.populatedTo(m, to, huge, err)
	}
}

// coldest picks the next run to populate: of slabs in use first, the newest before older ones.
func (d *Driver) coldest() (m *mapping, from, to int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, 0, 0
	}
	for _, x := range slices.Backward(d.cold) {
		if !x.busy && (m == nil || x.used && !m.used) {
			m = x
		}
	}
	if m == nil {
		return nil, 0, 0
	}
	m.busy = true
	return m, m.populated, min(m.bytes, m.populated+populateBytes)
}

// populatedTo accounts for a run. After a failure the rest of the mapping is left to its first use.
func (d *Driver) populatedTo(m *mapping, to, huge int64, err error) {
	d.mu.Lock()
	m.busy = false
	if err != nil {
		d.populateErr = err
	} else {
		d.resident += to - m.populated
		d.huge += huge
		m.populated, m.huge = to, m.huge+huge
	}
	if err != nil || to == m.bytes || m.doomed {
		d.warm(m)
	}
	doomed := m.doomed
	d.mu.Unlock()
	if doomed {
		d.discard(m)
	}
}

// warm takes a mapping from those that are to be populated. Under mu.
func (d *Driver) warm(m *mapping) {
	d.cold = slices.DeleteFunc(d.cold, func(x *mapping) bool { return x == m })
}

// prepareWanted makes the next slab of a class that is running out, as a blank mapping, unless one is there or
// memory is getting short.
func (d *Driver) prepareWanted() {
	d.mu.Lock()
	cl := d.wanted
	d.wanted = nil
	if d.closed || cl == nil || d.classes[cl.key] != cl {
		d.mu.Unlock()
		return
	}
	due := cl.nextBytes
	size := max(1, due/cl.key.Bytes) * cl.key.Bytes
	there := slices.ContainsFunc(d.blank, func(m *mapping) bool { return m.bytes >= due/2 && m.bytes <= max(due*2, size) })
	d.mu.Unlock()
	if !there {
		_ = d.prepare(size) // the class asks again, and is then told
	}
}

// prepare adds a blank mapping if at least as much room is left after it.
func (d *Driver) prepare(size int64) error {
	d.growing.Lock()
	defer d.growing.Unlock()
	d.mu.Lock()
	if d.closed || d.room() < 2*(size+mappingCost(size)) {
		d.mu.Unlock()
		return nil
	}
	d.reserve(size, 0)
	d.mu.Unlock()
	m, err := d.o.memory.mapping(size, false)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.unreserve(size, 0)
		return fmt.Errorf("map %d bytes: %w", size, err)
	}
	d.blank = append(d.blank, m)
	d.cold = append(d.cold, m)
	return nil
}

// Warnings says in one line each what makes this tier slower than it could be, and what to do about it. Empty when
// nothing does. It is known from the first slab on, so right after New; of a tier too small for slabs of 2 MiB nothing
// is said about huge pages.
func (d *Driver) Warnings() []string {
	u := d.Usage()
	d.mu.Lock()
	resident, failed, unshared := d.resident, d.populateErr, d.shareErr
	d.mu.Unlock()
	var w []string
	if hint := d.o.memory.hint(); hint != "" && resident > 0 && d.firstBytes >= hugePageBytes && u.HugePages < enoughHugePages {
		w = append(w, fmt.Sprintf("host tier: %.0f%% of memory is in huge pages; copies out of 4 KiB pages run at about 0.8 of memcpy and checksums at three quarters of their speed, instead of 0.98 and all: %s",
			100*u.HugePages, hint))
	}
	if failed != nil {
		w = append(w, fmt.Sprintf("host tier: memory could not be prepared ahead of use, first writes are about ten times slower: %v", failed))
	}
	if unshared != nil {
		w = append(w, fmt.Sprintf("host tier: memory cannot be shared with clients on this host, they get bytes over their socket: %v", unshared))
	}
	return w
}

// enoughHugePages is the share below which an operator is told: ends of slabs are in 4 KiB pages anyway.
const enoughHugePages = 0.75
