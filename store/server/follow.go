package server

import (
	"context"
	"errors"
	"time"

	"github.com/quire-kv/quire/namespace"
)

const (
	// refollowAfter is how long the follower waits when the registry's watch broke.
	refollowAfter = time.Second
	// usedEvery is how often the registry is told which namespaces are in use; it writes more rarely still.
	usedEvery = time.Minute
)

// follow pushes what is changed elsewhere until ctx ends. A watch that breaks begins anew with every namespace, so
// nothing is missed.
func (n *node) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := n.registry.Watch(ctx, func(ns *namespace.Namespace) error {
			n.spaces.set(ns)
			return nil
		})
		if errors.Is(err, namespace.ErrClosed) || !n.pause(ctx, refollowAfter) {
			return
		}
	}
}

// reportUse tells the registry which namespaces were used, until ctx ends. One that cannot be told now is told with
// its next use.
func (n *node) reportUse(ctx context.Context) {
	for n.pause(ctx, usedEvery) {
		if ids := n.spaces.takeUsed(); len(ids) > 0 {
			_ = n.registry.Used(ctx, ids) // a hint: the next minute brings another
		}
	}
}

// pause waits for d; false when ctx ended first.
func (n *node) pause(ctx context.Context, d time.Duration) bool {
	c, stop := n.after(d)
	defer stop()
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	}
}
