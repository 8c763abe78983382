package disk

import "sync/atomic"

// counters are what Stats shows.
type counters struct {
	payloadBytes, frameBytes, journalBytes, readBytes, syncs, removed atomic.Uint64
}

// Stats is what the tier did since it was opened. The bytes that the device was given are PayloadBytes, FrameBytes,
// JournalBytes and IndexBytes; of PayloadBytes, MovedBytes had been there before.
type Stats struct {
	PayloadBytes uint64 // of regions, as asked for
	FrameBytes   uint64 // rounding, labels
	JournalBytes uint64
	IndexBytes   uint64
	MovedBytes   uint64 // of regions that cleaning moved
	ReadBytes    uint64
	Syncs        uint64 // of files
	Removed      uint64 // segments
	Segments     int    // now
}

// Stats is safe for concurrent use.
func (d *Driver) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{
		PayloadBytes: d.stats.payloadBytes.Load(), FrameBytes: d.stats.frameBytes.Load(), JournalBytes: d.stats.journalBytes.Load(),
		IndexBytes: d.index.Written(), MovedBytes: uint64(d.moved), ReadBytes: d.stats.readBytes.Load(),
		Syncs: d.stats.syncs.Load(), Removed: d.stats.removed.Load(), Segments: len(d.byNumber),
	}
}
