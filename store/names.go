package store

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"sync"

	"github.com/quire-kv/quire/store/core"
)

// nameTable turns long names into the small numbers that the core compares. Numbers live as long as the boot.
type nameTable struct {
	mu          sync.RWMutex // guards all below
	principals  map[string]core.Principal
	byPrincipal []string // index 0 unused
	tenants     map[string]uint32
	provs       map[string]uint16
	byProv      []string // index 0 unused
	sessions    map[core.Session]core.Principal
}

func (t *nameTable) init() {
	t.principals, t.byPrincipal = map[string]core.Principal{}, []string{""}
	t.tenants = map[string]uint32{}
	t.provs, t.byProv = map[string]uint16{}, []string{""}
	t.sessions = map[core.Session]core.Principal{}
}

// Intern gives a principal's name a number, the same for the same name within a boot.
func (s *Store) Intern(principal string) core.Principal {
	t := &s.names
	t.mu.RLock()
	p, ok := t.principals[principal]
	t.mu.RUnlock()
	if ok {
		return p
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.principals[principal]; ok {
		return p
	}
	p = core.Principal(len(t.byPrincipal))
	t.principals[principal], t.byPrincipal = p, append(t.byPrincipal, principal)
	return p
}

// Tenant gives a tenant's name a number, the same for the same name within a boot.
func (s *Store) Tenant(name string) uint32 {
	t := &s.names
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.tenants[name]
	if !ok {
		n = uint32(len(t.tenants) + 1)
		t.tenants[name] = n
	}
	return n
}

func (t *nameTable) principal(p core.Principal) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if int(p) < len(t.byPrincipal) {
		return t.byPrincipal[p]
	}
	return ""
}

// Provenance gives a canonical provenance a number, the same within a boot; 0 when the table (65,535) is full. Whoever
// has the number finds it accepted where it is: it is told only once every namespace knows it.
func (s *Store) Provenance(canonical []byte) uint16 {
	t := &s.names
	if p := t.numberOf(canonical); p != 0 {
		return p
	}
	s.spaces.change.Lock()
	defer s.spaces.change.Unlock()
	if p := t.numberOf(canonical); p != 0 {
		return p
	}
	p := t.reserve(canonical)
	if p == 0 {
		return 0
	}
	for _, sp := range s.spaces.all() {
		if sp.State.Life != core.Retired {
			s.setNamespace(sp.Namespace)
		}
	}
	t.mu.Lock()
	t.provs[string(canonical)] = p
	t.mu.Unlock()
	return p
}

func (t *nameTable) numberOf(canonical []byte) uint16 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.provs[string(canonical)]
}

// reserve takes the next number for a provenance, which numberOf does not tell yet.
func (t *nameTable) reserve(canonical []byte) uint16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byProv) > math.MaxUint16 {
		return 0
	}
	t.byProv = append(t.byProv, string(canonical))
	return uint16(len(t.byProv) - 1)
}

func (t *nameTable) provenance(p uint16) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if int(p) < len(t.byProv) {
		return t.byProv[p]
	}
	return ""
}

// provenances is all of them by number; the slice is never written to again.
func (t *nameTable) provenances() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byProv[:len(t.byProv):len(t.byProv)]
}

func (t *nameTable) attach(p core.Principal) core.Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
		id := core.Session(binary.LittleEndian.Uint64(b[:]))
		if _, taken := t.sessions[id]; id != 0 && !taken {
			t.sessions[id] = p
			return id
		}
	}
}

func (t *nameTable) detach(id core.Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.sessions[id]
	delete(t.sessions, id)
	return ok
}

// owns says whether c may act in the session it names.
func (t *nameTable) owns(c Caller) bool {
	if c.Session == 0 {
		return true
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sessions[c.Session] == c.Principal
}

func (t *nameTable) sessionCount() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.sessions)
}
