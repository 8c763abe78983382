package disk

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// region is one entry of a segment's table: 16 bytes without pointers.
type region struct {
	place uint32 // block in the segment, and what is known of it in the top bits
	bytes uint32 // as asked for
	owner tier.Owner
}

// What the top bits of a place say.
const (
	regionLive    = 1 << 31 // allocated and not freed
	regionFiled   = 1 << 30 // a write began: a record of it may be found in the file
	regionWritten = 1 << 29 // the write is durable
	regionBuried  = 1 << 28 // a grave is in the journal, or on its way
	blockMask     = regionBuried - 1

	maxSegmentBytes = blockMask * blockBytes
	// maxRegionBytes is what fits into the entry above, rounded up included.
	maxRegionBytes = math.MaxUint32 &^ (blockBytes - 1)
)

func (r *region) has(what uint32) bool { return r.place&what != 0 }
func (r *region) block() uint32        { return r.place & blockMask }
func (r *region) offset() int64        { return int64(r.block()) * blockBytes }
func (r *region) rounded() int64       { return tier.RoundUp(int64(r.bytes)) }

// segment is one file of regions, or the plan for one: the writer makes the file with the first write.
//
//	reserved ------> filled to the end, or replaced -----> sealed -----> last region freed -----> gone
//	  Alloc's, open regions may still be written             |  cleaning: emptying, its regions
//	                                                         +--  are moved, or it is kept
//
// What is not marked as of the writer is guarded by the driver's mu.
type segment struct {
	number uint64
	handle uint32
	size   int64 // of the file

	end         int64    // behind the last region
	regions     []region // ascending by block
	graves      []uint32 // blocks of regions that ended and may be found in the file
	ended       int      // graves of earlier lives, whose regions are not in the table
	live        int
	liveBytes   int64 // as asked for
	liveRounded int64
	open        int      // allocated, and not known to be written, failed or freed
	firstSeq    uint64   // lowest of its records
	lineages    []uint32 // ids that its records name

	sealed, emptying, gone bool
	sealedAt               uint64 // sequence number then

	reads  int      // in flight
	reader vfs.File // opened by the first read
	closed bool     // close reader with the last read

	file   *writeFile // the writer's; nil until the first write, and after the last
	made   bool       // the writer's: a file of it may exist
	broken bool       // the writer's: a write failed, no more of them
}

func newSegment(number uint64, size int64) *segment {
	return &segment{number: number, size: size, end: blockBytes, firstSeq: math.MaxUint64}
}

// find is the live region at offset, or nil.
func (s *segment) find(offset int64) *region {
	if offset < blockBytes || offset%blockBytes != 0 || offset >= s.size {
		return nil
	}
	if r := s.entry(uint32(offset / blockBytes)); r != nil && r.has(regionLive) {
		return r
	}
	return nil
}

// entry is the region at a block, live or not, or nil.
func (s *segment) entry(block uint32) *region {
	i := sort.Search(len(s.regions), func(i int) bool { return s.regions[i].block() >= block })
	if i == len(s.regions) || s.regions[i].block() != block {
		return nil
	}
	return &s.regions[i]
}

// reserve appends a region. The caller knows that there is room.
func (s *segment) reserve(bytes int64, o tier.Owner) tier.Region {
	r := region{uint32(s.end/blockBytes) | regionLive, uint32(bytes), o}
	s.regions = append(s.regions, r)
	s.end += r.rounded()
	s.live++
	s.liveBytes += bytes
	s.liveRounded += r.rounded()
	return s.region(&r)
}

func (s *segment) region(r *region) tier.Region {
	return tier.Region{Handle: s.handle, Offset: r.offset(), Bytes: int64(r.bytes)}
}

// dead is what cleaning the segment would win.
func (s *segment) dead() int64 { return s.end - blockBytes - s.liveRounded }

// residents appends what lives here.
func (s *segment) residents(dst []tier.Resident) []tier.Resident {
	for i := range s.regions {
		if r := &s.regions[i]; r.has(regionLive) {
			dst = append(dst, tier.Resident{Owner: r.owner, Region: s.region(r)})
		}
	}
	return dst
}

func (s *segment) names(lineage uint32) {
	if lineage != 0 && !slices.Contains(s.lineages, lineage) {
		s.lineages = append(s.lineages, lineage)
	}
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x.seg", number) }
func journalName(number uint64) string { return fmt.Sprintf("%016x.jrn", number) }

// parseName is the number in the name of a segment or journal file.
func parseName(name string) (number uint64, k fileKind, ok bool) {
	var ext string
	if n, err := fmt.Sscanf(name, "%016x.%s", &number, &ext); n != 2 || err != nil {
		return 0, 0, false
	}
	switch name {
	case segmentName(number):
		return number, fileSegment, true
	case journalName(number):
		return number, fileJournal, true
	}
	return 0, 0, false
}

// checkRegion decodes the header of a region and holds the region's layout against it. h aliases memory.
func checkRegion(h *page.Header, memory []byte) error {
	if len(memory) < frameBytes {
		return fmt.Errorf("region of %d bytes has no header", len(memory))
	}
	body := memory[frameBytes:]
	n, err := page.HeaderBytes(body)
	if err != nil {
		return err
	}
	if len(body) < n {
		return fmt.Errorf("region of %d bytes, its header alone has %d", len(memory), n)
	}
	if err := page.DecodeHeader(h, body[:n]); err != nil {
		return err
	}
	if want := uint64(page.PayloadOffset(n)) + h.PayloadBytes; uint64(len(memory)) != want {
		return fmt.Errorf("region of %d bytes, its header wants %d", len(memory), want)
	}
	return nil
}
