package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/shm"
	"github.com/quire-kv/quire/store/shm/socket"
)

// Bounds of what one client maps, and of what it hands out on one connection: what a node takes at least.
const (
	maxSlabs        = 16 << 10
	maxSlabBytes    = 1 << 40 // of one: a large extent has a slab of its own
	maxAreasPerConn = 64
	maxAreaBytes    = 1 << 30 // of a connection
	ringBytes       = 8 << 20 // of a connection's own area: a few chunks on their way, still in the far cache
)

// sharedMemory is what a client and the node of its host share, over all connections of the client. Safe for
// concurrent use.
type sharedMemory struct {
	mu     sync.RWMutex // guards below
	closed bool
	slabs  map[uint64]*slab
	areas  []*shm.Area // that callers fill
}

// slab is one slab of the node, mapped for reading:
//
//	named for the first time ──> mapped ──gone, or client closed──> unlisted ──last user──> unmapped
type slab struct {
	mem, generations []byte
	shm.Generations
	uses atomic.Int64 // users, and the list
	done func()
}

func newSharedMemory() *sharedMemory { return &sharedMemory{slabs: map[uint64]*slab{}} }

// dial makes a connection that shares memory.
func (m *sharedMemory) dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := socket.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return &sharedConn{Conn: c, m: m, sent: map[*shm.Area]uint64{}}, nil
}

// shmDialer dials the node's socket on this host; nil: it has none.
func (c *Client) shmDialer() (dialer, error) {
	path := c.caps.GetShmSocket()
	if path == "" {
		return nil, nil
	}
	if _, err := os.Stat(path); err != nil {
		return nil, err // the node is on another host
	}
	return func(ctx context.Context) (net.Conn, error) { return c.shared.dial(ctx, path) }, nil
}

// take maps slabs that a node handed out: descriptors of memory and generations, in turns.
func (m *sharedMemory) take(fds []int) error {
	if len(fds) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweep()
	var errs []error
	for ; len(fds) >= 2; fds = fds[2:] {
		errs = append(errs, m.add(fds[0], fds[1]))
	}
	if len(fds) > 0 {
		errs = append(errs, fmt.Errorf("%w: half a slab", shm.ErrDescriptor), unix.Close(fds[0]))
	}
	return errors.Join(errs...)
}

// add runs under mu.
func (m *sharedMemory) add(data, generations int) error {
	if m.closed || len(m.slabs) >= maxSlabs {
		return errors.Join(fmt.Errorf("%w: more than %d slabs", shm.ErrDescriptor, maxSlabs), unix.Close(data), unix.Close(generations))
	}
	s := &slab{}
	var err error
	if s.mem, err = shm.Map(data, maxSlabBytes, true); err != nil {
		return errors.Join(err, unix.Close(generations))
	}
	if s.generations, err = shm.Map(generations, maxSlabBytes, false); err != nil {
		return errors.Join(err, shm.Unmap(s.mem))
	}
	s.uses.Store(1)
	s.done = s.leave
	if s.Generations, err = shm.OpenGenerations(s.generations, len(s.mem)); err != nil {
		s.leave()
		return err
	}
	if m.slabs[s.Number()] != nil { // another connection was faster
		s.leave()
		return nil
	}
	m.slabs[s.Number()] = s
	return nil
}

// sweep unlists slabs whose memory the node has taken back. Under mu.
func (m *sharedMemory) sweep() {
	for n, s := range m.slabs {
		if s.Gone() {
			delete(m.slabs, n)
			s.leave()
		}
	}
}

func (s *slab) leave() {
	if s.uses.Add(-1) > 0 {
		return
	}
	_ = errors.Join(shm.Unmap(s.mem), shm.Unmap(s.generations)) // of mappings that are there
}

// errUnknownSlab is a node that names a slab which it did not hand out.
var errUnknownSlab = errors.New("shm: unknown slab")

// resolve is what a name of the node stands for; done must be called.
func (m *sharedMemory) resolve(r *rpc.Ref) (body []byte, done func(), err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.slabs[r.Slab]
	if s == nil {
		return nil, nil, fmt.Errorf("%w: %d", errUnknownSlab, r.Slab)
	}
	if all := uint64(len(s.mem)); r.Offset >= all || r.Bytes > all-r.Offset {
		return nil, nil, fmt.Errorf("%w: %d bytes at %d of %d", errUnknownSlab, r.Bytes, r.Offset, all)
	}
	s.uses.Add(1)
	return s.mem[r.Offset : r.Offset+r.Bytes : r.Offset+r.Bytes], s.done, nil
}

// valid reports whether what was read before was what r names.
func (m *sharedMemory) valid(r *rpc.Ref) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.slabs[r.Slab]
	return s != nil && s.Valid(r.Offset, r.SlotGeneration, r.SlabGeneration)
}

// close unmaps everything that nobody uses; the rest goes with its last user.
func (m *sharedMemory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for n, s := range m.slabs {
		delete(m.slabs, n)
		s.leave()
	}
}

// areaOf is the listed area in which b lies.
func (m *sharedMemory) areaOf(b []byte) (a *shm.Area, offset int, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, a := range m.areas {
		if at, ok := a.OffsetOf(b); ok {
			return a, at, true
		}
	}
	return nil, 0, false
}

// sharedConn is one connection to the node of this host: a net.Conn that is rpc.Sharing. One call uses it at a time.
type sharedConn struct {
	*socket.Conn
	m *sharedMemory

	mu    sync.Mutex // guards below
	ended bool
	sent  map[*shm.Area]uint64 // numbers on this connection, from 0
	bytes int64                // of them
	ring  *ring                // nil until it is needed
}

var _ rpc.Sharing = (*sharedConn)(nil)

// Refer names what lies in an area: the ring of this connection, or one that a caller fills.
func (c *sharedConn) Refer(body []byte) (rpc.Ref, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var a *shm.Area
	at, ok := 0, false
	if c.ring != nil {
		a = c.ring.area
		at, ok = a.OffsetOf(body)
	}
	if !ok {
		a, at, ok = c.m.areaOf(body)
	}
	if !ok || c.ended {
		return rpc.Ref{}, false
	}
	n, ok := c.number(a)
	return rpc.Ref{Slab: n, Offset: uint64(at), Bytes: uint64(len(body))}, ok
}

// number hands an area out, once. Under mu.
func (c *sharedConn) number(a *shm.Area) (uint64, bool) {
	if n, ok := c.sent[a]; ok {
		return n, true
	}
	if len(c.sent) >= maxAreasPerConn || c.bytes+int64(len(a.Bytes)) > maxAreaBytes {
		return 0, false
	}
	fd, err := a.Descriptor()
	if err != nil {
		return 0, false
	}
	n := uint64(len(c.sent))
	c.sent[a] = n
	c.bytes += int64(len(a.Bytes))
	c.Send(fd)
	return n, true
}

// room is n bytes of the connection's ring, and how they are given back; nil: there is none now. ok is false where
// there never is.
func (c *sharedConn) room(n int) (b []byte, free func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > ringBytes || c.ended {
		return nil, nil, false
	}
	if c.ring == nil {
		a, err := shm.NewArea(ringBytes)
		if err != nil {
			return nil, nil, false
		}
		c.ring = &ring{area: a}
	}
	b, free = c.ring.take(n)
	return b, free, true
}

// Resolve is memory of the node.
func (c *sharedConn) Resolve(r *rpc.Ref) ([]byte, func(), error) {
	if err := c.m.take(c.Take()); err != nil {
		return nil, nil, err
	}
	return c.m.resolve(r)
}

// Valid asks the generations of the slab.
func (c *sharedConn) Valid(r *rpc.Ref) bool { return c.m.valid(r) }

// Close ends the connection. Its ring goes when nobody fills it any more. Idempotent.
func (c *sharedConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended && c.ring != nil {
		c.ring.end()
	}
	c.ended = true
	return err
}
