package core

import (
	"runtime"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// Exists sets one bit per hash of r, from bit at, least significant first, and returns the count of leading hits
// and of all. The zero View asks for whole pages. It changes nothing, refreshes nothing, pins nothing. why is the
// reason when the whole run is a miss: Retired, StaleEpoch, Absent (namespace or group unknown), InvalidView, InvalidSpec
// (not whole hashes of the namespace's size).
func (s *Shard) Exists(wall clock.Wall, r *Run, v page.View, bits []byte, at int) (leading, hits int, why reason.Reason) {
	h, ep, why := s.resolve(&r.Family)
	if why != reason.None {
		return 0, 0, why
	}
	size := ep.state.HashBytes
	n := hashCount(r, size)
	if n == 0 && len(r.Hashes) > 0 {
		return 0, 0, reason.InvalidSpec
	}
	geo := ep.state.Groups[r.Family.Group]
	if v, why = viewIn(&geo, v); why != reason.None || h == 0 {
		return 0, 0, why
	}
	leading = n
	var fps [probeBatch]fingerprint
	var slots [probeBatch]uint32
	for first := 0; first < n; first += probeBatch {
		k := min(n-first, probeBatch)
		for j := range k {
			fps[j] = fingerprintOf(r.Hashes[(first+j)*size:][:size], s.o.FingerprintKey)
		}
		s.index.findBatch(fps[:k], h, &slots)
		for j, i := range slots[:k] {
			if i == 0 || s.served(s.pages.At(i), ep, v, wall) != reason.None {
				leading = min(leading, first+j)
				continue
			}
			hits++
			bit := at + first + j
			bits[bit>>3] |= 1 << (bit & 7)
		}
	}
	runtime.KeepAlive(s)
	return leading, hits, reason.None
}

// served says whether view v of a page would be served at wall, and why not.
func (s *Shard) served(p *pageRecord, ep *epoch, v page.View, wall clock.Wall) reason.Reason {
	if p.expired(wall) {
		return reason.Expired
	}
	return s.covers(p, ep, v)
}

// covers says whether accepted committed extents cover v: None, Absent, Incomplete or Provenance. A complete page whose
// extents agree takes no look at them.
func (s *Shard) covers(p *pageRecord, ep *epoch, v page.View) reason.Reason {
	if p.flags&(flagComplete|flagCommitted) == flagComplete|flagCommitted && p.lineage != mixedLineage {
		if ep.lineages.accepted(p.lineage) {
			return reason.None
		}
		return reason.Provenance
	}
	if !p.has(flagCommitted) {
		return reason.Absent
	}
	c := coverage{view: v}
	for i := p.extents; i != 0; i = s.extents.At(i).next {
		c.add(s.extents.At(i), &ep.lineages)
	}
	return c.reason()
}

// coverage sums the cells of disjoint extents within a view, whose copies come one after the other: those under way too,
// which are never alone.
type coverage struct {
	view             page.View
	last             page.View // of the extent counted last
	accepted, hidden int       // cells
}

func (c *coverage) add(x *extentRecord, t *lineageTable) {
	if x.state() == extentOpen || x.view == c.last {
		return
	}
	c.last = x.view
	n := c.view.Intersect(x.view).Cells()
	if t.accepted(x.lineage) {
		c.accepted += n
	} else {
		c.hidden += n
	}
}

func (c *coverage) reason() reason.Reason {
	switch want := c.view.Cells(); {
	case c.accepted == want:
		return reason.None
	case c.accepted+c.hidden == want:
		return reason.Provenance
	}
	return reason.Incomplete
}

// Servable says, after a transfer and before its OK trailer, whether the page may still be served: None, or
// Retired, StaleEpoch, Provenance (a waiver ended), Corrupt. A page deleted or evicted in the meantime is servable
// while its bytes are pinned by the read.
func (s *Shard) Servable(id page.NamespaceID, e page.Epoch, parts []Part) reason.Reason {
	ep, why := s.epochs.open(id, e)
	if why != reason.None {
		return why
	}
	for i := range parts {
		x := s.extents.At(parts[i].Extent)
		if x.state() == extentRotten {
			return reason.Corrupt
		}
		if !ep.lineages.accepted(x.lineage) {
			return reason.Provenance
		}
	}
	runtime.KeepAlive(s)
	return reason.None
}
