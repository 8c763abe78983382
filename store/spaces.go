package store

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// Namespace is what the store is told of a namespace's epoch.
type Namespace struct {
	State         core.NamespaceState // Accepts is computed by the store
	DefaultExpiry time.Duration
	// Accepts says whether a canonical provenance is accepted now. Called on SetNamespace and for each provenance
	// first seen; must be pure. nil accepts all.
	Accepts func(canonical []byte) bool
}

// Bounds of what the runtime remembers: scopes and groups of a namespace, for SameHash; and lives that are over, so
// that a late call is told Retired.
const (
	maxFamilies = 4096
	maxRetired  = 1024
)

// spaceKey is a namespace's epoch.
type spaceKey struct {
	id    page.NamespaceID
	epoch page.Epoch
}

// space is the runtime's half of a namespace epoch. Immutable but for its counters and families.
type space struct {
	Namespace
	*spaceStats
}

// spaceStats outlives changes of the namespace's state.
type spaceStats struct {
	hits, misses atomic.Uint64
	lastWrite    atomic.Uint32 // clock.Wall
	shared       atomic.Bool   // a client on this host maps its memory

	mu       sync.Mutex               // guards families
	families map[page.Family]struct{} // nil once retired
}

type spaceTable struct {
	change sync.Mutex   // one change at a time: the core and the table agree when it is released
	mu     sync.RWMutex // guards what follows
	m      map[spaceKey]*space
	over   []spaceKey // retired ones in m, oldest first
}

func (t *spaceTable) init() { t.m = map[spaceKey]*space{} }

func (t *spaceTable) get(id page.NamespaceID, e page.Epoch) *space {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[spaceKey{id, e}]
}

func (t *spaceTable) all() []*space {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := make([]*space, 0, len(t.m))
	for _, sp := range t.m {
		out = append(out, sp)
	}
	return out
}

// SetNamespace tells the store of a namespace's state. When it returns, no new call is answered by the old one:
// retired pages are out of reach.
func (s *Store) SetNamespace(n Namespace) {
	s.spaces.change.Lock()
	defer s.spaces.change.Unlock()
	s.setNamespace(n)
}

func (s *Store) setNamespace(n Namespace) {
	if s.enter() != nil {
		return
	}
	defer s.leave()
	n.State.Accepts = s.accepted(n.Accepts)
	k := spaceKey{n.State.ID, n.State.Epoch}
	s.spaces.mu.Lock()
	sp := &space{Namespace: n}
	old := s.spaces.m[k]
	if old != nil {
		sp.spaceStats = old.spaceStats
	} else {
		sp.spaceStats = &spaceStats{families: map[page.Family]struct{}{}}
	}
	s.spaces.m[k] = sp
	if n.State.Life == core.Retired {
		s.spaces.retire(k, sp)
	}
	s.spaces.mu.Unlock()
	if n.State.Life == core.Retired && s.disk != nil {
		s.disk.d.Retire(k.id, k.epoch)
	}
	s.step(s.shardOf(k.id, k.epoch), core.NamespaceChanged{Namespace: n.State})
	// After the step: a read that was still served before it named bytes by the generations from before this.
	if old != nil && (n.State.Life == core.Retired || narrows(old.State.Accepts, n.State.Accepts)) {
		s.invalidate(k.id, k.epoch)
	}
}

// narrows says whether something that was accepted is not any more.
func narrows(before, now []uint64) bool {
	for i, b := range before {
		if i >= len(now) && b != 0 || i < len(now) && b&^now[i] != 0 {
			return true
		}
	}
	return false
}

// invalidate makes clients on this host notice that what they mapped of a namespace may not be used any more.
func (s *Store) invalidate(id page.NamespaceID, e page.Epoch) {
	if d, ok := s.o.Tiers[evict.Host].(interface {
		Invalidate(page.NamespaceID, page.Epoch)
	}); ok {
		d.Invalidate(id, e)
	}
}

// SetShared says that clients on this host will map memory of a namespace: from then on it shares none with others.
func (s *Store) SetShared(id page.NamespaceID, e page.Epoch) {
	if sp := s.spaces.get(id, e); sp != nil {
		sp.shared.Store(true)
	}
}

// retire keeps the memory of lives that are over within its bound. The caller holds mu.
func (t *spaceTable) retire(k spaceKey, sp *space) {
	sp.mu.Lock()
	first := sp.families != nil
	sp.families = nil
	sp.mu.Unlock()
	if !first {
		return
	}
	if t.over = append(t.over, k); len(t.over) > maxRetired {
		delete(t.m, t.over[0])
		t.over = t.over[1:]
	}
}

// accepted is one bit per interned provenance.
func (s *Store) accepted(accepts func([]byte) bool) []uint64 {
	provs := s.names.provenances()
	bits := make([]uint64, (len(provs)+63)/64)
	for i, p := range provs {
		if i > 0 && (accepts == nil || accepts([]byte(p))) {
			bits[i/64] |= 1 << (i % 64)
		}
	}
	return bits
}

// accepts says whether a caller of this provenance may read; 0 is a caller that states none.
func (sp *space) accepts(p uint16) bool {
	i := int(p)
	return p == 0 || i/64 < len(sp.State.Accepts) && sp.State.Accepts[i/64]>>(i%64)&1 == 1
}

// admit finds the namespace of a call and refuses what concerns the call as a whole.
func (s *Store) admit(c Caller, id page.NamespaceID, e page.Epoch) (*space, reason.Reason) {
	sp := s.spaces.get(id, e)
	switch {
	case sp == nil:
		return nil, reason.Absent
	case sp.State.Life == core.Retired:
		return nil, reason.Retired
	case !sp.accepts(c.Provenance):
		return nil, reason.Provenance
	case !s.names.owns(c):
		return nil, reason.Unauthorized
	}
	return sp, reason.None
}

// pages is the number of pages in runs.
func (sp *space) pages(runs []core.Run) int {
	n := 0
	for i := range runs {
		n += len(runs[i].Hashes) / sp.State.HashBytes
	}
	return n
}

// wrote notes a commit.
func (sp *space) wrote(w clock.Wall, f page.Family) {
	sp.lastWrite.Store(uint32(w))
	sp.know(f)
}

// know remembers a family for SameHash.
func (sp *space) know(f page.Family) {
	sp.mu.Lock()
	if sp.families != nil && len(sp.families) < maxFamilies {
		sp.families[f] = struct{}{}
	}
	sp.mu.Unlock()
}

func (sp *space) knownFamilies() []page.Family {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	out := make([]page.Family, 0, len(sp.families))
	for f := range sp.families {
		out = append(out, f)
	}
	return out
}
