package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// spaces keeps the store told of every namespace, and what the handlers need of each one resolved.
//
//	registry change ──push──> earlier epoch Retired ──> epoch in its state ──> answered
//	waiver's end ──timer──> push again: the store asks anew what is accepted
//
// Pushes are serialised, so an older revision never overwrites a newer one. A handler that changed the registry
// pushes before it answers; the follower pushes what was changed elsewhere.
type spaces struct {
	store *store.Store
	clock clock.Clock

	push sync.Mutex // serialises SetNamespace; taken before mu
	mu   sync.RWMutex
	m    map[page.NamespaceID]*space // guarded by mu
	done bool                        // guarded by mu: no more timers
}

// space is a namespace's epoch as pushed. Immutable but for used, provenances and the timer.
type space struct {
	id        page.NamespaceID
	epoch     page.Epoch
	revision  namespace.Revision
	hashBytes int
	groups    map[page.GroupID]core.Geometry

	used        atomic.Bool // since the registry was told last
	provenances sync.Map    // namespace.ProvenanceID -> uint16; only those that Open registered
	stop        func() bool // of the timer at the next waiver's end; guarded by spaces.push
}

func newSpaces(s *store.Store, c clock.Clock) *spaces {
	return &spaces{store: s, clock: c, m: map[page.NamespaceID]*space{}}
}

// of is the space of ns, pushed at need: the registry may know of a change before the follower does.
func (t *spaces) of(ns *namespace.Namespace) *space {
	t.mu.RLock()
	s := t.m[ns.ID]
	t.mu.RUnlock()
	if s != nil && s.revision >= ns.Revision {
		return s
	}
	return t.set(ns)
}

// set tells the store of ns unless it knows a newer revision. When it returns, no new call is answered by the old
// state.
func (t *spaces) set(ns *namespace.Namespace) *space {
	t.push.Lock()
	defer t.push.Unlock()
	t.mu.RLock()
	old := t.m[ns.ID]
	t.mu.RUnlock()
	if old != nil && old.revision > ns.Revision {
		return old
	}
	return t.tell(ns, old)
}

// tell runs under push.
func (t *spaces) tell(ns *namespace.Namespace, old *space) *space {
	s := &space{id: ns.ID, epoch: ns.Epoch, revision: ns.Revision}
	n := storeNamespace(ns, t.store.Tenant(ns.Tenant), t.clock.Wall().Time())
	s.hashBytes, s.groups = n.State.HashBytes, n.State.Groups
	if old != nil {
		s.used.Store(old.used.Load())
		if old.stop != nil {
			old.stop()
		}
		if old.epoch != ns.Epoch {
			t.store.SetNamespace(retired(n, old.epoch))
		}
	}
	t.store.SetNamespace(n)
	t.mu.Lock()
	t.m[ns.ID] = s
	done := t.done
	t.mu.Unlock()
	if next := ns.NextExpiry(t.clock.Wall().Time()); !next.IsZero() && !done {
		s.stop = t.clock.AfterFunc(next.Sub(t.clock.Wall().Time()), func() { t.again(ns) })
	}
	return s
}

// again pushes ns once more, if it is still the newest: a waiver of it ended.
func (t *spaces) again(ns *namespace.Namespace) {
	t.push.Lock()
	defer t.push.Unlock()
	t.mu.RLock()
	s, done := t.m[ns.ID], t.done
	t.mu.RUnlock()
	if !done && s.revision == ns.Revision {
		t.tell(ns, s)
	}
}

// takeUsed lists the namespaces used since the last call.
func (t *spaces) takeUsed() []page.NamespaceID {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var ids []page.NamespaceID
	for id, s := range t.m {
		if s.used.Swap(false) {
			ids = append(ids, id)
		}
	}
	return ids
}

// count is the number of namespaces that the store was told of.
func (t *spaces) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.m)
}

// close stops the timers. A timer that runs already finds done and does nothing.
func (t *spaces) close() {
	t.push.Lock()
	defer t.push.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	for _, s := range t.m {
		if s.stop != nil {
			s.stop()
		}
	}
}

// storeNamespace is what the store is told of ns at a time.
func storeNamespace(ns *namespace.Namespace, tenant uint32, now time.Time) store.Namespace {
	return store.Namespace{
		State: core.NamespaceState{
			ID: ns.ID, Epoch: ns.Epoch, Life: lifeOf(ns.State), Tenant: tenant, Groups: geometryOf(ns.Spec),
			Strict: ns.Spec.Strict, HashBytes: ns.Spec.HashBytes(), Quota: ns.Policy.QuotaBytes,
		},
		DefaultExpiry: ns.Policy.DefaultExpiry,
		Accepts:       func(canonical []byte) bool { return ns.Accepts(canonical, now) },
	}
}

// retired is n's earlier epoch, put out of reach.
func retired(n store.Namespace, e page.Epoch) store.Namespace {
	n.State.Epoch, n.State.Life = e, core.Retired
	return n
}

func lifeOf(s namespace.State) core.Life {
	switch s {
	case namespace.Active:
		return core.Active
	case namespace.Draining:
		return core.Draining
	}
	return core.Retired
}

// geometryOf resolves the groups of a spec.
func geometryOf(s *namespace.Spec) map[page.GroupID]core.Geometry {
	infos := s.GroupInfos()
	var flops func(start, end uint64) float64 // nil for a shape that is not given
	if shape, ok := cost.ShapeOf(s); ok {
		flops = shape.SpanFLOPs
	}
	out := make(map[page.GroupID]core.Geometry, len(infos))
	for _, g := range infos {
		out[g.ID] = core.Geometry{
			Heads: g.Heads, Layers: g.Layers, CellBytes: g.CellBytes, Tokens: g.PageTokens,
			Grade: g.Grade, Parents: core.ParentRule(g.Parents), FLOPs: flops,
		}
	}
	return out
}
