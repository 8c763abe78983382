package namespace_test

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/quire-kv/quire/namespace"
)

// TestAdapterSpecs: the specs that the Python adapters build have these ids. The Python tests build the same texts, and
// open them on a real server.
func TestAdapterSpecs(t *testing.T) {
	data, err := os.ReadFile("testdata/adapter_specs.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Specs []struct{ Name, Spec, ID string }
	}
	if err := json.Unmarshal(data, &doc); err != nil || len(doc.Specs) == 0 {
		t.Fatalf("%v, %d specs", err, len(doc.Specs))
	}
	for _, v := range doc.Specs {
		s, err := namespace.Parse([]byte(v.Spec))
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		id := s.ID("default")
		if got := hex.EncodeToString(id[:]); got != v.ID {
			t.Errorf("%s: id %s, want %s", v.Name, got, v.ID)
		}
	}
}
