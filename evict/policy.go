// Package evict decides what is worth its bytes. Pure: no clock, no goroutine, no I/O.
package evict

import "math"

// Ref is the core's dense page slot, from 1: policies keep plain slices indexed by it. A Ref is reused only after
// Remove returned.
type Ref uint32

// Tier orders the places from dearest to cheapest.
type Tier uint8

// The tiers.
const (
	Device Tier = iota
	Host
	Disk
	NumTiers
)

// String is the tier's name in metrics and tables.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host"
	case Disk:
		return "disk"
	}
	return "invalid_tier"
}

// Score orders victims: lower goes first. Policies of one store use one unit (LRU: seconds since start of the last
// use; later policies: FLOPs saved per byte-second), so shards, tiers and nodes compare. Doomed pages score below 0.
type Score float64

// MaxScore is above all others.
const MaxScore Score = math.MaxFloat64

// Attrs is what a policy may know of a page. Bytes changes as extents come and go: call Insert again.
type Attrs struct {
	Bytes    uint64  // of one copy of each extent, headers and slot slack included: what a tier holds at most
	FLOPs    float64 // recompute cost from depth, tokens and the operator's shape; 0 when unknown
	Declared float64 // the writer's word: reorders only within Tenant
	Hint     Hint    // the client's word, likewise; zero: nothing new since the last Insert
	Tokens   uint32
	Depth    uint32
	Tenant   uint32 // interned
	Share    Share  // which leaf set it is in: that of its tenant, if that has a guarantee, else 0
	Doomed   bool   // evicted first: orphan, hidden, given up incomplete, expired, retired
	Parent   Ref    // 0: root or unknown (in Pass also: the page before). For continuation classes only
	KeyTag   uint64 // keyed fingerprint prefix: names the page in ghosts after its Ref is gone
}

// Victim is one page to drop from a tier. Equal inputs give equal victims.
type Victim struct {
	Ref   Ref
	Score Score
}

// Policy ranks pages. It never sees children, leases or holders: the core computes
//
//	evictable(tier, page) = resident in tier
//	                      & no child resident in tier                   (counters in the core's record)
//	                      & (another copy remains | leaf of the node and, in a cluster, of the cluster)
//	                      & no pin charged to that tier & no transfer of it in flight
//
// and tells the policy of each edge by SetEvictable. Nor does it see what tenants hold or are guaranteed: it keeps the
// leaves of each share apart, and is told with each call whose may go. All methods are O(1) amortised, allocate nothing on the Go
// heap after growth, and are called under the shard's lock. now is seconds since start.
type Policy interface {
	// Insert makes or updates a page; a new page counts as used now. Refs are dense; growth is by doubling.
	Insert(now float64, ref Ref, a Attrs)
	// Remove forgets a page whose last copy is gone; evicted leaves a ghost, deleted and expired do not.
	Remove(now float64, ref Ref, evicted bool)
	// Touch records a use (a fetch, or a lookup with lease; never a bare probe).
	Touch(now float64, ref Ref)
	// SetEvictable says whether ref may be a victim of tier.
	SetEvictable(ref Ref, t Tier, ok bool)
	// Victims appends victims of t in order until their Attrs.Bytes are need, or fewer where finding more would take
	// long, but at least the next one if there is any; need 0 asks for just that: its score is the water level. Doomed
	// pages come first, whoever's they are, then those of the shares in among (nil: all), as if they were one set.
	// They stay evictable until the core says otherwise.
	Victims(now float64, t Tier, need uint64, among *Shares, dst []Victim) []Victim
	// Worth scores a page for t: as a victim when ref is known, else (0) as if it were published now. For admission,
	// cleaning, explain.
	Worth(now float64, ref Ref, t Tier, a Attrs) Score
	// Pass tells of a run that was offered, scored below what it would have displaced, and was not taken: it was used
	// all the same. Parent of the first is known; of each other it is the page before.
	Pass(now float64, run []Attrs)
	// Resize tells what t holds of this policy's pages: the capacity that simulations of other choices have.
	Resize(t Tier, bytes, pages uint64)
	// SetLoading says what bringing a page back from t costs, as measured of late.
	SetLoading(t Tier, l Loading)
	// FootprintBytes is all memory held, ghosts and shadows included.
	FootprintBytes() uint64
}
