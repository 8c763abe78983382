package disk

import (
	"sync"

	"github.com/quire-kv/quire/store/disk/index"
	"github.com/quire-kv/quire/store/tier"
)

// wishes is what the writer is asked to do. It holds what callers have submitted and not been answered, and one entry a
// region that ended: whoever bounds those bounds it.
type wishes struct {
	ops      []tier.Op
	graves   []grave
	retired  []retirement
	barriers []func(error)
	gone     []*segment
	probe    bool
}

// gravesDue are written also if nobody waits for them: until a Barrier, what ended may come back. Many that end with
// their segment never need to be written.
const gravesDue = 16 * gravesARecord

// batchBytes bounds what is written between two syncs, and so what an operation waits for.
const batchBytes = 64 << 20

// writer is the goroutine that changes files. All it does in one round is one batch:
//
//	define lineages -> write regions -> sync -> index -> Done -> remove segments -> bury, retire -> barriers
type writer struct {
	more     *sync.Cond // on the driver's mu
	ended    chan struct{}
	wants    wishes // guarded by the driver's mu
	closeErr error  // set before ended is closed

	doomed []*segment // could not be removed; guarded by the driver's mu

	// The rest is the writer's own.
	graves  []grave // to be written
	retired []retirement
	broken  bool // some of the graves are of writes that failed
	batch   *index.Batch
	items   []item // scratch
	vector  vector
}

// wake tells the writer that there is something to do. Under the driver's mu.
func (w *writer) wake() { w.more.Signal() }

// take waits for something to do; not ok when the driver is closed and nothing is left.
func (d *Driver) take() (b wishes, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := &d.writer
	for !d.closed && !(d.recovered && w.wants.due()) {
		w.more.Wait()
	}
	b = w.wants
	w.wants = wishes{}
	if !d.closed && len(b.barriers) == 0 && len(b.graves) < gravesDue {
		w.wants.graves, b.graves = b.graves, nil
		w.wants.retired, b.retired = b.retired, nil
	}
	if n := fewOps(b.ops); n < len(b.ops) {
		w.wants.ops = b.ops[n:]
		b.ops = b.ops[:n:n]
	}
	return b, !d.closed || len(b.ops)+len(b.barriers)+len(b.graves)+len(b.retired)+len(b.gone) > 0
}

func (w *wishes) due() bool {
	return len(w.ops)+len(w.barriers)+len(w.gone) > 0 || len(w.graves) >= gravesDue || w.probe
}

// fewOps is how many of ops make a batch.
func fewOps(ops []tier.Op) int {
	bytes := 0
	for i := range ops {
		if bytes += len(ops[i].Memory); bytes > batchBytes {
			return max(i, 1)
		}
	}
	return len(ops)
}

// Submit queues transfers. It never blocks: what callers have in flight bounds the queue.
func (d *Driver) Submit(ops []tier.Op) {
	if len(ops) == 0 {
		return
	}
	var reads []tier.Op
	d.mu.Lock()
	closed := d.closed
	if !closed {
		for _, op := range ops {
			if op.Write {
				d.writer.wants.ops = append(d.writer.wants.ops, op)
			} else {
				reads = append(reads, op)
			}
		}
		if len(reads) < len(ops) {
			d.writer.wake()
		}
	}
	d.mu.Unlock()
	if closed {
		d.refuse(ops)
		return
	}
	if len(reads) > 0 && !d.reader.submit(reads) {
		d.refuse(reads)
	}
}

// refuse answers ops after Close, on a goroutine that ends by itself: Done must not block.
func (d *Driver) refuse(ops []tier.Op) {
	late := append([]tier.Op(nil), ops...)
	go func() {
		for _, op := range late {
			op.Done(tier.ErrClosed)
		}
	}()
}
