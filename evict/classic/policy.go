// Package classic is the cache policies that Quire's own is measured against, each as its paper has it, behind the
// interface that the store uses: for replay of traces, not for the store.
//
// All of them are fitted to a tree of prefixes in the same way: a page that is not evictable (a child of it is resident,
// or a request is using it) stays where it is in the policy's order and is stepped over; the victim is the first in
// that order that may go. Every page has one size. Each policy ranks evict.Host alone, answers one victim at a time,
// takes every page in (what it admits is decided by what it evicts), and knows neither shares nor hints.
//
// Choices at random come from a seed and the number of changes so far, so equal calls make equal decisions.
package classic

import (
	"unsafe"

	"github.com/quire-kv/quire/evict"
)

// Policy is one of the classic policies. It is not safe for concurrent use: Victims too changes it.
type Policy struct {
	*table
	rule   rule
	doomed order
	chosen evict.Ref // the last victim, until something happened to it: asked twice, the answer is the same
}

var _ evict.Policy = (*Policy)(nil)

// rule is what makes one policy different from another. Refs are of known pages that are not doomed.
type rule interface {
	insert(r evict.Ref)               // new
	touch(r evict.Ref)                // used again
	edge(r evict.Ref)                 // its evictable has changed
	remove(r evict.Ref, evicted bool) // going
	victim(now float64) evict.Ref     // 0: none is evictable
	footprint() uint64                // bytes beside the table
}

// table is what is known of the pages.
type table struct {
	pages []page
	clock uint64  // changes so far
	now   float64 // of the last use
}

type page struct {
	tag       uint64
	parent    uint64 // its tag; 0: none or not known
	flops     float64
	bytes     uint64
	used      float64 // seconds
	entered   uint64  // clock of Insert, or of the last move from one queue to another
	last      uint64  // clock of the last use
	uses      uint32  // since Insert, which is the first
	part      uint8   // which queue of the rule it is in
	known     bool
	evictable bool
	doomed    bool
	marked    bool // the rule's own
}

func (t *table) at(r evict.Ref) *page { return &t.pages[r] }

func (t *table) has(r evict.Ref) bool { return int(r) < len(t.pages) && t.pages[r].known }

func newPolicy(make func(t *table) rule) *Policy {
	t := &table{}
	return &Policy{table: t, rule: make(t)}
}

// Insert makes or updates a page.
func (p *Policy) Insert(now float64, r evict.Ref, a evict.Attrs) {
	for int(r) >= len(p.pages) {
		p.pages = append(p.pages, page{})
	}
	g := p.at(r)
	if g.known { // no use, so no time passes
		g.flops, g.bytes = a.FLOPs, a.Bytes
		if a.Doomed && !g.doomed {
			p.doom(r)
		}
		return
	}
	p.clock++
	p.now = now
	*g = page{tag: a.KeyTag, flops: a.FLOPs, bytes: a.Bytes, used: now, entered: p.clock, last: p.clock, uses: 1, known: true}
	if p.has(a.Parent) {
		g.parent = p.at(a.Parent).tag
	}
	if p.rule.insert(r); a.Doomed {
		p.doom(r)
	}
}

// doom takes a page out of the rule's hands for good.
func (p *Policy) doom(r evict.Ref) {
	p.rule.remove(r, false)
	g := p.at(r)
	g.doomed = true
	p.forget(r)
	p.doomed.set(r, g.evictable, rank{b: g.last})
}

// Remove forgets a page.
func (p *Policy) Remove(_ float64, r evict.Ref, evicted bool) {
	if !p.has(r) {
		return
	}
	p.clock++
	p.forget(r)
	if g := p.at(r); g.doomed {
		p.doomed.set(r, false, rank{})
	} else {
		p.rule.remove(r, evicted)
	}
	*p.at(r) = page{}
}

// Touch records a use.
func (p *Policy) Touch(now float64, r evict.Ref) {
	if !p.has(r) || p.at(r).doomed {
		return
	}
	p.clock++
	p.now = now
	p.forget(r)
	g := p.at(r)
	g.uses++
	p.rule.touch(r)
	g.used, g.last = now, p.clock
	p.rule.edge(r)
}

// SetEvictable says whether r may be a victim of evict.Host; other tiers are not ranked.
func (p *Policy) SetEvictable(r evict.Ref, t evict.Tier, ok bool) {
	if t != evict.Host || !p.has(r) || p.at(r).evictable == ok {
		return
	}
	p.clock++
	g := p.at(r)
	g.evictable = ok
	p.forget(r)
	if g.doomed {
		p.doomed.set(r, ok, rank{b: g.last})
	} else {
		p.rule.edge(r)
	}
}

// Victims appends the next victim. It moves pages between the policy's queues, as the papers do on eviction.
func (p *Policy) Victims(now float64, t evict.Tier, _ uint64, _ *evict.Shares, dst []evict.Victim) []evict.Victim {
	if t != evict.Host {
		return dst
	}
	if r := p.doomed.first(); r != 0 {
		return append(dst, evict.Victim{Ref: r, Score: doomedScore})
	}
	if p.chosen == 0 {
		p.chosen = p.rule.victim(now)
	}
	if p.chosen == 0 {
		return dst
	}
	return append(dst, evict.Victim{Ref: p.chosen, Score: victimScore})
}

// Scores only say that a new page is always worth more than the victim, and a doomed one less.
const (
	doomedScore evict.Score = -1
	victimScore evict.Score = 0
	newScore    evict.Score = 1
)

// Worth is more for a new page than for any that is there.
func (p *Policy) Worth(_ float64, r evict.Ref, _ evict.Tier, a evict.Attrs) evict.Score {
	switch {
	case a.Doomed || r != 0 && p.has(r) && p.at(r).doomed:
		return doomedScore
	case r != 0 && p.has(r):
		return victimScore
	}
	return newScore
}

// Pass is not heard: nothing is ever refused.
func (p *Policy) Pass(float64, []evict.Attrs) {}

// Resize is not heard: the capacity is fixed.
func (p *Policy) Resize(evict.Tier, uint64, uint64) {}

// SetLoading is not heard: costs are those of Insert.
func (p *Policy) SetLoading(evict.Tier, evict.Loading) {}

// FootprintBytes is what is held.
func (p *Policy) FootprintBytes() uint64 {
	return uint64(len(p.pages))*uint64(unsafe.Sizeof(page{})) + p.doomed.footprint() + p.rule.footprint()
}

func (p *Policy) forget(r evict.Ref) {
	if p.chosen == r {
		p.chosen = 0
	}
}
