package frame

import (
	"io"
	"net"
	"syscall"
	"time"
)

// wire is a connection as frames need it. One goroutine reads and one writes at a time; Close may be called by any,
// any number of times, and makes both return.
type wire interface {
	// Read waits for at least one byte.
	Read(p []byte) (int, error)
	// ReadFull fills p.
	ReadFull(p []byte) error
	// Write writes all of v, which it may change.
	Write(v [][]byte) error
	// Ready says, without waiting, whether something has come; false also where that cannot be told.
	Ready() bool
	// Gone says, without waiting, whether the peer has closed; false also where that cannot be told.
	Gone() bool
	Close() error
}

// writeTimeout bounds one wait for a peer that takes nothing.
const writeTimeout = 30 * time.Second

// A peer that is gone without a word is found within a minute.
const (
	keepAliveIdle     = 20 * time.Second
	keepAliveInterval = 10 * time.Second
	keepAliveCount    = 3
)

// stream is a wire over any net.Conn: TLS, connections of a caller's own, and systems without the raw one.
type stream struct {
	net.Conn
	raw syscall.RawConn // nil: not to be asked
	b   net.Buffers
}

func newStream(c net.Conn) *stream {
	s := &stream{Conn: c}
	inner := c
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // *tls.Conn
		inner = t.NetConn()
	}
	if sc, ok := inner.(syscall.Conn); ok {
		s.raw, _ = sc.SyscallConn()
	}
	return s
}

func (s *stream) ReadFull(p []byte) error {
	_, err := io.ReadFull(s.Conn, p)
	return err
}

func (s *stream) Write(v [][]byte) error {
	if err := s.SetWriteDeadline(writeDeadline()); err != nil {
		return err
	}
	if w, ok := s.Conn.(interface {
		WriteBuffers(net.Buffers) (int64, error)
	}); ok {
		_, err := w.WriteBuffers(v)
		return err
	}
	s.b = v
	_, err := s.b.WriteTo(s.Conn)
	return err
}

func (s *stream) Ready() bool { return false }

func (s *stream) Gone() bool { return s.raw != nil && peerGone(s.raw) }

func (s *stream) Close() error { return s.Conn.Close() }
