package server

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/page"
)

// Options of a Server. Zero values are documented defaults, filled in New. Store and Registry stay the caller's: the
// server neither starts nor closes them.
type Options struct {
	Store    *store.Store        // required
	Registry *namespace.Registry // required
	Clock    clock.Clock         // default clock.System
	Limits   Limits
	Version  string // answered by GetCapabilities and Status

	Auth     auth.Mode   // default auth.None: every caller is auth.Local, on loopback only
	TLS      *tls.Config // nil: plain text
	Insecure bool        // listen elsewhere than on loopback without TLS or without authentication

	// DataAddress and ShmSocket are told by GetCapabilities: where the page service speaks frames. Empty: nowhere.
	DataAddress, ShmSocket string

	Eviction EvictionSetting // told by Status

	Metrics  prometheus.Registerer // nil: none are registered
	Recorder Recorder              // nil: nothing is recorded
	GRPC     []grpc.ServerOption   // more options: tracing
	// Panicked is told what a handler panicked with and where; the caller gets INTERNAL. nil: nobody is told.
	Panicked func(method string, value any, stack []byte)
}

// EvictionSetting is by what the store evicts, for those who want to predict it. The zero value tells nobody.
type EvictionSetting struct {
	Policy         string // vbr or lru
	Shards         int
	Pages, Extents uint64 // records; 0: no bound
	SampleBytes    uint64 // with which the policy of each shard may watch pages
	Seed           uint64 // of page.FingerprintKey, and of the policies; 0: nobody knows
}

// Limits bound what a caller can ask for. Those of one call are advertised by GetCapabilities and checked before
// anything is allocated for it.
type Limits struct {
	MaxKeys         int           // keys of one call; default 16,384: the answer to one is a 2 KiB bitmap
	MaxBatchBytes   int64         // payload bytes of one Begin or Fetch; default 1 GiB
	MaxChunkBytes   int           // of one chunk of an upload; default 1 MiB
	FetchChunkBytes int           // of one chunk of a Fetch; default 512 KiB, at most 1 MiB: what one client reads at once
	MaxMessageBytes int           // of one message; default 32 MiB: the headers of MaxKeys small extents fit
	MaxLease        time.Duration // longest lease granted; default 60 s
	DefaultLease    time.Duration // where the caller names none; default 10 s

	FetchesPerPrincipal    int           // at once; default 256
	FetchBytesPerPrincipal int64         // pinned by them; default 4 GiB
	SessionsPerPrincipal   int           // attached at once; default 1,024
	InstancesPerTenant     int           // engine instances whose last report is kept; default 1,024: a kilobyte or two each
	ProgressTimeout        time.Duration // a Fetch whose client takes no chunk for so long loses its connection; default 30 s
	StreamsPerConn         uint32        // calls at once on one connection; default 1,024
	WatchersPerPrincipal   int           // WatchPages and Watch streams at once; default 64
}

// Bounds of the bounds.
const (
	maxChunkBytesCap = 4 << 20
	maxExplainKeys   = 1024 // each costs a look at every family of the store
)

func (l *Limits) fill() {
	l.MaxKeys = cmp.Or(l.MaxKeys, 16_384)
	l.MaxBatchBytes = cmp.Or(l.MaxBatchBytes, 1<<30)
	l.MaxChunkBytes = cmp.Or(l.MaxChunkBytes, 1<<20)
	l.FetchChunkBytes = cmp.Or(l.FetchChunkBytes, 512<<10)
	l.MaxMessageBytes = cmp.Or(l.MaxMessageBytes, 32<<20)
	l.MaxLease = cmp.Or(l.MaxLease, time.Minute)
	l.DefaultLease = cmp.Or(l.DefaultLease, min(10*time.Second, l.MaxLease))
	l.FetchesPerPrincipal = cmp.Or(l.FetchesPerPrincipal, 256)
	l.FetchBytesPerPrincipal = cmp.Or(l.FetchBytesPerPrincipal, max(4<<30, l.MaxBatchBytes))
	l.SessionsPerPrincipal = cmp.Or(l.SessionsPerPrincipal, 1024)
	l.InstancesPerTenant = cmp.Or(l.InstancesPerTenant, 1024)
	l.ProgressTimeout = cmp.Or(l.ProgressTimeout, 30*time.Second)
	l.StreamsPerConn = cmp.Or(l.StreamsPerConn, 1024)
	l.WatchersPerPrincipal = cmp.Or(l.WatchersPerPrincipal, 64)
}

func (l *Limits) check() error {
	hashes := l.MaxKeys * page.MaxHashBytes
	switch {
	case l.MaxKeys < 1 || l.MaxBatchBytes < 1 || l.FetchesPerPrincipal < 1 || l.SessionsPerPrincipal < 1 || l.WatchersPerPrincipal < 1 || l.InstancesPerTenant < 1:
		return errors.New("server limits: counts and bytes must be positive")
	case l.MaxChunkBytes < page.MaxPieceBytes || l.MaxChunkBytes > maxChunkBytesCap:
		return fmt.Errorf("server limits: chunks of %d bytes; they must be between %d and %d", l.MaxChunkBytes, page.MaxPieceBytes, maxChunkBytesCap)
	case l.FetchChunkBytes < page.MaxPieceBytes || l.FetchChunkBytes > maxChunkBytesCap:
		return fmt.Errorf("server limits: fetch chunks of %d bytes; they must be between %d and %d", l.FetchChunkBytes, page.MaxPieceBytes, maxChunkBytesCap)
	case l.MaxMessageBytes < hashes || l.MaxMessageBytes < l.MaxChunkBytes+page.MaxHeaderBytes:
		return fmt.Errorf("server limits: messages of %d bytes hold neither %d keys nor a chunk with its header", l.MaxMessageBytes, l.MaxKeys)
	case l.FetchBytesPerPrincipal < l.MaxBatchBytes:
		return errors.New("server limits: a principal's fetch bytes are below one batch")
	case l.DefaultLease < 0 || l.MaxLease < l.DefaultLease || l.ProgressTimeout < 0:
		return errors.New("server limits: the default lease is above the longest")
	}
	return nil
}

func (o *Options) fill() error {
	if o.Store == nil || o.Registry == nil {
		return errors.New("server: Store and Registry are required")
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	if o.Panicked == nil {
		o.Panicked = func(string, any, []byte) {}
	}
	o.Limits.fill()
	return o.Limits.check()
}
