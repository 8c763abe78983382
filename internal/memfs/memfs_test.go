package memfs

import (
	"bytes"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestEqualsVFS: a file is what the same calls make of it in Pebble's own file system, before and after a crash.
func TestEqualsVFS(t *testing.T) {
	ours, theirs := NewCrashable(), vfs.NewCrashableMem()
	for name, calls := range map[string]func(f vfs.File){
		"grown":       func(f vfs.File) { writeAt(t, f, "end", 5000); writeAt(t, f, "begin", 0); write(t, f, "head") },
		"grows on":    func(f vfs.File) { writeAt(t, f, "a", 0); writeAt(t, f, "b", 100) },
		"written":     func(f vfs.File) { write(t, f, "head"); writeAt(t, f, "end", 50); write(t, f, "more") },
		"begins at 0": func(f vfs.File) { writeAt(t, f, "whole", 0) },
		"read first": func(f vfs.File) {
			if _, err := f.Read(make([]byte, 1)); err != io.EOF {
				t.Error(err)
			}
			writeAt(t, f, "end", 20)
		},
	} {
		for _, fs := range []vfs.FS{ours, theirs} {
			f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			calls(f)
			if err := f.Sync(); err != nil {
				t.Error(err)
			}
			writeAt(t, f, "not synced", 10)
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
		if a, b := content(t, ours, name), content(t, theirs, name); !bytes.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s: %q, want %q", name, a, b)
		}
	}
	for _, fs := range []vfs.FS{ours, theirs} {
		root, err := fs.OpenDir("/")
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Sync(); err != nil {
			t.Error(err)
		}
	}
	crashed, want := ours.CrashClone(vfs.CrashCloneCfg{}), theirs.CrashClone(vfs.CrashCloneCfg{})
	for _, name := range []string{"grown", "written"} {
		if a, b := content(t, crashed, name), content(t, want, name); !bytes.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s after a crash: %q, want %q", name, a, b)
		}
	}
}

func write(t *testing.T, f vfs.File, p string) {
	t.Helper()
	if _, err := f.Write([]byte(p)); err != nil {
		t.Fatal(err)
	}
}

func writeAt(t *testing.T, f vfs.File, p string, at int64) {
	t.Helper()
	if _, err := f.WriteAt([]byte(p), at); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	b, err := ReadFile(fs, name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
