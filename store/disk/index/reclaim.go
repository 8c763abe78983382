package index

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// mostSteps is how many steps a round of an index of MaxEntries has.
const mostSteps = 64

// reclaimer says when Apply takes part in compacting, and where. In rounds it goes through all segments:
//
//	files' bytes
//	next ----------------------------- /|  a step for every growth of step, until the round is over
//	                           /      / |
//	                    /             | |
//	size --- over  /                    \  over: next is 7/4 of what is left
//
// So dead entries take little more space than live ones, however large the index may become.
type reclaimer struct {
	entries        int    // live ones that a step covers
	floor, ceiling int64  // of the size at which a round begins
	above          int64  // the next step is made when the files take more
	step           int64  // by how much they may grow from one step to the next
	steps          int64  // made in this round
	cursor         []byte // where the next step begins
}

func newReclaimer(maxBytes int64) reclaimer {
	floor := baseBytes(maxBytes) / 2
	return reclaimer{
		entries: int(max(MaxEntries(maxBytes)/mostSteps, 1<<10)), floor: floor, ceiling: maxBytes / 2,
		above: floor, step: floor / 8, cursor: []byte{prefixSegment},
	}
}

// made takes in that a step was made up to end, nil for the end of the round, and what the files take now.
func (r *reclaimer) made(end []byte, used int64) {
	r.steps++
	if r.cursor = end; end != nil {
		r.above = used + r.step
		return
	}
	next := min(max(r.floor, used/4*7), r.ceiling)
	r.step = next / 8 / r.steps
	r.above = max(next, used+r.step) // where nothing is dead, nothing is gained
	r.steps, r.cursor = 0, []byte{prefixSegment}
}

// reclaim compacts the next stretch of the segments, if it is time to, so that what is dead there gives its space back.
// Pebble compacts in the background as well, but does not make a writer wait that is faster.
func (x *Index) reclaim() error {
	r := &x.reclaimer
	if x.DiskBytes() <= r.above {
		return nil
	}
	end, err := x.after(r.cursor, r.entries)
	if err != nil {
		return err
	}
	last := end
	if end == nil {
		last = []byte{prefixNextSeq + 1}
	}
	if err := x.db.Compact(context.Background(), r.cursor, last, false); err != nil {
		return err
	}
	r.made(end, x.DiskBytes())
	return nil
}

// makeRoom answers when the files take no more than they may, or that they cannot.
func (x *Index) makeRoom() error {
	for range mostSteps + 1 {
		if x.DiskBytes() <= x.maxBytes {
			return nil
		}
		x.reclaimer.above = 0
		if err := x.fuse.Run(x.reclaim); err != nil {
			x.fuse.Blow(err)
			return fmt.Errorf("compact index: %w", x.fuse.Err())
		}
	}
	return fmt.Errorf("%w: files of %d bytes, at most %d", ErrFull, x.DiskBytes(), x.maxBytes)
}

// after is the key that comes n keys behind start, or nil where there are fewer.
func (x *Index) after(start []byte, n int) (key []byte, err error) {
	it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: []byte{prefixSegment + 1}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		if n--; n < 0 {
			return append([]byte{}, it.Key()...), nil
		}
	}
	return nil, it.Error()
}
