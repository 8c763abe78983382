package disk

import (
	"fmt"
	"time"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/tier"
)

// A device that answers nothing fails no operation, and nothing can take back what was asked of it. So the writer, and the
// readers together, are watched, and what waits behind them is refused:
//
//	begin ──> step ──> step ──> end        each before Patience has passed since the one before
//	             \ Patience ──> late: the queue is refused, and what comes, until the next step or end
//
// What the device was given stays with it: at most a batch, and a region for each reader.

// watch notices that what is under way makes no progress. The lock of its owner guards it.
type watch struct {
	clock    clock.Clock
	patience time.Duration
	look     func() // of the owner, on a goroutine of its own: locks, and asks passed
	most     int    // that can run at a time: as long as fewer do, nothing waits
	running  int
	since    clock.Instant // of the last begin, step or end
	late     bool
	stop     func() bool // of the timer; nil: none is set
}

func (w *watch) begin() {
	w.running++
	w.since = w.clock.Now()
	w.arm(w.patience)
}

func (w *watch) step() { w.since, w.late = w.clock.Now(), false }

func (w *watch) end() {
	w.running--
	w.step()
}

func (w *watch) arm(d time.Duration) {
	if w.stop == nil {
		w.stop = w.clock.AfterFunc(d, w.look)
	}
}

// passed is asked when the timer has run out: whether what is under way is late from now on.
func (w *watch) passed() (late bool) {
	w.stop = nil
	if w.running == 0 {
		return false
	}
	if left := w.patience - w.clock.Now().Sub(w.since); left > 0 {
		w.arm(left)
		return false
	}
	w.arm(w.patience)
	was := w.late
	w.late = w.running == w.most
	return w.late && !was
}

// silent is why something is refused; nil: it is not.
func (w *watch) silent(what string) error {
	if !w.late {
		return nil
	}
	return fmt.Errorf("%w: %s took no end within %v", tier.ErrDegraded, what, w.patience)
}

func (w *watch) disarm() {
	if w.stop != nil {
		w.stop()
	}
}

// step tells the writer's watch that the device answers.
func (d *Driver) step() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writer.watch.step()
}

// makeFile is directory.make, a step of the writer.
func (d *Driver) makeFile(name string, l label) (*writeFile, error) {
	d.step()
	return d.dir.make(name, l)
}

// syncDir is directory.sync, likewise.
func (d *Driver) syncDir() error {
	d.step()
	return d.dir.sync()
}

// lookAtWriter refuses what waits for a writer that is late. What a refused Barrier was to make durable stays queued.
func (d *Driver) lookAtWriter() {
	w := &d.writer
	d.mu.Lock()
	if !w.watch.passed() {
		d.mu.Unlock()
		return
	}
	err := w.watch.silent(aWrite)
	ops, barriers := w.wants.ops, w.wants.barriers
	w.wants.ops, w.wants.barriers = nil, nil
	d.mu.Unlock()
	d.o.Logger.Error("disk_tier_silent", "error", err)
	for i := range ops {
		ops[i].Done(err)
	}
	for _, done := range barriers {
		done(err)
	}
}

// lookAtReaders refuses what waits for readers of which none came to an end.
func (d *Driver) lookAtReaders() {
	q := &d.reader
	q.mu.Lock()
	if !q.watch.passed() {
		q.mu.Unlock()
		return
	}
	err := q.watch.silent(aRead)
	ops := q.queue
	q.queue = nil
	q.mu.Unlock()
	d.o.Logger.Error("disk_tier_silent", "error", err)
	for i := range ops {
		ops[i].Done(err)
	}
}

const (
	aWrite = "a write"
	aRead  = "a read"
)
