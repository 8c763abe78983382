package client

import (
	"sync"

	"github.com/quire-kv/quire/store/shm"
)

// ring lends parts of one area in turn; they come back in any order, and their room in the order in which it was lent.
//
//	     tail                head
//	[ .... | lent | back | lent | ............ ]
type ring struct {
	area *shm.Area

	mu    sync.Mutex // guards below
	parts []ringPart // lent, oldest first
	head  int        // where the next part begins
	ended bool
}

type ringPart struct {
	from, to int
	back     bool
	id       uint64
}

// take lends n bytes; nil: there is no room until something comes back.
func (r *ring) take(n int) (b []byte, free func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, ok := r.place(n)
	if !ok || r.ended {
		return nil, nil
	}
	id := uint64(1)
	if k := len(r.parts); k > 0 {
		id = r.parts[k-1].id + 1
	}
	r.parts = append(r.parts, ringPart{from: from, to: from + n, id: id})
	r.head = from + n
	return r.area.Bytes[from : from+n : from+n], func() { r.free(id) }
}

// place finds n bytes in a row. Under mu.
func (r *ring) place(n int) (from int, ok bool) {
	size := len(r.area.Bytes)
	if len(r.parts) == 0 {
		return 0, n <= size
	}
	tail := r.parts[0].from
	switch {
	case r.head > tail: // what is lent does not wrap
		if r.head+n <= size {
			return r.head, true
		}
		return 0, n <= tail
	default:
		return r.head, r.head+n <= tail
	}
}

func (r *ring) free(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.parts {
		if r.parts[i].id == id {
			r.parts[i].back = true
		}
	}
	k := 0
	for k < len(r.parts) && r.parts[k].back {
		k++
	}
	r.parts = r.parts[:copy(r.parts, r.parts[k:])]
	r.closeIfDone()
}

// end gives the memory back as soon as nothing of it is lent.
func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.closeIfDone()
}

func (r *ring) closeIfDone() {
	if r.ended && len(r.parts) == 0 {
		_ = r.area.Close() // memory of our own
	}
}
