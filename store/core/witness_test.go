package core

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
)

// witness notes what a shard tells its policy.
type witness struct {
	evict.Policy
	pages   map[evict.Ref]*witnessed
	passed  [][]evict.Attrs
	resized [evict.NumTiers]holding
	resizes int
	hints   map[evict.Ref]evict.Hint
	touches map[evict.Ref]int // since it came
}

type witnessed struct {
	attrs evict.Attrs
	from  tierSet
	gone  bool
}

func newWitness(p evict.Policy) *witness {
	return &witness{Policy: p, pages: map[evict.Ref]*witnessed{}, hints: map[evict.Ref]evict.Hint{}, touches: map[evict.Ref]int{}}
}

// witnessOf wraps a policy, but for benchmarks.
func witnessOf(t fatalist, p evict.Policy) evict.Policy {
	if _, bench := t.(*testing.B); bench {
		return p
	}
	return newWitness(p)
}

func (w *witness) Insert(now float64, ref evict.Ref, a evict.Attrs) {
	if p := w.pages[ref]; p == nil || p.gone {
		w.pages[ref] = &witnessed{}
		delete(w.hints, ref)
		delete(w.touches, ref)
	}
	w.pages[ref].attrs = a
	if a.Hint != (evict.Hint{}) {
		w.hints[ref] = a.Hint
	}
	w.Policy.Insert(now, ref, a)
}

func (w *witness) Remove(now float64, ref evict.Ref, evicted bool) {
	*w.pages[ref] = witnessed{gone: true, attrs: w.pages[ref].attrs}
	w.Policy.Remove(now, ref, evicted)
}

func (w *witness) Touch(now float64, ref evict.Ref) {
	w.touches[ref]++
	w.Policy.Touch(now, ref)
}

func (w *witness) SetEvictable(ref evict.Ref, t evict.Tier, ok bool) {
	p := w.pages[ref]
	if p.from &^= 1 << t; ok {
		p.from |= 1 << t
	}
	w.Policy.SetEvictable(ref, t, ok)
}

func (w *witness) Pass(now float64, run []evict.Attrs) {
	w.passed = append(w.passed, slices.Clone(run))
	w.Policy.Pass(now, run)
}

func (w *witness) Resize(t evict.Tier, bytes, pages uint64) {
	w.resized[t] = holding{bytes, pages}
	w.resizes++
	w.Policy.Resize(t, bytes, pages)
}

// checkLeaves holds what the policy was told against the set of leaves recomputed from the records alone: no counter,
// no flag of a page is looked at.
func (w *world) checkLeaves() error {
	p, ok := w.s.o.Policy.(*witness)
	if !ok {
		return nil
	}
	s := w.s
	moving := map[uint32]bool{}
	for _, t := range s.transfers {
		moving[t.from], moving[t.into] = true, true
	}
	pinned := map[uint32]tierBytes{}
	for slot, n := range s.pins {
		pinned[slot] = n.bytes
	}
	type child struct{ any, near tierSet }
	children := map[uint32]child{}
	for i := uint32(1); i <= s.pages.top; i++ {
		if pg := s.pages.At(i); pg.family != 0 && pg.parent != 0 {
			c := children[pg.parent]
			for x := pg.extents; x != 0; x = s.extents.At(x).next {
				c.any |= 1
				c.near |= 1 << s.extents.At(x).tier()
			}
			children[pg.parent] = c
		}
	}
	known := 0
	for i := uint32(1); i <= s.pages.top; i++ {
		pg := s.pages.At(i)
		var in, sole, want tierSet
		busy := false
		copies := map[string][]evict.Tier{}
		if pg.family != 0 {
			for x := pg.extents; x != 0; x = s.extents.At(x).next {
				e := s.extents.At(x)
				busy = busy || e.state() == extentOpen || moving[x]
				if e.state() == extentCommitted {
					in |= 1 << e.tier()
					copies[e.view.String()] = append(copies[e.view.String()], e.tier())
				}
			}
		}
		for _, c := range copies {
			if len(c) == 1 {
				sole |= 1 << c[0]
			}
		}
		if !busy {
			bytes, isPinned := pinned[i]
			for t := range evict.NumTiers {
				stays := children[i].near.has(t) || bytes[t] > 0 || sole.has(t) && (children[i].any != 0 || isPinned)
				if in.has(t) && !stays {
					want |= 1 << t
				}
			}
		}
		got := p.pages[evict.Ref(i)]
		if (got != nil && !got.gone) != (in != 0) {
			return fmt.Errorf("page %d: the policy knows it: %v; it has extents in %b", i, got != nil && !got.gone, in)
		}
		if in == 0 {
			continue
		}
		if known++; got.from != want {
			return fmt.Errorf("page %d: the policy may evict it from %b, should be %b", i, got.from, want)
		}
		if resting := s.sweep.cursor == 0 && !s.sweep.again; resting {
			if share := evict.Share(s.epochOf(i).account.share.Load()); got.attrs.Share != share {
				return fmt.Errorf("page %d: share %d, should be %d", i, got.attrs.Share, share)
			}
			if f := s.families.at(pg.family); got.attrs.Tenant != f.ep.state.Tenant || got.attrs.Depth != pg.depth {
				return fmt.Errorf("page %d: told %+v", i, got.attrs)
			}
		}
	}
	return nil
}

// guarantees is what tenants have before a Reclaim.
type guarantees struct {
	live  map[uint32]tierBytes
	quota map[uint32]TenantQuota
	dooms map[uint32]bool // by slot
	burst bool            // the one who asks is beyond its own
}

// promised says whether anybody has a guarantee.
func (l *Ledger) promised() bool { return l.tenants.promised != tierBytes{} }

func (w *world) guarantees(r Reclaim) *guarantees {
	g := &guarantees{map[uint32]tierBytes{}, map[uint32]TenantQuota{}, map[uint32]bool{}, true}
	w.s.wall = w.wall // by which the Step will say what has expired
	for i := uint32(1); i <= w.s.pages.top && w.s.o.Ledger.promised(); i++ {
		if p := w.s.pages.At(i); p.has(flagCommitted) {
			f := w.s.families.at(p.family)
			t := w.s.tally(p, f.ep)
			g.dooms[i] = w.s.attrs(p, f, &t).Doomed
		}
	}
	for tenant, a := range w.s.o.Ledger.tenants.accounts {
		g.live[tenant], g.quota[tenant] = a.live, a.quota
	}
	g.burst = w.s.o.Ledger.bursts(r.Tenant, r.Tier)
	return g
}

// checkEvictions goes over what a Reclaim evicted: nobody within their guarantee loses a page that is not doomed to who is
// beyond theirs, nor, while a tenant is beyond its own, to anybody else; who makes room for themselves may take what is theirs.
func (w *world) checkEvictions(r Reclaim, before *guarantees, effects []Effect) {
	w.t.Helper()
	p, ok := w.s.o.Policy.(*witness)
	if !ok {
		return
	}
	over := func(tenant uint32) bool { return before.live[tenant][r.Tier] > before.quota[tenant].Guarantee[r.Tier] }
	for _, e := range effects {
		a, ok := e.(Announce)
		if !ok || !a.Removed || a.Why != reason.None {
			continue
		}
		attrs := p.pages[evict.Ref(a.Ref.Slot)].attrs
		someone := false
		for tenant := range before.live {
			someone = someone || over(tenant)
		}
		if !over(attrs.Tenant) && !attrs.Doomed && !before.dooms[a.Ref.Slot] { // told so, or due to be
			switch mine := r.Own && attrs.Tenant == r.Tenant; {
			case !mine && (!r.Own || before.burst):
				w.t.Fatalf("tenant %d lost a page within its guarantee to %+v: %+v", attrs.Tenant, r, before)
			case !mine && someone:
				w.t.Fatalf("tenant %d lost a page within its guarantee to %+v while others are beyond theirs: %+v", attrs.Tenant, r, before)
			}
		}
		live := before.live[attrs.Tenant]
		live[r.Tier] -= roundUp(uint64(a.Place.Bytes))
		before.live[attrs.Tenant] = live
	}
}
