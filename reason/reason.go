// Package reason is the one list of why a page was not served, a publication was not taken or a change was
// refused. It imports nothing; namespace, store/core, store/server and store/client all speak it, and a test in
// store/server holds it equal to the proto enum.
package reason

// A Reason is a closed enum. The zero value means "no reason: it worked".
type Reason uint8

// The reasons. Numbers are the wire's (proto/quire/v1 Reason) and never change meaning.
const (
	None             Reason = iota
	Absent                  // no committed extent of this key; strangers get this too
	Incomplete              // committed extents do not cover the asked view
	Provenance              // computed by, or on top of, something not (or no longer) accepted here
	Corrupt                 // checksums, header or key did not match; the page is gone
	Expired                 // the page's time is over
	Retired                 // the namespace is retired
	Draining                // the namespace takes no new publications
	StaleEpoch              // the namespace has begun another life
	StaleToken              // the fencing token is not, or no longer, live
	LeaseExpired            // the named read lease is over
	Held                    // another live publication lease covers the rectangle
	ParentMissing           // the named parent is absent; the first absent ancestor is given
	ParentConflict          // the key is known with another parent
	NotWorth                // below the tier's water level
	Busy                    // everything evictable is leased or pinned, or a bound is reached; retry later
	QuotaExceeded           // the namespace's quota has no room
	SizeMismatch            // the payload is not what the spec's geometry gives
	BufferSize              // the destination is not exactly as large as the view
	Truncated               // fewer bytes arrived than the header says
	HashContractFork        // a sibling in use differs only in its hash contract
	Unauthorized            // the principal may not do this
	Unknown                 // an owner did not answer; never cached
	InvalidView             // the view is outside the page, or its packing cannot be cut so
	InvalidSpec             // a spec, or a field of a request, is refused; the path is given
	Unsupported             // named, known, and not built: token slices, shards, a newer version
	LimitExceeded           // larger than a limit of GetCapabilities
	LostRace                // another writer's extent of this rectangle was committed first
	Aborted                 // the publication was given up before this page was committed
	WeakNames               // the namespace rests on weak names and cannot be shared
	NotFound                // no such namespace, token or lease (operators only; strangers get Absent)
	numReasons
)

// Count is the length of a table that is indexed by Reason, None included.
const Count = int(numReasons)

var names = [numReasons]string{
	"none", "absent", "incomplete", "provenance", "corrupt", "expired", "retired", "draining", "stale_epoch",
	"stale_token", "lease_expired", "held", "parent_missing", "parent_conflict", "not_worth", "busy",
	"quota_exceeded", "size_mismatch", "buffer_size", "truncated", "hash_contract_fork", "unauthorized",
	"unknown", "invalid_view", "invalid_spec", "unsupported", "limit_exceeded", "lost_race", "aborted",
	"weak_names", "not_found",
}

// String is the stable lower-case name used in metrics, JSON and tables.
func (r Reason) String() string {
	if r < numReasons {
		return names[r]
	}
	return "invalid_reason"
}

// All lists every reason but None, in numeric order.
func All() []Reason {
	all := make([]Reason, 0, numReasons-1)
	for r := Absent; r < numReasons; r++ {
		all = append(all, r)
	}
	return all
}

// Retryable reports whether the same call may succeed later without any change by the caller.
func (r Reason) Retryable() bool {
	return r == Held || r == Busy || r == Unknown || r == LeaseExpired
}

// Error makes a Reason usable as an error kind with errors.Is.
func (r Reason) Error() string { return r.String() }
