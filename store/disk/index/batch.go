package index

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Batch is changes that are made together, in order. It keeps copies; Apply empties it.
type Batch struct {
	changes []change
	entries []Entry
}

// change is one of a batch; what it changes is in place or among the batch's entries.
type change struct {
	what    changeKind
	segment uint64
	number  uint64 // an offset, a sequence number, or a place among the entries
}

type changeKind uint8

const (
	changePut changeKind = iota
	changeDelete
	changeDeleteSegment
	changeApplied
	changeNextSeq
)

// NewBatch makes an empty batch.
func (x *Index) NewBatch() *Batch { return &Batch{} }

// Put adds or replaces the entry at e's place.
func (b *Batch) Put(e *Entry) {
	b.add(changePut, 0, uint64(len(b.entries)))
	b.entries = append(b.entries, *e)
}

// Delete drops the entry at a place, if there is one.
func (b *Batch) Delete(segment uint64, offset int64) { b.add(changeDelete, segment, uint64(offset)) }

// DeleteSegment drops all entries of a segment and what was applied of it.
func (b *Batch) DeleteSegment(segment uint64) { b.add(changeDeleteSegment, segment, 0) }

// Applied says that all records of a segment before offset are in the index, this batch included.
func (b *Batch) Applied(segment uint64, offset int64) {
	b.add(changeApplied, segment, uint64(offset))
}

// NextSeq keeps the lowest sequence number that no record has.
func (b *Batch) NextSeq(seq uint64) { b.add(changeNextSeq, 0, seq) }

func (b *Batch) add(what changeKind, segment, number uint64) {
	b.changes = append(b.changes, change{what, segment, number})
}

func (b *Batch) empty() {
	clear(b.entries) // their strings
	b.changes, b.entries = b.changes[:0], b.entries[:0]
}

// Apply makes the changes of b, all or none, and empties it. They are visible at once and durable when Pebble sees fit: a
// crash takes back whole batches, the newest first. It takes part in the compaction where space runs short. ErrEntry and
// ErrFull change nothing; after any other error the index is broken.
func (x *Index) Apply(b *Batch) error {
	if err := x.admit(b); err != nil {
		b.empty()
		return err
	}
	changes := *b
	err := x.fuse.Run(func() error {
		if err := x.fill(&changes); err != nil {
			return err
		}
		if err := x.batch.Commit(pebble.NoSync); err != nil {
			return err
		}
		x.batch.Reset()
		return x.reclaim()
	})
	if err != nil {
		*b = Batch{}     // the call may still be under way, with what was in it
		x.fuse.Blow(err) // applied or not: only opening it again tells
		return fmt.Errorf("apply to index: %w", x.fuse.Err())
	}
	b.empty()
	x.trimDictionaries()
	return nil
}

// admit refuses what cannot be held.
func (x *Index) admit(b *Batch) error {
	if x.ro {
		return fmt.Errorf("%w for changes: opened read-only", ErrBroken)
	}
	for i := range b.entries {
		if err := b.entries[i].check(); err != nil {
			return err
		}
	}
	if len(b.entries) == 0 {
		return nil
	}
	return x.makeRoom()
}

// fill writes b's changes into the Pebble batch.
func (x *Index) fill(b *Batch) (err error) {
	var key, end [entryKeyBytes]byte
	for i := range b.changes {
		switch c := &b.changes[i]; c.what {
		case changePut:
			err = x.put(&b.entries[c.number])
		case changeDelete:
			err = x.batch.Delete(appendEntryKey(key[:0], c.segment, int64(c.number)), nil)
		case changeDeleteSegment:
			x.dicts[c.segment] = &dictionary{gone: true}
			err = x.batch.DeleteRange(appendSegment(key[:0], c.segment), appendSegmentEnd(end[:0], c.segment), nil)
		case changeApplied:
			err = x.setNumber(appendAppliedKey(key[:0], c.segment), c.number)
		case changeNextSeq:
			err = x.setNumber(append(key[:0], prefixNextSeq), c.number)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) setNumber(key []byte, v uint64) error {
	var b [binary.MaxVarintLen64]byte
	return x.batch.Set(key, binary.AppendUvarint(b[:0], v), nil)
}

func (x *Index) put(e *Entry) error {
	d, err := x.dictionary(e.Segment)
	if err != nil {
		return err
	}
	family, err := x.familyID(d, e)
	if err != nil {
		return err
	}
	lineage, err := x.lineageID(d, e)
	if err != nil {
		return err
	}
	var key [entryKeyBytes]byte
	x.value = e.appendValue(x.value[:0], family, lineage)
	return x.batch.Set(appendEntryKey(key[:0], e.Segment, e.Offset), x.value, nil)
}
