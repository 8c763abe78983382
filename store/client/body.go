package client

import (
	"encoding/binary"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/store/page"
)

// body is one page on its way into its destination.
type body struct {
	f       *fetch
	key     page.Key
	dst     []byte
	extents []inExtent // opened so far; elements are reused from page to page
	cells   []inCell   // of the view, head-major
	placed  int        // bytes verified

	x          int       // extent of the chunk at hand
	off, end   int       // of the chunk at hand, within the extent's payload
	cutSums    []byte    // not yet used
	seg        []byte    // where the segment at hand goes
	segAt      int       // bytes of it that are there
	segOff     int       // of its first byte, within the payload
	want       uint64    // its sum
	batch      []segment // that are read at once, where seg begins
	scratch    []byte    // one unit in head-major order, when the caller has an order of its own
	scratchFor int       // whose unit is in scratch (-1: none's), and where that unit begins
	scratchOff int
}

// inExtent is one extent that serves the page.
type inExtent struct {
	raw    []byte // encoded header
	header page.Header
	pieces page.Pieces
	runs   page.Runs // where its payload goes in the view
}

// segment is what a chunk holds of one piece, and its sum.
type segment struct {
	bytes int
	want  uint64
}

// inCell is how far a cell has been filled, and from which extent: one extent for a whole cell, no byte twice.
type inCell struct {
	bytes  uint32
	extent int32
}

func (b *body) init(f *fetch) {
	b.f = f
	b.cells = make([]inCell, f.view.Cells())
	b.key.Family = page.Family{Namespace: f.s.id, Epoch: f.s.epoch, Scope: f.run.Scope, Group: f.run.Group}
	if f.order != nil {
		b.scratch = make([]byte, max(page.MaxPieceBytes, int(f.geo.CellBytes)))
	}
}

func (b *body) reset(hash page.Hash, dst []byte) {
	b.key.Hash, b.dst = hash, dst
	b.extents, b.placed, b.scratchFor = b.extents[:0], 0, -1
	clear(b.cells)
}

// open reads a header and compares it with what was asked for. Extents of a page are numbered in order.
func (b *body) open(number uint32, raw []byte) bool {
	k := len(b.extents)
	if int64(number) != int64(k) || k >= page.MaxRects {
		return false
	}
	if k == cap(b.extents) {
		b.extents = append(b.extents[:k], inExtent{})
	} else {
		b.extents = b.extents[:k+1]
	}
	x := &b.extents[k]
	x.raw = append(x.raw[:0], raw...)
	if page.DecodeHeader(&x.header, x.raw) != nil {
		return false
	}
	g := &b.f.geo
	want := page.Expectation{Key: &b.key, Heads: g.Heads, Layers: g.Layers, CellBytes: g.CellBytes, Tokens: g.Tokens, Grade: g.Grade}
	if x.header.Expect(&want) != nil {
		return false
	}
	x.pieces = x.header.Pieces()
	x.runs = page.RunsBetween(x.header.View, b.f.view, b.f.view, g.CellBytes)
	return x.runs.N > 0
}

// startChunk is n bytes at off of an extent's payload.
func (b *body) startChunk(number uint32, off uint64, n int, cutSums []byte) bool {
	if int64(number) >= int64(len(b.extents)) {
		return false
	}
	if all := b.extents[number].header.PayloadBytes; off > all || uint64(n) > all-off {
		return false
	}
	b.x, b.off, b.end, b.cutSums, b.seg, b.segAt = int(number), int(off), int(off)+n, cutSums, nil, 0
	return true
}

// take copies p, which continues the chunk at hand. False: the page is not to be used.
func (b *body) take(p []byte) bool {
	for len(p) > 0 {
		if b.segAt == len(b.seg) && !b.startSegment() {
			return false
		}
		if n := len(b.seg); b.segAt == 0 && len(p) >= n { // all of it: one pass copies and sums
			sum := kernels.CopySum(b.seg, p[:n])
			p, b.segAt = p[n:], n
			if !b.summed(sum) {
				return false
			}
			continue
		}
		k := copy(b.seg[b.segAt:], p)
		p, b.segAt = p[k:], b.segAt+k
		if b.segAt == len(b.seg) && !b.endSegment() {
			return false
		}
	}
	return true
}

// place is where the next bytes of the chunk at hand go, at most n (at least a piece's worth): segments that lie side
// by side, to be read at once. nil: the page is not to be used. arrived must follow.
func (b *body) place(n int) []byte {
	if !b.startSegment() {
		return nil
	}
	b.batch = append(b.batch[:0], segment{len(b.seg), b.want})
	to, all := b.segOff, len(b.seg)
	for b.f.order == nil && b.off < b.end && b.nextTo() == to+all && all+page.MaxPieceBytes <= n {
		if !b.startSegment() {
			return nil
		}
		b.batch = append(b.batch, segment{len(b.seg), b.want})
		all += len(b.seg)
	}
	if b.f.order == nil {
		b.seg = b.dst[to : to+all]
	}
	return b.seg
}

// nextTo is where the byte at off goes in the view.
func (b *body) nextTo() int {
	to, _, ok := b.extents[b.x].runs.Locate(b.off)
	if !ok {
		return -1
	}
	return to
}

// arrived verifies what was read to where place said. False: the page is not to be used.
func (b *body) arrived() bool {
	if b.f.order != nil {
		return b.endSegment()
	}
	at := 0
	for _, s := range b.batch {
		if kernels.Sum(b.seg[at:at+s.bytes]) != s.want {
			return false
		}
		at += s.bytes
	}
	b.placed += at
	b.f.s.c.stats.verified.Add(uint64(at))
	return true
}

// startSegment finds piece, sum and place of what comes next in the chunk.
func (b *body) startSegment() bool {
	x := &b.extents[b.x]
	i := x.pieces.At(b.off)
	pieceOff, pieceBytes := x.pieces.Span(i)
	n := min(pieceOff+pieceBytes, b.end) - b.off
	if n == pieceBytes {
		b.want = x.header.Sum(i)
	} else {
		if len(b.cutSums) < 8 {
			return false
		}
		b.want, b.cutSums = binary.LittleEndian.Uint64(b.cutSums), b.cutSums[8:]
	}
	to, room, ok := x.runs.Locate(b.off)
	if !ok || room < n || !b.claim(to, n) {
		return false
	}
	if b.f.order == nil {
		b.seg = b.dst[to : to+n]
	} else if b.seg, ok = b.scratchAt(pieceOff, n, to); !ok {
		return false
	}
	b.segOff, b.segAt, b.off = to, 0, b.off+n
	return true
}

// claim marks n bytes of the view from to on as coming now: in order within each cell, and all from one extent.
func (b *body) claim(to, n int) bool {
	cell := int(b.f.geo.CellBytes)
	from := int32(b.x)
	for n > 0 {
		c, in := &b.cells[to/cell], to%cell
		if int(c.bytes) != in || in > 0 && c.extent != from {
			return false
		}
		k := min(cell-in, n)
		c.bytes, c.extent = c.bytes+uint32(k), from
		to, n = to+k, n-k
	}
	return true
}

// scratchAt is room for n bytes in the scratch unit: a piece, or the cell when that is larger. A segment in the
// middle of a cell finds the beginning of that cell where it left it, or the page is refused.
func (b *body) scratchAt(pieceOff, n, to int) ([]byte, bool) {
	cell := int(b.f.geo.CellBytes)
	unit := pieceOff
	if cell > page.MaxPieceBytes {
		unit = b.off - b.off%cell
	}
	if to%cell != 0 && (b.scratchFor != b.x || b.scratchOff != unit) {
		return nil, false
	}
	b.scratchFor, b.scratchOff = b.x, unit
	return b.scratch[b.off-unit:][:n], true
}

// endSegment verifies the segment where it lies, and moves the cells that it completes to the caller's order.
func (b *body) endSegment() bool { return b.summed(kernels.Sum(b.seg)) }

func (b *body) summed(sum uint64) bool {
	if sum != b.want {
		return false
	}
	b.placed += len(b.seg)
	b.f.s.c.stats.verified.Add(uint64(len(b.seg)))
	if b.f.order == nil {
		return true
	}
	cell := int(b.f.geo.CellBytes)
	inScratch := b.off - len(b.seg) - b.scratchOff
	for to, n := b.segOff, len(b.seg); n > 0; {
		in := to % cell
		k := min(cell-in, n)
		if in+k == cell {
			first := inScratch - in
			if b.f.order.scatter(b.dst, to/cell, b.scratch[first:first+cell]) != nil {
				return false
			}
		}
		to, n, inScratch = to+k, n-k, inScratch+k
	}
	return true
}

// complete says whether every byte of the view is there and verified: no byte came twice, so counting them is enough.
func (b *body) complete() bool {
	return b.placed == int(page.PayloadBytes(b.f.view, b.f.geo.CellBytes))
}

// covered says whether the extents opened so far hold all of the view.
func (b *body) covered() bool {
	sum := 0
	for k := range b.extents {
		sum += b.extents[k].runs.Total()
	}
	return uint64(sum) >= page.PayloadBytes(b.f.view, b.f.geo.CellBytes)
}

// ids are the extents opened so far.
func (b *body) ids() []page.ExtentID {
	ids := make([]page.ExtentID, 0, len(b.extents))
	for k := range b.extents {
		if id := b.extents[k].header.Extent; id != (page.ExtentID{}) {
			ids = append(ids, id)
		}
	}
	return ids
}
