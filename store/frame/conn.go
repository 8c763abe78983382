package frame

import (
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/store/rpc"
)

const (
	bufferBytes = 16 << 10  // of frames without data: a few small ones come in one read
	pieceBytes  = 256 << 10 // of data at once: it is still in the near cache when it is summed
)

// conn reads and writes frames. One goroutine at a time reads; writers take turns by frame.
type conn struct {
	wire    wire
	sharing rpc.Sharing // nil: the ends share no memory
	takes   limits      // of this end
	gives   limits      // of the peer

	buf    []byte // read and not yet used: buf[at:end]
	at     int
	end    int
	exact  bool   // data is expected: read no further than asked, so that it goes straight to its place
	body   []byte // of a frame that does not fit buf; reused
	ref    rpc.Ref
	pieces *sync.Pool // of *[pieceBytes]byte: data without a place of its own
	shadow *readAhead // reads while a handler runs; nil: nobody does

	writing sync.Mutex  // guards the writing side of wire, and below
	later   []byte      // of a server: frames that go out with the next write, or before it waits
	owing   atomic.Bool // there are such: asked without the lock, which is held while the peer does not read
	release [headerBytes]byte
}

func newPieces() *sync.Pool { return &sync.Pool{New: func() any { return new([pieceBytes]byte) }} }

func newConn(w wire, sharing rpc.Sharing, takes limits, pieces *sync.Pool) *conn {
	return &conn{wire: w, sharing: sharing, takes: takes, buf: make([]byte, bufferBytes), pieces: pieces}
}

// fill makes at least n bytes of buf readable; n is at most bufferBytes.
func (c *conn) fill(n int) error {
	if err := c.join(); err != nil {
		return err
	}
	if c.at == c.end {
		c.at, c.end = 0, 0
	}
	if c.at+n > len(c.buf) {
		c.end = copy(c.buf, c.buf[c.at:c.end])
		c.at = 0
	}
	for c.end-c.at < n {
		to := len(c.buf)
		if c.exact {
			to = c.at + n
		}
		if err := c.flushToWait(); err != nil {
			return err
		}
		k, err := c.wire.Read(c.buf[c.end:to])
		if err != nil {
			return err
		}
		c.end += k
	}
	return nil
}

// next reads the header of the next frame.
func (c *conn) next(h *header) error {
	if err := c.fill(headerBytes); err != nil {
		return err
	}
	err := h.decode((*[headerBytes]byte)(c.buf[c.at:]), &c.takes)
	c.at += headerBytes
	return err
}

// readBody reads the n bytes of a body, which next has bounded. They are valid until the next frame is read.
func (c *conn) readBody(n int) ([]byte, error) {
	if n <= len(c.buf) {
		if err := c.fill(n); err != nil {
			return nil, err
		}
		b := c.buf[c.at : c.at+n]
		c.at += n
		return b, nil
	}
	b := c.body[:0]
	for step := len(c.buf); len(b) < n; step *= 2 { // memory is taken for what has come, not for what was promised
		if m := min(len(b)+step, n); m > cap(b) {
			b = append(make([]byte, 0, m), b...)
		}
		from := len(b)
		b = b[:min(cap(b), n)]
		if err := c.readData(b[from:]); err != nil {
			return nil, err
		}
	}
	if c.body = b; cap(b) > maxKeptBytes {
		c.body = nil
	}
	return b, nil
}

// maxKeptBytes is how much of a large body's memory a connection keeps for the next.
const maxKeptBytes = 1 << 20

// readData fills p: with what is in buf, then straight from the wire.
func (c *conn) readData(p []byte) error {
	if err := c.join(); err != nil {
		return err
	}
	k := copy(p, c.buf[c.at:c.end])
	c.at += k
	if k == len(p) {
		return nil
	}
	if err := c.flushToWait(); err != nil {
		return err
	}
	return c.wire.ReadFull(p[k:])
}

// write writes parts as they follow each other; it may change the slice.
func (c *conn) write(parts [][]byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.writeLocked(parts)
}

// writeLocked writes what was put off, and then parts: frames never overtake each other.
func (c *conn) writeLocked(parts [][]byte) error {
	if len(c.later) > 0 {
		parts = append([][]byte{c.later}, parts...)
		c.later = c.later[:0]
		c.owing.Store(false)
	}
	return c.wire.Write(parts)
}

// putOff keeps whole frames for the next write. Only while the peer has sent more than was read by now: this end goes on
// with that, and does not wait for anything further before it has flushed them.
func (c *conn) putOff(frames []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.later = append(c.later, frames...)
	c.owing.Store(true)
}

// flushToWait sends what was put off, unless more has come: then there is nothing to wait for.
func (c *conn) flushToWait() error {
	if !c.owing.Load() || c.wire.Ready() {
		return nil
	}
	return c.flushLater()
}

func (c *conn) flushLater() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if len(c.later) == 0 {
		return nil
	}
	return c.writeLocked(nil)
}

// behind says whether the peer has sent more than was read by now.
func (c *conn) behind() bool { return c.at < c.end }

// sendRelease tells the peer how many references of a call are released by now.
func (c *conn) sendRelease(call, count uint32) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	(&header{kind: kindRelease, call: call, extra: count}).put(c.release[:])
	return c.writeLocked([][]byte{c.release[:]})
}

// appendFrame appends a frame whose body is m; nil: none.
func (c *conn) appendFrame(b []byte, h header, m proto.Message) ([]byte, error) {
	from := len(b)
	b = append(b, make([]byte, headerBytes)...)
	if m != nil {
		var err error
		if b, err = (proto.MarshalOptions{}).MarshalAppend(b, m); err != nil {
			return b[:from], err
		}
	}
	return c.seal(b, from, h)
}

// seal fills in the header of the frame that begins at from and ends with b.
func (c *conn) seal(b []byte, from int, h header) ([]byte, error) {
	n := len(b) - from - headerBytes
	if n > c.gives.body {
		return b[:from], fmt.Errorf("%w: a message of %d bytes; the peer takes %d", ErrTooLarge, n, c.gives.body)
	}
	h.body = uint32(n)
	h.put(b[from:])
	return b, nil
}

// readAhead is a goroutine that waits for what comes next on a connection while its call runs, so that the end of the
// peer is noticed:
//
//	call runs long ──ahead──> Read ──some bytes──> join: the next frame begins with them
//	                            └─────error──────> gone(): the call's context ends; join answers the error
type readAhead struct {
	done chan struct{}
	p    [headerBytes]byte
	n    int
	err  error
}

// ahead starts a read ahead. Nothing else is read before join.
func (c *conn) ahead(gone func(error)) {
	if c.at < c.end || c.shadow != nil {
		return // it is there: it has sent the next frame
	}
	a := &readAhead{done: make(chan struct{})}
	c.shadow = a
	go func() {
		defer close(a.done)
		if a.n, a.err = c.wire.Read(a.p[:]); a.err != nil {
			gone(a.err)
		}
	}()
}

// join takes over what a read ahead has read.
func (c *conn) join() error {
	a := c.shadow
	if a == nil {
		return nil
	}
	<-a.done
	c.shadow = nil
	c.at, c.end = 0, copy(c.buf, a.p[:a.n])
	return a.err
}
