// Package pebbleregistry keeps the registry of one node in a Pebble store of its own, so that one binary serves with
// no other process. Every change is synced before it is answered or seen by anybody.
package pebbleregistry

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/pebblefuse"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/internal/table"
)

// Options of a Backend. Zero values are defaults.
type Options struct {
	FS vfs.FS // default vfs.Default, the operating system's
}

// Errors of Open, and of a Backend whose disk failed.
var (
	ErrInUse  = errors.New("registry directory is in use")
	ErrFormat = errors.New("registry directory has another format")
	ErrBroken = errors.New("registry disk failed: restart once it is well")
)

// Backend is a namespace.Backend in one directory, which it owns alone while it is open. All of it is in memory too:
// Pebble shows a batch before it is synced, and reads may not.
type Backend struct {
	lock  *pebble.Lock
	table *table.Table

	turn   chan struct{} // held by whoever uses db; waiting for it ends with the caller's context
	db     *pebble.DB
	fuse   *pebblefuse.Fuse
	once   sync.Once
	closed error
}

// Open opens or creates the registry in dir. A second owner, in this process or another, gets ErrInUse with the name
// of the first.
func Open(dir string, o Options) (*Backend, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	b, err := open(dir, o.FS)
	if err != nil {
		return nil, fmt.Errorf("open registry %s: %w", dir, err)
	}
	return b, nil
}

func open(dir string, fs vfs.FS) (_ *Backend, err error) {
	lock, err := takeLock(dir, fs)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	b := &Backend{lock: lock, turn: make(chan struct{}, 1), fuse: pebblefuse.New(ErrBroken, nil)}
	err = b.fuse.Run(func() error {
		db, err := openStore(dir, fs, b.fuse)
		if err != nil {
			return err
		}
		records, at, err := readAll(db)
		if err != nil {
			return errors.Join(err, db.Close())
		}
		b.db, b.table = db, table.New(records, at)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Read is Backend.Read.
func (b *Backend) Read(ctx context.Context, prefix []byte) ([]namespace.Record, namespace.Revision, error) {
	return b.table.Read(ctx, prefix)
}

// Watch is Backend.Watch.
func (b *Backend) Watch(ctx context.Context, after namespace.Revision, each func([]namespace.Record) error) error {
	return b.table.Watch(ctx, after, each)
}

// Write is Backend.Write. A failing disk answers ErrOutcomeUnknown once, then ErrBroken.
func (b *Backend) Write(ctx context.Context, at namespace.Revision, read [][]byte, puts []namespace.Record) (namespace.Revision, error) {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	records, revision, err := b.table.Prepare(at, read, puts)
	if err != nil || len(records) == 0 {
		return revision, err
	}
	if err := b.fuse.Err(); err != nil {
		return 0, err
	}
	if err := b.fuse.Run(func() error { return persist(b.db, records, revision) }); err != nil {
		b.fuse.Blow(err) // applied or not: only opening it again tells
		return 0, fmt.Errorf("%w: %w", namespace.ErrOutcomeUnknown, err)
	}
	b.table.Apply(records)
	return revision, nil
}

// Close is Backend.Close: it waits for the write under way.
func (b *Backend) Close() error {
	b.once.Do(func() {
		b.table.Close()
		b.turn <- struct{}{}
		defer func() { <-b.turn }()
		if b.fuse.Err() == nil {
			b.closed = b.fuse.Run(b.db.Close)
		}
		b.closed = errors.Join(b.closed, b.lock.Close())
	})
	return b.closed
}
