package host

// hugePageBytes is the size of a huge page on amd64 and on arm64 with 4 KiB pages.
const hugePageBytes = 2 << 20

// memory is where slabs come from: the seam between the bookkeeping of this package and the operating system.
// Methods are safe for concurrent use on different mappings.
type memory interface {
	// mapping returns zeroed, 4 KiB aligned memory of exactly bytes. keepFile leaves its descriptor open, for share.
	mapping(bytes int64, keepFile bool) (*mapping, error)
	// share makes what clients on this host may be given of m: see export. It takes m's descriptor over.
	share(m *mapping, number uint64, slotBytes, slots int64) (*export, error)
	// reserve is mapping for memory that is cut to size later: by trim, before share.
	reserve(bytes int64) (*mapping, error)
	// trim gives back what lies behind the first bytes of a reserved mapping, which nothing is in yet, and fixes its size.
	// After an error the mapping is only good for unmap.
	trim(m *mapping, bytes int64) error
	// populate makes m.mem[from:to] resident and answers how much of it is known to be in huge pages. What writers have begun
	// to fill is left to them. It never changes contents and may run beside readers and writers.
	populate(m *mapping, from, to int64) (hugeBytes int64, err error)
	// unmap gives m back, and its export. Nothing may touch its memory from then on. Who mapped the export keeps
	// addresses, but no memory.
	unmap(m *mapping) error
	// reservesHuge reports whether whole huge pages are there for the asking, so that sizes are worth rounding up.
	reservesHuge() bool
	// hint is what an operator can do to get huge pages; "" if nothing.
	hint() string
}

// mapping is one run of memory that can be cut into slots. Its fields are guarded by Driver.mu, save mem and
// bytes, which change in trim alone.
type mapping struct {
	mem     []byte
	bytes   int64
	file    int     // descriptor, or -1
	hugetlb bool    // from the pool of reserved huge pages
	private bool    // of one namespace: never cut again for another
	export  *export // what clients may be given of it; nil: nothing
	extra   int64   // bytes held for the export

	used      bool  // cut into a slab
	populated int64 // prefix that is resident
	huge      int64 // how much of it is known to be in huge pages
	busy      bool  // being populated; must not be unmapped
	doomed    bool  // to be unmapped when no longer busy
}
