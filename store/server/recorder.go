package server

import (
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// Recorder is told of what callers look up, publish and fetch, once the store has answered. Record must not block and
// must keep nothing that Access points to: it lies on the path of every call.
type Recorder interface {
	Record(a *Access)
}

// Access is one run of pages that a call named.
type Access struct {
	Kind       AccessKind
	Tenant     string // of the caller
	Family     page.Family
	PageTokens uint32
	HashBytes  int
	Hashes     []byte // the call's own
	Answer     uint32 // of AccessAnswer: tokens
	// Of a publication: what stands before its first page.
	Link   core.Link
	Parent page.Hash // LinkHash
}

// AccessKind is what a call did with pages.
type AccessKind uint8

// The kinds.
const (
	AccessLookup AccessKind = iota
	AccessPublish
	AccessFetch
	AccessAnswer // it told how long the answer to the request for these pages was
)

// record tells the recorder of runs, if there is one.
func (n *node) record(kind AccessKind, a *asked, runs ...core.Run) {
	if n.recorder == nil {
		return
	}
	for i := range runs {
		n.recordOne(&Access{Kind: kind}, a, &runs[i])
	}
}

func (n *node) recordPublish(a *asked, r *store.BeginRequest) {
	if n.recorder != nil && len(r.Pages) > 0 {
		n.recordOne(&Access{Kind: AccessPublish, Link: r.Pages[0].Link, Parent: r.Pages[0].Parent}, a, &r.Run)
	}
}

func (n *node) recordAnswer(a *asked, tokens uint32, runs []core.Run) {
	if n.recorder == nil {
		return
	}
	for i := range runs {
		n.recordOne(&Access{Kind: AccessAnswer, Answer: tokens}, a, &runs[i])
	}
}

func (n *node) recordOne(x *Access, a *asked, r *core.Run) {
	g, ok := a.space.groups[r.Family.Group]
	if !ok {
		return
	}
	x.Tenant, x.Family, x.PageTokens, x.HashBytes, x.Hashes = a.who.Tenant, r.Family, g.Tokens, a.space.hashBytes, r.Hashes
	n.recorder.Record(x)
}
