package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Item is one page to publish.
type Item struct {
	// Parent is a page of the same group and scope. Without it the parent is the page before in the run, or, for the
	// first, unknown unless Root says that the chain starts here.
	Parent        page.Hash
	ParentUnknown bool
	Root          bool
	// Bytes is the view in the layout's order: exactly its size. Read until Publish returns.
	Bytes []byte
	// StillMine is the writer's fence, nil for none: asked after the bytes were copied or sent and before the commit,
	// whether they still are those of this page. No: nothing of the page becomes visible (Refused, Aborted).
	StillMine func() bool
	// Expire is the page's life, in whole seconds; 0: the namespace's default.
	Expire time.Duration
	// DeclaredFLOPs is what recomputing costs, by the writer's word; 0: by the operator's shape.
	DeclaredFLOPs float64
}

// PublishOptions of one Publish. Zero values are defaults.
type PublishOptions struct {
	Durable     bool          // committed means on disk; false leaves it to the namespace's default
	TTL         time.Duration // of the publication lease, renewed while bytes move; default the server's
	WriterGroup [16]byte      // strict namespaces: equal on all ranks of the engine instance that writes a page
	// Stage copies each piece before it is summed and sent: for writers whose buffers may change meanwhile. Without it
	// what lies contiguous is lent to the transport, and bytes that change are refused by the server (Corrupt).
	Stage bool
	// Decided, if not nil, is told what the server's clock showed when it granted a batch of pages, and when it committed it;
	// 0: it does not say.
	Decided func(committed bool, at time.Duration)
}

func (o *PublishOptions) decided(committed bool, at uint64) {
	if o.Decided != nil {
		o.Decided(committed, time.Duration(at))
	}
}

// Publish begins, writes, checks and commits items[i] as the view of page i; the zero view is the whole page. What is
// stored already is Present, and is compared: see Divergent. Nothing is visible before it is whole, and what fails
// frees its space. It returns only when nothing reads the items' bytes any more. A begin whose answer was lost is not
// repeated: results next to the error say what is known.
func (s *Session) Publish(ctx context.Context, r Run, v page.View, l *Layout, items []Item, o PublishOptions) ([]PageResult, error) {
	n, geo, v, err := s.shape(&r, v)
	if err != nil {
		return nil, err
	}
	ord, err := orderOf(l, &geo, v)
	if err != nil {
		return nil, err
	}
	if err := offered(items, n, pageBytes(ord, &geo, v)); err != nil {
		return nil, err
	}
	if s.canonical == nil {
		return nil, rpc.Errorf(reason.Provenance, "a session without provenance cannot publish")
	}
	ctx, leave, err := s.enter(ctx)
	if invalidated(err) {
		return s.countPublished(all(n, Refused, reason.StaleEpoch)), nil
	}
	if err != nil {
		return all(n, Refused, reason.Unknown), err
	}
	defer leave()
	p := &publish{s: s, run: r, geo: geo, view: v, order: ord, items: items, opt: o, out: all(n, Refused, reason.Unknown)}
	err = s.why(p.do(ctx))
	return s.countPublished(p.out), err
}

func offered(items []Item, n, bytes int) error {
	if len(items) != n {
		return rpc.Errorf(reason.BufferSize, "%d items for %d pages", len(items), n)
	}
	for i := range items {
		if len(items[i].Bytes) != bytes {
			return rpc.Errorf(reason.SizeMismatch, "item %d is %d bytes; the view is %d", i, len(items[i].Bytes), bytes)
		}
	}
	return nil
}

func (s *Session) countPublished(rs []PageResult) []PageResult {
	for i := range rs {
		switch {
		case rs[i].Outcome == Committed:
			s.c.stats.committed.Add(1)
		case rs[i].Outcome != Present:
			countReason(&s.c.stats.refused, rs[i].Reason)
		}
		if rs[i].Divergent {
			s.c.stats.divergent.Add(1)
		}
	}
	return rs
}

// publish is one Publish.
type publish struct {
	s     *Session
	run   Run
	geo   Geometry
	view  page.View
	order *order
	items []Item
	opt   PublishOptions
	out   []PageResult
}

// do publishes batch after batch, so that a page's parent is committed, or known not to be, before it begins.
func (p *publish) do(ctx context.Context) error {
	o := &p.s.c.opt
	each := int64(page.PayloadBytes(p.view, p.geo.CellBytes))
	batch := max(1, min(o.BatchKeys, int(o.BatchBytes/each)))
	for from := 0; from < len(p.items); from += batch {
		if err := p.batch(ctx, from, min(from+batch, len(p.items))); err != nil {
			return err
		}
	}
	return nil
}

// granted is one page that may be written.
type granted struct {
	item     int // in the publish
	page     uint32
	views    []page.View
	headers  [][]byte // after writing
	answered bool     // its result is known: nothing more is sent for it
}

func (p *publish) batch(ctx context.Context, from, to int) error {
	req := p.beginRequest(from, to)
	r, err := once(ctx, p.s.c, func(ctx context.Context, pc quirev1.PageServiceClient) (*quirev1.BeginPublishResponse, error) {
		return pc.BeginPublish(ctx, req)
	})
	if err != nil {
		p.fail(from, to, err)
		return err
	}
	p.opt.decided(false, r.GetDecidedAt())
	grants := p.grants(r, from, to)
	if len(grants) == 0 {
		return nil
	}
	w := &writing{p: p, token: r.GetToken(), ttl: r.GetLease().AsDuration(), grants: grants}
	defer w.abortRest()
	err = w.write(ctx)
	if err == nil {
		err = w.commit(ctx)
	}
	if err != nil {
		w.fail(err)
	}
	return err
}

func (p *publish) beginRequest(from, to int) *quirev1.BeginPublishRequest {
	req := &quirev1.BeginPublishRequest{
		Namespace: p.s.ref, Run: p.s.wire(&p.run, from, to), SessionId: p.s.sessionID(),
		Pages: make([]*quirev1.PublishPage, to-from),
	}
	if p.opt.Durable {
		req.Durability = quirev1.Durability_DURABILITY_DISK
	}
	if p.opt.TTL > 0 {
		req.Lease = durationpb.New(p.opt.TTL)
	}
	if p.opt.WriterGroup != ([16]byte{}) {
		req.WriterGroup = p.opt.WriterGroup[:]
	}
	for i := from; i < to; i++ {
		it := &p.items[i]
		pp := &quirev1.PublishPage{
			View: wireView(p.view), PayloadBytes: page.PayloadBytes(p.view, p.geo.CellBytes),
			ExpireSeconds: uint32(it.Expire / time.Second), DeclaredFlops: it.DeclaredFLOPs,
		}
		switch parent, unknown := p.parent(i); {
		case it.Root:
			pp.Parent = &quirev1.PublishPage_Root{Root: true}
		case unknown:
			pp.Parent = &quirev1.PublishPage_ParentUnknown{ParentUnknown: true}
		case !it.Parent.IsZero() || i == from: // within a batch the server knows the page before
			pp.Parent = &quirev1.PublishPage_ParentHash{ParentHash: parent.Bytes()}
		}
		req.Pages[i-from] = pp
	}
	return req
}

// parent of item i; zero for a root, and for one that is unknown.
func (p *publish) parent(i int) (h page.Hash, unknown bool) {
	it := &p.items[i]
	switch {
	case it.Root:
		return page.Hash{}, false
	case !it.Parent.IsZero():
		return it.Parent, false
	case it.ParentUnknown || i == 0:
		return page.Hash{}, true
	}
	return p.s.hash(&p.run, i-1), false
}

// grants takes the answers of a Begin over and returns the pages that may be written.
func (p *publish) grants(r *quirev1.BeginPublishResponse, from, to int) []granted {
	var out []granted
	for k := range min(len(r.GetPages()), to-from) {
		st := r.GetPages()[k]
		if rpc.OutcomeFromProto(st.GetOutcome()) != outcomeGranted {
			p.answered(from+k, resultOf(st))
			continue
		}
		g := granted{item: from + k, page: uint32(k)}
		for _, v := range st.GetGrants() {
			view, ok := viewOf(v)
			if !ok || !p.view.Contains(view) {
				g.answered = true // not built here: given back
				p.out[g.item] = PageResult{Outcome: Refused, Reason: reason.Unsupported}
			}
			g.views = append(g.views, view)
		}
		out = append(out, g)
	}
	return out
}

// answered is the outcome of a page that is not to be written. Stored bytes are compared with ours where the stored
// extent is known to be of our view: the whole page in one piece.
func (p *publish) answered(i int, r PageResult) {
	if r.Outcome == Committed || r.Outcome == OK {
		r = PageResult{Outcome: Refused, Reason: reason.Unknown} // no answer to a Begin
	}
	if r.Outcome == Present && len(r.Extents) == 1 && p.view == p.geo.Full() {
		sums, err := p.sumsOf(i)
		r.Divergent = err == nil && page.DigestOfSums(sums) != r.Extents[0].Digest
	}
	p.out[i] = r
}

// fail gives pages [from, to) the reason of err.
func (p *publish) fail(from, to int, err error) {
	why := reasonOf(err)
	for i := from; i < to; i++ {
		p.out[i] = PageResult{Outcome: Refused, Reason: why}
	}
}
