package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Driver is the tier. It implements tier.Durable.
type Driver struct {
	o            Options
	sizes        sizes
	dir          directory
	lock         io.Closer
	journal      *journal      // the writer's
	synced       uint64        // the writer's: records below this sequence number are durable
	namesChanged bool          // the writer's: the directory has names that are not durable
	seq          atomic.Uint64 // the last sequence number given out
	stats        counters
	writer       writer
	reader       reader
	report       Report

	mu                sync.Mutex   // guards what follows, and of segments what is not the writer's
	index             *index.Index // the writer changes it; Recover may replace it
	table             []*segment   // by handle - 1; nil: none
	resting           []uint32     // handles of segments that are gone, oldest first
	byNumber          map[uint64]*segment
	hot               *segment                // takes what is new
	cold              *segment                // takes what cleaning moves: what has lived long lives on
	incomplete        []*segment              // there may be records to come
	movers            map[tier.Owner]*segment // who lives in segments that are being emptied
	emptying          int
	heldBytes         int64 // segments, at full size
	journalBytes      int64
	liveBytes         int64
	moved             int64              // regions that cleaning moved, in bytes
	regions           int64              // live, and ended in segments that are still there
	retired           map[epochID]uint64 // sequence numbers below which their regions ended
	recovered, closed bool
	fatal             error         // no writes until the next start
	degraded          error         // no writes until the probe succeeds
	probeAfter        time.Duration // the back-off; 0: no probe is due
	stopProbe         func() bool
}

var _ tier.Durable = (*Driver)(nil)

// restedHandles wait before one is used again, so that a stale handle finds nothing rather than another's segment.
const restedHandles = 64

var errUnrecovered = errors.New("disk tier: Recover has not ended")

// Alloc reserves a place at the end of a segment. An owner of a segment that is being emptied takes part in the space
// that is kept free for that.
func (d *Driver) Alloc(c tier.Class, o tier.Owner) (tier.Region, error) {
	if c.Bytes <= 0 {
		return tier.Region{}, fmt.Errorf("disk tier: alloc of %d bytes", c.Bytes)
	}
	if c.Bytes > d.sizes.region {
		return tier.Region{}, fmt.Errorf("alloc of %d bytes, the most is %d: %w", c.Bytes, d.sizes.region, tier.ErrTooLarge)
	}
	n := tier.RoundUp(c.Bytes)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.takesBytes(); err != nil {
		return tier.Region{}, err
	}
	_, moves := d.movers[o]
	if d.regions >= d.sizes.regions() || d.room(1) < 0 {
		return tier.Region{}, tier.ErrFull
	}
	s, err := d.segmentFor(n, moves)
	if err != nil {
		return tier.Region{}, err
	}
	if moves {
		d.moved += c.Bytes
	}
	d.regions++
	d.liveBytes += c.Bytes
	s.open++
	r := s.reserve(c.Bytes, o)
	if n > d.sizes.shared {
		d.seal(s)
	}
	return r, nil
}

// takesBytes says why there is no Alloc. Under mu.
func (d *Driver) takesBytes() error {
	switch {
	case d.closed:
		return tier.ErrClosed
	case !d.recovered:
		return errUnrecovered
	}
	return d.takesWrites()
}

// takesWrites says why writes are refused. Under mu.
func (d *Driver) takesWrites() error {
	return cmp.Or(d.fatal, d.degraded, d.writer.watch.silent(aWrite))
}

// room is how many bytes a new segment may have, if so many regions are added. Under mu.
func (d *Driver) room(regions int64) int64 {
	return d.sizes.capacity - d.heldBytes - d.sizes.reserved(d.regions+regions, int64(len(d.retired)))
}

// fits reports whether a segment of size may be added: with what journal and index will take for its regions, and, for
// what is new, with the same again left for cleaning, which then always can go on. Under mu.
func (d *Driver) fits(size int64, moves bool) bool {
	room := d.room(1) - size - d.sizes.growth
	if !moves {
		room -= d.sizes.segment + d.sizes.growth
	}
	return room >= 0
}

// segmentFor finds or plans a segment with n bytes at its end. Under mu.
func (d *Driver) segmentFor(n int64, moves bool) (*segment, error) {
	if n > d.sizes.shared {
		if !d.fits(blockBytes+n, false) {
			return nil, tier.ErrFull
		}
		return d.plan(blockBytes + n), nil
	}
	active := &d.hot
	if moves {
		active = &d.cold
	}
	if s := *active; s != nil && !s.sealed && s.end+n <= s.size {
		return s, nil
	}
	if !d.fits(d.sizes.segment, moves) {
		return nil, tier.ErrFull
	}
	if *active != nil {
		d.seal(*active)
	}
	*active = d.plan(d.sizes.segment)
	return *active, nil
}

// plan enters a segment into the tables. Under mu.
func (d *Driver) plan(size int64) *segment {
	s := newSegment(d.nextSeq(), size)
	d.enter(s)
	d.incomplete = append(d.incomplete, s)
	return s
}

func (d *Driver) enter(s *segment) {
	if len(d.resting) > restedHandles {
		s.handle = d.resting[0]
		d.resting = d.resting[1:]
		d.table[s.handle-1] = s
	} else {
		d.table = append(d.table, s)
		s.handle = uint32(len(d.table))
	}
	d.byNumber[s.number] = s
	d.heldBytes += s.size
}

// seal ends allocation from s. Under mu.
func (d *Driver) seal(s *segment) {
	if !s.sealed {
		s.sealed, s.sealedAt = true, d.seq.Load()
	}
	d.dropIfEmpty(s)
}

// dropIfEmpty hands a segment that nobody needs any more to the writer. Under mu.
func (d *Driver) dropIfEmpty(s *segment) {
	if s.sealed && s.live == 0 && s.open == 0 && !s.gone {
		s.gone = true
		d.keep(s)
		d.writer.wants.gone = append(d.writer.wants.gone, s)
		d.writer.wake()
	}
}

// segment is the one at a handle, or nil. Under mu.
func (d *Driver) segment(handle uint32) *segment {
	if handle == 0 || uint64(handle) > uint64(len(d.table)) {
		return nil
	}
	return d.table[handle-1]
}

// at finds a live region. Under mu.
func (d *Driver) at(handle uint32, offset int64) (*segment, *region) {
	s := d.segment(handle)
	if s == nil || d.closed {
		return nil, nil
	}
	return s, s.find(offset)
}

// Lookup finds a live region; it has no Memory.
func (d *Driver) Lookup(handle uint32, offset int64) (tier.Region, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.at(handle, offset)
	if r == nil {
		return tier.Region{}, false
	}
	return s.region(r), true
}

// Free ends a region. Its space returns with its segment, by its last Free or by Compact.
func (d *Driver) Free(r tier.Region) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, x := d.at(r.Handle, r.Offset)
	invariant.Check(x != nil || d.closed, "disk: free of %d+%d: no region lives there", r.Handle, r.Offset)
	if x != nil {
		d.free(s, x)
	}
}

// free ends a live region. Under mu.
func (d *Driver) free(s *segment, x *region) {
	if s.emptying {
		delete(d.movers, x.owner)
	}
	if !x.has(regionFiled) {
		s.open-- // it will not be written any more
	}
	d.bury(s, x)
	x.place &^= regionLive
	s.live--
	s.liveBytes -= int64(x.bytes)
	s.liveRounded -= x.rounded()
	d.liveBytes -= int64(x.bytes)
	d.dropIfEmpty(s)
}

// Bury makes sure that a region is never recovered. One that is not being written yet never will be.
func (d *Driver) Bury(r tier.Region) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, x := d.at(r.Handle, r.Offset); x != nil {
		d.bury(s, x)
	}
}

// bury queues the grave of a region of which there may be a record. Under mu.
func (d *Driver) bury(s *segment, x *region) {
	if x.has(regionFiled) && !x.has(regionBuried) {
		s.graves = append(s.graves, x.block())
		d.writer.wants.graves = append(d.writer.wants.graves, grave{s.number, x.block()})
		if len(d.writer.wants.graves) >= gravesDue {
			d.writer.wake()
		}
	}
	x.place |= regionBuried
}

// Retire makes sure that no region of an epoch is ever recovered. It takes no writes any more.
func (d *Driver) Retire(id page.NamespaceID, e page.Epoch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	r := retirement{epochID{id, e}, d.nextSeq()}
	d.retired[r.epochID] = r.below
	d.writer.wants.retired = append(d.writer.wants.retired, r)
}

// Barrier calls done when all that was buried, freed and retired before is durable, and the segments that were emptied
// by it have been removed; or with the error that keeps it from being so.
func (d *Driver) Barrier(done func(error)) {
	d.mu.Lock()
	err := d.writer.watch.silent(aWrite)
	if d.closed {
		err = tier.ErrClosed
	}
	if err == nil {
		d.writer.wants.barriers = append(d.writer.wants.barriers, done)
		d.writer.wake()
	}
	d.mu.Unlock()
	if err != nil {
		go done(err)
	}
}

// oldestSeq is below or at the sequence number of every record. Under mu.
func (d *Driver) oldestSeq() uint64 {
	oldest := d.seq.Load()
	for _, s := range d.byNumber {
		oldest = min(oldest, s.firstSeq)
	}
	return oldest
}

func (d *Driver) nextSeq() uint64 { return d.seq.Add(1) }

func (d *Driver) journalHolds(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.journalBytes = bytes
}

// Usage counts segments at full size, planned ones included; Metadata is journal and index.
func (d *Driver) Usage() tier.Usage {
	unread := d.reader.silent()
	d.mu.Lock()
	defer d.mu.Unlock()
	u := tier.Usage{Capacity: d.sizes.capacity}
	if d.closed {
		u.Trouble = "closed"
		return u
	}
	u.Live = d.liveBytes
	u.Slack = d.heldBytes - d.liveBytes
	u.Metadata = d.journalBytes + d.index.DiskBytes()
	err := d.takesBytes()
	u.Writable = err == nil
	if err != nil {
		u.Trouble = err.Error()
	} else if unread != nil {
		u.Trouble = unread.Error()
	} else if n := len(d.writer.doomed); n > 0 {
		u.Trouble = fmt.Sprintf("%d segments cannot be removed", n)
	}
	return u
}

// Close carries out what is queued and closes all files. Idempotent.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		<-d.writer.ended
		return d.writer.closeErr
	}
	d.closed = true
	if d.stopProbe != nil {
		d.stopProbe()
	}
	d.writer.wake()
	d.mu.Unlock()
	d.reader.close()
	<-d.writer.ended
	d.closeReaders()
	return d.writer.closeErr
}

func (d *Driver) closeReaders() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.table {
		if s != nil && s.reader != nil {
			_ = s.reader.Close() // it was only read
			s.reader = nil
		}
	}
}

// New opens the tier in a directory, or makes one. The directory is this process's until Close. Recover comes next.
func New(ctx context.Context, o Options) (*Driver, error) {
	d, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	d.start()
	return d, nil
}
