package disk

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/pebblefuse"
)

const (
	identityName = "IDENTITY"
	lockName     = "LOCK"
	ownerName    = "OWNER" // tells people who holds the lock; the lock itself ends with its process
	maxOwner     = 32
)

// ErrInUse says that another process, or another driver of this one, has the directory.
var ErrInUse = errors.New("in use")

// takeLock makes the directory this process's own until the closer is closed.
func takeLock(fs vfs.FS, dir string) (io.Closer, error) {
	if err := pebblefuse.MakeDir(fs, dir); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := fs.Lock(fs.PathJoin(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("data directory %s is %w by %s (%w)", dir, ErrInUse, readOwner(fs, dir), err)
	}
	if err := writeOwner(fs, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", ownerName, err), lock.Close())
	}
	return lock, nil
}

func writeOwner(fs vfs.FS, dir string) error {
	f, err := fs.Create(fs.PathJoin(dir, ownerName), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d %s\n", os.Getpid(), filepath.Base(os.Args[0]))
	return errors.Join(err, f.Close())
}

func readOwner(fs vfs.FS, dir string) string {
	const unknown = "a process that has not named itself"
	f, err := fs.Open(fs.PathJoin(dir, ownerName))
	if err != nil {
		return unknown
	}
	b := make([]byte, maxOwner)
	n, err := f.ReadAt(b, 0)
	_ = f.Close() // it was only read
	if err != nil && !errors.Is(err, io.EOF) {
		return unknown
	}
	pid, program, _ := strings.Cut(strings.TrimSpace(string(b[:n])), " ")
	if _, err := strconv.Atoi(pid); err != nil {
		return unknown
	}
	return fmt.Sprintf("process %s (%s)", pid, program)
}

// readLabel reads the first block of a file.
func (d *directory) readLabel(name string) (label, error) {
	f, err := d.fs.Open(d.join(name))
	if err != nil {
		return label{}, err
	}
	b := make([]byte, blockBytes)
	err = readFull(f, b, 0)
	_ = f.Close() // it was only read
	if err != nil {
		return label{}, err
	}
	return decodeLabel(b)
}

// readIdentity is the directory's identity, of its own file or, where that is damaged or missing, of the label of any
// other. fault is what is wrong with the file; none is true where no file has an identity.
func (d *directory) readIdentity(segments, journals []found) (none bool, fault error) {
	l, err := d.readLabel(identityName)
	if err == nil && l.kind != fileIdentity {
		err = errors.New("label of another file")
	}
	if err == nil {
		d.identity = l.identity
		return false, nil
	}
	fault = fmt.Errorf("read %s: %w", identityName, err)
	for _, f := range journals {
		if l, err := d.readLabel(journalName(f.number)); err == nil {
			d.identity = l.identity
			return false, fault
		}
	}
	for _, f := range segments {
		if l, err := d.readLabel(segmentName(f.number)); err == nil {
			d.identity = l.identity
			return false, fault
		}
	}
	return true, fault
}

// loadIdentity is readIdentity that repairs the file, and makes an identity for an empty directory.
func (d *directory) loadIdentity(segments, journals []found) error {
	none, fault := d.readIdentity(segments, journals)
	if fault == nil {
		return nil
	}
	if none {
		if len(segments)+len(journals) > 0 {
			return fmt.Errorf("no file of %s says whose it is: %w", d.path, fault)
		}
		var b [24]byte
		if _, err := rand.Read(b[:]); err != nil {
			return err
		}
		d.id, d.secret = [16]byte(b[:16]), binary.LittleEndian.Uint64(b[16:])
	}
	return d.writeIdentity()
}

// writeIdentity replaces the file as a whole.
func (d *directory) writeIdentity() error {
	temporary := d.join(identityName + ".new")
	f, err := d.fs.Create(temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	b := make([]byte, blockBytes)
	l := label{kind: fileIdentity, identity: d.identity, bytes: blockBytes}
	l.encode(b)
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := d.fs.Rename(temporary, d.join(identityName)); err != nil {
		return err
	}
	return d.sync()
}
