package core

import (
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// Effect is the sealed sum of all a shard can ask for. The runtime carries out the effects of one Step in order,
// after the shard's lock is released; effects of different Steps may overlap. Slices inside an effect are the
// shard's scratch memory, valid until its next Step, except those of a Reply, which belong to the receiver.
type Effect interface{ effect() }

type (
	// Reply ends a Ticket. Results are aligned with the request, runs joined; none when Reason is of the whole call and
	// the shard cannot know how many pages were meant (unknown namespace, stale token, a Lookup that is refused whole).
	Reply struct {
		Ticket  Ticket
		Reason  reason.Reason // of the whole call: Retired, StaleEpoch, LeaseExpired, StaleToken, Busy ...
		Token   Token         // Begin
		Lease   LeaseID       // Lookup
		TTL     time.Duration // granted
		Until   clock.Instant
		At      clock.Instant // Lookup, Begin, Commit, Touch: when it was decided what was used, or what goes for it
		Leading []uint32      // Lookup: consecutive hits per run
		Covered []uint32      // Lookup: leading pages pinned per run
		Results []Result
	}
	// Alloc asks a tier for places, all or a prefix; answered by Allocated. The runtime makes room by Reclaim,
	// here or in the shard whose next victim is worth least.
	Alloc struct {
		ID        uint64
		Tier      evict.Tier
		Namespace page.NamespaceID
		Epoch     page.Epoch
		Items     []AllocItem // valid until Allocated
		Tenant    uint32      // who needs the room
		Worth     evict.Score // of the best page of the run: it takes the place only of what scores no more
	}
	// AllocItem is one open extent that needs a place.
	AllocItem struct {
		Extent uint32
		Bytes  int64
	}
	// Revoke ends the right to write to grants of a publication: comes before the Free of their places. The
	// runtime waits for copies in flight into them. Pages nil: all.
	Revoke struct {
		Token Token
		Pages []uint32
	}
	// Transfer copies an extent to another place, of its own tier (a move) or of another (a copy), with verification;
	// answered by TransferDone.
	Transfer struct {
		ID        uint64
		Extent    uint32 // whose bytes are at From
		Into      uint32 // who will own the new place: Extent for a move, the record of the copy otherwise
		Namespace page.NamespaceID
		Epoch     page.Epoch
		From      Place
		To        evict.Tier
		Expiry    clock.Wall // of the page, for a durable tier's note
		Lineage   []uint16   // interned provenances that the extent rests on; immutable
		// Worth is what a copy may take the place of: of what scores no more. MaxScore: it is not judged.
		Worth evict.Score
	}
	// Landed answers Promote: Copy is in Host at Place and pinned by the Read until ReadDone, or Err says why not.
	Landed struct {
		Ticket Ticket
		Extent uint32 // as named by Promote
		Copy   uint32
		Place  Place
		Err    reason.Reason
	}
	// Behind says that there is something for WriteBehind, about so many bytes: commits queued it in an empty queue, some is
	// left after a WriteBehind, or Disk takes bytes again.
	Behind struct{ Bytes uint64 }
	// Restored answers Restore, aligned with it: the record of each extent, 0 for what is refused, whose place the
	// runtime gives back.
	Restored struct{ Extents []uint32 }
	// MoveRefused answers Move.
	MoveRefused struct{ Extent uint32 }
	// Free gives a place back; never issued while something reads it.
	Free struct{ Place Place }
	// Reclaimed ends a Reclaim: bytes that its Free effects give back, at once or when readers are done. NotWorth: there
	// was more, and it is worth more than was asked for. At: what was chosen was chosen at this time.
	Reclaimed struct {
		Bytes    uint64
		NotWorth bool
		At       clock.Instant
	}
	// Announce feeds WatchPages and, in a cluster, the directory: of each copy, Place says in which tier. For a removal,
	// Place still holds the header. What Restore files is not announced.
	Announce struct {
		Seq     uint64 // per shard, from 1
		Ref     PageRef
		Family  page.Family
		Place   Place
		View    page.View
		Removed bool
		Why     reason.Reason // of a removal; None is eviction
	}
	// Wake asks for a Tick no later than At. A later Wake replaces an earlier one.
	Wake struct{ At clock.Instant }
)

// Outcome is what happened to one page. Numbers equal the proto enum.
type Outcome uint8

// The outcomes.
const (
	OK Outcome = iota + 1
	Granted
	Present
	Committed
	Miss
	Refused
)

// Result is one page's answer.
type Result struct {
	Outcome  Outcome
	Reason   reason.Reason // of Miss and Refused
	Ref      PageRef
	Ancestor page.Hash // ParentMissing: the parent named, which is absent
	Grants   []Grant   // Granted
	Parts    []Part    // Read: OK, in the order of Tile
}

// Grant is one rectangle to write.
type Grant struct {
	View   page.View
	Extent uint32
	Place  Place
	Depth  uint32 // the page's, by its parent
}

// Part is one extent's contribution to a read.
type Part struct {
	Extent uint32
	Place  Place
	View   page.View // what the place holds
	Take   page.View // what of it serves the reader
	// Accepted is false only under AnyView: the extent is hidden by its provenance.
	Accepted bool
}

func (Reply) effect()       {}
func (Alloc) effect()       {}
func (Revoke) effect()      {}
func (Transfer) effect()    {}
func (Landed) effect()      {}
func (Behind) effect()      {}
func (Restored) effect()    {}
func (MoveRefused) effect() {}
func (Free) effect()        {}
func (Reclaimed) effect()   {}
func (Announce) effect()    {}
func (Wake) effect()        {}
