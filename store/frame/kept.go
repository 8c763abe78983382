package frame

import (
	"context"
	"sync"
)

// Kept holds what the calls of a context were referred to, beyond their end: mapped views. Safe for concurrent use.
type Kept struct {
	mu       sync.Mutex // guards below
	released bool
	refs     []keptRefs
}

type keptRefs struct {
	c           *conn
	call, count uint32
}

type keptKey struct{}

// Keep makes the streams opened under the context returned leave their references unreleased until Release.
func Keep(ctx context.Context) (context.Context, *Kept) {
	k := &Kept{}
	return context.WithValue(ctx, keptKey{}, k), k
}

func (k *Kept) add(c *conn, call, count uint32) {
	k.mu.Lock()
	late := k.released
	if !late {
		k.refs = append(k.refs, keptRefs{c, call, count})
	}
	k.mu.Unlock()
	if late {
		c.sendRelease(call, count)
	}
}

// Release tells the server that nothing kept is used any more. Idempotent; what ended with its connection is over
// already. It may wait for a call that is writing on the same connection.
func (k *Kept) Release() {
	k.mu.Lock()
	refs := k.refs
	k.refs, k.released = nil, true
	k.mu.Unlock()
	for _, r := range refs {
		r.c.sendRelease(r.call, r.count)
	}
}
