package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// CheckOptions of Check.
type CheckOptions struct {
	// Repair makes the index, and what is damaged of identity and journal, anew. What is damaged of segments is lost.
	Repair   bool
	Progress func(done, total int64) // bytes of segments
	Logger   *slog.Logger            // default: nothing is logged
}

// Checked is what Check found.
type Checked struct {
	Segments, Journals int
	Bytes              int64 // of segments
	Records            int64 // sound ones
	Regions            int64 // of them live
	Torn               int64 // writes that a crash cut short; they were never acknowledged
	Faults             int64
	First              []Fault // the first hundred of the faults
	Repaired           bool
}

func (c *Checked) fault(f Fault) {
	c.Faults++
	if len(c.First) < maxFaults {
		c.First = append(c.First, f)
	}
}

// Check reads all that the tier keeps in a directory and compares it: labels, frames, headers and every piece of every
// payload, the padding between them, both halves of the journal, and the index. Nobody may have the directory open:
// ErrInUse. Without Repair it changes nothing but the lock.
func Check(ctx context.Context, fs vfs.FS, dir string, o CheckOptions) (c Checked, err error) {
	if _, err := fs.Stat(dir); err != nil {
		return c, fmt.Errorf("check data directory: %w", err)
	}
	if err := checkAll(ctx, fs, dir, &o, &c); err != nil || !o.Repair {
		return c, err
	}
	if err := repair(ctx, fs, dir, c.Bytes, &o); err != nil {
		return c, fmt.Errorf("repair %s: %w", dir, err)
	}
	c.Repaired = true
	return c, nil
}

// checker is the state of Check.
type checker struct {
	*Driver
	*Checked
	indexed map[uint64][]indexed // by segment, ascending by block
	applied map[uint64]int64
	suspect []suspect
	buf     []byte
}

// suspect is damage of a record that the index does not have: a fault if the record had been acknowledged, and if not a
// write that a crash cut short. Records written later tell.
type suspect struct {
	fault Fault
	seq   uint64
}

// indexed is what the index says of a region.
type indexed struct {
	block, bytes uint32
	seq          uint64
}

func checkAll(ctx context.Context, fs vfs.FS, dir string, o *CheckOptions, c *Checked) (err error) {
	lock, err := takeLock(fs, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	k := checker{Driver: newDriver(Options{FS: fs, Dir: dir, Clock: clock.System(), Logger: slog.New(slog.DiscardHandler)}), Checked: c}
	k.buf = make([]byte, page.MaxPieceBytes)
	segments, journals, err := k.dir.list()
	if err != nil {
		return err
	}
	c.Segments, c.Journals = len(segments), len(journals)
	none, fault := k.dir.readIdentity(segments, journals)
	if fault != nil && (!none || len(segments)+len(journals) > 0) {
		c.fault(Fault{identityName, 0, "identity", fault.Error(), "a sound label"})
	}
	k.labels(segments, journals)
	if err := k.enterFiles(segments, journals); err != nil {
		return err
	}
	for _, f := range k.report.Faults {
		c.fault(f)
	}
	k.readIndex(ctx)
	for _, s := range k.table {
		c.Bytes += s.size
	}
	done := int64(0)
	for _, s := range k.table {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := k.segment(s); err != nil {
			return err
		}
		if done += s.size; o.Progress != nil {
			o.Progress(done, c.Bytes)
		}
	}
	for _, x := range k.suspect {
		if x.seq < k.synced {
			c.fault(x.fault)
		} else {
			c.Torn++
		}
	}
	return nil
}

// labels checks the first block of each file.
func (k *checker) labels(segments, journals []found) {
	check := func(name string, want label) {
		got, err := k.dir.readLabel(name)
		if err == nil {
			want.bytes = got.bytes
			if want.identity = k.dir.identity; got != want {
				err = fmt.Errorf("label of kind %d, directory %x, number %016x", got.kind, got.id, got.number)
			}
		}
		if err != nil {
			k.fault(Fault{name, 0, "label", err.Error(), fmt.Sprintf("kind %d, directory %x, number %016x", want.kind, k.dir.id, want.number)})
		}
	}
	for _, f := range segments {
		check(segmentName(f.number), label{kind: fileSegment, number: f.number})
	}
	for _, f := range journals {
		check(journalName(f.number), label{kind: fileJournal, number: f.number})
	}
}

// readIndex takes in what the index says. A fault of it is one fault: all else is checked without it.
func (k *checker) readIndex(ctx context.Context) {
	k.indexed = map[uint64][]indexed{}
	err := k.loadIndex(ctx)
	if err != nil {
		k.fault(Fault{indexName, 0, "index", err.Error(), "an index without damage"})
		k.indexed, k.applied = nil, nil
	}
}

func (k *checker) loadIndex(ctx context.Context) (err error) {
	x, err := index.Open(index.Options{FS: k.dir.fs, Dir: k.dir.join(indexName), ReadOnly: true, Logger: k.o.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	state, err := x.State()
	if err != nil {
		return err
	}
	k.applied = state.Applied
	k.synced = max(k.synced, state.NextSeq)
	return x.Scan(ctx, func(entries []index.Entry) error {
		for i := range entries {
			e := &entries[i]
			if s := k.byNumber[e.Segment]; s != nil && !s.buried(uint32(e.Offset/blockBytes)) && e.Seq >= k.retired[epochID{e.Key.Namespace, e.Key.Epoch}] {
				k.indexed[e.Segment] = append(k.indexed[e.Segment], indexed{uint32(e.Offset / blockBytes), uint32(e.Bytes), e.Seq})
			}
		}
		return nil
	})
}

// segment checks one segment.
func (k *checker) segment(s *segment) error {
	sc, err := k.scannerOf(s)
	if err != nil {
		return err
	}
	defer func() { _ = sc.file.Close() }() // it is only read
	known := k.indexed[s.number]
	// lost tells of what the index has before a block and no record was found for.
	lost := func(before uint32, why error) {
		for len(known) > 0 && known[0].block < before {
			k.fault(Fault{sc.name, int64(known[0].block) * blockBytes, "record", fmt.Sprint(why), fmt.Sprintf("a region of %d bytes, which the index has", known[0].bytes)})
			known = known[1:]
		}
	}
	err = sc.commits(func(f *frame, offset int64, body []byte) error {
		lost(f.block, errNoFrame)
		var entry *indexed
		if len(known) > 0 && known[0].block == f.block {
			entry, known = &known[0], known[1:]
		}
		return k.commit(s, sc, f, offset, body, entry)
	}, func(from, to int64, why error) {
		first := uint32(from / blockBytes)
		named := len(known) > 0 && known[0].block < uint32(to/blockBytes)
		if why != nil && !named && !s.buried(first) {
			k.fault(Fault{sc.name, from, fmt.Sprintf("%d bytes", to-from), why.Error(), "a record, or zeros"})
		}
		lost(uint32(to/blockBytes), why)
	})
	lost(math.MaxUint32, errNoFrame)
	return err
}

// commit checks one record whose frame is sound.
func (k *checker) commit(s *segment, sc *scanner, f *frame, offset int64, body []byte, entry *indexed) error {
	k.Records++
	k.synced = max(k.synced, f.synced)
	var h page.Header
	if err := page.DecodeHeader(&h, slices.Clone(body)); err != nil {
		k.fault(Fault{sc.name, offset + frameBytes, "header", err.Error(), "an extent header"})
		return nil
	}
	if want := uint64(page.PayloadOffset(len(body))) + h.PayloadBytes; f.bytes != want {
		k.fault(Fault{sc.name, offset, "region bytes", fmt.Sprint(f.bytes), fmt.Sprint(want)})
		return nil
	}
	fault, err := sc.verify(&h, offset, k.buf)
	if err != nil {
		return err
	}
	if fault == nil {
		fault, err = sc.padding(&h, f, offset, k.buf)
		if err != nil {
			return err
		}
	}
	live := !s.buried(f.block) && f.seq >= k.retired[epochID{h.Key.Namespace, h.Key.Epoch}]
	_, complete := k.applied[s.number]
	switch {
	case fault != nil && entry == nil:
		k.suspect = append(k.suspect, suspect{*fault, f.seq})
	case fault != nil:
		k.fault(*fault)
	case live && entry == nil && complete:
		k.fault(Fault{sc.name, offset, "index", "no entry", fmt.Sprintf("a region of %d bytes", f.bytes)})
	case entry != nil && (uint64(entry.bytes) != f.bytes || entry.seq != f.seq):
		k.fault(Fault{sc.name, offset, "index", fmt.Sprintf("%d bytes, sequence number %d", entry.bytes, entry.seq), fmt.Sprintf("%d bytes, sequence number %d", f.bytes, f.seq)})
	}
	if live {
		k.Regions++
	}
	return nil
}

// padding holds that what is between header and payload, and behind it, is zero.
func (s *scanner) padding(h *page.Header, f *frame, offset int64, buf []byte) (*Fault, error) {
	header := int64(frameBytes + int(f.bodyBytes))
	end := int64(f.bytes)
	for _, run := range [2][2]int64{{header, int64(page.PayloadOffset(int(f.bodyBytes)))}, {end, tier.RoundUp(end)}} {
		b := buf[:run[1]-run[0]]
		if err := readFull(s.file, b, offset+run[0]); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(b, func(c byte) bool { return c != 0 }); i >= 0 {
			return &Fault{s.name, offset + run[0] + int64(i), "padding", fmt.Sprintf("%02x", b[i]), "00"}, nil
		}
	}
	return nil, nil
}

// repair opens the tier with its index gone, so that it is made anew, and closes it.
func repair(ctx context.Context, fs vfs.FS, dir string, bytes int64, o *CheckOptions) error {
	if err := index.Destroy(fs, fs.PathJoin(dir, indexName)); err != nil {
		return err
	}
	// Nothing is written but index and journal: any capacity that holds what is there will do.
	d, err := New(ctx, Options{FS: fs, Dir: dir, CapacityBytes: max(MinCapacityBytes, 2*bytes), Logger: o.Logger})
	if err != nil {
		return err
	}
	n := uint32(0)
	err = d.Recover(ctx, func(batch []tier.Recovered, owners []tier.Owner) error {
		for i := range batch {
			n++
			owners[i] = tier.Owner{Extent: n}
		}
		return nil
	})
	if err == nil {
		done := make(chan error, 1)
		d.Barrier(func(err error) { done <- err })
		err = <-done
	}
	return errors.Join(err, d.Close())
}
