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

// writer is the goroutine that changes files. All it does in one round is one batch:
//
//	define lineages -> write regions -> sync -> index -> Done -> remove segments -> bury, retire -> barriers
type writer struct {
	more     *sync.Cond // on the driver's mu
	watch    watch      // of a round; guarded by the driver's mu
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

// take waits for something to do, which ends by taken; not ok when the driver is closed and nothing is left.
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
	if n := fewOps(b.ops, d.o.BatchBytes); n < len(b.ops) {
		w.wants.ops = b.ops[n:]
		b.ops = b.ops[:n:n]
	}
	if ok = !d.closed || len(b.ops)+len(b.barriers)+len(b.graves)+len(b.retired)+len(b.gone) > 0; ok {
		w.watch.begin()
	}
	return b, ok
}

func (d *Driver) taken() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writer.watch.end()
}

func (w *wishes) due() bool {
	return len(w.ops)+len(w.barriers)+len(w.gone) > 0 || len(w.graves) >= gravesDue || w.probe
}

// fewOps is how many of ops make a batch of most bytes.
func fewOps(ops []tier.Op, most int64) int {
	bytes := int64(0)
	for i := range ops {
		if bytes += int64(len(ops[i].Memory)); bytes > most {
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
	err := d.writer.watch.silent(aWrite)
	if d.closed {
		err = tier.ErrClosed
	}
	var refused []tier.Op
	for _, op := range ops {
		switch {
		case !op.Write:
			reads = append(reads, op)
		case err != nil:
			refused = append(refused, op)
		default:
			d.writer.wants.ops = append(d.writer.wants.ops, op)
		}
	}
	if len(reads)+len(refused) < len(ops) {
		d.writer.wake()
	}
	d.mu.Unlock()
	refuse(refused, err)
	if len(reads) > 0 {
		refuse(reads, d.reader.submit(reads))
	}
}

// refuse answers ops with an error, if there is one, on a goroutine that ends by itself: Done may take locks of who submits.
func refuse(ops []tier.Op, err error) {
	if err == nil || len(ops) == 0 {
		return
	}
	go func() {
		for i := range ops {
			ops[i].Done(err)
		}
	}()
}
