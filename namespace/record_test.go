package namespace

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/quire-kv/quire/store/page"
)

func exampleRecord(t testing.TB) (*Namespace, Record) {
	t.Helper()
	text, _ := ExampleSpec("qwen3-next-80b")
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 1, 0, 0, 0, 7, time.UTC)
	n := &Namespace{
		ID: s.ID("acme"), Epoch: 3, Tenant: "acme", Spec: s, State: Draining, Grants: []Grant{{"other", RightPublish}},
		Waivers: []Waiver{{"runner", "v1", []string{"v1", "v2"}, "a", "b", now, "c"}},
		Policy:  Policy{time.Hour, 5, true}, Created: now, LastUse: now.Add(1), AllowFork: true, Revision: 9,
		factors: s.Factors(), changes: []string{"x.0"},
	}
	r := encodeNamespace(n)
	r.Revision = 9
	return n, r
}

func TestNamespaceRecord(t *testing.T) {
	n, r := exampleRecord(t)
	got, err := decodeNamespace(r)
	if err != nil || !reflect.DeepEqual(got, n) {
		t.Fatalf("%v: %+v", err, got)
	}
	for what, spoil := range map[string]func(*Record){
		"another version": func(r *Record) { r.Value[0] = 2 },
		"cut":             func(r *Record) { r.Value = r.Value[:len(r.Value)-1] },
		"more":            func(r *Record) { r.Value = append(r.Value, "{}"...) },
		"another key":     func(r *Record) { r.Key[len(r.Key)-1] ^= 1 },
		"another tenant":  func(r *Record) { r.Key[2] = 'x' },
		"short key":       func(r *Record) { r.Key = r.Key[:5] },
		"empty":           func(r *Record) { r.Value = []byte{} },
		"a bit":           func(r *Record) { r.Value[slices.Index(r.Value, 'Q')] = 'R' }, // in the model's name: another id
	} {
		_, r := exampleRecord(t)
		spoil(&r)
		if _, err := decodeNamespace(r); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzRegistryRecordDecode(f *testing.F) {
	_, r := exampleRecord(f)
	f.Add(r.Key, r.Value)
	f.Add([]byte("tname"), encodeRecord(tokenRecord{Hash: DigestOf(nil)}))
	f.Add([]byte("e\x04acme"), encodeRecord(epochsRecord{7}))
	f.Add(provenanceKey(page.NamespaceID{1}, ProvenanceID{2}), encodeRecord(provenanceRecord{Canonical: "engine=x\n"}))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		s, err := newSnapshot().with([]Record{{key, value, 1}}, 1)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Errorf("%v is not a kind of error", err)
			}
			return
		}
		for id, e := range s.spaces {
			if e.ID != id || e.Spec.ID(e.Tenant) != id {
				t.Errorf("%v under %v", e.ID, id)
			}
		}
	})
}
