package store

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/tier"
)

// diskWriter carries out all transfers into the disk tier, one batch after the other, on one goroutine: it alone takes
// room there, so it alone cleans segments.
//
//	commits ──Behind──> pending ──WriteBehind(budget)──┐
//	durable commits ──Persist──────────────────────────┴─Transfer─> queue ──> sums, room, one Submit ──> TransferDone
type diskWriter struct {
	s      *Store
	d      tier.Durable
	budget int64         // bytes queued or being written for WriteBehind; durable commits come on top
	more   chan struct{} // one slot: there is work
	done   chan struct{} // closed when the goroutine is gone
	buffer []byte        // the goroutine's, for what cleaning moves

	mu       sync.Mutex // guards what follows
	queue    []diskWrite
	pending  []bool        // by shard: it has something for WriteBehind
	asking   bool          // and is being asked for it
	inFlight int64         // bytes queued or being written
	progress chan struct{} // closed and replaced when something was asked for, written, or failed
	writable bool          // as the shards were told last
	poll     func() bool   // stops the armed look at whether the tier is writable; nil: none is armed
	stopping bool

	telling sync.Mutex // serialises checkWritable: taken before mu
}

// diskWrite is one Transfer into the disk tier.
type diskWrite struct {
	sh *shard
	t  core.Transfer
}

// Bounds of write-behind.
const (
	maxWriteBehindBytes = 64 << 20              // at a time; an eighth of the host tier where that is less, since what is being written cannot go
	writableCheck       = time.Second           // while the tier is at something, or takes nothing
	roomWait            = 25 * time.Millisecond // of a publication, before what is not on disk yet is dropped
	maxRoomWait         = 5 * time.Second       // of a publication that finds nothing but pages that are being written
)

func newDiskWriter(s *Store, d tier.Durable) *diskWriter {
	return &diskWriter{
		s: s, d: d, more: make(chan struct{}, 1), done: make(chan struct{}), pending: make([]bool, len(s.shards)),
		progress: make(chan struct{}), writable: true,
		budget: min(maxWriteBehindBytes, s.o.Tiers[evict.Host].Usage().Capacity/8),
	}
}

// run works until stop.
func (w *diskWriter) run() {
	defer close(w.done)
	for range w.more {
		w.askBehind()
		if batch, ok := w.take(); ok {
			w.write(batch)
		} else {
			return
		}
	}
}

func (w *diskWriter) signal() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// behind notes that a shard has something to write.
func (w *diskWriter) behind(sh *shard) {
	w.mu.Lock()
	w.pending[sh.id] = true
	w.mu.Unlock()
	w.signal()
}

// enqueue takes a Transfer into the disk tier.
func (w *diskWriter) enqueue(sh *shard, t core.Transfer) {
	w.mu.Lock()
	stopped := w.stopping
	if !stopped {
		w.queue = append(w.queue, diskWrite{sh, t})
		w.inFlight += t.From.Bytes
		w.arm()
	}
	w.mu.Unlock()
	if stopped {
		w.s.step(sh, core.TransferDone{ID: t.ID, Err: reason.Busy})
		return
	}
	w.signal()
}

// askBehind asks the shards that have something for as much as the budget allows.
func (w *diskWriter) askBehind() {
	for i, sh := range w.s.shards {
		w.mu.Lock()
		room := w.budget - w.inFlight
		ask := w.pending[i] && room > 0 && w.writable && !w.stopping
		if ask {
			w.pending[i], w.asking = false, true
		}
		w.mu.Unlock()
		if ask {
			w.s.step(sh, core.WriteBehind{Bytes: uint64(room)})
			w.mu.Lock()
			w.asking = false
			w.tell()
			w.mu.Unlock()
		}
	}
}

// take empties the queue; false once stopped and empty.
func (w *diskWriter) take() ([]diskWrite, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	batch := w.queue
	w.queue = nil
	return batch, len(batch) > 0 || !w.stopping
}

// write verifies, finds room for and submits a batch; it does not wait for the disk.
func (w *diskWriter) write(batch []diskWrite) {
	var total uint64
	for i := range batch {
		total += uint64(tier.RoundUp(batch[i].t.From.Bytes))
	}
	ops := make([]tier.Op, 0, len(batch))
	for _, q := range batch {
		from, ok := w.s.region(q.t.From)
		why := reason.Absent
		if ok {
			why = reason.Corrupt
			if soundExtent(from.Memory) {
				why = reason.None
			}
		}
		var to tier.Region
		if why == reason.None {
			var err error
			who := seeker{tenant: w.s.tenantOf(q.t.Namespace, q.t.Epoch), judge: true, worth: q.t.Worth}
			if !w.follows(q) {
				why = reason.NotWorth
			} else if to, err = w.s.allocOne(evict.Disk, tier.Class{Bytes: from.Bytes}, tier.Owner{Shard: q.sh.id, Extent: q.t.Into}, total, &who); err != nil {
				why = allocReason(err)
			}
		}
		total -= uint64(tier.RoundUp(q.t.From.Bytes))
		if why != reason.None {
			w.finish(q, core.TransferDone{ID: q.t.ID, Err: why})
			continue
		}
		ops = append(ops, tier.Op{Region: to, Memory: from.Memory, Write: true, Note: w.s.noteOf(q.t), Done: func(err error) {
			done := core.TransferDone{ID: q.t.ID, To: placeOf(evict.Disk, to)}
			if err != nil {
				w.d.Free(to)
				done = core.TransferDone{ID: q.t.ID, Err: reason.Busy}
				w.s.counts.writeErrors.Add(1)
			} else {
				w.s.counts.persisted.Add(uint64(to.Bytes))
			}
			w.finish(q, done)
		}})
	}
	if len(ops) > 0 {
		w.d.Submit(ops)
	}
	w.checkWritable()
}

// follows says whether what a judged transfer stands on is on disk, or was not refused: what was before it in the queue has
// been answered, or is being written.
func (w *diskWriter) follows(q diskWrite) bool {
	if q.t.Worth == evict.MaxScore {
		return true
	}
	q.sh.mu.RLock()
	defer q.sh.mu.RUnlock()
	return q.sh.core.Follows(q.t.ID)
}

// finish tells the core how a transfer ended.
func (w *diskWriter) finish(q diskWrite, done core.TransferDone) {
	w.s.step(q.sh, done)
	if done.Err == reason.Corrupt {
		w.s.corrupt(q.sh, q.t.Extent, q.t.From)
	}
	w.mu.Lock()
	w.inFlight -= q.t.From.Bytes
	w.tell()
	again := slices.Contains(w.pending, true)
	failed := done.Err == reason.Busy
	w.mu.Unlock()
	if again || failed {
		w.signal()
	}
}

// tell wakes those who wait for progress. Under mu.
func (w *diskWriter) tell() {
	close(w.progress)
	w.progress = make(chan struct{})
}

// moved waits until some bytes were written, limit has passed or nobody waits any more; false when there is nothing to
// wait for.
func (w *diskWriter) moved(limit, gone <-chan struct{}) bool {
	w.mu.Lock()
	progress, busy := w.progress, w.inFlight > 0 && w.writable
	w.mu.Unlock()
	if !busy {
		return false
	}
	select {
	case <-progress:
		return true
	case <-limit:
	case <-gone:
	}
	return false
}

// arm makes sure that it is looked at whether the tier is writable. Under mu.
func (w *diskWriter) arm() {
	if w.poll != nil || w.stopping {
		return
	}
	w.s.timers.Add(1)
	w.poll = w.s.clock.AfterFunc(writableCheck, func() {
		defer w.s.timers.Done()
		w.mu.Lock()
		w.poll = nil
		w.mu.Unlock()
		w.checkWritable()
	})
}

// disarm ends that. Under mu.
func (w *diskWriter) disarm() {
	if w.poll != nil && w.poll() {
		w.s.timers.Done()
	}
	w.poll = nil
}

// checkWritable tells the shards when the tier stops or resumes taking bytes, and looks again while it is at something or
// takes nothing. It is the timer's too, since a tier that answers nothing may hold the writer.
func (w *diskWriter) checkWritable() {
	w.telling.Lock()
	defer w.telling.Unlock()
	now := w.d.Usage().Writable
	w.mu.Lock()
	changed := now != w.writable
	w.writable = now
	var refused []diskWrite
	if !now {
		refused, w.queue = w.queue, nil
	}
	if !now || w.inFlight > 0 {
		w.arm()
	}
	w.mu.Unlock()
	for _, q := range refused {
		w.finish(q, core.TransferDone{ID: q.t.ID, Err: reason.Busy})
	}
	if !changed {
		return
	}
	for _, sh := range w.s.shards {
		w.s.step(sh, core.TierState{Tier: evict.Disk, Writable: now})
	}
	if now {
		for _, sh := range w.s.shards {
			w.behind(sh)
		}
	}
}

// Flush waits until all that was queued for the disk tier is there, or cannot be written.
func (s *Store) Flush(ctx context.Context) error {
	if s.disk == nil {
		return nil
	}
	return s.disk.flush(ctx)
}

func (w *diskWriter) flush(ctx context.Context) error {
	for {
		w.mu.Lock()
		progress := w.progress
		left := w.writable && (w.asking || w.inFlight > 0 || slices.Contains(w.pending, true))
		w.mu.Unlock()
		if !left {
			return nil
		}
		w.signal()
		select {
		case <-progress:
		case <-w.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop ends the goroutine after what is queued.
func (w *diskWriter) stop() {
	w.mu.Lock()
	w.stopping = true
	w.disarm()
	w.mu.Unlock()
	w.signal()
	<-w.done
}

// noteOf is what the disk tier keeps beside the bytes of a transfer.
func (s *Store) noteOf(t core.Transfer) *tier.Note {
	return &tier.Note{Expiry: t.Expiry, Lineage: s.names.lineage(t.Lineage)}
}

// barrier waits until all that was buried or retired before is durable.
func (s *Store) barrier(ctx context.Context) error {
	if s.disk == nil {
		return nil
	}
	done := make(chan error, 1)
	s.disk.d.Barrier(func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// timeout is closed after d on the store's clock; cancel frees its timer.
func timeout(c clock.Clock, d time.Duration) (done <-chan struct{}, cancel func() bool) {
	ch := make(chan struct{})
	return ch, c.AfterFunc(d, func() { close(ch) })
}
