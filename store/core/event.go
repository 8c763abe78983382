package core

import (
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// Ticket joins an event with its Reply. The runtime chooses it; never 0, never reused within a boot.
type Ticket uint64

// Token fences one publication lease: compared whole, never ordered across boots. The zero Token is none.
type Token struct {
	Boot [16]byte
	Seq  uint64
}

// LeaseID names a read lease; guessing it is useless without its principal. The zero LeaseID is none.
type LeaseID [16]byte

// Principal is an authenticated caller, interned by the runtime from 1.
type Principal uint32

// Session is an attachment whose end also ends what was taken in its name; 0 is none.
type Session uint64

// Place is where bytes are: one region of one tier. The zero Place is none.
type Place struct {
	Tier   evict.Tier
	Handle uint32 // slab or segment, from 1
	Offset int64  // 4 KiB aligned
	Bytes  int64  // page.RegionBytes: header, zeros, payload; without the slack of the slot
}

// PageRef is a slot and its generation: what leaves the core instead of a pointer.
type PageRef struct{ Slot, Gen uint32 }

// Run is consecutive pages of one chain. Hashes is packed, n x NamespaceState.HashBytes; it belongs to the caller
// and is not kept after Step returns.
type Run struct {
	Family page.Family
	Hashes []byte
}

// Link says how a page of a Begin names its parent.
type Link uint8

// The links.
const (
	LinkPrevious Link = iota // the page before in the batch; for the first page: unknown
	LinkHash                 // BeginPage.Parent
	LinkUnknown              // the writer does not know
	LinkRoot                 // the first page of a chain
)

// Event is the sealed sum of all a shard can be told.
type Event interface{ event() }

// Events by callers.
type (
	// Begin asks for grants. Its Reply may come many steps later, after Allocated.
	Begin struct {
		Ticket      Ticket
		Principal   Principal
		Session     Session
		Run         Run
		Pages       []BeginPage // aligned with Run
		TTL         time.Duration
		Durable     bool
		Hint        evict.Hint // of all pages
		Provenance  uint16     // the writer's, interned node-wide by the runtime
		ProvBytes   int        // length of its canonical form: headers carry it
		WriterGroup [16]byte   // strict namespaces: equal on all ranks of one instance
	}
	// BeginPage is one page of a Begin. The zero View is the whole page.
	BeginPage struct {
		Link          Link
		Parent        page.Hash
		View          page.View
		PayloadBytes  uint64 // as the writer says; must be what the geometry gives for View
		DeclaredFLOPs float64
		Expiry        clock.Wall
	}
	// Commit makes pages of a publication visible. The runtime has verified bytes, headers and digests of every
	// grant of each page named.
	Commit struct {
		Ticket    Ticket
		Principal Principal
		Namespace page.NamespaceID
		Epoch     page.Epoch
		Token     Token
		Pages     []uint32 // indices into the Begin
	}
	// Abort gives up pages (nil: all) that are not committed.
	Abort struct {
		Token Token
		Pages []uint32
	}
	// Lookup takes a read lease on the longest prefix of each run that is present, fits the budgets, and is
	// complete for View (zero: the whole page): a use of these pages. A bare exists is Shard.Exists and no event.
	Lookup struct {
		Ticket    Ticket
		Principal Principal
		Session   Session
		Runs      []Run // one namespace and epoch
		View      page.View
		TTL       time.Duration
		Link      bool       // a publisher's chain lookup: link unlinked pages to their predecessors
		Hint      evict.Hint // of the pages that are pinned
	}
	// Renew extends a read lease (Lease) or a publication lease (Token), whichever is not zero. TTL 0 asks for as
	// long as it was granted for.
	Renew struct {
		Ticket    Ticket
		Principal Principal
		Lease     LeaseID
		Token     Token
		TTL       time.Duration
	}
	// Release gives back a read lease, or the named pages of it (Runs not nil).
	Release struct {
		Principal Principal
		Lease     LeaseID
		Runs      []Run
	}
	// Read pins the places of what it serves until ReadDone. A use of the pages, unless it is under a lease: the Lookup that
	// took that was the use, and one request is one, whether it reads in one piece or each of its ranks does.
	Read struct {
		Ticket    Ticket
		Principal Principal
		Run       Run
		View      page.View // zero: the whole page
		Lease     LeaseID   // not zero: under this lease or not at all
		NoTouch   bool      // internal reads (stat, explain, verify) do not refresh recency
		AnyView   bool      // serve what extents there are, complete or not (stat, explain, verify)
	}
	// Hold pins the places of copies that Scan listed, as a Read would, those that are still there: Results says which.
	Hold struct {
		Ticket Ticket
		Copies []Stored
	}
	// ReadDone unpins what Read or Hold with this Ticket pinned. Exactly once per Reply of these.
	ReadDone struct{ Ticket Ticket }
	// SessionGone ends the leases and publications of a session.
	SessionGone struct{ Session Session }
	// Delete hides pages at once; running leases and reads finish. Its Reply comes when no Transfer to Disk of what it
	// hid is under way any more: whatever was written has been freed by then. Or it is Busy, once Disk takes nothing: what was
	// under way may come back with a restart.
	Delete struct {
		Ticket Ticket
		Runs   []Run
	}
	// Touch refreshes recency, and passes on a hint.
	Touch struct {
		Ticket   Ticket
		Runs     []Run
		Hint     evict.Hint // of all pages
		HintOnly bool       // it is no use
	}
	// Pin keeps pages from eviction until unpinned, within the pin budgets.
	Pin struct {
		Ticket    Ticket
		Principal Principal
		Runs      []Run
		Unpin     bool
	}
)

// Events by the world below and around.
type (
	// Tick lets time act: lease ends, incomplete pages, expiry sweep, background reclaim. Bounded work; when more
	// is left it asks for a Wake at once.
	Tick struct{}
	// Allocated answers Alloc. Places is a prefix of its Items: the rest had no room (Err Busy), or none that it is worth
	// (NotWorth), or the tier failed.
	Allocated struct {
		ID     uint64
		Places []Place
		Err    reason.Reason
	}
	// Reclaim asks for at least Bytes of tier space; answered by Free effects and one Reclaimed, in this Step. Doomed pages
	// go first, then what tenants have beyond their guarantees. What is within one goes only for a tenant that is within
	// its own: first (Own false) nothing of it, then (Own true) what Ledger.among says.
	Reclaim struct {
		Tier   evict.Tier
		Bytes  uint64
		Clean  bool   // only copies of what is also in a lower tier: nothing is lost
		Tenant uint32 // who needs the room; 0: nobody in particular
		Own    bool
		// Judge: only what scores no more than Worth, unless Tenant claims what it is guaranteed.
		Judge bool
		Worth evict.Score
	}
	// Move asks to move an extent out of a slab or segment that is being emptied; answered by Transfer, by the Free of
	// its place when the copy is evicted instead, or by MoveRefused when it is open, in use or gone.
	Move struct {
		Extent uint32
		From   Place
		// Drop evicts what may be evicted and scores below it instead of moving it. The zero Score drops only what is
		// doomed.
		Drop evict.Score
	}
	// Promote asks for copies in Host of extents that the Read of this Ticket pinned elsewhere. Answered by one Landed
	// for each, in any order, maybe many steps later; by none once the Read is over. What is deleted meanwhile lands for
	// the Read alone, and goes with it.
	Promote struct {
		Ticket  Ticket // of the Read
		Extents []uint32
	}
	// Persist asks that what is committed of pages is on Disk too: durable publications, and Begins that found
	// their page present. Its Reply comes when the last Transfer is done, or Disk takes nothing: Committed, or Refused with why not: Absent
	// (nothing accepted of View is stored, or no longer), Expired, Provenance, Busy (Disk takes nothing, or no record is
	// left), or what the transfer said.
	Persist struct {
		Ticket Ticket
		Run    Run
		View   page.View // zero: the whole page
	}
	// WriteBehind asks for Transfers to Disk of about Bytes of what commits and uses queued, the worthiest first, parents
	// before their children. What is doomed, or whose parent cannot be there, is left out. Ends with a Behind if some is left.
	WriteBehind struct{ Bytes uint64 }
	// Restore files copies on Disk that it kept from earlier lives of the process, the least recently used first, parents
	// and children in any order; answered by Restored. Namespaces must be known before, and Settle must follow before
	// anything else: what a page stands on is not known until then. Of two copies that overlap the first stays. In strict
	// namespaces only whole pages are taken, since nothing says that one writer group wrote all parts of another.
	Restore struct{ Extents []RestoredExtent }
	// RestoredExtent is one of them.
	RestoredExtent struct {
		Place    Place
		Family   page.Family
		Hash     page.Hash
		Link     Link // LinkHash, LinkUnknown or LinkRoot
		Parent   page.Hash
		View     page.View
		Lineage  []uint16 // interned provenances; never empty
		Declared float64
		Expiry   clock.Wall
	}
	// Settle ends the Restores: depths and orphans are computed anew from parents, in one Step.
	Settle struct{}
	// TierLoads says what it costs to bring pages back from a tier, as measured of late: for the policy.
	TierLoads struct {
		Tier    evict.Tier
		Loading evict.Loading
	}
	// TransferDone answers Transfer. On success To is the new place; what is not needed of the two is freed by the core. Err
	// is NotWorth where all that could go is worth more than Transfer.Worth.
	TransferDone struct {
		ID  uint64
		To  Place
		Err reason.Reason
		// Passing: all that could go from Host is worth more; the copy has its place for those who wait for it alone.
		Passing bool
	}
	// TenantsChanged says that guarantees of tenants were set in the Ledger: pages move to other leaf sets in the next
	// sweep.
	TenantsChanged struct{}
	// NamespaceChanged sets or replaces what the shard knows of a namespace's epoch.
	NamespaceChanged struct{ Namespace NamespaceState }
	// CorruptFound drops one copy that failed the node's own verification: absent from then on, unless there is another.
	CorruptFound struct {
		Extent uint32
		Place  Place
	}
	// TierState tells of a tier that stopped or resumed taking bytes. Of a Disk that stopped nobody is left to wait for what is
	// under way.
	TierState struct {
		Tier     evict.Tier
		Writable bool
	}
)

// NamespaceState is all that the core knows of a namespace's life: resolved, no Registry, no spec text.
type NamespaceState struct {
	ID        page.NamespaceID
	Epoch     page.Epoch
	Life      Life
	Tenant    uint32                    // interned by the runtime; the same in all states of an ID
	Groups    map[page.GroupID]Geometry // looked up, never ranged over
	Accepts   []uint64                  // bit per interned provenance: what is accepted now
	Strict    bool
	HashBytes int    // 16 to 64
	Quota     uint64 // bytes, each extent once however many copies it has; 0: none
}

// Life is a namespace epoch's state.
type Life uint8

// Active -> Draining -> Retired, one way. A purged epoch is Retired while its successor is Active.
const (
	Active Life = iota + 1
	Draining
	Retired
)

// Geometry is what sizes and views of a group are checked against.
type Geometry struct {
	Heads, Layers uint16
	CellBytes     uint32 // of one (kv head, layer): all components, all tokens of the page
	Tokens        uint32 // per page
	Grade         page.Grade
	Parents       ParentRule
	FLOPs         func(startToken, endToken uint64) float64 // nil: unknown
}

// Full is the view of the whole page.
func (g *Geometry) Full() page.View { return page.View{H1: g.Heads, L1: g.Layers} }

// ParentRule says what a group's pages need before them.
type ParentRule uint8

// The rules.
const (
	ParentPrefix ParentRule = iota // every page before
	ParentWindow                   // pages within the window; parents link for order, absence does not orphan
	ParentNone                     // each page stands alone
)

func (Begin) event()            {}
func (Commit) event()           {}
func (Abort) event()            {}
func (Lookup) event()           {}
func (Renew) event()            {}
func (Release) event()          {}
func (Read) event()             {}
func (Hold) event()             {}
func (ReadDone) event()         {}
func (SessionGone) event()      {}
func (Delete) event()           {}
func (Touch) event()            {}
func (Pin) event()              {}
func (Tick) event()             {}
func (Allocated) event()        {}
func (Reclaim) event()          {}
func (Move) event()             {}
func (TransferDone) event()     {}
func (Promote) event()          {}
func (Persist) event()          {}
func (WriteBehind) event()      {}
func (Restore) event()          {}
func (Settle) event()           {}
func (NamespaceChanged) event() {}
func (TenantsChanged) event()   {}
func (CorruptFound) event()     {}
func (TierState) event()        {}
func (TierLoads) event()        {}
