package namespace

import (
	"fmt"
	"maps"
	"slices"

	"github.com/quire-kv/quire/store/page"
)

// snapshot is one revision of the registry in memory. Never written to once it is in place: readers take no lock.
type snapshot struct {
	revision Revision
	spaces   map[page.NamespaceID]*entry
	tokens   map[[32]byte]TokenRecord // by hash
	hashes   map[string][32]byte      // of tokens by name
	tenants  map[string]TenantRecord
	newer    chan struct{} // closed when a newer snapshot is in place
}

// entry is a namespace with the provenances that its openers registered.
type entry struct {
	*Namespace
	provenances map[ProvenanceID][]byte
}

func newSnapshot() *snapshot {
	return &snapshot{
		spaces: make(map[page.NamespaceID]*entry), tokens: make(map[[32]byte]TokenRecord),
		hashes: make(map[string][32]byte), tenants: make(map[string]TenantRecord), newer: make(chan struct{}),
	}
}

// with is s and what records changed; s stays as it is.
func (s *snapshot) with(records []Record, at Revision) (*snapshot, error) {
	t := &snapshot{max(s.revision, at), maps.Clone(s.spaces), maps.Clone(s.tokens), maps.Clone(s.hashes), maps.Clone(s.tenants), make(chan struct{})}
	owned := make(map[*entry]bool) // entries that only t has
	for _, r := range records {
		if err := t.take(r, owned); err != nil {
			return nil, err
		}
		t.revision = max(t.revision, r.Revision)
	}
	return t, nil
}

func (s *snapshot) take(r Record, owned map[*entry]bool) error {
	if len(r.Key) == 0 {
		return fmt.Errorf("%w: empty key", ErrRecord)
	}
	switch r.Key[0] {
	case kindNamespace:
		return s.takeNamespace(r, owned)
	case kindProvenance:
		return s.takeProvenance(r, owned)
	case kindToken:
		return s.takeToken(r)
	case kindTenant:
		return s.takeTenant(r)
	case kindEpochs:
		return nil // only Open's decision needs them, and reads them
	}
	return fmt.Errorf("%w: kind %q", ErrRecord, r.Key[0])
}

func (s *snapshot) takeNamespace(r Record, owned map[*entry]bool) error {
	_, id, err := cutNamespaceKey(r.Key)
	if err != nil {
		return err
	}
	if r.Value == nil {
		delete(s.spaces, id)
		return nil
	}
	n, err := decodeNamespace(r)
	if err != nil {
		return err
	}
	s.own(id, owned).Namespace = n
	return nil
}

func (s *snapshot) takeProvenance(r Record, owned map[*entry]bool) error {
	id, p, err := cutProvenanceKey(r.Key)
	if err != nil || s.spaces[id] == nil { // its namespace was forgotten in the same change
		return err
	}
	e := s.own(id, owned)
	if r.Value == nil {
		delete(e.provenances, p)
		return nil
	}
	var x provenanceRecord
	if err := decodeRecord(r.Value, &x); err != nil {
		return fmt.Errorf("provenance of namespace %v: %w", id, err)
	}
	e.provenances[p] = []byte(x.Canonical)
	return nil
}

// own makes the entry of id one that only s has.
func (s *snapshot) own(id page.NamespaceID, owned map[*entry]bool) *entry {
	e := s.spaces[id]
	switch {
	case e == nil:
		e = &entry{provenances: make(map[ProvenanceID][]byte)}
	case owned[e]:
		return e
	default:
		e = &entry{e.Namespace, maps.Clone(e.provenances)}
	}
	s.spaces[id], owned[e] = e, true
	return e
}

func (s *snapshot) takeToken(r Record) error {
	name := string(r.Key[1:])
	delete(s.tokens, s.hashes[name])
	delete(s.hashes, name)
	if r.Value == nil {
		return nil
	}
	t, err := decodeToken(r)
	if err != nil {
		return err
	}
	s.tokens[t.Hash], s.hashes[name] = t, t.Hash
	return nil
}

func (s *snapshot) takeTenant(r Record) error {
	if r.Value == nil {
		delete(s.tenants, string(r.Key[1:]))
		return nil
	}
	t, err := decodeTenant(r)
	if err != nil {
		return err
	}
	s.tenants[t.Name] = t
	return nil
}

func decodeToken(r Record) (TokenRecord, error) {
	var x tokenRecord
	name := string(r.Key[1:])
	if err := decodeRecord(r.Value, &x); err != nil {
		return TokenRecord{}, fmt.Errorf("token %q: %w", name, err)
	}
	return TokenRecord{name, x.Hash, x.By, x.Created, x.Expiry}, nil
}

// of lists the namespaces of a tenant (empty: all), by id.
func (s *snapshot) of(tenant string) []*Namespace {
	var out []*Namespace
	for _, e := range s.spaces {
		if tenant == "" || e.Tenant == tenant {
			out = append(out, e.Namespace)
		}
	}
	slices.SortFunc(out, byID)
	return out
}

func byID(a, b *Namespace) int { return slices.Compare(a.ID[:], b.ID[:]) }
