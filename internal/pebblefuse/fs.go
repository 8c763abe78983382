package pebblefuse

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// guardedFS lets reads pass, and changes until one fails, and remembers the first failure of either. It names every new file durably before anything can name it in
// turn: Pebble's marker of the current manifest may otherwise survive a crash that the manifest does not.
type guardedFS struct {
	vfs.FS
	fuse *Fuse
}

// change makes one change. The first that fails, and every one after it, never returns: Pebble would try again for ever, or
// panic.
func (f *Fuse) change(what, name string, do func() error) error {
	if err := f.Err(); err != nil {
		f.park(err)
	}
	err := do()
	if isFailure(err) {
		err = fmt.Errorf("%s %s: %w", what, name, err)
		f.failed.CompareAndSwap(nil, &err)
		f.park(err)
	}
	return err
}

// read passes on what a read answers.
func (f *Fuse) read(err error) error {
	if isFailure(err) {
		f.failed.CompareAndSwap(nil, &err)
	}
	return err
}

// isFailure tells a file system that fails from one that has no such file, or no more of it.
func isFailure(err error) bool {
	return err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// Create is vfs.FS.
func (g guardedFS) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = g.fuse.change("create", name, func() error {
		if file, err = g.FS.Create(name, c); err != nil {
			return err
		}
		if err := SyncDir(g.FS, g.PathDir(name)); err != nil {
			return errors.Join(err, file.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return guardedFile{file, g.fuse, name}, nil
}

// ReuseForWrite is vfs.FS. The old file is removed rather than used again.
func (g guardedFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := g.Remove(oldname); err != nil {
		return nil, err
	}
	return g.Create(newname, c)
}

// OpenReadWrite is vfs.FS.
func (g guardedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (file vfs.File, err error) {
	err = g.fuse.change("open for writing", name, func() error {
		file, err = g.FS.OpenReadWrite(name, c, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return guardedFile{file, g.fuse, name}, nil
}

// Open is vfs.FS.
func (g guardedFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := g.FS.Open(name, opts...)
	if err != nil {
		return nil, g.fuse.read(err)
	}
	return guardedFile{file, g.fuse, name}, nil
}

// OpenDir is vfs.FS.
func (g guardedFS) OpenDir(name string) (vfs.File, error) {
	file, err := g.FS.OpenDir(name)
	if err != nil {
		return nil, g.fuse.read(err)
	}
	return guardedFile{file, g.fuse, name}, nil
}

// List is vfs.FS.
func (g guardedFS) List(dir string) ([]string, error) {
	names, err := g.FS.List(dir)
	return names, g.fuse.read(err)
}

// Stat is vfs.FS.
func (g guardedFS) Stat(name string) (vfs.FileInfo, error) {
	info, err := g.FS.Stat(name)
	return info, g.fuse.read(err)
}

// Link is vfs.FS.
func (g guardedFS) Link(oldname, newname string) error {
	return g.fuse.change("link", newname, func() error { return g.FS.Link(oldname, newname) })
}

// Remove is vfs.FS.
func (g guardedFS) Remove(name string) error {
	return g.fuse.change("remove", name, func() error { return g.FS.Remove(name) })
}

// RemoveAll is vfs.FS.
func (g guardedFS) RemoveAll(name string) error {
	return g.fuse.change("remove all", name, func() error { return g.FS.RemoveAll(name) })
}

// Rename is vfs.FS.
func (g guardedFS) Rename(oldname, newname string) error {
	return g.fuse.change("rename", newname, func() error { return g.FS.Rename(oldname, newname) })
}

// MkdirAll is vfs.FS.
func (g guardedFS) MkdirAll(dir string, perm os.FileMode) error {
	return g.fuse.change("make directory", dir, func() error { return g.FS.MkdirAll(dir, perm) })
}

// guardedFile is an open file or directory.
type guardedFile struct {
	vfs.File
	fuse *Fuse
	name string
}

// Read is vfs.File.
func (f guardedFile) Read(b []byte) (int, error) {
	n, err := f.File.Read(b)
	return n, f.fuse.read(err)
}

// ReadAt is vfs.File.
func (f guardedFile) ReadAt(b []byte, offset int64) (int, error) {
	n, err := f.File.ReadAt(b, offset)
	return n, f.fuse.read(err)
}

// Write is vfs.File.
func (f guardedFile) Write(b []byte) (n int, err error) {
	err = f.fuse.change("write", f.name, func() error { n, err = f.File.Write(b); return err })
	return n, err
}

// WriteAt is vfs.File.
func (f guardedFile) WriteAt(b []byte, offset int64) (n int, err error) {
	err = f.fuse.change("write", f.name, func() error { n, err = f.File.WriteAt(b, offset); return err })
	return n, err
}

// Preallocate is vfs.File.
func (f guardedFile) Preallocate(offset, length int64) error {
	return f.fuse.change("preallocate", f.name, func() error { return f.File.Preallocate(offset, length) })
}

// Sync is vfs.File.
func (f guardedFile) Sync() error { return f.fuse.change("sync", f.name, f.File.Sync) }

// SyncData is vfs.File.
func (f guardedFile) SyncData() error { return f.fuse.change("sync", f.name, f.File.SyncData) }

// SyncTo is vfs.File.
func (f guardedFile) SyncTo(length int64) (full bool, err error) {
	err = f.fuse.change("sync", f.name, func() error { full, err = f.File.SyncTo(length); return err })
	return full, err
}

// MakeDir makes dir and what is missing above it, and syncs what names them: a directory that a crash unmakes takes along
// all that was synced inside.
func MakeDir(f vfs.FS, dir string) error {
	var above []string // that name something new
	for d := dir; ; d = f.PathDir(d) {
		if _, err := f.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		above = append(above, f.PathDir(d))
		if f.PathDir(d) == d {
			break
		}
	}
	if err := f.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range above {
		if err := SyncDir(f, d); err != nil {
			return err
		}
	}
	return nil
}

// SyncDir makes the names in dir durable.
func SyncDir(f vfs.FS, dir string) error {
	d, err := f.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
