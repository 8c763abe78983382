package host

import "fmt"

// Sizes of slabs.
const (
	// MinCapacityBytes is the smallest tier that New accepts: room for a few slabs of different classes.
	MinCapacityBytes = 8 << 20

	firstSlabBytes    = 2 << 20   // the first slab of a class, one huge page; later ones double
	largestSlabBytes  = 64 << 20  // to here: system calls and tables are cheap per byte by then
	smallestSlabBytes = 256 << 10 // of small tiers, and of a slab that takes the last of the room
	slabsPerTier      = 64        // a slab is at most this part of the capacity, so that classes can share a small tier

	defaultWorkers = 2 // one copy saturates a core, two most of a memory channel
	maxWorkers     = 64
)

// Options of a host tier. Zero values are the defaults named here.
type Options struct {
	// CapacityBytes is the hard bound of all that the tier holds, its own metadata included. Required, at least
	// MinCapacityBytes.
	CapacityBytes int64
	// Workers carry out Submit. Default 2, at most 64.
	Workers int
	// ReadyBytes of fresh memory, at most a quarter of the capacity, are kept populated for the slabs of namespaces, as
	// long as there is room for more than they take. Default none.
	ReadyBytes int64
	// SmallPages asks for no huge pages (measurements, machines short of contiguous memory). Default: huge pages
	// where they can be had.
	SmallPages bool

	memory memory // default the operating system's; tests inject failures
}

func (o Options) withDefaults() (Options, error) {
	if o.CapacityBytes < MinCapacityBytes {
		return o, fmt.Errorf("host tier: CapacityBytes is %d, must be at least %d (8 MiB)", o.CapacityBytes, MinCapacityBytes)
	}
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.Workers < 0 || o.Workers > maxWorkers {
		return o, fmt.Errorf("host tier: Workers is %d, must be 1 to %d", o.Workers, maxWorkers)
	}
	if o.ReadyBytes < 0 {
		return o, fmt.Errorf("host tier: ReadyBytes is %d, must not be negative", o.ReadyBytes)
	}
	o.ReadyBytes = min(o.ReadyBytes, o.CapacityBytes/4)
	if o.memory == nil {
		o.memory = newMemory(o.SmallPages)
	}
	if o.memory.reservesHuge() { // those are ready by themselves, and of their own sizes
		o.ReadyBytes = 0
	}
	return o, nil
}

// largestSlab is where the doubling of slabs ends: a power of two from smallestSlabBytes to largestSlabBytes.
func largestSlab(capacity int64) int64 {
	n := int64(smallestSlabBytes)
	for n*2 <= min(largestSlabBytes, capacity/slabsPerTier) {
		n *= 2
	}
	return n
}
