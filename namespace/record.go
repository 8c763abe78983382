package namespace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/quire-kv/quire/store/page"
)

// Keys of the registry's records. Values are one version byte (1) and JSON.
//
//	'n' | 1 tenant bytes | tenant | 32 id        namespace
//	'p' | 32 namespace id | 32 provenance id     canonical provenance
//	't' | token name                             bearer token
//	'e' | 1 tenant bytes | tenant                highest epoch of the tenant's forgotten namespaces
//	'q' | tenant                                 quota of a tenant
const (
	kindNamespace  = 'n'
	kindProvenance = 'p'
	kindToken      = 't'
	kindEpochs     = 'e'
	kindTenant     = 'q'
	recordVersion  = 1
)

// ErrRecord is what a stored record that cannot be read answers: damage, or a newer version.
var ErrRecord = errors.New("registry: unreadable record")

func tenantPrefix(kind byte, tenant string) []byte {
	return append([]byte{kind, byte(len(tenant))}, tenant...)
}

func namespaceKey(tenant string, id page.NamespaceID) []byte {
	return append(tenantPrefix(kindNamespace, tenant), id[:]...)
}

func provenancePrefixKey(id page.NamespaceID) []byte {
	return append([]byte{kindProvenance}, id[:]...)
}

func provenanceKey(id page.NamespaceID, p ProvenanceID) []byte {
	return append(provenancePrefixKey(id), p[:]...)
}

func tokenKey(name string) []byte { return append([]byte{kindToken}, name...) }

// cutNamespaceKey reads a namespace's key back.
func cutNamespaceKey(key []byte) (tenant string, id page.NamespaceID, err error) {
	if len(key) < 2 || len(key) != 2+int(key[1])+len(id) {
		return "", id, fmt.Errorf("%w: key of %d bytes", ErrRecord, len(key))
	}
	tenant = string(key[2 : 2+key[1]])
	copy(id[:], key[2+key[1]:])
	return tenant, id, nil
}

func cutProvenanceKey(key []byte) (id page.NamespaceID, p ProvenanceID, err error) {
	if len(key) != 1+len(id)+len(p) {
		return id, p, fmt.Errorf("%w: key of %d bytes", ErrRecord, len(key))
	}
	copy(id[:], key[1:])
	copy(p[:], key[1+len(id):])
	return id, p, nil
}

type (
	namespaceRecord struct {
		Epoch     page.Epoch `json:"epoch"`
		State     State      `json:"state"`
		Spec      *Spec      `json:"spec"`
		Waivers   []Waiver   `json:"waivers,omitempty"`
		Grants    []Grant    `json:"grants,omitempty"`
		Policy    Policy     `json:"policy"`
		Created   time.Time  `json:"created"`
		LastUse   time.Time  `json:"last_use"`
		AllowFork bool       `json:"allow_fork,omitempty"`
		Changes   []string   `json:"changes"`
	}
	provenanceRecord struct {
		Canonical string    `json:"canonical"`
		By        string    `json:"by"`   // principal that registered it
		Host      string    `json:"host"` // and where it said it runs
		At        time.Time `json:"at"`
	}
	tokenRecord struct {
		Hash    Digest    `json:"hash"`
		By      Principal `json:"by"`
		Created time.Time `json:"created"`
		Expiry  time.Time `json:"expiry"`
	}
	epochsRecord struct {
		Highest page.Epoch `json:"highest"`
	}
)

// MarshalText is String.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDigest.
func (d *Digest) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDigest(string(text))
	return err
}

func encodeRecord(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("registry: own record does not marshal: " + err.Error())
	}
	return append([]byte{recordVersion}, b...)
}

func decodeRecord(value []byte, v any) error {
	if len(value) == 0 || len(value) > MaxValueBytes || value[0] != recordVersion {
		return fmt.Errorf("%w: %d bytes, want version %d", ErrRecord, len(value), recordVersion)
	}
	d := json.NewDecoder(bytes.NewReader(value[1:]))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if d.More() {
		return fmt.Errorf("%w: bytes after its end", ErrRecord)
	}
	return nil
}

func encodeNamespace(n *Namespace) Record {
	return Record{Key: namespaceKey(n.Tenant, n.ID), Value: encodeRecord(namespaceRecord{
		n.Epoch, n.State, n.Spec, n.Waivers, n.Grants, n.Policy, n.Created, n.LastUse, n.AllowFork, n.changes,
	})}
}

func decodeNamespace(r Record) (*Namespace, error) {
	tenant, id, err := cutNamespaceKey(r.Key)
	if err != nil {
		return nil, err
	}
	var x namespaceRecord
	if err := decodeRecord(r.Value, &x); err != nil {
		return nil, fmt.Errorf("namespace %v of tenant %q: %w", id, tenant, err)
	}
	n := &Namespace{
		ID: id, Epoch: x.Epoch, Tenant: tenant, Spec: x.Spec, State: x.State, Waivers: x.Waivers, Grants: x.Grants, Policy: x.Policy,
		Created: x.Created, LastUse: x.LastUse, AllowFork: x.AllowFork, Revision: r.Revision, changes: x.Changes,
	}
	switch {
	case n.Spec == nil, n.Epoch == 0, n.State < Active, n.State > Retired:
		return nil, fmt.Errorf("namespace %v of tenant %q: %w: state, epoch or spec", id, tenant, ErrRecord)
	case n.Spec.ID(tenant) != id: // a record under another's key would serve another's pages
		return nil, fmt.Errorf("namespace %v of tenant %q: %w: the spec has another id", id, tenant, ErrRecord)
	}
	n.factors = n.Spec.Factors()
	return n, nil
}
