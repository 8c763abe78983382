package index

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// blockBytes is what files take space in.
const blockBytes = 4 << 10

// meter is a file system that knows what its files take. All files are in one directory.
type meter struct {
	vfs.FS
	written atomic.Uint64

	mu     sync.Mutex // guards all below
	files  map[string]int64
	blocks int64 // of all files
}

func newMeter(f vfs.FS) *meter { return &meter{FS: f, files: map[string]int64{}} }

// load takes in what is there.
func (m *meter) load(dir string, names []string) error {
	for _, name := range names {
		info, err := m.FS.Stat(m.PathJoin(dir, name))
		if err != nil {
			return err
		}
		if !info.IsDir() {
			m.resize(name, func(int64) int64 { return info.Size() })
		}
	}
	return nil
}

func blocksOf(bytes int64) int64 { return (bytes + blockBytes - 1) / blockBytes }

func (m *meter) resize(path string, size func(old int64) int64) {
	name := m.PathBase(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.files[name]
	now := size(old)
	m.files[name] = now
	m.blocks += blocksOf(now) - blocksOf(old)
}

// drop forgets a file, and answers how large it was.
func (m *meter) drop(path string) int64 {
	name := m.PathBase(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.files[name]
	delete(m.files, name)
	m.blocks -= blocksOf(old)
	return old
}

func (m *meter) diskBytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blocks * blockBytes
}

// Create is vfs.FS.
func (m *meter) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := m.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	m.resize(name, func(int64) int64 { return 0 })
	return &meteredFile{f, m, name}, nil
}

// Lock is vfs.FS: Index holds the lock, and releases it also where Pebble cannot.
func (m *meter) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Remove is vfs.FS.
func (m *meter) Remove(name string) error {
	if err := m.FS.Remove(name); err != nil {
		return err
	}
	m.drop(name)
	return nil
}

// Rename is vfs.FS.
func (m *meter) Rename(oldname, newname string) error {
	if err := m.FS.Rename(oldname, newname); err != nil {
		return err
	}
	size := m.drop(oldname)
	m.resize(newname, func(int64) int64 { return size })
	return nil
}

// meteredFile counts what is written, which Pebble does at the end only.
type meteredFile struct {
	vfs.File
	m    *meter
	name string
}

// Write is vfs.File.
func (f *meteredFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	f.m.written.Add(uint64(n))
	f.m.resize(f.name, func(old int64) int64 { return old + int64(n) })
	return n, err
}

// Preallocate is vfs.File. What is not written takes no space.
func (f *meteredFile) Preallocate(int64, int64) error { return nil }
