// Package memregistry keeps a registry in memory: the model that other backends are compared with, and what tests use.
package memregistry

import (
	"context"
	"sync"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/internal/table"
)

// Backend is a namespace.Backend whose records end with it.
type Backend struct {
	table  *table.Table
	writer sync.Mutex // from the check of a change to its being visible
}

// New is an empty backend.
func New() *Backend { return &Backend{table: table.New(nil, 0)} }

// Read is Backend.Read.
func (b *Backend) Read(ctx context.Context, prefix []byte) ([]namespace.Record, namespace.Revision, error) {
	return b.table.Read(ctx, prefix)
}

// Write is Backend.Write.
func (b *Backend) Write(ctx context.Context, at namespace.Revision, read [][]byte, puts []namespace.Record) (namespace.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	b.writer.Lock()
	defer b.writer.Unlock()
	records, revision, err := b.table.Prepare(at, read, puts)
	if err == nil && len(records) > 0 {
		b.table.Apply(records)
	}
	return revision, err
}

// Watch is Backend.Watch.
func (b *Backend) Watch(ctx context.Context, after namespace.Revision, each func([]namespace.Record) error) error {
	return b.table.Watch(ctx, after, each)
}

// Close is Backend.Close.
func (b *Backend) Close() error {
	b.table.Close()
	return nil
}
