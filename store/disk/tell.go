package disk

import (
	"context"
	"errors"

	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/tier"
)

// telling is the state of Recover.
type telling struct {
	d      *Driver
	each   func([]tier.Recovered, []tier.Owner) error
	batch  []tier.Recovered
	owners []tier.Owner
	places []told
	stale  map[uint64]bool
}

// told is a region in the tables.
type told struct {
	s *segment
	i int
}

// Recover tells of every live region, from the index. A damaged index is rebuilt on the way.
func (d *Driver) Recover(ctx context.Context, each func([]tier.Recovered, []tier.Owner) error) error {
	d.mu.Lock()
	again := d.recovered
	d.mu.Unlock()
	if again {
		return errors.New("disk tier: Recover was called before")
	}
	began := d.o.Clock.Now()
	t := telling{d: d, each: each, stale: map[uint64]bool{}}
	err := d.index.Scan(ctx, t.tell)
	if errors.Is(err, index.ErrCorrupt) && d.report.Rebuilt == "" {
		if err = d.rebuild(ctx, err); err == nil {
			err = d.index.Scan(ctx, t.tell)
		}
	}
	if err != nil {
		return err
	}
	for number := range t.stale {
		d.writer.batch.DeleteSegment(number)
	}
	if err := d.index.Apply(d.writer.batch); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.table {
		d.regions += int64(len(s.regions) + s.ended)
		s.open--
		d.dropIfEmpty(s)
	}
	d.recovered = true
	d.writer.wake()
	d.report.Took += d.o.Clock.Now().Sub(began)
	return nil
}

// tell files entries of the index and hands them to the caller.
func (t *telling) tell(entries []index.Entry) error {
	d := t.d
	t.batch, t.places = t.batch[:0], t.places[:0]
	d.mu.Lock()
	for i := range entries {
		t.file(&entries[i])
	}
	d.mu.Unlock()
	if len(t.batch) == 0 {
		return nil
	}
	t.owners = append(t.owners[:0], make([]tier.Owner, len(t.batch))...)
	if err := t.each(t.batch, t.owners); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, p := range t.places {
		p.s.regions[p.i].owner = t.owners[i]
		if t.owners[i] == (tier.Owner{}) {
			d.free(p.s, &p.s.regions[p.i])
		}
	}
	d.report.Regions += int64(len(t.batch))
	return nil
}

// file enters one region into the tables, unless it ended. Under mu.
func (t *telling) file(e *index.Entry) {
	d := t.d
	s := d.byNumber[e.Segment]
	block := uint32(e.Offset / blockBytes)
	switch {
	case s == nil:
		t.stale[e.Segment] = true
		d.report.Dropped.Missing++
		return
	case e.Offset%blockBytes != 0 || e.Bytes <= 0 || e.Bytes > maxRegionBytes || e.Offset+tier.RoundUp(e.Bytes) > s.size:
		return
	case t.wasTold(s, block):
		return
	case s.buried(block):
		d.writer.batch.Delete(e.Segment, e.Offset)
		return
	case e.Seq < d.retired[epochID{e.Key.Namespace, e.Key.Epoch}]:
		d.report.Dropped.Retired++
		d.end(s, block)
		return
	}
	s.firstSeq = min(s.firstSeq, e.Seq)
	s.names(d.journal.ids[e.Lineage])
	s.regions = append(s.regions, region{block | regionLive | regionFiled | regionWritten, uint32(e.Bytes), tier.Owner{}})
	r := &s.regions[len(s.regions)-1]
	s.live++
	s.liveBytes += e.Bytes
	s.liveRounded += r.rounded()
	d.liveBytes += e.Bytes
	t.places = append(t.places, told{s, len(s.regions) - 1})
	t.batch = append(t.batch, tier.Recovered{
		Region: s.region(r), Key: e.Key, Extent: e.Extent, Parent: e.Parent, ParentUnknown: e.ParentUnknown, View: e.View,
		DeclaredFLOPs: e.DeclaredFLOPs, Note: tier.Note{Expiry: e.Expiry, Lineage: e.Lineage},
	})
}

// wasTold reports whether an earlier Scan, of an index that turned out to be damaged, had this region.
func (t *telling) wasTold(s *segment, block uint32) bool {
	n := len(s.regions)
	return n > 0 && s.regions[n-1].block() >= block
}

// start starts the goroutines.
func (d *Driver) start() {
	go d.run()
	for range d.o.Readers {
		d.reader.workers.Go(d.serveReads)
	}
}
