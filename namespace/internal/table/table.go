// Package table is what the registry's local backends share: all records and the recent changes in memory. A registry
// is a few MiB, and answering reads from memory shows nothing before it is durable.
package table

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/quire-kv/quire/namespace"
)

// kept bounds the changes. A follower of a registry that takes a hundred changes a second may fall ten seconds behind
// before it has to read everything again.
const kept = 1024

// Table is records at their newest revision and the newest changes. Safe for concurrent use, with one writer: between
// Prepare and Apply nobody else may call either.
//
//	floor         kept changes          newest
//	  | . . . . . [c c c c c c c c c c c c]
//	  older: forgotten, so a check or a watch from there has to start from a read
type Table struct {
	mu      sync.RWMutex // guards all below
	records map[string]namespace.Record
	floor   namespace.Revision
	newest  namespace.Revision
	changes []change      // ascending, one a revision
	grown   chan struct{} // closed and replaced when a change is added or the table closed
	closed  bool
}

type change struct {
	revision namespace.Revision
	records  []namespace.Record
}

// New is a table of these records, which it keeps, at revision at.
func New(records []namespace.Record, at namespace.Revision) *Table {
	t := &Table{records: make(map[string]namespace.Record), floor: at, newest: at, grown: make(chan struct{})}
	for _, r := range records {
		t.records[string(r.Key)] = r
	}
	return t
}

// Read is Backend.Read.
func (t *Table) Read(ctx context.Context, prefix []byte) ([]namespace.Record, namespace.Revision, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return nil, 0, namespace.ErrClosed
	}
	var out []namespace.Record
	for key, r := range t.records {
		if strings.HasPrefix(key, string(prefix)) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b namespace.Record) int { return bytes.Compare(a.Key, b.Key) })
	return out, t.newest, nil
}

// Prepare checks that no record under the prefixes changed after at and copies puts with the revision that they will
// have. The revision of no puts is the newest there is. ErrConflict also where the changes do not reach back to at.
func (t *Table) Prepare(at namespace.Revision, prefixes [][]byte, puts []namespace.Record) ([]namespace.Record, namespace.Revision, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.closed:
		return nil, 0, namespace.ErrClosed
	case at < t.floor || t.changedAfter(at, prefixes):
		return nil, 0, namespace.ErrConflict
	case len(puts) == 0:
		return nil, t.newest, nil
	}
	out, err := copyRecords(puts, t.newest+1)
	return out, t.newest + 1, err
}

func (t *Table) changedAfter(at namespace.Revision, prefixes [][]byte) bool {
	for i := len(t.changes) - 1; i >= 0 && t.changes[i].revision > at; i-- {
		for _, r := range t.changes[i].records {
			if slices.ContainsFunc(prefixes, func(p []byte) bool { return bytes.HasPrefix(r.Key, p) }) {
				return true
			}
		}
	}
	return false
}

// copyRecords copies what a caller passed and refuses what is out of bounds.
func copyRecords(puts []namespace.Record, at namespace.Revision) ([]namespace.Record, error) {
	if len(puts) > namespace.MaxPuts {
		return nil, namespace.ErrTooLarge
	}
	out := make([]namespace.Record, len(puts))
	for i, p := range puts {
		if len(p.Key) == 0 || len(p.Key) > namespace.MaxKeyBytes || len(p.Value) > namespace.MaxValueBytes {
			return nil, namespace.ErrTooLarge
		}
		out[i] = namespace.Record{Key: bytes.Clone(p.Key), Value: bytes.Clone(p.Value), Revision: at}
	}
	return out, nil
}

// Apply makes prepared records visible as one change and wakes the watchers.
func (t *Table) Apply(records []namespace.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range records {
		if r.Value == nil {
			delete(t.records, string(r.Key))
		} else {
			t.records[string(r.Key)] = r
		}
	}
	t.newest++
	t.changes = append(t.changes, change{t.newest, records})
	if over := len(t.changes) - kept; over > 0 {
		t.floor = t.changes[over-1].revision
		clear(t.changes[:over]) // append moves the array only now and then: let the records go at once
		t.changes = t.changes[over:]
	}
	t.wake()
}

// Close ends all watches and calls with ErrClosed. Idempotent.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.closed = true
		t.wake()
	}
}

func (t *Table) wake() {
	close(t.grown)
	t.grown = make(chan struct{})
}

// Watch is Backend.Watch.
func (t *Table) Watch(ctx context.Context, after namespace.Revision, each func([]namespace.Record) error) error {
	for {
		todo, grown, err := t.since(after)
		if err != nil {
			return err
		}
		for _, c := range todo {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := each(c.records); err != nil {
				return err
			}
			after = c.revision
		}
		if len(todo) > 0 {
			continue
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *Table) since(after namespace.Revision) ([]change, <-chan struct{}, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case t.closed:
		return nil, nil, namespace.ErrClosed
	case after < t.floor:
		return nil, nil, namespace.ErrCompacted
	}
	missing := max(0, int(t.newest-after)) // at most all of them, since after is not below the floor
	return slices.Clone(t.changes[len(t.changes)-missing:]), t.grown, nil
}
