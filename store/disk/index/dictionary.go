package index

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/quire-kv/quire/store/page"
)

// keptDictionaries is how many segments' dictionaries stay in memory between batches: the segment that is filled, the one
// that moves go to, and some beside.
const keptDictionaries = 4

// dictionary numbers the families and lineages of one segment, from 1, in the order of their first use there. It lies
// beside the entries and goes with them, so nothing of it outlives its segment.
type dictionary struct {
	families map[page.Family]uint32
	lineages map[string]uint32
	used     uint64 // Index.applys of its last use
	gone     bool   // its segment was deleted in the batch that is being applied, or is new in it
}

// dictionary is that of a segment, read back if need be.
func (x *Index) dictionary(segment uint64) (*dictionary, error) {
	d := x.dicts[segment]
	if d == nil {
		var err error
		if d, err = x.loadDictionary(segment); err != nil {
			return nil, err
		}
		x.dicts[segment] = d
	}
	if d.families == nil {
		d.families, d.lineages = map[page.Family]uint32{}, map[string]uint32{}
	}
	d.used, d.gone = x.applys, false
	return d, nil
}

func (x *Index) loadDictionary(segment uint64) (d *dictionary, err error) {
	d = &dictionary{families: map[page.Family]uint32{}, lineages: map[string]uint32{}}
	it, err := x.db.NewIter(&pebble.IterOptions{
		LowerBound: append(appendSegment(nil, segment), kindFamily), UpperBound: append(appendSegment(nil, segment), kindEntry),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		kind, id, err := decodeIDKey(it.Key())
		if err != nil {
			return nil, err
		}
		if kind == kindLineage {
			d.lineages[string(v)] = id
			continue
		}
		f, err := decodeFamily(v)
		if err != nil {
			return nil, err
		}
		d.families[f] = id
	}
	return d, it.Error()
}

func (x *Index) familyID(d *dictionary, e *Entry) (uint32, error) {
	if id, ok := d.families[e.Key.Family]; ok {
		return id, nil
	}
	id := uint32(len(d.families) + 1)
	d.families[e.Key.Family] = id
	x.value = appendFamily(x.value[:0], &e.Key.Family)
	return id, x.batch.Set(appendIDKey(nil, e.Segment, kindFamily, id), x.value, nil)
}

// lineageID is 0 for the empty lineage, which most have.
func (x *Index) lineageID(d *dictionary, e *Entry) (uint32, error) {
	if e.Lineage == "" {
		return 0, nil
	}
	if id, ok := d.lineages[e.Lineage]; ok {
		return id, nil
	}
	id := uint32(len(d.lineages) + 1)
	d.lineages[e.Lineage] = id
	return id, x.batch.Set(appendIDKey(nil, e.Segment, kindLineage, id), []byte(e.Lineage), nil)
}

// trimDictionaries forgets those of deleted segments, and the ones used longest ago.
func (x *Index) trimDictionaries() {
	x.applys++
	for segment, d := range x.dicts {
		if d.gone {
			delete(x.dicts, segment)
		}
	}
	for len(x.dicts) > keptDictionaries {
		var oldest uint64
		first := true
		for segment, d := range x.dicts {
			if first || d.used < x.dicts[oldest].used {
				oldest, first = segment, false
			}
		}
		delete(x.dicts, oldest)
	}
}
