package rpc

import (
	"context"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// Begun is the publication that the call before on a connection began: WritePages and CommitPublish that name none are of
// it, so that a client may send them before it has the answer of BeginPublish. One call at a time, as on the connection.
type Begun struct {
	Token *quirev1.FencingToken // nil: none
}

type begunKey struct{}

// WithBegun is ctx on a connection that remembers what was begun on it.
func WithBegun(ctx context.Context, b *Begun) context.Context {
	return context.WithValue(ctx, begunKey{}, b)
}

// BegunFrom is the Begun of the connection that ctx belongs to; nil: it remembers nothing.
func BegunFrom(ctx context.Context) *Begun {
	b, _ := ctx.Value(begunKey{}).(*Begun)
	return b
}
