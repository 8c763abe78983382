package pebblefuse

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/quire-kv/quire/internal/pebblefuse.(*Fuse).park"))
}

var errBroken = errors.New("broken")

func TestRunAnswersWhateverPebbleDoes(t *testing.T) {
	cause := errors.New("cause")
	for what, c := range map[string]struct {
		call  func(f *Fuse) error
		want  error
		blown bool
	}{
		"nothing":         {func(*Fuse) error { return nil }, nil, false},
		"an error":        {func(*Fuse) error { return cause }, cause, false},
		"a panic":         {func(*Fuse) error { panic(cause) }, cause, false},
		"the end of all":  {func(f *Fuse) error { logger{f}.Fatalf("no: %s", cause); return nil }, cause, true},
		"silence for now": {func(f *Fuse) error { f.park(cause); return nil }, cause, true},
	} {
		f := New(errBroken, nil)
		err := f.Run(func() error { return c.call(f) })
		if !errors.Is(err, c.want) || (f.Err() != nil) != c.blown || errors.Is(err, errBroken) != c.blown {
			t.Errorf("%s: %v, fuse %v", what, err, f.Err())
		}
		if c.blown {
			if err := f.Run(func() error { return nil }); !errors.Is(err, errBroken) || !errors.Is(err, cause) {
				t.Errorf("%s: later: %v", what, err)
			}
		}
	}
}

func TestRuntimeErrorsStayLoud(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a runtime error was taken for one of Pebble's")
		}
	}()
	var err error
	defer catch(&err)
	var nothing []int
	_ = nothing[len(nothing)]
}

func TestFileSystem(t *testing.T) {
	mem, bad := vfs.NewMem(), false
	failing := errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
		if bad {
			return errorfs.ErrInjected
		}
		return nil
	}))
	if err := MakeDir(mem, "/a/b"); err != nil {
		t.Fatal(err)
	}
	type action struct {
		what string
		do   func(f vfs.FS, file vfs.File) error
	}
	reads := []action{
		{"open", func(f vfs.FS, _ vfs.File) error { _, err := f.Open("/a/b/x"); return err }},
		{"open directory", func(f vfs.FS, _ vfs.File) error { _, err := f.OpenDir("/a/b"); return err }},
		{"list", func(f vfs.FS, _ vfs.File) error { _, err := f.List("/a/b"); return err }},
		{"stat", func(f vfs.FS, _ vfs.File) error { _, err := f.Stat("/a/b/x"); return err }},
		{"read", func(_ vfs.FS, x vfs.File) error { _, err := x.Read(make([]byte, 1)); return err }},
		{"read at", func(_ vfs.FS, x vfs.File) error { _, err := x.ReadAt(make([]byte, 1), 0); return err }},
	}
	changes := []action{
		{"create", func(f vfs.FS, _ vfs.File) error {
			_, err := f.Create("/a/b/y", vfs.WriteCategoryUnspecified)
			return err
		}},
		{"open for writing", func(f vfs.FS, _ vfs.File) error {
			_, err := f.OpenReadWrite("/a/b/x", vfs.WriteCategoryUnspecified)
			return err
		}},
		{"reuse", func(f vfs.FS, _ vfs.File) error {
			_, err := f.ReuseForWrite("/a/b/y", "/a/b/z", vfs.WriteCategoryUnspecified)
			return err
		}},
		{"link", func(f vfs.FS, _ vfs.File) error { return f.Link("/a/b/x", "/a/b/l") }},
		{"rename", func(f vfs.FS, _ vfs.File) error { return f.Rename("/a/b/l", "/a/b/m") }},
		{"remove all", func(f vfs.FS, _ vfs.File) error { return f.RemoveAll("/a/b/z") }},
		{"make directory", func(f vfs.FS, _ vfs.File) error { return f.MkdirAll("/a/c", 0o700) }},
		{"write", func(_ vfs.FS, x vfs.File) error { _, err := x.Write([]byte("x")); return err }},
		{"write at", func(_ vfs.FS, x vfs.File) error { _, err := x.WriteAt([]byte("x"), 0); return err }},
		{"preallocate", func(_ vfs.FS, x vfs.File) error { return x.Preallocate(0, 1) }},
		{"sync", func(_ vfs.FS, x vfs.File) error { return x.Sync() }},
		{"sync data", func(_ vfs.FS, x vfs.File) error { return x.SyncData() }},
		{"sync to", func(_ vfs.FS, x vfs.File) error { _, err := x.SyncTo(1); return err }},
		{"remove", func(f vfs.FS, _ vfs.File) error { return f.Remove("/a/b/x") }},
	}
	open := func() (*Fuse, vfs.FS, vfs.File) {
		f := New(errBroken, nil)
		o := &pebble.Options{FS: failing}
		f.Guard(o)
		file, err := o.FS.Create("/a/b/x", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		return f, o.FS, file
	}
	fuse, guarded, file := open()
	for _, a := range slices.Concat(reads, changes) {
		if err := a.do(guarded, file); err != nil && !errors.Is(err, io.EOF) || fuse.Err() != nil || fuse.Failure() != nil {
			t.Errorf("%s: %v", a.what, err)
		}
	}
	if _, err := guarded.Open("/a/b/none"); !errors.Is(err, fs.ErrNotExist) || fuse.Failure() != nil {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, a := range reads {
		fuse, guarded, file := open()
		bad = true
		if err := a.do(guarded, file); !errors.Is(err, errorfs.ErrInjected) || fuse.Err() != nil || !errors.Is(fuse.Failure(), errorfs.ErrInjected) {
			t.Errorf("%s on a failing disk: %v", a.what, err)
		}
		bad = false
	}
	for _, a := range changes {
		fuse, guarded, file := open()
		bad = true
		err := fuse.Run(func() error { return a.do(guarded, file) })
		if !errors.Is(err, errBroken) || !errors.Is(err, errorfs.ErrInjected) || !errors.Is(fuse.Failure(), errorfs.ErrInjected) {
			t.Errorf("%s on a failing disk: %v", a.what, err)
		}
		bad = false
	}
}

func TestMakeDirSyncsWhatNamesIt(t *testing.T) {
	mem := vfs.NewCrashableMem()
	if err := MakeDir(mem, "/a/b/c"); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.CrashClone(vfs.CrashCloneCfg{}).Stat("/a/b/c"); err != nil {
		t.Errorf("after a crash: %v", err)
	}
}

func TestPebbleSpeaksAtDebug(t *testing.T) {
	for level, want := range map[slog.Level]bool{slog.LevelDebug: true, slog.LevelInfo: false} {
		var out bytes.Buffer
		f := New(errBroken, slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		logger{f}.Infof("compacted %d", 7)
		if strings.Contains(out.String(), "compacted 7") != want {
			t.Errorf("at %v: %q", level, &out)
		}
	}
}
