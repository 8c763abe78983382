package shm

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/shm"
)

// ErrStaging is a client that stages more than it may, or names what it did not stage.
var ErrStaging = errors.New("shm: staging")

// StagingLimits bound what clients have the node map. It is their memory, but the node's addresses. Zero values are
// documented defaults.
type StagingLimits struct {
	AreasPerConn int   // default 64
	BytesPerConn int64 // default 1 GiB
	BytesPerUser int64 // of all connections of one user; default 8 GiB
}

func (l *StagingLimits) fill() {
	l.AreasPerConn = cmp.Or(l.AreasPerConn, 64)
	l.BytesPerConn = cmp.Or(l.BytesPerConn, 1<<30)
	l.BytesPerUser = cmp.Or(l.BytesPerUser, 8<<30)
}

// stagingBudget counts bytes by user.
type stagingBudget struct {
	limits StagingLimits

	mu sync.Mutex // guards of
	of map[uint32]int64
}

func newStagingBudget(l StagingLimits) *stagingBudget {
	return &stagingBudget{limits: l, of: map[uint32]int64{}}
}

// left is what a user may still stage.
func (b *stagingBudget) left(user uint32) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limits.BytesPerUser - b.of[user]
}

// add counts n more; negative: fewer. False, and nothing is counted, if it would pass the bound.
func (b *stagingBudget) add(user uint32, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[user] += n; n > 0 && b.of[user] > b.limits.BytesPerUser {
		b.of[user] -= n
		return false
	}
	if b.of[user] == 0 {
		delete(b.of, user)
	}
	return true
}

// staging is what one client handed over, in order: the nth descriptor that it sends is area n, from 0.
type staging struct {
	budget *stagingBudget
	owner  uint32

	mu     sync.Mutex // guards below
	closed bool
	bytes  int64
	areas  []*area
	broken error // the client sent what cannot be taken
}

// area is one mapping; it ends with its last reader after its connection.
type area struct {
	mem  []byte
	s    *staging
	uses atomic.Int64 // readers, and the connection
	done func()
}

// take maps what came.
func (s *staging) take(fds []int) {
	if len(fds) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range fds {
		if s.closed || s.broken != nil {
			unix.Close(fd)
			continue
		}
		s.broken = s.add(fd)
	}
}

func (s *staging) add(fd int) error {
	l := &s.budget.limits
	if len(s.areas) >= l.AreasPerConn {
		unix.Close(fd)
		return fmt.Errorf("%w: more than %d areas", ErrStaging, l.AreasPerConn)
	}
	mem, err := shm.Map(fd, min(l.BytesPerConn-s.bytes, s.budget.left(s.owner)), false)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStaging, err)
	}
	if !s.budget.add(s.owner, int64(len(mem))) {
		return errors.Join(fmt.Errorf("%w: more than %d bytes of one user", ErrStaging, l.BytesPerUser), shm.Unmap(mem))
	}
	a := &area{mem: mem, s: s}
	a.done = a.leave
	a.uses.Store(1)
	s.bytes += int64(len(mem))
	s.areas = append(s.areas, a)
	return nil
}

// resolve is the memory that a client names; it may change under who reads it.
func (s *staging) resolve(r *rpc.Ref) ([]byte, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
		return nil, nil, s.broken
	case s.closed || r.Slab >= uint64(len(s.areas)):
		return nil, nil, fmt.Errorf("%w: area %d of %d", ErrStaging, r.Slab, len(s.areas))
	}
	a := s.areas[r.Slab]
	if all := uint64(len(a.mem)); r.Offset > all || r.Bytes > all-r.Offset {
		return nil, nil, fmt.Errorf("%w: %d bytes at %d of an area of %d", ErrStaging, r.Bytes, r.Offset, all)
	}
	a.uses.Add(1)
	return a.mem[r.Offset : r.Offset+r.Bytes : r.Offset+r.Bytes], a.done, nil
}

// close lets go of every area. Idempotent.
func (s *staging) close() {
	s.mu.Lock()
	areas := s.areas
	s.areas, s.closed = nil, true
	s.mu.Unlock()
	for _, a := range areas {
		a.leave()
	}
}

func (a *area) leave() {
	if a.uses.Add(-1) > 0 {
		return
	}
	n := int64(len(a.mem))
	_ = shm.Unmap(a.mem) // of a mapping that is there
	a.s.budget.add(a.s.owner, -n)
}
