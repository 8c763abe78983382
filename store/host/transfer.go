package host

import (
	"fmt"
	"sync"

	"github.com/quire-kv/quire/store/tier"
)

// mover copies between regions and the memory of callers on a few goroutines. Its queue holds what callers have
// submitted and not been answered: each entry names memory of theirs, which is what bounds it.
type mover struct {
	driver *Driver

	mu      sync.Mutex // guards what follows
	more    sync.Cond
	queue   []tier.Op
	closed  bool
	workers sync.WaitGroup
}

func (m *mover) start(d *Driver, workers int) {
	m.driver = d
	m.more.L = &m.mu
	for range workers {
		m.workers.Go(m.run)
	}
}

// Submit queues transfers and returns. After Close each Done answers tier.ErrClosed.
func (d *Driver) Submit(ops []tier.Op) { d.mover.submit(ops) }

func (m *mover) submit(ops []tier.Op) {
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.queue = append(m.queue, ops...)
		m.more.Broadcast()
	}
	m.mu.Unlock()
	if !closed || len(ops) == 0 {
		return
	}
	late := append([]tier.Op(nil), ops...)
	go func() { // ends by itself: Done must not block
		for _, op := range late {
			op.Done(tier.ErrClosed)
		}
	}()
}

func (m *mover) run() {
	for {
		op, ok := m.pop()
		if !ok {
			return
		}
		op.Done(m.driver.transfer(op))
	}
}

// pop waits for an op; not ok when the mover is closed and its queue empty.
func (m *mover) pop() (op tier.Op, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.queue) == 0 {
		if m.closed {
			return op, false
		}
		m.more.Wait()
	}
	op = m.queue[0]
	m.queue[0] = tier.Op{}
	if m.queue = m.queue[1:]; len(m.queue) == 0 {
		m.queue = nil
	}
	return op, true
}

// close lets the workers carry out what is queued and waits for them.
func (m *mover) close() {
	m.mu.Lock()
	m.closed = true
	m.more.Broadcast()
	m.mu.Unlock()
	m.workers.Wait()
}

// transfer copies one op. The region must stay allocated until its Done.
func (d *Driver) transfer(op tier.Op) error {
	r, ok := d.Lookup(op.Region.Handle, op.Region.Offset)
	if !ok {
		return fmt.Errorf("host tier: transfer at %d+%d: no region lives there", op.Region.Handle, op.Region.Offset)
	}
	if n := int64(len(op.Memory)); op.At < 0 || op.At > r.Bytes || n > r.Bytes-op.At {
		return fmt.Errorf("host tier: transfer of %d bytes at %d of a region of %d: out of range", n, op.At, r.Bytes)
	}
	if op.Write {
		copy(r.Memory[op.At:], op.Memory)
	} else {
		copy(op.Memory, r.Memory[op.At:])
	}
	return nil
}
