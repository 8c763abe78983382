package index

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// What an index takes. TestBound measures it under churn.
const (
	// BytesPerEntry is how much of MaxBytes a live entry may come to take: the entry itself, what is dead and not yet
	// compacted, and what a compaction writes before it can remove what it read.
	BytesPerEntry = 512
	// MinBytes is the least MaxBytes.
	MinBytes     = 1 << 20
	defaultBytes = 1 << 30
)

// MaxEntries is how many live entries an index of maxBytes has room for.
func MaxEntries(maxBytes int64) int64 { return max(0, maxBytes-MinBytes*3/4) / BytesPerEntry }

// Bound is what the files of an index of maxBytes take at most while it has that many live entries.
func Bound(maxBytes, entries int64) int64 {
	return min(maxBytes, baseBytes(maxBytes)+entries*BytesPerEntry)
}

// baseBytes is what is there for no entry.
func baseBytes(maxBytes int64) int64 { return MinBytes*3/4 + min(maxBytes/8, 16<<20) }

// pebbleOptions sizes Pebble for an index of at most maxBytes. Its cache must be unreferenced by whoever opens.
func pebbleOptions(maxBytes int64) *pebble.Options {
	memTable := min(max(maxBytes/64, 64<<10), 2<<20)
	o := &pebble.Options{
		Cache:              pebble.NewCache(4 * memTable), // Pebble accounts its memtables there
		DisableWAL:         true,                          // the segments are one
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       uint64(memTable),
		// One memtable fills while one is flushed: what a crash takes back is no more than both.
		MemTableStopWritesThreshold: 2,
		L0CompactionThreshold:       2,
		L0StopWritesThreshold:       8,
		LBaseMaxBytes:               4 * memTable,
		MaxManifestFileSize:         memTable,
		FlushDelayDeleteRange:       time.Second,
	}
	for i := range o.TargetFileSizes {
		o.TargetFileSizes[i] = min(max(maxBytes/512, 64<<10), 4<<20) // a compaction reads up to 25
	}
	for i := range o.Levels {
		// Read by scans only. Mostly digests, but a parent is often the hash of the entry before.
		o.Levels[i] = pebble.LevelOptions{BlockSize: 32 << 10, Compression: func() *sstable.CompressionProfile { return sstable.FastestCompression }}
	}
	return o
}
