// Package index keeps, in a Pebble store of its own, where the live regions of the disk tier are. The segments are the
// truth: the index is written without a log and without syncs, a crash takes it back to an earlier batch, and what is
// damaged is thrown away and rebuilt. docs/formats/disk-index.md has its bytes.
package index

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/pebblefuse"
	"github.com/quire-kv/quire/store/page"
)

// Entry is one live region: its place in the segments and what its record says.
type Entry struct {
	Segment       uint64
	Offset, Bytes int64 // of the region, in the segment
	Seq           uint64
	Key           page.Key
	Extent        page.ExtentID
	Parent        page.Hash // zero: none
	ParentUnknown bool
	View          page.View
	DeclaredFLOPs float64
	Expiry        clock.Wall
	Lineage       string // few distinct ones, MaxLineageBytes each
}

// Options of an Index. Zero values are defaults, except for Dir.
type Options struct {
	FS       vfs.FS // default vfs.Default, the operating system's
	Dir      string // the index's own
	MaxBytes int64  // what its files may take together, see MaxEntries; default 1 GiB, at least MinBytes
	Logger   *slog.Logger
	ReadOnly bool // no file is changed, and the directory must exist
}

// Errors of an Index, for errors.Is.
var (
	// ErrCorrupt says that the index is damaged, incomplete, or of another version: Destroy it and rebuild.
	ErrCorrupt = errors.New("disk index is corrupt")
	// ErrBroken says that the file system failed: the index takes no changes any more.
	ErrBroken = errors.New("disk index is broken")
	// ErrEntry refuses a batch that holds what no record can say.
	ErrEntry = errors.New("disk index cannot hold this entry")
	// ErrFull refuses a batch that adds entries: there are more than MaxEntries.
	ErrFull = errors.New("disk index is full")
)

// Index is open in this process alone. Changes (Apply, Flush) are made by one goroutine at a time; Scan, State and the
// counters may run beside them. Close comes after all other calls have returned.
type Index struct {
	db    *pebble.DB
	fuse  *pebblefuse.Fuse
	files *meter
	lock  io.Closer
	ro    bool

	maxBytes  int64
	reclaimer reclaimer

	batch  *pebble.Batch // of Apply, used again and again
	dicts  map[uint64]*dictionary
	applys uint64 // counts calls of Apply, for the age of dictionaries
	value  []byte // scratch of Apply
	closed bool
}

const lockFile = "LOCK"

// Open opens the index in o.Dir, or makes an empty one where there is nothing.
func Open(o Options) (*Index, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBytes
	}
	o.MaxBytes = max(o.MaxBytes, MinBytes)
	x := &Index{fuse: pebblefuse.New(ErrBroken, o.Logger), files: newMeter(o.FS), ro: o.ReadOnly, maxBytes: o.MaxBytes,
		reclaimer: newReclaimer(o.MaxBytes), dicts: map[uint64]*dictionary{}}
	if err := x.open(&o); err != nil {
		return nil, fmt.Errorf("open index %s: %w", o.Dir, err)
	}
	return x, nil
}

func (x *Index) open(o *Options) (err error) {
	if o.ReadOnly {
		_, err = o.FS.Stat(o.Dir)
	} else {
		err = pebblefuse.MakeDir(o.FS, o.Dir)
	}
	if err != nil {
		return err
	}
	lock, err := o.FS.Lock(o.FS.PathJoin(o.Dir, lockFile))
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	x.lock = lock
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return err
	}
	fresh := !slices.ContainsFunc(names, func(n string) bool { return n != lockFile })
	if fresh && o.ReadOnly {
		return fs.ErrNotExist
	}
	if err := x.files.load(o.Dir, names); err != nil {
		return err
	}
	po := pebbleOptions(o.MaxBytes)
	po.FS, po.ReadOnly, po.ErrorIfNotExists = x.files, o.ReadOnly, !fresh
	x.fuse.Guard(po)
	defer po.Cache.Unref()
	return x.damage(x.fuse.Run(func() error {
		db, err := pebble.Open(o.Dir, po)
		if err != nil {
			return err
		}
		if fresh {
			err = errors.Join(db.Set(formatKey(), []byte(format), pebble.NoSync), db.Flush())
		} else {
			err = checkFormat(db)
		}
		if err != nil {
			return errors.Join(err, db.Close())
		}
		x.db, x.batch = db, db.NewBatch()
		return nil
	}))
}

// checkFormat refuses what another version wrote, and an index that has lost its first batch.
func checkFormat(db *pebble.DB) error {
	v, closer, err := db.Get(formatKey())
	if err != nil {
		return fmt.Errorf("read format: %w", err)
	}
	defer func() { _ = closer.Close() }() // it only unpins v
	if string(v) != format {
		return fmt.Errorf("format is %.40q, this version reads %q", v, format)
	}
	return nil
}

// damage tells a damaged index, whatever Pebble calls it, from a file system that failed.
func (x *Index) damage(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) {
		return err
	}
	if failed := x.fuse.Failure(); failed != nil {
		return fmt.Errorf("%w (%w)", err, failed)
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// Destroy removes the index in dir, which nobody has open.
func Destroy(f vfs.FS, dir string) error {
	if err := f.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove index %s: %w", dir, err)
	}
	return pebblefuse.SyncDir(f, f.PathDir(dir))
}

// DiskBytes is what the files of the index take, in whole blocks.
func (x *Index) DiskBytes() int64 { return x.files.diskBytes() }

// Written is how many bytes went to the files since Open, compactions included.
func (x *Index) Written() uint64 { return x.files.written.Load() }

// Flush makes what was applied durable.
func (x *Index) Flush() error {
	return x.fuse.Run(x.db.Flush)
}

// Close keeps everything that was applied, or says that the index is broken.
func (x *Index) Close() error {
	if x.closed {
		return nil
	}
	x.closed = true
	err := x.fuse.Err() // also of what failed in the background since
	if err == nil {
		err = x.fuse.Run(func() error {
			err := x.batch.Close()
			if !x.ro {
				err = errors.Join(err, x.db.Flush())
			}
			return errors.Join(err, x.db.Close())
		})
	}
	return errors.Join(err, x.lock.Close())
}
