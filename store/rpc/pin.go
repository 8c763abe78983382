package rpc

import "sync"

// Pin counts what a transport still holds of memory that was lent to it, and the one who lends. gRPC drops without Free
// what a dead connection still had queued, so the end of the connection counts as well:
//
//	lent > 0, lender busy ──Done──> lent > 0 ──last buffer back, or ConnEnded──> release()
//	lender busy, lent == 0 or connection ended ────────Done────────────────────> release()
//
// release runs exactly once, on the goroutine of the last of these calls, and must not block for long. Safe for
// concurrent use.
type Pin struct {
	release func()

	mu    sync.Mutex // guards all below; never held while release runs
	conn  *conn      // that ends this pin, if any
	lent  int
	done  bool
	ended bool
	over  bool
}

// NewPin starts with the lender busy. It does not know of a connection: see Conns.
func NewPin(release func()) *Pin { return &Pin{release: release} }

// Done says that the lender will send no more under this pin: a handler returned, a stream is over. Idempotent.
func (p *Pin) Done() { p.settle(func() { p.done = true }) }

// ConnEnded says that the connection is gone and nothing of it reads lent memory any more. Idempotent.
func (p *Pin) ConnEnded() { p.settle(func() { p.ended = true }) }

// Lend counts one more piece of memory that is lent; Back gives it back. The codec calls them for what gRPC holds.
func (p *Pin) Lend() {
	p.mu.Lock()
	p.lent++
	p.mu.Unlock()
}

// Back is one piece of lent memory that nobody reads any more.
func (p *Pin) Back() { p.settle(func() { p.lent-- }) }

// settle applies change and releases when that was the last thing waited for.
func (p *Pin) settle(change func()) {
	p.mu.Lock()
	change()
	last := p.done && (p.lent == 0 || p.ended) && !p.over
	c := p.conn
	if last {
		p.over, p.conn = true, nil
	}
	p.mu.Unlock()
	if !last {
		return
	}
	if c != nil {
		c.forget(p)
	}
	p.release()
}

// bind makes p end with c; a later bind replaces an earlier one.
func (p *Pin) bind(c *conn) {
	p.mu.Lock()
	old, over := p.conn, p.over
	if !over {
		p.conn = c
	}
	p.mu.Unlock()
	if old != nil && old != c {
		old.forget(p)
	}
	if !over && !c.remember(p) {
		p.ConnEnded()
	}
}
