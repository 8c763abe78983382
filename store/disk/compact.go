package disk

import (
	"github.com/quire-kv/quire/store/tier"
)

// worthDead is the share of a segment that must be dead before it is cleaned: below it, what would be written is better
// evicted. It trades how often bytes are written for how full the tier gets. Measured with `quire bench disk --rows churn`:
// nine tenths of the capacity, overwritten five times by a Zipf law, device bytes per byte published and share of the
// pages kept:
//
//	0.25: 2.17, 0.75     0.5: 1.73, 0.71     0.55: 1.54, 0.67     0.6: 1.40, 0.64
const worthDead = 0.55

// Compact picks the segment whose cleaning wins most for what it moves. Segments whose last region was freed go by
// themselves. 0: nothing is worth it, or the space that is kept free for cleaning is in use.
func (d *Driver) Compact(dst []tier.Resident) (uint32, []tier.Resident) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.takesBytes() != nil {
		return 0, dst
	}
	s := d.victim()
	if s == nil {
		return 0, dst
	}
	s.emptying = true
	d.emptying++
	before := len(dst)
	dst = s.residents(dst)
	for _, r := range dst[before:] {
		d.movers[r.Owner] = s
	}
	return s.handle, dst
}

// victim is the sealed segment with the largest dead share that can be emptied now. Under mu.
func (d *Driver) victim() (best *segment) {
	var owed int64
	for _, s := range d.byNumber {
		if s.emptying {
			owed += s.liveRounded
		}
	}
	rest := -owed // of the segment that takes what is moved
	if c := d.cold; c != nil && !c.sealed {
		rest += c.size - c.end
	}
	most := 0.0
	segments := int64(d.emptying+1) * (d.sizes.segment + d.sizes.growth)
	for _, s := range d.byNumber {
		if !s.sealed || s.emptying || s.gone || s.open > 0 || float64(s.dead()) < worthDead*float64(s.size) {
			continue
		}
		if s.liveRounded > rest && segments > d.room(s.moves()) {
			continue
		}
		if v := d.worth(s); best == nil || v > most || v == most && s.number < best.number {
			best, most = s, v
		}
	}
	return best
}

// worth is what cleaning s wins for what it costs, as in log-structured file systems (Rosenblum and Ousterhout 1992): the
// space, times how long it has been and so will be free, by what is read and written. The same share of dead bytes is worth
// more in a segment that changes no more than in one whose regions still end by themselves. Under mu.
func (d *Driver) worth(s *segment) float64 {
	age := float64(d.seq.Load()-s.sealedAt) + 1
	return float64(s.dead()) * age / float64(s.size+s.liveRounded)
}

// moves is how many regions there will be more until the segment is gone.
func (s *segment) moves() int64 { return int64(s.live) }

// Keep ends the emptying of a segment that Compact picked. One that is gone, or was never picked, is left alone.
func (d *Driver) Keep(handle uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.segment(handle); s != nil {
		d.keep(s)
	}
}

// keep ends the emptying of s. Under mu.
func (d *Driver) keep(s *segment) {
	if !s.emptying {
		return
	}
	s.emptying = false
	d.emptying--
	for i := range s.regions {
		if r := &s.regions[i]; r.has(regionLive) {
			delete(d.movers, r.owner)
		}
	}
}
