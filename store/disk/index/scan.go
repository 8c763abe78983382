package index

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quire-kv/quire/store/page"
)

// scanEntries is how many entries Scan hands over at a time: they fit into a core's cache.
const scanEntries = 1024

// Scan tells of every live entry, by segment and offset, as of one instant. The slice is each's until it returns.
// ErrCorrupt may come after entries that were told of.
func (x *Index) Scan(ctx context.Context, each func([]Entry) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	full, free, done := make(chan []Entry), make(chan []Entry, 2), make(chan error, 1)
	free <- make([]Entry, 0, scanEntries)
	free <- make([]Entry, 0, scanEntries)
	go func() { done <- x.fuse.Run(func() error { return x.produce(ctx, full, free) }) }()
	for {
		select {
		case entries := <-full:
			if err := each(entries); err != nil {
				cancel()
				<-done // nothing reads Pebble any more, unless it is broken
				return err
			}
			free <- entries[:0]
		case err := <-done:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return x.damage(err)
		}
	}
}

// produce reads entries while the caller of Scan works on those before.
func (x *Index) produce(ctx context.Context, full chan<- []Entry, free <-chan []Entry) (err error) {
	it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixSegment}, UpperBound: []byte{prefixSegment + 1}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var d decoder
	send := func(entries []Entry) ([]Entry, error) {
		select {
		case full <- entries:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		select {
		case entries = <-free:
			return entries, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	entries := <-free
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if entries, err = d.add(entries, it.Key(), v); err != nil {
			return fmt.Errorf("key % x: %w", it.Key(), err)
		}
		if len(entries) == scanEntries {
			if entries, err = send(entries); err != nil {
				return err
			}
		}
	}
	if err := it.Error(); err != nil || len(entries) == 0 {
		return err
	}
	_, err = send(entries)
	return err
}

// decoder reads segments, one after the other.
type decoder struct {
	segment  uint64
	families []page.Family // by id - 1
	lineages []string
}

// add takes in one key of a segment, and appends to entries if it is an entry.
func (d *decoder) add(entries []Entry, key, value []byte) ([]Entry, error) {
	if len(key) <= segmentBytes {
		return nil, fmt.Errorf("%w: short key", errValue)
	}
	if segment := binary.BigEndian.Uint64(key[1:]); segment != d.segment {
		d.segment, d.families, d.lineages = segment, d.families[:0], d.lineages[:0]
	}
	switch kind := key[segmentBytes]; kind {
	case kindApplied:
		_, err := decodeUvarint(value)
		return entries, err
	case kindFamily, kindLineage:
		return entries, d.define(key, value)
	case kindEntry:
		if len(key) != entryKeyBytes {
			return nil, fmt.Errorf("%w: entry's key of %d bytes", errValue, len(key))
		}
		n := len(entries)
		entries = append(entries, Entry{})
		return entries, d.entry(&entries[n], key, value)
	default:
		return nil, fmt.Errorf("%w: kind %d", errValue, kind)
	}
}

// define takes in one word of the segment's dictionary: they are numbered without holes.
func (d *decoder) define(key, value []byte) error {
	kind, id, err := decodeIDKey(key)
	if err != nil {
		return err
	}
	next := len(d.families) + 1
	if kind == kindLineage {
		next = len(d.lineages) + 1
	}
	if uint64(id) != uint64(next) {
		return fmt.Errorf("%w: dictionary's id %d, want %d", errValue, id, next)
	}
	if kind == kindLineage {
		d.lineages = append(d.lineages, string(value))
		return nil
	}
	f, err := decodeFamily(value)
	d.families = append(d.families, f)
	return err
}

func (d *decoder) entry(e *Entry, key, value []byte) error {
	family, lineage, err := e.decodeValue(value)
	if err != nil {
		return err
	}
	offset := binary.BigEndian.Uint64(key[segmentBytes+1:])
	if family == 0 || uint64(family) > uint64(len(d.families)) || uint64(lineage) > uint64(len(d.lineages)) || offset > math.MaxInt64 {
		return fmt.Errorf("%w: family %d of %d, lineage %d of %d", errValue, family, len(d.families), lineage, len(d.lineages))
	}
	e.Segment, e.Offset, e.Key.Family = d.segment, int64(offset), d.families[family-1]
	if lineage > 0 {
		e.Lineage = d.lineages[lineage-1]
	}
	return nil
}

func decodeIDKey(key []byte) (kind byte, id uint32, err error) {
	if len(key) != idKeyBytes {
		return 0, 0, fmt.Errorf("%w: dictionary's key of %d bytes", errValue, len(key))
	}
	return key[segmentBytes], binary.BigEndian.Uint32(key[segmentBytes+1:]), nil
}

// State is what the index knows beside entries.
type State struct {
	Applied map[uint64]int64 // by segment: all records before this offset are in the index
	NextSeq uint64           // 0: never set
}

// State reads the state as of one instant. It touches one key of every segment.
func (x *Index) State() (State, error) {
	s := State{Applied: map[uint64]int64{}}
	err := x.fuse.Run(func() (err error) {
		it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixSegment}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, it.Close()) }()
		for ok := it.First(); ok; {
			v, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			next, err := s.add(it.Key(), v)
			if err != nil {
				return fmt.Errorf("key % x: %w", it.Key(), err)
			}
			ok = it.SeekGE(next)
		}
		return it.Error()
	})
	if err != nil {
		return State{}, x.damage(err)
	}
	return s, nil
}

// add takes in one key, and answers from where to go on.
func (s *State) add(key, value []byte) (next []byte, err error) {
	var number uint64
	if key[0] == prefixSegment && len(key) > segmentBytes {
		segment := binary.BigEndian.Uint64(key[1:])
		if key[segmentBytes] == kindApplied {
			if number, err = decodeUvarint(value); err == nil && number > math.MaxInt64 {
				err = fmt.Errorf("%w: applied up to %d", errValue, number)
			}
			s.Applied[segment] = int64(number)
		}
		return appendSegmentEnd(nil, segment), err
	}
	if number, err = decodeUvarint(value); err != nil {
		return nil, err
	}
	if key[0] != prefixNextSeq || len(key) != 1 {
		return nil, fmt.Errorf("%w: no such key", errValue)
	}
	s.NextSeq = number
	return append(append([]byte{}, key...), 0), nil
}
