package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/pebblefuse"
)

// directory is where the files are. Its methods are safe for concurrent use.
type directory struct {
	fs   vfs.FS
	path string
	identity
	direct bool // write past the page cache
}

const indexName = "index"

func (d *directory) join(name string) string { return d.fs.PathJoin(d.path, name) }
func (d *directory) sync() error             { return pebblefuse.SyncDir(d.fs, d.path) }

// writeFile is a file that records are appended to.
type writeFile struct {
	vfs.File
	direct bool
	dirty  bool // written to since the last sync
}

// make makes a file at its full size with its label. Its name is durable after the next sync of the directory, the rest
// after that of the file. A file that could not be made whole may exist.
func (d *directory) make(name string, l label) (f *writeFile, err error) {
	file, err := d.fs.OpenReadWrite(d.join(name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()
	// Without preallocation the device may turn out to be full later: that is an error of a write.
	if err := file.Preallocate(0, l.bytes); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("preallocate %d bytes: %w", l.bytes, err)
	}
	f = &writeFile{File: file, direct: d.direct && setDirect(file.Fd()) == nil}
	b := aligned(blockBytes)
	if _, err := f.WriteAt(b, l.bytes-blockBytes); err != nil { // no later write changes the file's size
		return nil, err
	}
	l.identity = d.identity
	l.encode(b)
	if _, err := f.WriteAt(b, 0); err != nil {
		return nil, err
	}
	f.dirty = true
	return f, nil
}

// writeParts writes parts one behind the other. They are whole blocks, and aligned if the file is direct.
func (f *writeFile) writeParts(parts [][]byte, at int64) error {
	f.dirty = true
	if f.direct {
		return writeVector(f.Fd(), parts, at)
	}
	for _, p := range parts {
		if _, err := f.WriteAt(p, at); err != nil {
			return err
		}
		at += int64(len(p))
	}
	return nil
}

// flush makes what was written durable. After an error nobody knows what is.
func (f *writeFile) flush() error {
	if !f.dirty {
		return nil
	}
	f.dirty = false
	return f.SyncData()
}

// aligned is memory that begins on a block.
func aligned(n int) []byte {
	b := make([]byte, n+blockBytes)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (blockBytes - 1))
	return b[at : at+n : at+n]
}

func isAligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(blockBytes-1) == 0
}

// remove removes a file; one that does not exist is fine.
func (d *directory) remove(name string) error {
	if err := d.fs.Remove(d.join(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// found is a segment or journal file of the directory.
type found struct {
	number uint64
	size   int64
}

// list finds the segments and journal files, each by ascending number.
func (d *directory) list() (segments, journals []found, err error) {
	names, err := d.fs.List(d.path)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		number, kind, ok := parseName(name)
		if !ok {
			continue
		}
		info, err := d.fs.Stat(d.join(name))
		if err != nil {
			return nil, nil, err
		}
		if f := (found{number, info.Size()}); kind == fileSegment {
			segments = append(segments, f)
		} else {
			journals = append(journals, f)
		}
	}
	sortFound(segments)
	sortFound(journals)
	return segments, journals, nil
}

// readFull reads len(b) bytes at an offset. What lies behind the end of the file reads as zeros: a crash may have cut it.
func readFull(f vfs.File, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if errors.Is(err, io.EOF) {
		clear(b[n:])
		return nil
	}
	return err
}
