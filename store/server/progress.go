package server

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/quire-kv/quire/internal/clock"
)

// watchProgress breaks the connection of ctx when no chunk was taken for ProgressTimeout. moved is set by the
// sender; the watch goes on after the handler returned, until it is stopped by the last buffer coming back.
func (n *node) watchProgress(ctx context.Context, moved *atomic.Int64) (stop func()) {
	w := &progress{node: n, moved: moved, conn: connOf(ctx)}
	moved.Store(int64(n.clock.Now()))
	w.arm(n.limits.ProgressTimeout)
	return w.stop
}

// progress is one fetch's watch.
type progress struct {
	node  *node
	moved *atomic.Int64
	conn  breaker // nil: not ours to break

	mu      sync.Mutex // guards all below
	stopped bool
	cancel  func() bool
}

func (w *progress) arm(after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.cancel = w.node.clock.AfterFunc(after, w.look)
	}
}

func (w *progress) look() {
	idle := w.node.clock.Now().Sub(clock.Instant(w.moved.Load()))
	if left := w.node.limits.ProgressTimeout - idle; left > 0 {
		w.arm(left)
		return
	}
	w.mu.Lock()
	stopped := w.stopped
	w.stopped = true
	w.mu.Unlock()
	if !stopped && w.conn != nil {
		w.node.metrics.slowClients.Inc()
		w.conn.Break()
	}
}

func (w *progress) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.cancel != nil {
		w.cancel()
	}
}

// trackedListener hands gRPC connections that a handler can find again, to break them.
type trackedListener struct{ net.Listener }

func (l trackedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &trackedConn{c}, nil
}

// trackedConn names itself in its remote address, which gRPC gives to handlers as that of the peer, through TLS too.
type trackedConn struct{ net.Conn }

func (c *trackedConn) RemoteAddr() net.Addr { return trackedAddr{c.Conn.RemoteAddr(), c} }

type trackedAddr struct {
	net.Addr
	conn *trackedConn
}

// Break ends the connection.
func (a trackedAddr) Break() { a.conn.Close() }

// breaker is the address of a peer whose connection can be ended under its call; frame.Addr is one too.
type breaker interface{ Break() }

func connOf(ctx context.Context) breaker {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	b, _ := p.Addr.(breaker)
	return b
}
