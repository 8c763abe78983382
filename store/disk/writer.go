package disk

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Why a write is refused.
var (
	errNoRegion = errors.New("disk tier: no region lives there")
	errPartial  = errors.New("disk tier: a write must cover its region, once, and carry a note")
	errEnded    = errors.New("disk tier: the region or its epoch was buried before it was written")
)

// item is one write of a batch.
type item struct {
	op      tier.Op
	s       *segment
	block   uint32
	seq     uint64
	lineage uint32
	header  page.Header
	err     error
}

func (d *Driver) run() {
	defer close(d.writer.ended)
	for {
		b, ok := d.take()
		if !ok {
			break
		}
		if b.probe {
			d.probe()
		}
		d.writeRegions(b.ops)
		d.removeSegments(b.gone)
		err := d.writeGraves(&b)
		for _, done := range b.barriers {
			done(err)
		}
		d.taken()
	}
	d.writer.closeErr = d.shutDown()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writer.watch.disarm()
}

// writeRegions makes a batch of regions durable, files them and answers.
func (d *Driver) writeRegions(ops []tier.Op) {
	if len(ops) == 0 {
		return
	}
	w := &d.writer
	w.items = slices.Grow(w.items[:0], len(ops))[:len(ops)]
	items := w.items
	defer clear(items) // of what callers gave
	if !d.writer.broken {
		d.synced = d.seq.Load() + 1
	}
	for i, op := range ops {
		items[i].op = op
		items[i].err = checkRegion(&items[i].header, op.Memory)
	}
	d.claim(items)
	d.nameLineages(items)
	d.writeItems(items)
	if err := d.flushItems(items); err != nil {
		failAll(items, err)
	}
	complete := d.settle(items)
	if err := d.fileItems(items, complete); err != nil {
		failAll(items, err)
	}
	for i := range items {
		items[i].op.Done(items[i].err)
	}
}

func failAll(items []item, err error) {
	for i := range items {
		if items[i].err == nil {
			items[i].err = err
		}
	}
}

// claim finds the regions and numbers the records. From here on there may be a record of each in the file.
func (d *Driver) claim(items []item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	degraded := d.takesWrites()
	for i := range items {
		it := &items[i]
		op := &it.op
		s := d.segment(op.Region.Handle)
		var r *region
		if s != nil {
			r = s.find(op.Region.Offset)
		}
		switch {
		case r == nil:
			it.err = errNoRegion
		case op.At != 0 || int64(len(op.Memory)) != int64(r.bytes) || r.has(regionFiled) || op.Note == nil:
			it.err = errPartial
		case it.err != nil:
		case r.has(regionBuried) || d.isRetired(&it.header.Key):
			it.err = errEnded
		case degraded != nil:
			it.err = degraded
		}
		if it.err != nil {
			continue
		}
		r.place |= regionFiled
		it.s, it.block, it.seq = s, r.block(), d.nextSeq()
		s.firstSeq = min(s.firstSeq, it.seq)
	}
}

func (d *Driver) isRetired(k *page.Key) bool {
	_, ok := d.retired[epochID{k.Namespace, k.Epoch}]
	return ok
}

// nameLineages puts lineages into the journal before records name them.
func (d *Driver) nameLineages(items []item) {
	for i := range items {
		it := &items[i]
		if it.err != nil {
			continue
		}
		if it.lineage, it.err = d.journal.id(it.op.Note.Lineage); it.err == nil {
			d.mu.Lock()
			it.s.names(it.lineage)
			d.mu.Unlock()
		}
	}
}

// writeItems writes records, neighbours together.
func (d *Driver) writeItems(items []item) {
	order := make([]*item, 0, len(items))
	for i := range items {
		if items[i].err == nil {
			order = append(order, &items[i])
		}
	}
	slices.SortFunc(order, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.s.number, b.s.number), cmp.Compare(a.block, b.block))
	})
	v := &d.writer.vector
	for _, it := range order {
		if !v.continues(it) {
			d.writeVector()
		}
		if it.err = d.openForWriting(it.s); it.err != nil {
			continue
		}
		f := frame{
			kind: kindCommit, number: it.s.number, seq: it.seq, synced: d.synced, block: it.block, lineage: it.lineage,
			bodyBytes: uint32(it.header.EncodedBytes()), bytes: uint64(len(it.op.Memory)), expiry: it.op.Note.Expiry,
		}
		v.add(it, &f, d.dir.secret)
		if v.bounced {
			d.writeVector()
		}
	}
	d.writeVector()
}

// openForWriting makes the file of a segment with its first write.
func (d *Driver) openForWriting(s *segment) error {
	if s.broken {
		return tier.ErrDegraded
	}
	if s.file != nil {
		return nil
	}
	s.made = true
	f, err := d.makeFile(segmentName(s.number), label{kind: fileSegment, number: s.number, bytes: s.size})
	if err != nil {
		return d.breakSegment(s, fmt.Errorf("make %s: %w", segmentName(s.number), err))
	}
	s.file = f
	d.namesChanged = true
	d.stats.frameBytes.Add(2 * blockBytes)
	return nil
}

// breakSegment ends the use of a segment that cannot be written.
func (d *Driver) breakSegment(s *segment, err error) error {
	s.broken = true
	d.mu.Lock()
	d.seal(s)
	d.mu.Unlock()
	return d.trouble(err)
}

// writeVector writes what is gathered.
func (d *Driver) writeVector() {
	v := &d.writer.vector
	if len(v.items) == 0 {
		return
	}
	d.step()
	s := v.items[0].s
	var err error
	if err = v.write(s.file); err != nil {
		err = d.breakSegment(s, fmt.Errorf("write %s at %d: %w", segmentName(s.number), v.at, err))
	}
	for _, it := range v.items {
		it.err = err
		d.stats.payloadBytes.Add(uint64(len(it.op.Memory)))
		d.stats.frameBytes.Add(uint64(tier.RoundUp(int64(len(it.op.Memory)))) - uint64(len(it.op.Memory)))
	}
	v.reset()
}

// flushItems makes records, and what they need, durable.
func (d *Driver) flushItems(items []item) error {
	if err := d.journal.flush(); err != nil {
		return err
	}
	for i := range items {
		if s := items[i].s; s != nil && s.file != nil {
			if err := d.flushFile(s.file); err != nil {
				return err
			}
		}
	}
	if !d.namesChanged {
		return nil
	}
	d.namesChanged = false
	if err := d.syncDir(); err != nil {
		return d.fail(fmt.Errorf("sync directory: %w", err))
	}
	return nil
}

// flushFile syncs a file. An error is final: what is durable is not known, and asking again would not tell.
func (d *Driver) flushFile(f *writeFile) error {
	if f.dirty {
		d.step()
		d.stats.syncs.Add(1)
	}
	if err := f.flush(); err != nil {
		return d.fail(fmt.Errorf("sync: %w", err))
	}
	return nil
}

// settle notes in the tables how the writes ended, and answers which segments have no more to come. What failed is
// buried: a part of it may be in the file.
func (d *Driver) settle(items []item) (complete []*segment) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range items {
		it := &items[i]
		if it.s == nil {
			continue
		}
		it.s.open--
		r := it.s.entry(it.block)
		if it.err == nil {
			r.place |= regionWritten
		} else if d.fatal == nil {
			d.bury(it.s, r)
			d.writer.broken = true
		}
		d.dropIfEmpty(it.s)
	}
	d.incomplete = slices.DeleteFunc(d.incomplete, func(s *segment) bool {
		if !s.sealed || s.open > 0 || s.gone {
			return s.gone
		}
		complete = append(complete, s)
		return true
	})
	return complete
}

// fileItems tells the index of what is durable.
func (d *Driver) fileItems(items []item, complete []*segment) error {
	if err := d.failed(); err != nil {
		return err
	}
	b := d.writer.batch
	for i := range items {
		if it := &items[i]; it.err == nil {
			e := entryOf(&it.header, it.op.Note)
			e.Segment, e.Offset, e.Bytes, e.Seq = it.s.number, int64(it.block)*blockBytes, int64(len(it.op.Memory)), it.seq
			b.Put(&e)
		}
	}
	for _, s := range complete {
		b.Applied(s.number, s.end)
		d.closeFile(s)
	}
	return d.apply()
}

// closeFile ends the writing to s.
func (d *Driver) closeFile(s *segment) {
	if s.file == nil {
		return
	}
	if err := s.file.Close(); err != nil {
		d.o.Logger.Warn("close_segment", "segment", s.number, "error", err) // it was synced
	}
	s.file = nil
}

// apply gives the batch to the index. An error is final.
func (d *Driver) apply() error {
	if !d.writer.broken {
		d.writer.batch.NextSeq(d.seq.Load() + 1)
	}
	d.step()
	if err := d.index.Apply(d.writer.batch); err != nil {
		return d.fail(err)
	}
	return nil
}

func entryOf(h *page.Header, n *tier.Note) index.Entry {
	return index.Entry{
		Key: h.Key, Extent: h.Extent, Parent: h.Parent, ParentUnknown: h.ParentUnknown, View: h.View,
		DeclaredFLOPs: h.DeclaredFLOPs, Expiry: n.Expiry, Lineage: n.Lineage,
	}
}

// removeSegments removes files of segments without a live region. One that cannot be removed still counts, and is tried
// again with the probe.
func (d *Driver) removeSegments(gone []*segment) {
	if len(gone) == 0 || d.failed() != nil {
		return
	}
	var removed, doomed []*segment
	files := false
	for _, s := range gone {
		d.closeFile(s)
		if s.made {
			d.step()
			files = true
			if err := d.dir.remove(segmentName(s.number)); err != nil {
				d.o.Logger.Error("remove_segment", "segment", segmentName(s.number), "error", err)
				doomed = append(doomed, s)
				continue
			}
		}
		removed = append(removed, s)
	}
	d.doom(doomed)
	if files {
		if err := d.syncDir(); err != nil {
			_ = d.fail(fmt.Errorf("sync directory: %w", err)) // whoever waits learns it from the next step
			return
		}
	}
	for _, s := range removed {
		d.writer.batch.DeleteSegment(s.number)
	}
	if d.apply() == nil {
		d.forget(removed)
	}
}

// forget takes removed segments out of the tables.
func (d *Driver) forget(removed []*segment) {
	var unread []vfs.File
	d.mu.Lock()
	for _, s := range removed {
		d.table[s.handle-1] = nil
		d.resting = append(d.resting, s.handle)
		delete(d.byNumber, s.number)
		d.heldBytes -= s.size
		d.regions -= int64(len(s.regions) + s.ended)
		d.stats.removed.Add(1)
		if d.hot == s {
			d.hot = nil
		}
		if d.cold == s {
			d.cold = nil
		}
		s.closed = true
		unread = append(unread, s.unread())
	}
	d.mu.Unlock()
	for _, f := range unread {
		closeRead(f)
	}
}

// writeGraves makes durable what was buried and retired.
func (d *Driver) writeGraves(b *wishes) error {
	w := &d.writer
	w.graves = append(w.graves, b.graves...)
	w.retired = append(w.retired, b.retired...)
	if err := d.failed(); err != nil {
		return err
	}
	if len(b.barriers)+len(b.graves)+len(b.retired) == 0 && !w.broken {
		return nil
	}
	d.mu.Lock()
	w.graves = slices.DeleteFunc(w.graves, func(g grave) bool { return d.byNumber[g.number] == nil })
	if w.broken {
		w.graves = append(w.graves, w.wants.graves...)
		w.wants.graves = nil
	}
	d.mu.Unlock()
	if len(w.graves)+len(w.retired) == 0 {
		w.broken = false
		if d.journal.damaged {
			return d.journal.rewrite(d.journal.content())
		}
		return nil
	}
	slices.SortFunc(w.graves, grave.compare)
	if err := d.journal.write(content{graves: w.graves, retired: w.retired}); err != nil {
		return err
	}
	if err := d.journal.flush(); err != nil {
		return err
	}
	for _, g := range w.graves {
		w.batch.Delete(g.number, int64(g.block)*blockBytes)
	}
	w.graves, w.retired, w.broken = w.graves[:0], w.retired[:0], false
	return d.apply()
}

// shutDown leaves everything in order. The driver takes no calls any more.
func (d *Driver) shutDown() error {
	d.mu.Lock()
	incomplete, segments := d.incomplete, slices.Collect(maps.Values(d.byNumber))
	d.mu.Unlock()
	for _, s := range incomplete {
		// What was not written never will be; what is behind the last record counts as dead.
		d.writer.batch.Applied(s.number, s.size)
	}
	for _, s := range segments {
		d.closeFile(s)
	}
	var err error
	if d.failed() == nil {
		err = d.apply()
	}
	return errors.Join(err, d.journal.close(), d.index.Close(), d.lock.Close())
}
