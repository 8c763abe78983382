package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/pebbleregistry"
	"github.com/quire-kv/quire/store/disk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// finding is the one of a check.
func (r *Report) finding(check string) Finding {
	for _, f := range r.Findings {
		if f.Check == check {
			return f
		}
	}
	return Finding{}
}

func TestExamineRegistry(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	path := filepath.Join(dir, registryDir)
	backend, err := pebbleregistry.Open(path, pebbleregistry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := namespace.NewRegistry(ctx, backend, namespace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	text, _ := namespace.ExampleSpec("llama-3-8b")
	spec, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Open(ctx, namespace.Principal{Tenant: "acme", Role: namespace.RoleOperator}, "", spec); err != nil {
		t.Fatal(err)
	}
	examine := func() Finding {
		t.Helper()
		r, err := Examine(ctx, Options{DataDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return r.finding("registry")
	}
	if f := examine(); f.Result != InUse || !strings.Contains(f.Detail, "process ") {
		t.Errorf("in use: %+v", f)
	}
	if err := registry.Close(); err != nil {
		t.Fatal(err)
	}
	if f := examine(); f.Result != OK || !strings.Contains(f.Detail, "1 namespaces: 1 active") {
		t.Errorf("whole: %+v", f)
	}
	markers, err := filepath.Glob(filepath.Join(path, "store", "MANIFEST-*"))
	if err != nil || len(markers) == 0 {
		t.Fatalf("%v, %v", markers, err)
	}
	for _, m := range markers {
		if err := os.Remove(m); err != nil {
			t.Fatal(err)
		}
	}
	if f := examine(); f.Result != Damaged || !strings.Contains(f.Detail, "MANIFEST") || !strings.Contains(f.Detail, "copy") {
		t.Errorf("damaged: %+v", f)
	}
}

func TestExamineWhatIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := Examine(context.Background(), Options{DataDir: filepath.Join(dir, "none")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Examine(context.Background(), Options{DataDir: file}); err == nil || !strings.Contains(err.Error(), "no directory") {
		t.Errorf("a file: %v", err)
	}
	if r, err := Examine(context.Background(), Options{DataDir: dir}); err != nil || r.Has(Damaged) || r.Has(InUse) || r.finding("registry").Result != Skipped {
		t.Errorf("an empty directory: %+v, %v", r, err)
	}
}

func TestCostOfFaults(t *testing.T) {
	for want, f := range map[string]disk.Fault{
		"index is made anew":     {File: "index", What: "index"},
		"no page has bytes":      {File: "0001.seg", What: "padding"},
		"other files say":        {File: "IDENTITY", What: "identity"},
		"its records deleted":    {File: "0001.jrn", What: "record"},
		"while the index":        {File: "0001.seg", What: "record"},
		"can be published again": {File: "0001.seg", What: "checksum of piece 3", Want: "01", Got: "02", Offset: 4096},
	} {
		if got := faultOf(&f); !strings.Contains(got.Cost, want) || got.File != filepath.Join("pages", f.File) || got.Expected != f.Want || got.Got != f.Got || got.Offset != f.Offset {
			t.Errorf("%+v became %+v, want a cost of %q", f, got, want)
		}
	}
}
