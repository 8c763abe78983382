// Package tier is the contract between the store and the places where bytes can be.
package tier

import (
	"errors"

	"github.com/quire-kv/quire/store/page"
)

// What a driver may answer.
var (
	ErrFull     = errors.New("tier: no space") // make room and try again
	ErrTooLarge = errors.New("tier: larger than the tier can ever hold")
	ErrDegraded = errors.New("tier: degraded") // takes no bytes until Usage says Writable again
	ErrClosed   = errors.New("tier: closed")
)

// Align is the alignment and the unit of every region.
const Align = 4 << 10

// RoundUp is n rounded up to Align: what a region of n bytes occupies.
func RoundUp(n int64) int64 { return (n + Align - 1) &^ (Align - 1) }

// Region is one extent's place: 4 KiB aligned, address stable until Free. Memory is nil where the CPU cannot
// address it (disk, device); a nil check replaces an optional interface.
type Region struct {
	Handle uint32 // slab or segment, from 1
	Offset int64  // within it
	Bytes  int64  // as asked for
	Memory []byte // len == Bytes, cap == len
}

// Class says what may share a slab. The zero Namespace mixes: any namespace without a same-host session.
type Class struct {
	Namespace page.NamespaceID
	Epoch     page.Epoch
	Bytes     int64 // rounded up to Align by the driver
}

// Owner is the store's name of what lives in a region, handed back by Compact.
type Owner struct {
	Shard  uint32
	Extent uint32
}

// Resident is one live region of a slab.
type Resident struct {
	Owner  Owner
	Region Region
}

// Op is one asynchronous transfer between CPU memory and a region.
type Op struct {
	Region Region
	At     int64       // within the region
	Memory []byte      // owned by the driver until Done
	Write  bool        // into the region
	Note   *Note       // of a write into a durable tier
	Done   func(error) // called once, from a goroutine of the driver; must not block
}

// Usage is exact: Live + Slack + Metadata is what is held, and never passes Capacity.
type Usage struct {
	Capacity int64 // hard bound
	Live     int64 // bytes asked for and not freed
	Slack    int64 // rounding, free slots, blank memory kept ready
	Metadata int64
	Writable bool
	Trouble  string // why it is not, for people
	// HugePages is the share of resident memory backed by huge pages where that is known, else 0.
	HugePages float64
}

// Driver is one tier. All methods but Close are quick and never wait for a device. Safe for concurrent use.
type Driver interface {
	// Alloc finds a place. ErrFull: evict and retry, or empty a slab (Compact).
	Alloc(c Class, o Owner) (Region, error)
	// Free gives a region back. Freeing twice, or what is not a region, is a panic under invariants and ignored
	// otherwise.
	Free(r Region)
	// Lookup answers the region at a handle and offset with its memory; ok is false when nothing lives there.
	Lookup(handle uint32, offset int64) (r Region, ok bool)
	// Submit carries out transfers; each Done is called exactly once, also after Close.
	Submit(ops []Op)
	// Compact picks a slab that can be emptied so that its memory serves another class, stops allocating from it
	// and appends what lives there. slab 0: none. The slab returns when its last region is freed.
	Compact(dst []Resident) (slab uint32, _ []Resident)
	// Keep ends an emptying that did not succeed: slots of the slab are allocated again.
	Keep(slab uint32)
	Usage() Usage
	// Close waits for transfers and gives all memory back. Idempotent.
	Close() error
}
