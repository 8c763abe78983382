package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// maxOnce is how many descriptors go with one system call; the kernel takes 253.
	maxOnce = 64
	// maxWaiting is how many a peer may send before somebody takes them.
	maxWaiting = 256
	// writeTimeout bounds one wait for a peer that takes nothing.
	writeTimeout = 30 * time.Second
	maxIovecs    = 1024 // IOV_MAX
)

// ErrDescriptors is a peer that sends more descriptors than anybody could want.
var ErrDescriptors = errors.New("socket: too many descriptors")

// Conn is one connection, a net.Conn. Its descriptor blocks: a read or write is one system call that the thread waits
// in, without a poller between. One goroutine reads and one writes at a time; everything else may be called by any.
type Conn struct {
	file *os.File // keeps the descriptor for as long as a call runs on it
	rc   syscall.RawConn
	addr net.Addr

	r, w transfer

	mu      sync.Mutex // guards below
	closed  bool
	out, in []int
}

// transfer is one direction's system call at hand, made once so that a call allocates nothing.
type transfer struct {
	call    func(fd uintptr) bool
	header  unix.Msghdr
	iov     []unix.Iovec
	control []byte
	n       int
	err     error
}

var _ net.Conn = (*Conn)(nil)

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string) (*Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return New(c.(*net.UnixConn))
}

// New takes c over, also when it fails.
func New(c *net.UnixConn) (*Conn, error) {
	defer c.Close()
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := rc.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, fmt.Errorf("duplicate socket: %w", dupErr)
	}
	timeout := unix.NsecToTimeval(int64(writeTimeout))
	if err := errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)); err != nil {
		return nil, errors.Join(fmt.Errorf("set up socket: %w", err), unix.Close(fd))
	}
	k := &Conn{file: os.NewFile(uintptr(fd), "unix"), addr: c.LocalAddr()}
	if k.rc, err = k.file.SyscallConn(); err != nil {
		k.file.Close()
		return nil, err
	}
	k.r.call, k.w.call = k.receive, k.send
	k.r.iov, k.r.control = make([]unix.Iovec, 1), make([]byte, unix.CmsgSpace(4*maxOnce))
	return k, nil
}

// Send takes fds over and sends them with the next write; they are closed then, or with the connection.
func (c *Conn) Send(fds ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		closeAll(fds)
		return
	}
	c.out = append(c.out, fds...)
}

// Take answers the descriptors received so far, in order; they are the caller's to close.
func (c *Conn) Take() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.in
	c.in = nil
	return in
}

// Read waits for at least one byte.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	t := &c.r
	t.iov[0] = unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
	t.header = unix.Msghdr{Iov: &t.iov[0], Iovlen: 1, Control: &t.control[0], Controllen: uint64(len(t.control))}
	err := c.rc.Read(t.call)
	t.iov[0] = unix.Iovec{}
	if err == nil && t.err != nil {
		err = os.NewSyscallError("recvmsg", t.err)
	}
	if err != nil {
		return 0, err
	}
	if t.header.Controllen > 0 {
		if err := c.received(t.control[:t.header.Controllen], t.header.Flags&unix.MSG_CTRUNC != 0); err != nil {
			return 0, err
		}
	}
	if t.n == 0 {
		return 0, io.EOF
	}
	return t.n, nil
}

func (c *Conn) receive(fd uintptr) bool {
	t := &c.r
	for {
		n, _, e := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&t.header)), unix.MSG_CMSG_CLOEXEC)
		if e == unix.EINTR {
			continue
		}
		t.n, t.err = int(n), nil
		if e != 0 {
			t.err = e
		}
		return true
	}
}

func (c *Conn) received(control []byte, cut bool) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return fmt.Errorf("parse control message: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not descriptors
		}
		if c.closed {
			closeAll(fds)
			continue
		}
		c.in = append(c.in, fds...)
	}
	if cut || len(c.in) > maxWaiting {
		return ErrDescriptors
	}
	return nil
}

// Write writes all of p.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.WriteBuffers(net.Buffers{p})
	return int(n), err
}

// WriteBuffers writes all of v, which it changes.
func (c *Conn) WriteBuffers(v net.Buffers) (written int64, err error) {
	t := &c.w
	for len(v) > 0 {
		t.iov = t.iov[:0]
		for len(v) > 0 && len(t.iov) < maxIovecs {
			if b := v[0]; len(b) > 0 {
				t.iov = append(t.iov, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
			}
			v = v[1:]
		}
		n, err := c.writeVectors()
		clear(t.iov[:cap(t.iov)]) // keeps no memory of others alive
		written += n
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// writeVectors writes all of w.iov. Of more descriptors than go with one call, a byte goes before the rest for each
// call's worth: none may come later than what is written.
func (c *Conn) writeVectors() (written int64, err error) {
	t := &c.w
	for left := t.iov; len(left) > 0; {
		fds, more := c.outgoing()
		part, whole := left, left[0].Len
		if more {
			part = left[:1]
			part[0].Len = 1
		}
		t.header = unix.Msghdr{Iov: &part[0]}
		t.header.SetIovlen(len(part))
		if len(fds) > 0 {
			t.control = unix.UnixRights(fds...)
			t.header.Control = &t.control[0]
			t.header.SetControllen(len(t.control))
		}
		err := c.rc.Write(t.call)
		closeAll(fds)
		t.control = nil
		left[0].Len = whole
		if err == nil && t.err != nil {
			err = os.NewSyscallError("sendmsg", t.err)
		}
		if err != nil {
			return written, err
		}
		written += int64(t.n)
		left = advance(left, uint64(t.n))
	}
	return written, nil
}

// outgoing takes the descriptors of one call; more says that others wait.
func (c *Conn) outgoing() (fds []int, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.out), maxOnce)
	fds, c.out = c.out[:n:n], c.out[n:]
	return fds, len(c.out) > 0
}

func advance(v []unix.Iovec, n uint64) []unix.Iovec {
	for n > 0 && len(v) > 0 {
		k := min(n, v[0].Len)
		n -= k
		if v[0].Len -= k; v[0].Len == 0 {
			v = v[1:]
		} else {
			v[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(v[0].Base), k))
		}
	}
	return v
}

func (c *Conn) send(fd uintptr) bool {
	t := &c.w
	for {
		n, _, e := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&t.header)), unix.MSG_NOSIGNAL)
		switch {
		case e == unix.EINTR:
			continue
		case e == unix.EAGAIN:
			e = unix.ETIMEDOUT
		}
		t.n, t.err = int(n), nil
		if e != 0 {
			t.n, t.err = 0, e
		}
		return true
	}
}

// Close ends what waits on the socket first: closing a descriptor does not. Idempotent.
func (c *Conn) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	closeAll(c.in)
	closeAll(c.out)
	c.in, c.out = nil, nil
	c.mu.Unlock()
	if !first {
		return nil
	}
	c.rc.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	return c.file.Close()
}

// Peer is who connected, as the kernel saw it then.
func (c *Conn) Peer() (unix.Ucred, error) {
	var cred *unix.Ucred
	var err error
	if e := c.rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return unix.Ucred{}, e
	}
	if err != nil {
		return unix.Ucred{}, os.NewSyscallError("getsockopt", err)
	}
	return *cred, nil
}

// SyscallConn lets others ask the socket.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.rc, nil }

// LocalAddr is the path.
func (c *Conn) LocalAddr() net.Addr { return c.addr }

// RemoteAddr is the path too: a client has none.
func (c *Conn) RemoteAddr() net.Addr { return c.addr }

// SetDeadline does nothing, as the two below: a write ends when its peer takes nothing for writeTimeout, a read by Close.
func (c *Conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (c *Conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
