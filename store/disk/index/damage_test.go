package index

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/internal/memfs"
)

// readFile and writeFile are for files of an index that nobody has open.
func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	b, err := memfs.ReadFile(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t testing.TB, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// damaged is an index that h filled, in a file system of its own, with one file changed; nil content removes it.
func damaged(t testing.TB, from vfs.FS, file string, content []byte) vfs.FS {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	names, err := from.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		if name != file {
			writeFile(t, fs, path, readFile(t, from, path))
		} else if content != nil {
			writeFile(t, fs, path, content)
		}
	}
	return fs
}

// flips are the places of a file of n bytes that are damaged: all of its ends, and a share of what is between.
func flips(n int) (at []int) {
	step := max(1, n/40)
	for i := range n {
		if i < 8 || i >= n-56 || i%step == 0 {
			at = append(at, i)
		}
	}
	return at
}

// TestCase_C60_DamagedIndex damages every region of every file: the index says that it is corrupt, or what it tells is
// what one of the batches left; only a damaged manifest may take it back.
func TestCase_C60_DamagedIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	if inChild(t) {
		return
	}
	r := newRand(t)
	h := newHistory(r, 20, 60)
	mem := vfs.NewMem()
	x := openAt(t, mem, MinBytes)
	if err := h.run(x, func(int) {}); err != nil {
		t.Fatal(err)
	}
	closeIndex(t, x)
	names, err := mem.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	corrupt, right, older := map[string]int{}, map[string]int{}, map[string]int{}
	try := func(what, file string, content []byte) {
		t.Helper()
		fs := damaged(t, mem, file, content)
		kind := strings.TrimLeft(strings.SplitN(file, "-", 2)[0], "0123456789")
		x, err := Open(Options{FS: fs, Dir: dir, MaxBytes: MinBytes})
		var n int
		if err == nil {
			n, err = h.whole(t, x)
			if closed := x.Close(); err == nil {
				err = closed
			}
		}
		switch {
		case errors.Is(err, ErrCorrupt):
			corrupt[kind]++
		case err != nil:
			t.Errorf("%s of %s: %v", what, file, err)
		case n == len(h.batches):
			right[kind]++
		default:
			older[kind]++
			if kind != "MANIFEST" {
				t.Errorf("%s of %s takes the index back to batch %d", what, file, n)
			}
		}
		if errors.Is(err, ErrCorrupt) {
			if err := Destroy(fs, dir); err != nil {
				t.Fatal(err)
			}
			closeIndex(t, openAt(t, fs, MinBytes))
		}
	}
	for _, file := range names {
		if file == "LOCK" {
			continue
		}
		content := readFile(t, mem, mem.PathJoin(dir, file))
		try("removal", file, nil)
		for _, n := range []int{0, 1, len(content) / 2, len(content) - 1} {
			if n >= 0 && n < len(content) {
				try("truncation", file, content[:n])
			}
		}
		for _, at := range flips(len(content)) {
			content[at] ^= 1 << r.IntN(8)
			try("flip", file, content)
			content = readFile(t, mem, mem.PathJoin(dir, file))
		}
	}
	t.Logf("corrupt %v, right %v, older %v", corrupt, right, older)
	if corrupt[".sst"] == 0 || corrupt["MANIFEST"] == 0 {
		t.Error("no damage was found")
	}
}

// TestDiskThatCannotBeRead is no corrupt index: it may be well elsewhere, or later.
func TestDiskThatCannotBeRead(t *testing.T) {
	if inChild(t) {
		return
	}
	h := newHistory(newRand(t), 10, 60)
	mem := vfs.NewMem()
	x := openAt(t, mem, MinBytes)
	if err := h.run(x, func(int) {}); err != nil {
		t.Fatal(err)
	}
	closeIndex(t, x)
	var bad atomic.Bool // read by Pebble's goroutines
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if bad.Load() && (op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpFileReadAt || op.Kind == errorfs.OpOpen) {
			return errorfs.ErrInjected
		}
		return nil
	}))
	x, err := Open(Options{FS: fs, Dir: dir, MaxBytes: MinBytes})
	if err != nil {
		t.Fatal(err)
	}
	bad.Store(true)
	if _, err := collect(x); !errors.Is(err, errorfs.ErrInjected) || errors.Is(err, ErrCorrupt) {
		t.Errorf("scan: %v", err)
	}
	if _, err := Open(Options{FS: fs, Dir: dir, MaxBytes: MinBytes}); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("open: %v", err)
	}
}
