package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Report is what opening a directory found.
type Report struct {
	Segments int
	Scanned  int    // segments that were read since the index did not know all of them
	Regions  int64  // that Recover told of
	Rebuilt  string // why the index was rebuilt; "" if it was not
	Dropped  Dropped
	Faults   []Fault       // the first of what was damaged
	Took     time.Duration // of New and Recover
}

// Dropped counts records that were read and not told of, by cause.
type Dropped struct {
	Buried   int64 // freed or deleted
	Retired  int64 // of an epoch that was retired
	Torn     int64 // a crash came in the middle of the write
	Damaged  int64 // runs of blocks that are no record and not empty
	Nameless int64 // their lineage is not known
	Missing  int64 // entries of the index whose segment is gone
}

const maxFaults = 100

func (r *Report) fault(f Fault) {
	if len(r.Faults) < maxFaults {
		r.Faults = append(r.Faults, f)
	}
}

func sortFound(f []found) {
	slices.SortFunc(f, func(a, b found) int { return cmp.Compare(a.number, b.number) })
}

// Recovery is what opening found. Complete when Recover has returned.
func (d *Driver) Recovery() Report { return d.report }

// newDriver is a driver of no files yet.
func newDriver(o Options) *Driver {
	d := &Driver{
		o: o, sizes: o.sizes(), byNumber: map[uint64]*segment{}, movers: map[tier.Owner]*segment{}, retired: map[epochID]uint64{},
		dir: directory{fs: o.FS, path: o.Dir, direct: !o.buffered && o.FS == vfs.Default},
	}
	d.journal = newJournal(d)
	d.writer.more = sync.NewCond(&d.mu)
	d.writer.ended = make(chan struct{})
	d.reader.more.L = &d.reader.mu
	d.writer.watch = watch{clock: o.Clock, patience: o.Patience, look: d.lookAtWriter, most: 1}
	d.reader.watch = watch{clock: o.Clock, patience: o.Patience, look: d.lookAtReaders, most: o.Readers}
	return d
}

// open takes the directory and brings the index up to date; no goroutine runs yet.
func open(ctx context.Context, o Options) (*Driver, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	began := o.Clock.Now()
	lock, err := takeLock(o.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	d := newDriver(o)
	d.lock = lock
	err = d.load()
	if err == nil {
		err = d.openIndex(ctx)
	}
	if err != nil {
		if d.index != nil {
			err = errors.Join(err, d.index.Close())
		}
		return nil, errors.Join(err, lock.Close())
	}
	d.report.Took = o.Clock.Now().Sub(began)
	return d, nil
}

// load finds the files and reads the journal.
func (d *Driver) load() error {
	segments, journals, err := d.dir.list()
	if err != nil {
		return fmt.Errorf("list %s: %w", d.dir.path, err)
	}
	if err := d.dir.loadIdentity(segments, journals); err != nil {
		return err
	}
	if err := d.dir.remove(probeName); err != nil {
		return err
	}
	return d.enterFiles(segments, journals)
}

// enterFiles fills the tables from what the directory and the journal say.
func (d *Driver) enterFiles(segments, journals []found) error {
	d.report.Segments = len(segments)
	for _, f := range segments {
		s := newSegment(f.number, max(tier.RoundUp(f.size), blockBytes))
		s.sealed, s.made, s.end = true, true, s.size
		s.open = 1 // until Recover has told of all of it
		d.enter(s)
		d.saw(f.number)
	}
	for _, f := range journals {
		d.journal.adopt(f)
		d.saw(f.number)
		if err := d.readJournal(f); err != nil {
			return err
		}
	}
	d.journalBytes = d.journal.bytes()
	for _, s := range d.byNumber {
		slices.Sort(s.graves)
		s.graves = slices.Compact(s.graves)
		s.ended = len(s.graves)
	}
	return nil
}

// saw keeps sequence numbers from being used twice.
func (d *Driver) saw(seq uint64) {
	if seq > d.seq.Load() {
		d.seq.Store(seq)
	}
}

func (d *Driver) readJournal(f found) error {
	name := journalName(f.number)
	file, err := d.dir.fs.Open(d.dir.join(name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is only read
	s := scanner{file: file, name: name, size: f.size, number: f.number, secret: d.dir.secret}
	return s.scanJournal(func(r *frame, body []byte) error {
		d.saw(r.seq)
		d.synced = max(d.synced, r.synced)
		switch r.kind {
		case kindBury:
			for g := range graves(body) {
				d.saw(g.number)
				if s := d.byNumber[g.number]; s != nil {
					s.graves = append(s.graves, g.block)
				}
			}
		case kindRetire:
			for e := range retirements(body) {
				d.saw(e.below)
				d.retired[e.epochID] = max(d.retired[e.epochID], e.below)
			}
		case kindDefine:
			return definitions(body, d.journal.define)
		}
		return nil
	}, func(f Fault) {
		d.report.fault(f)
		d.journal.damaged = true
	})
}

// openIndex opens the index and reads what it does not know from the segments: all there is, if it is damaged or lost.
func (d *Driver) openIndex(ctx context.Context) error {
	var why error
	if d.index, why = index.Open(d.indexOptions()); why == nil {
		why = d.catchUp(ctx)
	}
	if errors.Is(why, index.ErrCorrupt) {
		return d.rebuild(ctx, why)
	}
	return why
}

func (d *Driver) indexOptions() index.Options {
	return index.Options{FS: d.dir.fs, Dir: d.dir.join(indexName), MaxBytes: d.sizes.index, Logger: d.o.Logger}
}

// rebuild throws the index away and makes it anew from the segments.
func (d *Driver) rebuild(ctx context.Context, why error) error {
	d.o.Logger.Warn("disk_index_rebuild", "error", why)
	d.report.Rebuilt = why.Error()
	if d.index != nil {
		_ = d.index.Close() // it is thrown away
	}
	o := d.indexOptions()
	if err := index.Destroy(o.FS, o.Dir); err != nil {
		return err
	}
	x, err := index.Open(o)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.index = x
	d.mu.Unlock()
	d.report.Dropped, d.report.Scanned = Dropped{}, 0
	return d.catchUp(ctx)
}

// recent is a record that may not have been durable when the process ended.
type recent struct {
	s      *segment
	offset int64
	seq    uint64
}

// catchingUp is the state of catchUp.
type catchingUp struct {
	d       *Driver
	batch   *index.Batch
	puts    int
	recents []recent
	buf     []byte
}

// maxPuts bounds a batch while the index is made.
const maxPuts = 1024

// catchUp reads the segments of which the index does not know all. Only the payload of what was written after the last
// sync that a record tells of is read: the rest was durable.
func (d *Driver) catchUp(ctx context.Context) error {
	state, err := d.index.State()
	if err != nil {
		return err
	}
	c := catchingUp{d: d, batch: d.index.NewBatch(), buf: make([]byte, page.MaxPieceBytes)}
	d.writer.batch = d.index.NewBatch()
	d.synced = max(d.synced, state.NextSeq)
	if state.NextSeq > 0 {
		d.saw(state.NextSeq - 1)
	}
	if state.NextSeq == 0 && len(d.table) > 0 && d.report.Rebuilt == "" {
		d.report.Rebuilt = "the index was missing"
	}
	for number, end := range state.Applied {
		d.saw(number)
		if s := d.byNumber[number]; s != nil {
			s.end = min(max(end, blockBytes), s.size)
		} else {
			c.batch.DeleteSegment(number)
		}
	}
	for _, s := range d.table {
		if _, ok := state.Applied[s.number]; ok {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.scan(s); err != nil {
			return err
		}
		d.report.Scanned++
	}
	if err := c.verify(); err != nil {
		return err
	}
	c.batch.NextSeq(d.seq.Load() + 1)
	return d.index.Apply(c.batch)
}

func (d *Driver) scannerOf(s *segment) (*scanner, error) {
	name := segmentName(s.number)
	f, err := d.dir.fs.Open(d.dir.join(name))
	if err != nil {
		return nil, err
	}
	return &scanner{file: f, name: name, size: s.size, number: s.number, secret: d.dir.secret}, nil
}

// scan puts the live records of a segment into the index.
func (c *catchingUp) scan(s *segment) error {
	d := c.d
	sc, err := d.scannerOf(s)
	if err != nil {
		return err
	}
	defer func() { _ = sc.file.Close() }() // it is only read
	err = sc.commits(func(f *frame, offset int64, body []byte) error { return c.take(s, f, offset, body) }, func(from, to int64, why error) {
		if block := uint32(from / blockBytes); why != nil && !s.buried(block) {
			d.report.Dropped.Damaged++
			d.end(s, block)
			d.report.fault(Fault{sc.name, from, fmt.Sprintf("%d bytes", to-from), why.Error(), "a record"})
		}
	})
	if err != nil {
		return err
	}
	s.end = s.size
	c.batch.Applied(s.number, s.size)
	return c.flush()
}

// take files one record, unless it has ended.
func (c *catchingUp) take(s *segment, f *frame, offset int64, body []byte) error {
	d := c.d
	d.saw(f.seq)
	d.synced = max(d.synced, f.synced)
	s.firstSeq = min(s.firstSeq, f.seq)
	lineage, known := d.journal.texts[f.lineage]
	var h page.Header
	switch {
	case s.buried(f.block):
		d.report.Dropped.Buried++
		return nil
	case f.lineage != 0 && !known:
		d.report.Dropped.Nameless++
		d.end(s, f.block)
		return nil
	case page.DecodeHeader(&h, body) != nil || f.bytes != uint64(page.PayloadOffset(len(body)))+h.PayloadBytes:
		d.report.Dropped.Damaged++ // sealed by us, so written by another version
		return nil
	case f.seq < d.retired[epochID{h.Key.Namespace, h.Key.Epoch}]:
		d.report.Dropped.Retired++
		d.end(s, f.block)
		return nil
	}
	s.names(f.lineage)
	e := entryOf(&h, &tier.Note{Expiry: f.expiry, Lineage: lineage})
	e.Segment, e.Offset, e.Bytes, e.Seq = s.number, offset, int64(f.bytes), f.seq
	c.batch.Put(&e)
	if f.seq >= d.synced {
		c.recents = append(c.recents, recent{s, offset, f.seq})
	}
	if c.puts++; c.puts < maxPuts {
		return nil
	}
	return c.flush()
}

func (c *catchingUp) flush() error {
	c.puts = 0
	c.recents = slices.DeleteFunc(c.recents, func(r recent) bool { return r.seq < c.d.synced })
	return c.d.index.Apply(c.batch)
}

// verify drops what the crash tore.
func (c *catchingUp) verify() error {
	for _, r := range c.recents {
		if r.seq < c.d.synced {
			continue
		}
		sc, err := c.d.scannerOf(r.s)
		if err != nil {
			return err
		}
		intact, err := sc.intact(r.offset, c.buf)
		_ = sc.file.Close() // it was only read
		if err != nil {
			return err
		}
		if !intact {
			c.d.report.Dropped.Torn++
			c.batch.Delete(r.s.number, r.offset)
			c.d.end(r.s, uint32(r.offset/blockBytes))
		}
	}
	return nil
}

// intact reports whether all of the record at an offset is as it was written.
func (s *scanner) intact(offset int64, buf []byte) (bool, error) {
	var f frame
	var h page.Header
	b, bad, err := s.record(&f, offset)
	if err != nil || bad != nil {
		return false, err
	}
	if page.DecodeHeader(&h, b[frameBytes:]) != nil {
		return false, nil
	}
	fault, err := s.verify(&h, offset, buf)
	return fault == nil, err
}

// buried reports whether the journal of an earlier life has the grave of a block.
func (s *segment) buried(block uint32) bool {
	_, ok := slices.BinarySearch(s.graves[:s.ended], block)
	return ok
}

// end buries a record that was found and is not told of. Before Recover has ended.
func (d *Driver) end(s *segment, block uint32) {
	i, ok := slices.BinarySearch(s.graves[:s.ended], block)
	if ok {
		return
	}
	s.graves = slices.Insert(s.graves, i, block)
	s.ended++
	d.writer.wants.graves = append(d.writer.wants.graves, grave{s.number, block})
}
