package core

import (
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// epochKey names one life of a namespace.
type epochKey struct {
	id    page.NamespaceID
	epoch page.Epoch
}

// epoch is what the shard keeps of one life of a namespace: the state it was told, and counts.
type epoch struct {
	state    NamespaceState
	account  *account // of its tenant
	lineages lineageTable
	groups   map[[16]byte]int // live publications by writer group; strict namespaces only

	pages, extents uint64    // committed; each copy counts
	bytes          tierBytes // of all places, grants and copies under way, slack included
	charged        uint64    // of these, each extent once: what the quota bounds
	pinned         uint64
	evicted        uint64 // pages whose last copy went for room
	orphans        [NumOrphanCauses]uint64
	families       int
}

// epochs are all lives that the shard was told of. Retired and empty ones are forgotten, oldest first, beyond
// maxRetired: a stranger's answer (absent) is then as good.
type epochs struct {
	byKey  map[epochKey]*epoch
	order  []*epoch // of first sight
	latest map[page.NamespaceID]page.Epoch
	ledger *Ledger
}

const maxRetired = 1024

func newEpochs(l *Ledger) epochs {
	return epochs{byKey: map[epochKey]*epoch{}, latest: map[page.NamespaceID]page.Epoch{}, ledger: l}
}

// open finds the epoch, or says why nothing of it may be served: Absent (never heard of), Retired, or StaleEpoch when
// the namespace has gone on to another life. A retired epoch that is remembered comes with its reason.
func (e *epochs) open(id page.NamespaceID, n page.Epoch) (*epoch, reason.Reason) {
	ep := e.byKey[epochKey{id, n}]
	switch {
	case ep != nil && ep.state.Life != Retired:
		return ep, reason.None
	case e.latest[id] > n:
		return ep, reason.StaleEpoch
	case ep != nil:
		return ep, reason.Retired
	}
	return nil, reason.Absent
}

func (e *epochs) add(st NamespaceState) *epoch {
	ep := &epoch{groups: map[[16]byte]int{}, account: e.ledger.account(st.Tenant)}
	e.byKey[epochKey{st.ID, st.Epoch}] = ep
	e.order = append(e.order, ep)
	e.latest[st.ID] = max(e.latest[st.ID], st.Epoch)
	return ep
}

// forget drops retired epochs that hold nothing, the oldest first, down to maxRetired.
func (e *epochs) forget() {
	empty := 0
	for _, ep := range e.order {
		if ep.forgettable() {
			empty++
		}
	}
	kept := e.order[:0]
	for _, ep := range e.order {
		if empty > maxRetired && ep.forgettable() {
			empty--
			delete(e.byKey, epochKey{ep.state.ID, ep.state.Epoch})
			e.ledger.giveAccount(ep.state.Tenant, ep.account)
			if e.latest[ep.state.ID] == ep.state.Epoch {
				delete(e.latest, ep.state.ID)
			}
			continue
		}
		kept = append(kept, ep)
	}
	clear(e.order[len(kept):])
	e.order = kept
}

func (ep *epoch) forgettable() bool { return ep.state.Life == Retired && ep.families == 0 }

// family is one interned (namespace, epoch, scope, group).
type family struct {
	key  page.Family
	ep   *epoch
	geo  Geometry
	refs uint32 // page records, detached extents and publications of it
}

// families interns; handles are from 1 and reused when the last reference goes.
type families struct {
	ids  map[page.Family]uint32
	all  []family // by handle
	free []uint32
}

// maxFamilies bounds the table: scopes are per adapter and salt, so there may be many.
const maxFamilies = 1 << 20

func newFamilies() families {
	return families{ids: map[page.Family]uint32{}, all: make([]family, 1)}
}

func (t *families) at(h uint32) *family { return &t.all[h] }

// hold interns key and takes a reference; 0 when the table is full.
func (t *families) hold(key *page.Family, ep *epoch, geo Geometry) uint32 {
	h, ok := t.ids[*key]
	if !ok {
		if n := len(t.free); n > 0 {
			h, t.free = t.free[n-1], t.free[:n-1]
		} else if len(t.all) <= maxFamilies {
			h = uint32(len(t.all))
			t.all = append(t.all, family{})
		} else {
			return 0
		}
		t.all[h] = family{key: *key, ep: ep, geo: geo}
		t.ids[*key] = h
		ep.families++
	}
	t.all[h].refs++
	return h
}

func (t *families) retain(h uint32) { t.all[h].refs++ }

func (t *families) release(h uint32) {
	f := &t.all[h]
	if f.refs--; f.refs > 0 {
		return
	}
	f.ep.families--
	delete(t.ids, f.key)
	*f = family{}
	t.free = append(t.free, h)
}

// resolve finds the interned family of a key, or why nothing of it can be served (then ep may be nil). The handle is 0 with None when the
// family is known but nothing of it is held.
func (s *Shard) resolve(key *page.Family) (h uint32, ep *epoch, why reason.Reason) {
	ep, why = s.epochs.open(key.Namespace, key.Epoch)
	if why != reason.None {
		return 0, ep, why
	}
	if h = s.families.ids[*key]; h != 0 {
		return h, ep, reason.None
	}
	if _, ok := ep.state.Groups[key.Group]; !ok {
		return 0, ep, reason.Absent
	}
	return 0, ep, reason.None
}

// viewIn checks v against a geometry and resolves the zero view to the whole page.
func viewIn(g *Geometry, v page.View) (page.View, reason.Reason) {
	full := g.Full()
	if v == (page.View{}) {
		return full, reason.None
	}
	if v.Empty() || !full.Contains(v) || g.Grade == page.Whole && v != full {
		return v, reason.InvalidView
	}
	return v, reason.None
}

// hashCount is the number of hashes of a run; 0 when it is not whole hashes of the namespace's size.
func hashCount(r *Run, hashBytes int) int {
	if hashBytes < page.MinHashBytes || hashBytes > page.MaxHashBytes || len(r.Hashes)%hashBytes != 0 {
		return 0
	}
	return len(r.Hashes) / hashBytes
}
