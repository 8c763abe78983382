package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/internal/offheap"
)

// The bare loop is what loopback TCP can carry with nothing of Quire in between: blocking descriptors, locked threads,
// writev out of an arena in windows of 1 MiB, and receives straight into the destination, each piece hashed while it is
// in the cache. The client keeps one request ahead on each connection.
//
//	request   number of blocks, 4 bytes   ──>
//	answer                                <──  so many blocks

// Bare says what a bare server gives out.
type Bare struct {
	BlockBytes int
	ArenaBytes int
}

const (
	bareWindow  = 1 << 20   // of one writev
	barePiece   = 256 << 10 // received, then hashed
	bareTimeout = 10        // seconds that a call may stand still
)

// bareServer answers until stop.
type bareServer struct {
	address  string
	listener net.Listener
	arena    *offheap.Array[byte]
	block    int
	wg       sync.WaitGroup
}

func serveBare(o Bare) (*bareServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &bareServer{address: l.Addr().String(), listener: l, arena: newArena(o.ArenaBytes), block: o.BlockBytes}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.answer(c) })
		}
	})
	return s, nil
}

// stop ends it when its clients have closed. Nil: nothing to stop.
func (s *bareServer) stop() {
	if s != nil {
		s.listener.Close()
		s.wg.Wait()
	}
}

func (s *bareServer) answer(c net.Conn) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f, err := blocking(c)
	if err != nil {
		return
	}
	defer f.Close()
	fd, ask := int(f.Fd()), make([]byte, 4)
	blocks, next := cut(s.arena.Slice(), s.block), 0
	var window [][]byte
	for receive(fd, ask) == nil {
		left := int(binary.LittleEndian.Uint32(ask))
		for left > 0 {
			n := min(left, max(1, bareWindow/s.block))
			window = window[:0]
			for range n {
				next = (next + 977) % len(blocks) // far apart, each once
				window = append(window, blocks[next])
			}
			if send(fd, window) != nil {
				return
			}
			left -= n
		}
	}
}

// blocking takes a connection over as a blocking descriptor with a deadline on every call.
func blocking(c net.Conn) (_ *os.File, err error) {
	defer c.Close()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	limit := unix.Timeval{Sec: bareTimeout}
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") // slower without, but no failure
	err = errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// send writes all of a window.
func send(fd int, window [][]byte) error {
	for len(window) > 0 {
		n, err := unix.Writev(fd, window)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		for n > 0 || len(window) > 0 && len(window[0]) == 0 {
			k := min(n, len(window[0]))
			if window[0], n = window[0][k:], n-k; len(window[0]) == 0 {
				window = window[1:]
			}
		}
	}
	return nil
}

// receive fills b.
func receive(fd int, b []byte) error {
	for len(b) > 0 {
		n, _, err := unix.Recvfrom(fd, b, unix.MSG_WAITALL)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		b = b[max(n, 0):]
	}
	return nil
}

// bareLoop is the client's side: one connection a caller.
type bareLoop struct {
	files []*os.File
	ahead []bool // a request is out
	dst   [][][]byte
}

func dialBare(ctx context.Context, t *target, o *Options, dst [][]byte) (_ *bareLoop, err error) {
	address, err := t.bareServer(ctx, Bare{BlockBytes: o.PageBytes, ArenaBytes: o.arena})
	if err != nil {
		return nil, err
	}
	l := &bareLoop{ahead: make([]bool, o.InFlight)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	for i := range o.InFlight {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		f, err := blocking(c)
		if err != nil {
			return nil, err
		}
		l.files, l.dst = append(l.files, f), append(l.dst, dst[i*o.Batch:(i+1)*o.Batch])
	}
	return l, nil
}

// call takes one batch in; the next one is asked for before it is.
func (l *bareLoop) call(_ context.Context, caller int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, dst := int(l.files[caller].Fd()), l.dst[caller]
	requests := 1
	if !l.ahead[caller] {
		requests, l.ahead[caller] = 2, true
	}
	ask := binary.LittleEndian.AppendUint32(nil, uint32(len(dst)))
	for range requests {
		if err := send(fd, [][]byte{ask}); err != nil {
			return 0, fmt.Errorf("bare loop: %w", err)
		}
	}
	sum := uint64(0)
	for _, b := range dst {
		for ; len(b) > 0; b = b[min(barePiece, len(b)):] {
			piece := b[:min(barePiece, len(b))]
			if err := receive(fd, piece); err != nil {
				return 0, fmt.Errorf("bare loop: %w", err)
			}
			sum ^= xxh3.Hash(piece)
		}
	}
	runtime.KeepAlive(sum)
	return len(dst), nil
}

func (l *bareLoop) close() error {
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
