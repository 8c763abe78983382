package core

import (
	"github.com/zeebo/xxh3"

	"github.com/quire-kv/quire/internal/offheap"
)

// fingerprint is the keyed xxh3-128 of a page hash. With the family it is the identity in memory; the full key in the
// header is compared at every read.
type fingerprint struct{ lo, hi uint64 }

func fingerprintOf(hash []byte, key uint64) fingerprint {
	h := xxh3.Hash128Seed(hash, key)
	return fingerprint{h.Lo, h.Hi}
}

// index finds page slots by (family, fingerprint). Extendible hashing over small segments of open addressing: the
// longest pause is the split of one segment.
//
//	spread(fp, family):  63 ......... 42  ... 17 .. 12  11 ....... 0
//	                     directory         tag          home cell
//
//	directory (2^depth)      segments of 4,096 cells, linear probing, split when 0.8 full
//	+---+                    +----------------------+
//	|   |------------------> | tag | slot | ...     |   cell: tag (6 bits), slot (26 bits); 0: empty
//	|   |--+---------------> +----------------------+
//	|   |--+                 +----------------------+
//	|   |------------------> |                      |
//	+---+                    +----------------------+
//
// The tag keeps 63 of 64 wrong records from being touched.
type index struct {
	pages *offheap.Array[pageRecord]
	cells *offheap.Array[uint32]
	dir   []uint32 // segment number by the top depth bits
	depth uint8
	local []uint8  // by segment: how many top bits its keys share
	used  []uint16 // by segment: cells in use
}

const (
	segmentBits  = 12
	segmentCells = 1 << segmentBits
	segmentMask  = segmentCells - 1
	segmentFull  = segmentCells * 8 / 10
	slotBits     = 26
	slotMask     = 1<<slotBits - 1
	maxDirDepth  = 22      // 4 Mi segments: far beyond 2^26 records
	probeBatch   = 64      // probes whose cache misses overlap
	maxPages     = 1 << 26 // records of a shard: slots fit a cell
	maxExtents   = 1 << 27
	cellsPerPage = 4 // reserved, not touched: segments are never less than 0.4 full on average
)

func newIndex(pages *offheap.Array[pageRecord]) index {
	return index{
		pages: pages,
		cells: offheap.New[uint32](pages.Len()*cellsPerPage + 2*segmentCells),
		dir:   []uint32{0},
		local: []uint8{0},
		used:  []uint16{0},
	}
}

// spread mixes the family in, so that one hash in two families has two homes.
func spread(fp fingerprint, family uint32) uint64 {
	return fp.lo ^ uint64(family)*0x9e3779b97f4a7c15
}

func tagOf(h uint64) uint32 { return uint32(h>>segmentBits) << slotBits }

func (x *index) segmentOf(h uint64) uint32 { return x.dir[h>>(64-x.depth)&uint64(len(x.dir)-1)] }

func (x *index) segment(n uint32) []uint32 {
	return x.cells.Slice()[uint64(n)*segmentCells:][:segmentCells:segmentCells]
}

// find is the slot of a record, 0 if there is none.
func (x *index) find(fp fingerprint, family uint32) uint32 {
	h := spread(fp, family)
	return x.findFrom(x.segment(x.segmentOf(h)), uint32(h)&segmentMask, tagOf(h), fp, family)
}

func (x *index) findFrom(seg []uint32, at, tag uint32, fp fingerprint, family uint32) uint32 {
	pages := x.pages.Slice()
	for range segmentCells {
		cell := seg[at&segmentMask]
		if cell == 0 {
			return 0
		}
		if cell&^slotMask == tag {
			slot := cell & slotMask
			if p := &pages[slot]; p.fp == fp && p.family == family {
				return slot
			}
		}
		at++
	}
	return 0
}

// findBatch is find for up to probeBatch fingerprints: first all cells, then all records, so that the memory works
// on many of them at a time. The loops that touch memory first do nothing else: a branch that is guessed wrong would
// hold up the loads behind it.
func (x *index) findBatch(fps []fingerprint, family uint32, slots *[probeBatch]uint32) {
	var home [probeBatch]uint64 // cell number in the whole array
	var tags, first [probeBatch]uint32
	cells, pages := x.cells.Slice(), x.pages.Slice()
	fps = fps[:min(len(fps), probeBatch)]
	for j := range fps {
		h := spread(fps[j], family)
		home[j], tags[j] = uint64(x.segmentOf(h))<<segmentBits|h&segmentMask, tagOf(h)
	}
	for j := range fps {
		first[j] = cells[home[j]]
	}
	for j := range fps { // the first cell whose tag fits
		tag, at, cell := tags[j], home[j], first[j]
		for steps := 0; cell != 0 && cell&^slotMask != tag; steps++ {
			if steps == segmentCells {
				cell = 0
				break
			}
			at = at&^segmentMask | (at+1)&segmentMask
			cell = cells[at]
		}
		slots[j], home[j] = cell&slotMask, at
	}
	var lo [probeBatch]uint64
	for j := range fps {
		lo[j] = pages[slots[j]].fp.lo
	}
	for j := range fps {
		if slots[j] == 0 {
			continue
		}
		if p := &pages[slots[j]]; lo[j] == fps[j].lo && p.fp.hi == fps[j].hi && p.family == family {
			continue
		}
		seg := cells[home[j]&^segmentMask:][:segmentCells]
		slots[j] = x.findFrom(seg, uint32(home[j])&segmentMask+1, tags[j], fps[j], family)
	}
}

// insert files a record that is not in the index. It answers false when its segment is full and cannot be split,
// which an even hash does not do.
func (x *index) insert(slot uint32) bool {
	p := x.pages.At(slot)
	h := spread(p.fp, p.family)
	n := x.segmentOf(h)
	for x.used[n] >= segmentFull && x.split(h) {
		n = x.segmentOf(h)
	}
	if x.used[n] == segmentCells {
		return false
	}
	x.put(n, h, slot)
	return true
}

func (x *index) put(n uint32, h uint64, slot uint32) {
	seg := x.segment(n)
	at := uint32(h)
	for seg[at&segmentMask] != 0 {
		at++
	}
	seg[at&segmentMask] = tagOf(h) | slot
	x.used[n]++
}

// split halves the segment of h.
func (x *index) split(h uint64) bool {
	old := x.segmentOf(h)
	if x.local[old] == maxDirDepth || (len(x.used)+1)*segmentCells > x.cells.Len() {
		return false
	}
	if x.local[old] == x.depth {
		dir := make([]uint32, 2*len(x.dir))
		for i, n := range x.dir {
			dir[2*i], dir[2*i+1] = n, n
		}
		x.dir, x.depth = dir, x.depth+1
	}
	x.local[old]++
	fresh := uint32(len(x.used))
	x.local, x.used = append(x.local, x.local[old]), append(x.used, 0)
	x.redirect(h, old, fresh)
	var moved [segmentCells]uint32
	seg := x.segment(old)
	copy(moved[:], seg)
	clear(seg)
	x.used[old] = 0
	for _, cell := range moved {
		if slot := cell & slotMask; slot != 0 {
			p := x.pages.At(slot)
			h := spread(p.fp, p.family)
			x.put(x.segmentOf(h), h, slot)
		}
	}
	return true
}

// redirect points the upper half of old's directory entries to fresh. They are neighbours: those of h's prefix.
func (x *index) redirect(h uint64, old, fresh uint32) {
	span := uint64(1) << (x.depth - x.local[old]) // entries of each half
	first := h >> (64 - x.depth) & uint64(len(x.dir)-1) &^ (2*span - 1)
	for i := first + span; i < first+2*span; i++ {
		x.dir[i] = fresh
	}
}

// remove takes a record out and closes the gap: cells behind it that may stand nearer to their home move up.
func (x *index) remove(slot uint32) {
	p := x.pages.At(slot)
	h := spread(p.fp, p.family)
	n := x.segmentOf(h)
	seg := x.segment(n)
	gap := uint32(h) & segmentMask
	for seg[gap]&slotMask != slot {
		gap = (gap + 1) & segmentMask
	}
	at := gap
	for range segmentCells - 1 {
		at = (at + 1) & segmentMask
		if seg[at] == 0 {
			break
		}
		q := x.pages.At(seg[at] & slotMask)
		home := uint32(spread(q.fp, q.family)) & segmentMask
		if (at-home)&segmentMask >= (at-gap)&segmentMask {
			seg[gap], gap = seg[at], at
		}
	}
	seg[gap] = 0
	x.used[n]--
}

func (x *index) bytes() uint64 {
	return uint64(len(x.used))*(segmentCells*4+3) + uint64(cap(x.dir))*4
}
