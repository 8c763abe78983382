package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/disk/index"
)

// Options of a Driver. Dir and CapacityBytes are required; zero values of the others are defaults.
type Options struct {
	FS  vfs.FS // default vfs.Default, the operating system's
	Dir string // the driver's own; it is made if missing

	// CapacityBytes bounds all files together: segments at full size, journal and index.
	CapacityBytes int64
	// SegmentBytes is the size of a segment, from MinSegmentBytes on. Default a 64th of the capacity within 1 MiB and
	// 256 MiB: large enough that making and removing one costs nothing, small enough that a few are no loss.
	SegmentBytes int64
	// Readers is how many reads are in flight at a time, at most 64. Default 4.
	Readers int
	// BatchBytes is what is written between two syncs, and so what an operation waits for, and what a device that answers
	// nothing keeps of its callers' memory. A single region may be larger. Default, and at most, 64 MiB.
	BatchBytes int64
	// Patience is how long a device may take for one step. One that takes longer is given nothing more until it has answered.
	// Default 10 s.
	Patience time.Duration
	Clock    clock.Clock  // default the system's
	Logger   *slog.Logger // default: nothing is logged

	buffered bool // benchmarks: write through the page cache also where it can be bypassed
}

// Bounds of Options.
const (
	MinCapacityBytes = 16 << 20
	MinSegmentBytes  = 64 << 10

	defaultReaders  = 4
	maxReaders      = 64
	leastDefault    = 1 << 20
	mostDefault     = 256 << 20
	mostBatchBytes  = 64 << 20
	defaultPatience = 10 * time.Second
)

func (o *Options) fill() error {
	if o.Dir == "" {
		return errors.New("disk tier: Dir is empty")
	}
	if o.CapacityBytes < MinCapacityBytes {
		return fmt.Errorf("disk tier: CapacityBytes is %d, must be at least %d", o.CapacityBytes, MinCapacityBytes)
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = min(max(o.CapacityBytes/64, leastDefault), mostDefault) &^ (blockBytes - 1)
	}
	if o.SegmentBytes < MinSegmentBytes || o.SegmentBytes > o.CapacityBytes/16 || o.SegmentBytes > maxSegmentBytes || o.SegmentBytes%blockBytes != 0 {
		return fmt.Errorf("disk tier: SegmentBytes is %d, must be whole blocks of %d, at least %d and at most a 16th of the capacity", o.SegmentBytes, blockBytes, MinSegmentBytes)
	}
	if o.Readers == 0 {
		o.Readers = defaultReaders
	}
	if o.Readers < 1 || o.Readers > maxReaders {
		return fmt.Errorf("disk tier: Readers is %d, must be 1 to %d", o.Readers, maxReaders)
	}
	if o.BatchBytes == 0 || o.BatchBytes > mostBatchBytes {
		o.BatchBytes = mostBatchBytes
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.BatchBytes < 0 || o.Patience < 0 {
		return fmt.Errorf("disk tier: BatchBytes is %d and Patience %v, must be above 0", o.BatchBytes, o.Patience)
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// sizes is how the capacity is cut.
//
//	segments ... | spare: one segment for cleaning | journal | index
type sizes struct {
	capacity int64
	segment  int64 // of an ordinary one
	region   int64 // the largest
	shared   int64 // the largest region that shares a segment with others
	growth   int64 // more than journal and index take for the regions of one segment
	journal  int64 // of one journal file
	index    int64 // what the index may take at most
}

func (o *Options) sizes() sizes {
	return sizes{
		capacity: o.CapacityBytes,
		segment:  o.SegmentBytes,
		region:   min(o.CapacityBytes/4, maxRegionBytes),
		// A segment whose next region does not fit is left with less than a quarter unused.
		shared:  (o.SegmentBytes - blockBytes) / 4,
		growth:  o.SegmentBytes / 8,
		journal: min(max(o.SegmentBytes/8&^(2*blockBytes-1), minJournalBytes), maxJournalBytes),
		index:   index.MinBytes + o.CapacityBytes/16,
	}
}

const (
	minJournalBytes = 128 << 10
	maxJournalBytes = 8 << 20
	// journalFiles is what is kept free for the journal beside its contents: the file being written, what it was
	// compacted from and into, and rounding.
	journalFiles = 6
	// regionJournalBytes is what a region may come to take in the journal: its grave, twice as every record, in three
	// generations while the journal is compacted.
	regionJournalBytes = 3 * 2 * (graveBytes + 1)
	retireJournalBytes = 3 * 2 * (retireBytes + 2)
)

// reserved is what journal and index may take with so many regions, live and ended.
func (z *sizes) reserved(regions, retired int64) int64 {
	x := min(z.index, min(z.index/8, 16<<20)+index.MinBytes/2+regions*index.BytesPerEntry)
	return x + journalFiles*z.journal + regions*regionJournalBytes + retired*retireJournalBytes
}

// regions bounds how many there may be, for the index's sake.
func (z *sizes) regions() int64 { return index.MaxEntries(z.index) }
