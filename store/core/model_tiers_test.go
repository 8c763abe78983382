package core

import (
	"slices"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
)

// evictable: committed in the tier, no child there, and copies elsewhere or a leaf, that nothing holds there. copied
// lists the tiers to which a page is being copied, its own included for a move.
func (m *model) evictable(k mkey, t evict.Tier, copied func(mkey) []evict.Tier) bool {
	p := m.pages[k]
	_, _, open := m.cells(p)
	if open != 0 || len(copied(k)) > 0 || p.life.pins > 0 && p.life.bytes[t] > 0 {
		return false
	}
	there, sole := false, false
	for _, e := range p.ext {
		if _, ok := e.in(t); ok {
			there, sole = true, sole || len(e.places) == 1
		}
	}
	if !there || sole && (p.life.pins > 0 || m.hasLiveChild(k)) {
		return false
	}
	for c, q := range m.pages {
		if q.parent == nil || *q.parent != k {
			continue
		}
		for _, e := range q.ext {
			if _, ok := e.in(t); ok || e.pub != nil && t == evict.Host {
				return false
			}
		}
		if slices.Contains(copied(c), t) {
			return false
		}
	}
	return true
}

// evict takes a page out of a tier.
func (m *model) evict(k mkey, t evict.Tier) {
	p := m.pages[k]
	last := true
	for _, e := range p.ext {
		for _, at := range e.places {
			last = last && at.Tier == t
		}
	}
	if last {
		m.end(k)
		return
	}
	for _, e := range p.ext {
		if at, ok := e.in(t); ok {
			e.drop(at)
		}
	}
	p.ext = slices.DeleteFunc(p.ext, func(e *mextent) bool { return e.pub == nil && len(e.places) == 0 })
}

// restart forgets all that was in memory, and of what was on Disk what expired.
func (m *model) restart(wall clock.Wall) {
	m.pubs, m.held, m.lease, m.gone = map[Token]*mpub{}, map[Principal]*mlease{}, map[LeaseID]*mlease{}, nil
	for k, p := range m.pages {
		p.life = &mlife{key: k}
		kept := p.ext[:0:0]
		for _, e := range p.ext {
			if at, ok := e.in(evict.Disk); ok && (p.expiry == 0 || wall < p.expiry) {
				e.places = []Place{at}
				kept = append(kept, e)
			}
		}
		if p.ext = kept; len(kept) == 0 {
			p.parent, p.known, p.expiry = nil, false, 0
		}
	}
	m.gc()
}
