package pebbleregistry

import (
	"encoding/binary"
	"errors"
	"fmt"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/pebblefuse"
	"github.com/quire-kv/quire/namespace"
)

// What the store holds: 0x00 and a name for its own facts, 0x01 and the key for a record.
//
//	00 "format"    "quire registry 1"
//	00 "revision"  8 newest revision, big-endian
//	01 key         8 revision, big-endian | value
const (
	metaPrefix    = 0x00
	recordPrefix  = 0x01
	format        = "quire registry 1"
	revisionBytes = 8
	memTableBytes = 1 << 20 // a registry is a few MiB, and its writes are rare
)

func metaKey(name string) []byte { return append([]byte{metaPrefix}, name...) }

func recordKey(key []byte) []byte { return append([]byte{recordPrefix}, key...) }

// options are those of every store here.
func options(fs vfs.FS, f *pebblefuse.Fuse) *pebble.Options {
	o := &pebble.Options{FS: fs, MemTableSize: memTableBytes, FormatMajorVersion: pebble.FormatNewest}
	f.Guard(o)
	return o
}

// openStore opens the store beneath dir, creating it whole or not at all: a crash while Pebble makes its first files
// leaves what it cannot open.
//
//	dir/LOCK, dir/OWNER   who owns the directory
//	dir/store.new         a store that is being created; removed by whoever finds it
//	dir/store             the store, from the moment it is complete and synced
func openStore(dir string, fs vfs.FS, f *pebblefuse.Fuse) (*pebble.DB, error) {
	final := fs.PathJoin(dir, "store")
	if _, err := fs.Stat(final); err != nil {
		if !errors.Is(err, iofs.ErrNotExist) {
			return nil, err
		}
		if err := createStore(dir, final, fs, f); err != nil {
			return nil, fmt.Errorf("create store: %w", err)
		}
	}
	db, err := pebble.Open(final, options(fs, f))
	if err != nil {
		return nil, err
	}
	have, err := get(db, metaKey("format"))
	if err == nil && string(have) != format {
		err = fmt.Errorf("%w: %.40q, this version reads %q", ErrFormat, have, format)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func createStore(dir, final string, fs vfs.FS, f *pebblefuse.Fuse) error {
	fresh := fs.PathJoin(dir, "store.new")
	if err := fs.RemoveAll(fresh); err != nil {
		return err
	}
	db, err := pebble.Open(fresh, options(fs, f))
	if err != nil {
		return err
	}
	if err := errors.Join(db.Set(metaKey("format"), []byte(format), pebble.Sync), db.Close()); err != nil {
		return err
	}
	if err := fs.Rename(fresh, final); err != nil {
		return err
	}
	return pebblefuse.SyncDir(fs, dir)
}

// get copies a value; nil: there is none.
func get(db *pebble.DB, key []byte) ([]byte, error) {
	v, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append([]byte{}, v...), closer.Close()
}

// readAll loads every record and the newest revision.
func readAll(db *pebble.DB) (records []namespace.Record, at namespace.Revision, err error) {
	newest, err := get(db, metaKey("revision"))
	if err != nil {
		return nil, 0, fmt.Errorf("read revision: %w", err)
	}
	if newest != nil {
		if len(newest) != revisionBytes {
			return nil, 0, fmt.Errorf("%w: revision of %d bytes", namespace.ErrRecord, len(newest))
		}
		at = namespace.Revision(binary.BigEndian.Uint64(newest))
	}
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{recordPrefix}, UpperBound: []byte{recordPrefix + 1}})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		r, err := decodeStored(it.Key(), it.Value())
		if err != nil {
			return nil, 0, err
		}
		if r.Revision > at {
			return nil, 0, fmt.Errorf("%w: %.40q is newer than the registry", namespace.ErrRecord, r.Key)
		}
		records = append(records, r)
	}
	return records, at, it.Error()
}

// decodeStored copies a stored key and value.
func decodeStored(key, value []byte) (namespace.Record, error) {
	if len(key) < 2 || key[0] != recordPrefix || len(key)-1 > namespace.MaxKeyBytes {
		return namespace.Record{}, fmt.Errorf("%w: key of %d bytes", namespace.ErrRecord, len(key))
	}
	if len(value) < revisionBytes || len(value)-revisionBytes > namespace.MaxValueBytes {
		return namespace.Record{}, fmt.Errorf("%w: %.40q has %d bytes", namespace.ErrRecord, key[1:], len(value))
	}
	at := binary.BigEndian.Uint64(value)
	if at == 0 || at > 1<<62 {
		return namespace.Record{}, fmt.Errorf("%w: %.40q has revision %d", namespace.ErrRecord, key[1:], at)
	}
	return namespace.Record{Key: append([]byte{}, key[1:]...), Value: append([]byte{}, value[revisionBytes:]...), Revision: namespace.Revision(at)}, nil
}

// persist writes one change and syncs it.
func persist(db *pebble.DB, records []namespace.Record, at namespace.Revision) (err error) {
	batch := db.NewBatch()
	defer func() { err = errors.Join(err, batch.Close()) }()
	revision := binary.BigEndian.AppendUint64(nil, uint64(at))
	err = batch.Set(metaKey("revision"), revision, nil)
	for _, r := range records {
		if err != nil {
			break
		}
		if r.Value == nil {
			err = batch.Delete(recordKey(r.Key), nil)
		} else {
			err = batch.Set(recordKey(r.Key), append(append([]byte{}, revision...), r.Value...), nil)
		}
	}
	if err != nil {
		return fmt.Errorf("fill batch: %w", err)
	}
	return batch.Commit(pebble.Sync)
}
