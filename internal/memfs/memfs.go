// Package memfs is Pebble's file system in memory for tests that write large files: that one grows a file byte by byte up to
// where WriteAt begins, which the race detector sees one by one.
package memfs

import (
	"errors"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is vfs.MemFS with files that grow at once. What it holds, and what a crash leaves of it, are that one's.
type FS struct{ *vfs.MemFS }

// New returns an empty file system.
func New() FS { return FS{vfs.NewMem()} }

// NewCrashable returns one that can be cloned as a crash would leave it.
func NewCrashable() FS { return FS{vfs.NewCrashableMem()} }

// CrashClone is that of vfs.MemFS.
func (fs FS) CrashClone(c vfs.CrashCloneCfg) FS { return FS{fs.MemFS.CrashClone(c)} }

// ReadFile is all that a file holds.
func ReadFile(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// OpenReadWrite implements vfs.FS.
func (fs FS) OpenReadWrite(name string, category vfs.DiskWriteCategory, options ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.MemFS.OpenReadWrite(name, category, options...)
	if err != nil {
		return nil, err
	}
	grow, err := fs.MemFS.OpenReadWrite(name, category, options...)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &file{File: f, grow: grow}, nil
}

type file struct {
	vfs.File
	first sync.Once
	grow  vfs.File // the same file, at position 0
}

// WriteAt lets an empty file grow at once: by a write at position 0.
func (f *file) WriteAt(p []byte, at int64) (int, error) {
	var err error
	f.first.Do(func() {
		if info, e := f.Stat(); e == nil && info.Size() == 0 {
			_, err = f.grow.Write(make([]byte, at+int64(len(p))))
		}
	})
	if err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, at)
}

// Close implements vfs.File.
func (f *file) Close() error { return errors.Join(f.grow.Close(), f.File.Close()) }
