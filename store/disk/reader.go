package disk

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/tier"
)

// reader reads regions into the memory of callers on a few goroutines. Its queue holds what callers have submitted and
// not been answered.
type reader struct {
	mu      sync.Mutex // guards what follows
	more    sync.Cond
	queue   []tier.Op
	closed  bool
	workers sync.WaitGroup
	watch   watch // of all reads under way
}

var errUnwritten = errors.New("disk tier: the region was not written")

// submit queues ops, or says why not.
func (q *reader) submit(ops []tier.Op) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return tier.ErrClosed
	}
	if err := q.watch.silent(aRead); err != nil {
		return err
	}
	q.queue = append(q.queue, ops...)
	for range ops {
		q.more.Signal()
	}
	return nil
}

// silent says why reads are refused.
func (q *reader) silent() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.watch.silent(aRead)
}

// pop waits for an op, which ends by popped; not ok when closed and empty.
func (q *reader) pop() (op tier.Op, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) == 0 {
		if q.closed {
			return op, false
		}
		q.more.Wait()
	}
	op = q.queue[0]
	q.queue[0] = tier.Op{}
	if q.queue = q.queue[1:]; len(q.queue) == 0 {
		q.queue = nil
	}
	q.watch.begin()
	return op, true
}

func (q *reader) popped() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watch.end()
}

// close lets the workers answer what is queued and waits for them.
func (q *reader) close() {
	q.mu.Lock()
	q.closed = true
	q.more.Broadcast()
	q.mu.Unlock()
	q.workers.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.watch.disarm()
}

func (d *Driver) serveReads() {
	for {
		op, ok := d.reader.pop()
		if !ok {
			return
		}
		err := d.read(op)
		d.reader.popped()
		op.Done(err)
	}
}

// read reads a part of a region. The frame in its first bytes is not shown.
func (d *Driver) read(op tier.Op) error {
	s, offset, err := d.startRead(op)
	if err != nil {
		return err
	}
	defer d.endRead(s)
	f, err := d.readerOf(s)
	if err != nil {
		return fmt.Errorf("open %s: %w", segmentName(s.number), err)
	}
	if _, err := f.ReadAt(op.Memory, offset+op.At); err != nil {
		return fmt.Errorf("read %s at %d: %w", segmentName(s.number), offset+op.At, err)
	}
	if op.At < frameBytes {
		clear(op.Memory[:min(frameBytes-op.At, int64(len(op.Memory)))])
	}
	d.stats.readBytes.Add(uint64(len(op.Memory)))
	return nil
}

// startRead finds the region and keeps its file open until endRead.
func (d *Driver) startRead(op tier.Op) (*segment, int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.segment(op.Region.Handle)
	var r *region
	if s != nil {
		r = s.find(op.Region.Offset)
	}
	if r == nil {
		return nil, 0, errNoRegion
	}
	if n := int64(len(op.Memory)); op.At < 0 || op.At > int64(r.bytes) || n > int64(r.bytes)-op.At {
		return nil, 0, fmt.Errorf("disk tier: read of %d bytes at %d of a region of %d: out of range", n, op.At, r.bytes)
	}
	if !r.has(regionWritten) {
		return nil, 0, errUnwritten
	}
	s.reads++
	return s, r.offset(), nil
}

func (d *Driver) endRead(s *segment) {
	d.mu.Lock()
	s.reads--
	f := s.unread()
	d.mu.Unlock()
	closeRead(f)
}

// unread takes the reader from a segment that is gone and that nobody reads any more; nil: there is none. Under mu, which is
// not held when it is closed: that is a call of the device.
func (s *segment) unread() vfs.File {
	if s.reads > 0 || !s.closed {
		return nil
	}
	f := s.reader
	s.reader = nil
	return f
}

// closeRead closes a file that was only read; nil: none.
func closeRead(f vfs.File) {
	if f != nil {
		_ = f.Close()
	}
}

// readerOf is the segment's file, opened by the first who reads it.
func (d *Driver) readerOf(s *segment) (vfs.File, error) {
	d.mu.Lock()
	f := s.reader
	d.mu.Unlock()
	if f != nil {
		return f, nil
	}
	f, err := d.dir.fs.Open(d.dir.join(segmentName(s.number)), vfs.RandomReadsOption)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	first := s.reader
	if first == nil {
		s.reader = f
	}
	d.mu.Unlock()
	if first == nil {
		return f, nil
	}
	closeRead(f) // another was faster
	return first, nil
}
