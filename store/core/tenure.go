package core

import (
	"time"

	"github.com/quire-kv/quire/internal/clock"
)

// tenure is what read leases and publications have in common: an owner, an end that can be put off, a place among
// all live ones in order of creation, and one in the heap of ends.
type tenure struct {
	seq       uint64
	principal Principal
	session   Session
	ep        *epoch
	started   clock.Instant
	asked     time.Duration // when it was granted: what a renewal without a time asks for again
	until     clock.Instant
	heapAt    int // index in tenures.heap; -1: no end yet

	prev, next *tenure
	lease      *lease       // one of the two
	pub        *publication // is not nil
}

// tenures are the live ones, listed by seq and ordered by end.
type tenures struct {
	first, last  *tenure
	leases, pubs int
	heap         []*tenure
}

func (t *tenures) add(n *tenure) {
	n.heapAt = -1
	if n.prev = t.last; n.prev != nil {
		n.prev.next = n
	} else {
		t.first = n
	}
	t.last = n
	*t.count(n)++
}

func (t *tenures) count(n *tenure) *int {
	if n.lease != nil {
		return &t.leases
	}
	return &t.pubs
}

func (t *tenures) remove(n *tenure) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		t.first = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		t.last = n.prev
	}
	n.prev, n.next = nil, nil
	*t.count(n)--
	t.setEnd(n, -1)
}

// setEnd sets or moves the end of a tenure; negative: takes it out of the heap.
func (t *tenures) setEnd(n *tenure, until clock.Instant) {
	if until < 0 {
		if n.heapAt >= 0 {
			t.heapRemove(n.heapAt)
			n.heapAt = -1
		}
		return
	}
	n.until = until
	if n.heapAt < 0 {
		n.heapAt = len(t.heap)
		t.heap = append(t.heap, n)
	}
	heapFix(t, n.heapAt)
}

// due is the tenure that ends first, if its end has come.
func (t *tenures) due(now clock.Instant) *tenure {
	if len(t.heap) == 0 || t.heap[0].until > now {
		return nil
	}
	return t.heap[0]
}

func (t *tenures) len() int { return len(t.heap) }

func (t *tenures) less(i, j int) bool {
	a, b := t.heap[i], t.heap[j]
	return a.until < b.until || a.until == b.until && a.seq < b.seq
}

func (t *tenures) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.heap[i].heapAt, t.heap[j].heapAt = i, j
}

func (t *tenures) heapRemove(i int) {
	last := len(t.heap) - 1
	t.swap(i, last)
	t.heap[last] = nil
	t.heap = t.heap[:last]
	if i < last {
		heapFix(t, i)
	}
}

// grantTTL clamps what was asked (0: as long as may be) to the bounds of one grant and of a whole tenure.
func (s *Shard) grantTTL(started clock.Instant, ttl time.Duration) (until clock.Instant) {
	if ttl <= 0 || ttl > s.o.MaxLeaseTTL {
		ttl = s.o.MaxLeaseTTL
	}
	return min(s.now.Add(ttl), started.Add(s.o.MaxLeaseAge))
}

// expireTenures ends what is due.
func (s *Shard) expireTenures() {
	for n := s.tenures.due(s.now); n != nil; n = s.tenures.due(s.now) {
		s.totals.LeaseTTLEnded++
		s.endTenure(n)
	}
}

func (s *Shard) endTenure(n *tenure) {
	if n.lease != nil {
		s.endLease(n.lease)
		return
	}
	s.endPublication(n.pub)
}

// endTenures ends all live tenures that match.
func (s *Shard) endTenures(match func(*tenure) bool) {
	for n := s.tenures.first; n != nil; {
		next := n.next
		if match(n) {
			s.endTenure(n)
		}
		n = next
	}
}

// renew extends a live tenure within its greatest age. ok is false when that is over.
func (s *Shard) renewTenure(n *tenure, ttl time.Duration) bool {
	if ttl == 0 {
		ttl = n.asked
	}
	until := s.grantTTL(n.started, ttl)
	if until <= s.now {
		return false
	}
	s.tenures.setEnd(n, max(until, n.until))
	return true
}
