package core

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
)

// Memory per page, off the Go heap, slots 1-based (0 = none), addressed by uint32:
//
//	page record                                          64 B
//	index: 4 B a cell in segments 0.4 to 0.8 full   5 to 10 B
//	policy (LRU)                                         24 B
//	                                               ----------
//	                                                93 to 98 B, and 32 B per copy of an extent
//
// Pages that are pinned, incomplete or being written cost more, in maps of the Go heap: they are few and bounded.
// A probe that hits touches one cell and one record.
type pageRecord struct {
	fp       fingerprint //  0 keyed fingerprint of the hash: identity together with family
	family   uint32      // 16 interned (namespace, epoch, scope, group); 0: the record is free
	parent   uint32      // 20 slot; 0: root or unknown (flags say which). Never dangles: see placeholder
	extents  uint32      // 24 first extent slot, in order of view and tier
	children uint32      // 28 records that name this one as parent
	live     uint32      // 32 of these, with an extent anywhere, open ones included
	near     [2]uint32   // 36 of these, with an extent in Host, and on Disk; open ones and copies under way included
	declared float32     // 44 recompute cost as its writer says, FLOPs
	expiry   clock.Wall  // 48 0: never
	gen      uint32      // 52 raised at each end of a life: voids what was kept outside
	depth    uint32      // 56 parent's + 1; 0: root or unknown
	lineage  uint16      // 60 of all committed extents, or mixedLineage
	flags    pageFlags   // 62
}

// The life of a page record. "absent" records are placeholders: they stay while children name them, so that parent
// links never dangle, orphans are counted in O(1) and a returning parent finds its children.
//
//	         grant            commit
//	(none) --------> open --------------> present --delete, corrupt, expire--> absent --last child--> (none)
//	   ^               |                  ^ |  |                               |  ^      goes
//	   |               | abort            | |  | evicted (leaf, no child)      |  |
//	   +---------------+------------------|-+--+                               |  |
//	                   |                  +------- grant, commit --------------+  |
//	                   +----- abort, children name it ----------------------------+
type pageFlags uint16

const (
	flagComplete  pageFlags = 1 << iota // committed extents cover the whole page
	flagCommitted                       // has a committed extent; known to the policy
	flagOpen                            // has an extent under a live grant
	flagAbsent                          // nothing accepted committed and nothing open, as last settled
	flagOrphan                          // its parent is absent, or an orphan
	flagGivenUp                         // incomplete for too long
	flagPinned                          // in Shard.pins
	flagUnknown                         // the parent is unknown (and parent is 0)

	flagCauseShift = 8 // OrphanCause of the children while absent: 3 bits
	flagCause      = pageFlags(7) << flagCauseShift

	flagGuarded = pageFlags(1) << 11       // room is being made for it: not evictable meanwhile
	flagNear    = pageFlags(1)<<12 | 1<<13 // has an extent in Host, or on Disk: counted by its parent
	flagQueued  = pageFlags(1) << 14       // in the queue of write-behind
	flagSettled = pageFlags(1) << 15       // Settle has been here
	flagHeld    = flagCommitted | flagOpen // it has an extent
)

// firstNear is the first tier of which pages count the children that are in it, in pageRecord.near and flagNear.
const (
	firstNear     = evict.Host
	flagNearShift = 12
)

// nearIn is the flag of a page that has an extent in t.
func nearIn(t evict.Tier) pageFlags {
	if t < firstNear {
		return 0
	}
	return 1 << (flagNearShift + t - firstNear)
}

func (p *pageRecord) has(f pageFlags) bool { return p.flags&f != 0 }

func (p *pageRecord) set(f pageFlags, on bool) {
	if on {
		p.flags |= f
	} else {
		p.flags &^= f
	}
}

func (p *pageRecord) cause() OrphanCause { return OrphanCause(p.flags & flagCause >> flagCauseShift) }

func (p *pageRecord) setCause(c OrphanCause) {
	p.flags = p.flags&^flagCause | pageFlags(c)<<flagCauseShift
}

func (p *pageRecord) ref(slot uint32) PageRef { return PageRef{slot, p.gen} }

// expired says whether the page's time is over.
func (p *pageRecord) expired(wall clock.Wall) bool { return p.expiry != 0 && wall >= p.expiry }

// extentRecord is one copy of one extent in one tier. Committed extents of a page are disjoint, but for copies of one
// extent: these have equal views, stand next to each other in the list of the page (an open one may stand between),
// and are each in a tier of its own.
type extentRecord struct {
	next    uint32    //  0 next of the page
	owner   uint32    //  4 slot of the page; once detached, the family
	view    page.View //  8
	where   uint32    // 16 tier (2 bits), state (3), moving (1), spare (1), slab or segment (25; 0: no place yet)
	offset  uint32    // 20 in 4 KiB: 16 TiB per slab
	bytes   uint32    // 24 payload, header, padding
	lineage uint16    // 28 whose work it rests on
	users   uint16    // 30 reads and transfers that use the place now: it may not be freed
}

// States of an extent. Open, landing and committed ones are listed in their page.
//
//	(none) --grant--> open --commit--> committed --page deleted under a lease--> gone --last lease--> (none)
//	          (none) <--abort--+        ^   |                                      |
//	(none) --copy--> landing --done-----+   +--drop, users > 0--> zombie <---------+ users > 0
//	                    |                   +--corrupt, users > 0--> rotten        |
//	                    |                   +--drop, users == 0--> (none) <--------+ last user done
//	                    +--source dropped, or failed--> zombie
//
// The transfer is a user of a landing extent.
type extentState uint8

const (
	extentFree extentState = iota
	extentOpen
	extentCommitted
	extentGone    // deleted, still readable under the leases of its goneSet
	extentZombie  // dropped, the last user frees it
	extentRotten  // a zombie that failed verification
	extentLanding // a copy that is under way
)

const (
	whereStateShift  = 2
	whereMovingShift = 5
	whereSpareShift  = 6
	whereHandleShift = 7
	whereTierMask    = 1<<whereStateShift - 1
	whereStateMask   = (1<<whereMovingShift - 1) &^ whereTierMask
	whereMoving      = uint32(1) << whereMovingShift
	whereSpare       = uint32(1) << whereSpareShift
	maxHandle        = 1<<(32-whereHandleShift) - 1
	maxExtentBytes   = 1<<32 - 1
	regionAlignShift = 12
)

func (x *extentRecord) tier() evict.Tier { return evict.Tier(x.where & whereTierMask) }

func (x *extentRecord) state() extentState {
	return extentState(x.where & whereStateMask >> whereStateShift)
}

func (x *extentRecord) setState(s extentState) {
	x.where = x.where&^whereStateMask | uint32(s)<<whereStateShift
}

// listed says whether the extent stands in the list of its page.
func (x *extentRecord) listed() bool {
	st := x.state()
	return st == extentOpen || st == extentCommitted || st == extentLanding
}

func (x *extentRecord) moving() bool { return x.where&whereMoving != 0 }

func (x *extentRecord) setMoving(on bool) {
	x.where &^= whereMoving
	if on {
		x.where |= whereMoving
	}
}

// spare says that another copy of the extent is charged to the quota, and this one is not.
func (x *extentRecord) spare() bool { return x.where&whereSpare != 0 }

func (x *extentRecord) setSpare(on bool) {
	x.where &^= whereSpare
	if on {
		x.where |= whereSpare
	}
}

// place is the zero Place until the tier has found one.
func (x *extentRecord) place() Place {
	handle := x.where >> whereHandleShift
	if handle == 0 {
		return Place{}
	}
	return Place{x.tier(), handle, int64(x.offset) << regionAlignShift, int64(x.bytes)}
}

// setPlace refuses what does not fit the record's bits.
func (x *extentRecord) setPlace(p Place) bool {
	if p.Handle == 0 || p.Handle > maxHandle || p.Offset < 0 || p.Offset>>regionAlignShift > 1<<32-1 ||
		p.Offset&(1<<regionAlignShift-1) != 0 || p.Bytes != int64(x.bytes) || p.Tier >= evict.NumTiers {
		return false
	}
	x.where = x.where&(whereStateMask|whereMoving|whereSpare) | uint32(p.Tier) | p.Handle<<whereHandleShift
	x.offset = uint32(p.Offset >> regionAlignShift)
	return true
}

func (x *extentRecord) clearPlace() {
	x.where, x.offset = x.where&(1<<whereHandleShift-1), 0
}

// held is what the extent occupies: its bytes rounded up to the tiers' alignment.
func (x *extentRecord) held() uint64 { return roundUp(uint64(x.bytes)) }

func roundUp(n uint64) uint64 {
	return (n + 1<<regionAlignShift - 1) &^ (1<<regionAlignShift - 1)
}
