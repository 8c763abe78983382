// Package store is the runtime of one node: it owns the shards, their locks, the tiers and the goroutines, carries
// out the core's effects, moves and verifies bytes. It knows no network, no registry and no proto.
//
//	callers ──> Store ── Step(event) ──> core.Shard      one lock a shard, held for the Step alone
//	              │ <──── effects ──────     │
//	              ├── Alloc, Free, Transfer ──> tier.Driver   carried out after the lock is released
//	              ├── Reply ──> the caller that waits
//	              └── Announce ──> watchers
package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// ErrClosed answers every call after Close began.
var ErrClosed = errors.New("store: closed")

// Options name every seam and bound. Zero values are defaults, filled in New.
type Options struct {
	Clock     clock.Clock                  // default clock.System
	Tiers     [evict.NumTiers]tier.Driver  // nil: absent; Host is required; Close closes them
	NewPolicy func(shard int) evict.Policy // default VBR, seeded at random
	Shards    int                          // default 4
	Boot      [16]byte                     // default random
	Limits    core.Limits                  // Capacity is filled from the tiers
	Core      core.Options                 // bounds of each shard; Boot, Ledger, Policy and key are filled in
	// MetadataBytes is what records and policies may take, as Limits and NewPolicy have it: for Status alone. 0: not bounded.
	MetadataBytes uint64
	// PrefillFLOPS is what the engines that read from here do in a second: what they could have recomputed while pages are
	// loaded from a lower tier is taken off what those are worth. 0: nothing is.
	PrefillFLOPS float64
	// NoWriteBehind keeps pages that were not published durably off the disk tier.
	NoWriteBehind bool
}

// Caller is who calls, and in which session.
type Caller struct {
	Principal core.Principal // from Intern
	Session   core.Session   // 0: none
	// Provenance of the caller; 0: not stated. Publishing needs it; a stated one must be accepted to read.
	Provenance uint16
}

// Store is safe for concurrent use. Methods that take a context return its error when it ends, and undo what they
// had taken; the others never block.
type Store struct {
	o       Options
	clock   clock.Clock
	started clock.Instant
	ledger  *core.Ledger
	shards  []*shard
	tickets atomic.Uint64
	names   nameTable
	spaces  spaceTable
	watch   watchTable
	counts  counters
	loads   [evict.NumTiers]loadMeter

	compacting sync.Mutex  // one slab is emptied at a time
	disk       *diskWriter // nil: no disk tier

	life    sync.Mutex // guards closing and the two waits below against a late Add
	closing bool
	calls   sync.WaitGroup // calls and open readings
	timers  sync.WaitGroup // armed or running timers
	closed  chan struct{}
}

// shard is one core.Shard with its lock and what the runtime keeps beside it.
type shard struct {
	id   uint32
	mu   sync.RWMutex // guards core; held for one Step or one read of the core, never across I/O
	core *core.Shard

	rt    sync.Mutex // guards what follows; never held together with mu
	waits map[core.Ticket]*wait
	pubs  map[core.Token]*publication
	loads map[core.Ticket]*Reading // that wait for Landed
	wake  *wakeup                  // nil: none armed
	still bool                     // no more timers
}

// New starts a store over its tiers. Close ends it.
func New(o Options) (*Store, error) {
	if o.Tiers[evict.Host] == nil {
		return nil, errors.New("store: a host tier is required")
	}
	if d := o.Tiers[evict.Disk]; d != nil {
		if _, ok := d.(tier.Durable); !ok {
			return nil, errors.New("store: the disk tier is not durable")
		}
	}
	if o.Shards < 0 || o.Shards > 1<<10 {
		return nil, fmt.Errorf("store: %d shards, want 1 to 1024", o.Shards)
	}
	if err := fill(&o); err != nil {
		return nil, err
	}
	s := &Store{o: o, clock: o.Clock, started: o.Clock.Now(), ledger: core.NewLedger(o.Limits), closed: make(chan struct{})}
	s.names.init()
	s.spaces.init()
	s.counts.unconfirmed = map[string]uint64{}
	for i := range o.Shards {
		co := o.Core
		co.Ledger, co.Policy, co.Boot = s.ledger, o.NewPolicy(i), o.Boot
		s.shards = append(s.shards, &shard{
			id: uint32(i), core: core.New(co),
			waits: map[core.Ticket]*wait{}, pubs: map[core.Token]*publication{}, loads: map[core.Ticket]*Reading{},
		})
	}
	if durable, ok := o.Tiers[evict.Disk].(tier.Durable); ok {
		s.disk = newDiskWriter(s, durable)
		go s.disk.run()
	}
	return s, nil
}

func fill(o *Options) error {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Shards == 0 {
		o.Shards = 4
	}
	if o.NewPolicy == nil {
		seed, err := randomUint64()
		if err != nil {
			return fmt.Errorf("store: seed of eviction: %w", err)
		}
		refs := int(min(o.Limits.Pages, evict.MaxRefs-1)) + 1
		if o.Limits.Pages == 0 {
			refs = evict.MaxRefs
		}
		o.NewPolicy = func(shard int) evict.Policy { return evict.NewVBR(refs, seed+uint64(shard)) }
	}
	if o.Boot == ([16]byte{}) {
		if _, err := rand.Read(o.Boot[:]); err != nil {
			return fmt.Errorf("store: boot id: %w", err)
		}
	}
	if o.Core.FingerprintKey == 0 {
		k, err := randomUint64()
		if err != nil {
			return fmt.Errorf("store: fingerprint key: %w", err)
		}
		o.Core.FingerprintKey = k | 1
	}
	o.Core.Tier = evict.Host
	o.Core.WriteBehind = o.Tiers[evict.Disk] != nil && !o.NoWriteBehind
	for t, d := range o.Tiers {
		if d != nil {
			o.Limits.Capacity[t] = uint64(d.Usage().Capacity)
		}
	}
	return nil
}

func randomUint64() (uint64, error) {
	var b [8]byte
	_, err := rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// Boot is the boot id.
func (s *Store) Boot() [16]byte { return s.o.Boot }

// shardOf places a namespace epoch: all its chains, groups and leases are in one shard.
func (s *Store) shardOf(id page.NamespaceID, e page.Epoch) *shard {
	return s.shards[page.ShardOf(id, e, len(s.shards))]
}

// enter counts a call in; leave counts it out. Nothing enters once Close began.
func (s *Store) enter() error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closing {
		return ErrClosed
	}
	s.calls.Add(1)
	return nil
}

func (s *Store) leave() { s.calls.Done() }

// Close stops intake, waits within ctx for calls, readings and what the disk has in hand, and closes the tiers; Flush
// before it writes behind what is in memory only. When ctx ends first the tiers stay mapped, since something may still read
// them; the error says so. Idempotent.
func (s *Store) Close(ctx context.Context) error {
	s.life.Lock()
	first := !s.closing
	s.closing = true
	s.life.Unlock()
	if first {
		go s.drain()
	}
	select {
	case <-s.closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("store: closing with calls or writes in flight: %w", ctx.Err())
	}
}

func (s *Store) drain() {
	defer close(s.closed)
	s.watch.closeAll()
	s.calls.Wait()
	if s.disk != nil {
		s.disk.stop()
	}
	for _, sh := range s.shards {
		s.disarm(sh)
	}
	s.timers.Wait()
	for _, d := range slices.Backward(s.o.Tiers[:]) { // what is being written to Disk is read from Host
		if d != nil {
			_ = d.Close() // a tier in memory has nothing to lose; a durable one reports through Usage
		}
	}
}

// Attach opens a session; Detach ends it with what was taken in its name.
func (s *Store) Attach(p core.Principal) core.Session { return s.names.attach(p) }

// Detach ends a session. Idempotent.
func (s *Store) Detach(id core.Session) {
	if !s.names.detach(id) || s.enter() != nil {
		return
	}
	defer s.leave()
	for _, sh := range s.shards {
		s.step(sh, core.SessionGone{Session: id})
	}
}

// uptime is how long the store has run.
func (s *Store) uptime() time.Duration { return s.clock.Now().Sub(s.started) }
