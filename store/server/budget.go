package server

import (
	"sync"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/rpc"
)

// budget bounds what one principal has going on at once: a count, and bytes that stay pinned meanwhile. It holds no
// entry for a principal with nothing going on.
type budget struct {
	what      string // for people: "fetches"
	mostCount int
	mostBytes int64

	mu  sync.Mutex // guards all below
	of  map[core.Principal]spent
	all spent
}

type spent struct {
	count int
	bytes int64
}

func newBudget(what string, mostCount int, mostBytes int64) *budget {
	return &budget{what: what, mostCount: mostCount, mostBytes: mostBytes, of: map[core.Principal]spent{}}
}

// take reserves one more and its bytes, or answers Busy. give returns them, once.
func (b *budget) take(p core.Principal, bytes int64) (give func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.of[p]
	if s.count >= b.mostCount || bytes > b.mostBytes-s.bytes {
		e := rpc.Errorf(reason.Busy, "this principal has %d %s going on, which is as much as it may", s.count, b.what)
		e.RetryAfter = busyRetryAfter
		return nil, e
	}
	b.add(p, 1, bytes)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.add(p, -1, -bytes)
	}, nil
}

// add runs under mu.
func (b *budget) add(p core.Principal, count int, bytes int64) {
	b.all.count += count
	b.all.bytes += bytes
	s := b.of[p]
	s.count += count
	s.bytes += bytes
	if b.of[p] = s; s == (spent{}) {
		delete(b.of, p)
	}
}

func (b *budget) total() (count int, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.count, b.all.bytes
}
