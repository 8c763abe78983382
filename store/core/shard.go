// Package core is one shard of a node's decisions: publish, lease, parents, children, eviction, movement.
// Pure: no goroutine, no clock, no I/O, no map range. Callers serialise Step; read methods may run beside other
// read methods. The runtime (store), the cluster's node and the simulator all drive this package.
//
//	        events                     effects
//	grpc ─┐                          ┌─> tier drivers (Alloc, Transfer, Free)
//	shm  ─┼─> store runtime ─> Shard ┼─> callers (Reply)
//	tiers─┘   (lock per shard)       └─> announcements (WatchPages; the cluster's directory)
package core

import (
	"runtime"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/internal/offheap"
)

// Options fix a shard's bounds. Zero values are documented defaults, filled by New.
type Options struct {
	Boot           [16]byte
	FingerprintKey uint64       // random per boot
	Ledger         *Ledger      // shared by the shards of a node; nil: one of its own with no limits
	Policy         evict.Policy // required
	Tier           evict.Tier   // where publications go first; default Host
	WriteBehind    bool         // commits queue their pages for Disk
	MaxBehind      int          // pages queued; default 65,536. What comes beyond is queued when the queue is empty again

	MaxLeases       int           // live read leases; default 65,536
	MaxPublications int           // in flight; default 16,384
	MaxLeaseTTL     time.Duration // default 60 s
	MaxLeaseAge     time.Duration // however often renewed; default 10 min
	IncompleteTTL   time.Duration // an incomplete page is doomed so long after its last commit; default 60 s
	SweepRecords    int           // records looked at per Tick; default 4,096
}

func (o *Options) fill() {
	if o.Ledger == nil {
		o.Ledger = NewLedger(Limits{})
	}
	if o.Tier == evict.Device { // the zero Tier; nothing is published to a device first
		o.Tier = evict.Host
	}
	setDefault(&o.MaxLeases, 65536)
	setDefault(&o.MaxPublications, 16384)
	setDefault(&o.MaxLeaseTTL, 60*time.Second)
	setDefault(&o.MaxLeaseAge, 10*time.Minute)
	setDefault(&o.IncompleteTTL, 60*time.Second)
	setDefault(&o.SweepRecords, 4096)
	setDefault(&o.MaxBehind, 65536)
}

func setDefault[T ~int | ~int64](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Shard is a state machine. Which shard: hash(namespace id, epoch), so that a chain, its groups and its leases are
// always in one.
type Shard struct {
	o        Options
	epochs   epochs
	families families

	pages   recordPool[pageRecord]
	extents recordPool[extentRecord]
	index   index

	tenures   tenures
	leases    map[LeaseID]*lease
	operators []*lease // operator pins, one for each principal that has some
	pubs      map[Token]*publication
	allocs    map[uint64]*publication // by Alloc.ID
	open      map[uint32][]openPage   // by slot: publications that write to it
	groups    map[uint32][16]byte     // by slot: writer group of an incomplete page of a strict namespace
	pins      map[uint32]pin          // by slot
	gone      map[PageRef]*goneSet    // ends of lives that were pinned
	goneOf    map[uint32]*goneSet     // by extent
	pinned    int                     // entries of all leases together
	reads     map[Ticket][]uint32
	transfers map[uint64]*transfer
	copies    map[copying]*transfer

	incomplete incompleteQueue
	behind     behindQueue
	sweep      sweeper
	readOnly   [evict.NumTiers]bool

	live    tierBytes              // of extents in their pages, of any state
	near    [evict.NumTiers]uint64 // pages with such an extent in the tier; Host and Disk only
	told    [evict.NumTiers]holding
	evicted [evict.NumTiers]bool // once

	nextID   uint64 // of Alloc and Transfer
	nextSeq  uint64 // of Announce
	totals   Totals // counters, without what Totals computes
	openOnly uint64 // pages with grants and nothing committed
	lastWake clock.Instant

	// Of the current Step.
	now      clock.Instant
	wall     clock.Wall
	out      []Effect
	evicting bool // what goes leaves a ghost in the policy

	restoring bool // between Restore and Settle: who is an orphan is not known yet

	// Scratch.
	fps     []fingerprint
	slots   []uint32
	members []uint16
	victims []evict.Victim
	among   evict.Shares
	revoked []uint32
	listed  []uint32 // copies of a page
	owned   []uint32 // likewise, where others are listed meanwhile
	path    []uint32 // a page and its ancestors

	restored []uint32 // lent with Restored
}

// New returns an empty shard.
func New(o Options) *Shard {
	o.fill()
	s := &Shard{
		o: o, epochs: newEpochs(o.Ledger), families: newFamilies(),
		leases: map[LeaseID]*lease{}, pubs: map[Token]*publication{}, allocs: map[uint64]*publication{},
		open: map[uint32][]openPage{}, groups: map[uint32][16]byte{}, pins: map[uint32]pin{},
		gone: map[PageRef]*goneSet{}, goneOf: map[uint32]*goneSet{}, reads: map[Ticket][]uint32{},
		transfers: map[uint64]*transfer{}, copies: map[copying]*transfer{}, lastWake: never,
	}
	s.incomplete.newest = map[uint32]uint64{}
	s.behind.max = o.MaxBehind
	limits := o.Ledger.limits
	s.pages = newRecordPool[pageRecord](limits.Pages, maxPages)
	s.extents = newRecordPool[extentRecord](limits.Extents, maxExtents)
	s.index = newIndex(s.pages.array)
	return s
}

// recordPool hands out slots of an array, from 1, the lowest first and then those given back.
type recordPool[T any] struct {
	array *offheap.Array[T]
	top   uint32 // highest slot ever used
	free  uint32 // first of the list of free slots; linked through the record
	used  uint32
}

func newRecordPool[T any](limit, most uint64) recordPool[T] {
	if limit == 0 || limit > most-1 {
		limit = most - 1
	}
	return recordPool[T]{array: offheap.New[T](int(limit) + 1)}
}

// At is the record at slot.
func (p *recordPool[T]) At(slot uint32) *T { return p.array.At(slot) }

// take gives a zeroed record; next reads the link of a free one. 0: all are in use.
func (p *recordPool[T]) take(next func(*T) uint32) uint32 {
	slot := p.free
	switch {
	case slot != 0:
		p.free = next(p.At(slot))
	case int(p.top)+1 < p.array.Len():
		p.top++
		slot = p.top
	default:
		return 0
	}
	p.used++
	return slot
}

// give links slot, whose record links to the old head of the list.
func (p *recordPool[T]) give(slot uint32) {
	p.free = slot
	p.used--
}

// Step applies ev (a value, not a pointer) at now and appends what must be done to out (reused by the caller).
// Determinism: equal (Options, sequence of (now, wall, ev)) give equal effects, byte for byte.
func (s *Shard) Step(now clock.Instant, wall clock.Wall, ev Event, out []Effect) []Effect {
	s.now, s.wall, s.out = now, wall, out
	s.expireTenures()
	idle := s.behind.empty()
	s.apply(ev)
	if idle {
		s.tellBehind()
	}
	s.resize()
	s.wake()
	out, s.out = s.out, nil
	runtime.KeepAlive(s)
	return out
}

func (s *Shard) apply(ev Event) {
	switch ev := ev.(type) {
	case Begin:
		s.begin(&ev)
	case Allocated:
		s.allocated(&ev)
	case Commit:
		s.commit(&ev)
	case Abort:
		s.abort(&ev)
	case Lookup:
		s.lookup(&ev)
	case Renew:
		s.renew(&ev)
	case Release:
		s.release(&ev)
	case Read:
		s.read(&ev)
	case Hold:
		s.holdCopies(&ev)
	case ReadDone:
		s.readDone(&ev)
	case SessionGone:
		s.sessionGone(&ev)
	case Delete:
		s.delete(&ev)
	case Touch:
		s.touch(&ev)
	case Pin:
		s.pin(&ev)
	case Tick:
		s.tick()
	case Reclaim:
		s.reclaim(&ev)
	case Move:
		s.move(&ev)
	case TransferDone:
		s.transferDone(&ev)
	case Promote:
		s.promote(&ev)
	case Persist:
		s.persist(&ev)
	case WriteBehind:
		s.writeBehind(&ev)
	case Restore:
		s.restore(&ev)
	case Settle:
		s.settleAll()
	case TenantsChanged:
		s.sweep.request()
	case NamespaceChanged:
		s.namespaceChanged(&ev)
	case CorruptFound:
		s.corruptFound(&ev)
	case TierState:
		s.tierState(&ev)
	case TierLoads:
		s.o.Policy.SetLoading(ev.Tier, ev.Loading)
	default:
		invariant.Check(false, "core: unknown event %T", ev)
	}
}

func (s *Shard) emit(e Effect) { s.out = append(s.out, e) }

// seconds is now in the unit of the policy.
func seconds(now clock.Instant) float64 { return float64(now) / 1e9 }
