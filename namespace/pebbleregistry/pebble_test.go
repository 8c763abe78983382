package pebbleregistry

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/quire-kv/quire/internal/pebblefuse"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/registrytest"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func TestMain(m *testing.M) {
	if os.Getenv(failingDisk) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

const dir = "/data/registry"

func openAt(t testing.TB, fs vfs.FS) *Backend {
	t.Helper()
	b, err := Open(dir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func underTest(t testing.TB, fs vfs.FS) registrytest.Backend {
	b := openAt(t, fs)
	return registrytest.Backend{Backend: b, Reopen: func(t testing.TB) registrytest.Backend {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		return underTest(t, fs)
	}}
}

func TestConformance(t *testing.T) {
	registrytest.Run(t, func(t testing.TB) registrytest.Backend { return underTest(t, vfs.NewMem()) })
}

func TestOnTheRealFileSystem(t *testing.T) {
	path := t.TempDir()
	b, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, b, "a", "1")
	_, err = Open(path, Options{})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process ") || !strings.Contains(err.Error(), path) {
		t.Errorf("a second owner: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err = Open(path, Options{}); err != nil {
		t.Fatal(err)
	}
	if got := all(t, b); len(got) != 1 || got["a"] != "1" {
		t.Errorf("after reopening: %v", got)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		t.Error(err)
	}
}

// TestCase_C67_EpochsOutliveRestarts: retired before a restart, opened after it: same id, an epoch never used before.
func TestCase_C67_EpochsOutliveRestarts(t *testing.T) {
	ctx, fs := context.Background(), vfs.NewMem()
	op := namespace.Principal{Tenant: "acme", Role: namespace.RoleOperator}
	text, _ := namespace.ExampleSpec("llama-3-8b")
	spec, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	for epoch := page.Epoch(1); epoch < 8; epoch += 2 {
		r, err := namespace.NewRegistry(ctx, openAt(t, fs), namespace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if n, why := r.Access(op, spec.ID("acme"), namespace.RightRead); epoch > 1 && (why != reason.None || n.State != namespace.Retired) {
			t.Errorf("after the restart it is not retired: %v", why)
		}
		o, err := r.Open(ctx, op, "", spec)
		if err != nil || !o.Created || o.Namespace.Epoch != epoch {
			t.Fatalf("epoch %d, want %d: %v", o.Namespace.Epoch, epoch, err)
		}
		if _, err := r.Purge(ctx, op, o.Namespace.ID); err != nil {
			t.Fatal(err)
		}
		for _, s := range []namespace.State{namespace.Draining, namespace.Retired} {
			if _, err := r.SetState(ctx, op, o.Namespace.ID, s); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSecondOwnerOfAMemFS(t *testing.T) {
	fs := vfs.NewMem()
	openAt(t, fs)
	if _, err := Open(dir, Options{FS: fs}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second owner: %v", err)
	}
}

// store opens the Pebble store beneath a closed registry.
func store(t *testing.T, fs vfs.FS, change func(*pebble.DB)) {
	t.Helper()
	db, err := pebble.Open(fs.PathJoin(dir, "store"), options(fs, pebblefuse.New(ErrBroken, nil)))
	if err != nil {
		t.Fatal(err)
	}
	change(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRefusesWhatItCannotRead(t *testing.T) {
	for what, c := range map[string]struct {
		key, value string
		want       error
	}{
		"another format": {"\x00format", "quire registry 2", ErrFormat},
		"revision":       {"\x00revision", "xyz", namespace.ErrRecord},
		"short record":   {"\x01key", "1234567", namespace.ErrRecord},
		"no revision":    {"\x01key", "\x00\x00\x00\x00\x00\x00\x00\x00x", namespace.ErrRecord},
		"the future":     {"\x01key", "\x00\x00\x00\x00\x00\x00\x00\x07x", namespace.ErrRecord},
	} {
		fs := vfs.NewMem()
		b := openAt(t, fs)
		put(t, b, "a", "1")
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		store(t, fs, func(db *pebble.DB) {
			if err := db.Set([]byte(c.key), []byte(c.value), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		})
		if _, err := Open(dir, Options{FS: fs}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

func put(t testing.TB, b *Backend, key, value string) {
	t.Helper()
	if _, err := tryPut(b, key, value); err != nil {
		t.Fatal(err)
	}
}

func tryPut(b *Backend, key, value string) (namespace.Revision, error) {
	_, at, err := b.Read(context.Background(), nil)
	if err != nil {
		return 0, err
	}
	return b.Write(context.Background(), at, [][]byte{[]byte(key)}, []namespace.Record{{Key: []byte(key), Value: []byte(value)}})
}

func all(t testing.TB, b *Backend) map[string]string {
	t.Helper()
	records, _, err := b.Read(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, r := range records {
		out[string(r.Key)] = string(r.Value)
	}
	return out
}

func FuzzPebbleRecordDecode(f *testing.F) {
	f.Add([]byte("\x01key"), []byte("\x00\x00\x00\x00\x00\x00\x00\x01value"))
	f.Add([]byte("\x01"), []byte(""))
	f.Add([]byte("\x00format"), []byte(format))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, err := decodeStored(key, value)
		if err != nil {
			if !errors.Is(err, namespace.ErrRecord) {
				t.Errorf("%v is not a kind of error", err)
			}
			return
		}
		if string(recordKey(r.Key)) != string(key) || r.Revision < 1 || len(r.Value) != len(value)-revisionBytes {
			t.Errorf("%q %q decodes to %+v", key, value, r)
		}
	})
}
