package pebbleregistry

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/pebblefuse"
)

// ownerFile says who holds the lock, for people: the lock itself is the operating system's and ends with its process.
const (
	ownerFile     = "OWNER"
	maxOwnerBytes = 512
)

// takeLock makes dir this backend's own.
func takeLock(dir string, fs vfs.FS) (*pebble.Lock, error) {
	if err := pebblefuse.MakeDir(fs, dir); err != nil {
		return nil, err
	}
	owner := fs.PathJoin(dir, ownerFile)
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		return nil, fmt.Errorf("%w by %s: stop that process or choose another directory (%w)", ErrInUse, readOwner(fs, owner), err)
	}
	if err := writeOwner(fs, owner); err != nil {
		_ = lock.Close() // the first error counts
		return nil, fmt.Errorf("write %s: %w", ownerFile, err)
	}
	return lock, nil
}

func writeOwner(fs vfs.FS, path string) error {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	host, _ := os.Hostname() // a name for people: empty is no reason not to start
	_, err = fmt.Fprintf(f, "process %d (%s) on host %s since %s", os.Getpid(), filepath.Base(os.Args[0]), host, time.Now().UTC().Format(time.RFC3339))
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

func readOwner(fs vfs.FS, path string) string {
	f, err := fs.Open(path)
	if err != nil {
		return "a process that has not named itself"
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxOwnerBytes))
	if err != nil || len(text) == 0 {
		return "a process that has not named itself"
	}
	return string(text)
}
