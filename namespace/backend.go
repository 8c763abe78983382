package namespace

import (
	"context"
	"errors"
)

// Revision orders changes of one backend.
type Revision int64

// Record is one key and value; a nil Value deletes.
type Record struct {
	Key, Value []byte
	Revision   Revision // of the change that wrote it; given by the backend
}

// Bounds of what a Backend is asked to keep.
const (
	MaxKeyBytes   = 512
	MaxValueBytes = 4 << 20 // a namespace's record holds its spec
	MaxPuts       = 2048    // in one Write: forgetting a namespace takes all its provenances
)

// What a backend may answer.
var (
	ErrConflict       = errors.New("registry: changed since it was read")              // read again and decide again
	ErrOutcomeUnknown = errors.New("registry: outcome of the write unknown")           // read again before anything else
	ErrCompacted      = errors.New("registry: changes since then are no longer known") // read again, then watch
	ErrTooLarge       = errors.New("registry: record or change out of bounds")         // nothing was applied
	ErrClosed         = errors.New("registry: closed")
)

// Backend is a watched key-value store with compare-and-set on what was read. Safe for concurrent use; what it gives
// out is never written to afterwards, and what it is given is copied. registrytest holds every backend to it.
type Backend interface {
	// Read returns the records under a prefix, in key order, at one revision.
	Read(ctx context.Context, prefix []byte) ([]Record, Revision, error)
	// Write applies puts as one change if no record under the read prefixes changed after at; durable before it
	// answers the change's revision. ErrConflict means that nothing was applied. No puts: only the check.
	Write(ctx context.Context, at Revision, read [][]byte, puts []Record) (Revision, error)
	// Watch calls each in revision order with what changed after the given revision, one call a change, until ctx
	// ends (its error), each answers an error (that) or the backend is closed (ErrClosed). ErrCompacted: the watcher
	// is further behind than the backend remembers. each is called without locks and may call the backend.
	Watch(ctx context.Context, after Revision, each func([]Record) error) error
	// Close ends all watches. Idempotent.
	Close() error
}
