package pebbleregistry

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// fuse stands between Pebble and a disk that fails. Pebble answers such a disk by ending the process, by panics, or by
// trying for ever; a registry keeps answering reads from memory and refuses changes. Once blown, Pebble is not called
// again, and what it left behind ends with the process.
type fuse struct {
	once  sync.Once
	blown chan struct{}
	err   error // why, set before blown is closed
}

func newFuse() *fuse { return &fuse{blown: make(chan struct{})} }

func (f *fuse) blow(err error) {
	f.once.Do(func() {
		f.err = fmt.Errorf("%w: %w", ErrBroken, err)
		close(f.blown)
	})
}

// state is nil, or why the fuse blew.
func (f *fuse) state() error {
	select {
	case <-f.blown:
		return f.err
	default:
		return nil
	}
}

var errEnded = errors.New("pebble gave up")

// run calls Pebble on a goroutine that Pebble may end or keep, and answers when it returns or the fuse blows.
func (f *fuse) run(call func() error) error {
	if err := f.state(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := errEnded // unless call returns
		defer func() { done <- err }()
		defer catch(&err)
		err = call()
	}()
	select {
	case err := <-done:
		return err
	case <-f.blown:
		return f.err
	}
}

// catch turns the error that Pebble panics with where its disk fails into err.
func catch(err *error) {
	switch x := recover().(type) {
	case nil:
	case runtime.Error:
		panic(x)
	case error:
		*err = x
	default:
		panic(x)
	}
}

// Infof drops Pebble's chatter.
func (f *fuse) Infof(string, ...any) {}

// Errorf drops it too: what matters comes as an error.
func (f *fuse) Errorf(string, ...any) {}

// Fatalf is where Pebble wants to end the process: the fuse blows and this goroutine ends instead.
func (f *fuse) Fatalf(format string, args ...any) {
	f.blow(fmt.Errorf(format, args...))
	runtime.Goexit()
}

// options are those of every store here.
func (f *fuse) options(fs vfs.FS) *pebble.Options {
	return &pebble.Options{
		FS: syncedFS{fs, f}, MemTableSize: memTableBytes, FormatMajorVersion: pebble.FormatNewest, Logger: f,
		EventListener: &pebble.EventListener{BackgroundError: f.blow},
	}
}

// syncedFS names every new file durably before anything can name it in turn: Pebble's marker of the current manifest
// may otherwise survive a crash that the manifest does not. A directory that cannot be synced blows the fuse: Pebble
// would panic on a goroutine of its own.
type syncedFS struct {
	vfs.FS
	fuse *fuse
}

// Create is vfs.FS.
func (s syncedFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	if err := syncDir(s.PathDir(name), s.FS); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenDir is vfs.FS.
func (s syncedFS) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return fusedDir{f, s.fuse}, nil
}

type fusedDir struct {
	vfs.File
	fuse *fuse
}

// Sync is vfs.File.
func (d fusedDir) Sync() error {
	err := d.File.Sync()
	if err != nil {
		d.fuse.blow(fmt.Errorf("sync directory: %w", err))
		runtime.Goexit()
	}
	return nil
}
