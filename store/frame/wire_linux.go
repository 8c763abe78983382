package frame

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raw is a wire over a blocking descriptor of its own: a read or a write is one system call that the thread waits in,
// without a poller between. Measured, that is twice the throughput of a pollable one, and MSG_WAITALL fills a
// destination in one call.
type raw struct {
	file        *os.File // keeps the descriptor for as long as a call runs on it
	rc          syscall.RawConn
	read, write func(fd uintptr) bool // made once: a call allocates nothing

	p       []byte // of the read at hand
	flags   int
	n       int
	readErr error

	iov      []unix.Iovec // of the write at hand
	writeErr error
}

const maxIovecs = 1024 // IOV_MAX

// wireOf takes over c. A plain TCP or UNIX socket becomes raw, everything else stays what it is.
func wireOf(c net.Conn) wire {
	var sc syscall.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		sc = c
	case *net.UnixConn:
		sc = c
	default:
		return newStream(c)
	}
	r, err := newRaw(sc)
	if err != nil {
		return newStream(c)
	}
	c.Close() // only its descriptor: r has another one
	return r
}

func newRaw(sc syscall.Conn) (*raw, error) {
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := rc.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	timeout := unix.NsecToTimeval(int64(writeTimeout))
	if err := errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)); err != nil {
		unix.Close(fd)
		return nil, err
	}
	r := &raw{file: os.NewFile(uintptr(fd), "frames")}
	if r.rc, err = r.file.SyscallConn(); err != nil {
		r.file.Close()
		return nil, err
	}
	r.read, r.write = r.doRead, r.doWrite
	return r, nil
}

func (r *raw) Read(p []byte) (int, error) {
	r.p, r.flags = p, 0
	return r.receive()
}

func (r *raw) ReadFull(p []byte) error {
	for len(p) > 0 {
		r.p, r.flags = p, unix.MSG_WAITALL
		n, err := r.receive() // fewer when a signal came
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (r *raw) receive() (int, error) {
	err := r.rc.Read(r.read)
	r.p = nil
	switch {
	case err != nil:
		return 0, err
	case r.readErr != nil:
		return 0, os.NewSyscallError("recv", r.readErr)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

func (r *raw) doRead(fd uintptr) bool {
	for {
		n, _, e := unix.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(r.p))), uintptr(len(r.p)), uintptr(r.flags), 0, 0)
		if e == unix.EINTR {
			continue
		}
		r.n, r.readErr = int(n), nil
		if e != 0 {
			r.n, r.readErr = 0, e
		}
		raceRead(fd, r.p[:r.n])
		return true
	}
}

func (r *raw) Write(v [][]byte) error {
	raceWrite(v)
	for len(v) > 0 {
		r.iov = r.iov[:0]
		for len(v) > 0 && len(r.iov) < maxIovecs {
			if b := v[0]; len(b) > 0 {
				r.iov = append(r.iov, unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))})
			}
			v = v[1:]
		}
		err := r.rc.Write(r.write)
		clear(r.iov) // keeps no memory of others alive
		if err == nil && r.writeErr != nil {
			err = os.NewSyscallError("writev", r.writeErr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// doWrite writes all of iov. A wait in which the peer took nothing ends it (SO_SNDTIMEO).
func (r *raw) doWrite(fd uintptr) bool {
	r.writeErr = nil
	for left := r.iov; len(left) > 0; {
		n, _, e := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(left))), uintptr(len(left)))
		if e == unix.EINTR {
			continue
		}
		if e == unix.EAGAIN {
			e = unix.ETIMEDOUT
		}
		if e != 0 {
			r.writeErr = e
			return true
		}
		for n > 0 && len(left) > 0 {
			k := min(uint64(n), left[0].Len)
			n -= uintptr(k)
			if left[0].Len -= k; left[0].Len == 0 {
				left = left[1:]
			} else {
				left[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(left[0].Base), k))
			}
		}
	}
	return true
}

func (r *raw) Ready() bool {
	ready := false
	r.rc.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p[:], 0)
		ready = err == nil && n > 0
	})
	return ready
}

func (r *raw) Gone() bool { return peerGone(r.rc) }

// Close ends what waits on the socket first: closing a descriptor does not.
func (r *raw) Close() error {
	r.rc.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	return r.file.Close()
}

// peerGone asks whether the peer has closed its end.
func peerGone(rc syscall.RawConn) bool {
	gone := true
	rc.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p[:], 0)
		gone = err != nil || n > 0
	})
	return gone
}

// tune sets what a data connection needs of TCP. What is refused stays as it was: nothing here is needed to be right.
func tune(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	t.SetNoDelay(true)
	t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount})
	rc, err := t.SyscallConn()
	if err != nil {
		return
	}
	remote, _ := t.RemoteAddr().(*net.TCPAddr)
	rc.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(writeTimeout.Milliseconds()))
		if remote != nil && remote.IP.IsLoopback() {
			unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") // a paced one is several times slower here
		}
	})
}
