package client

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"unsafe"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Mapped is a batch of pages that are read where they lie in the memory of the node. Their bytes are somebody else's:
// they were verified once, they are never to be written to, and after the last use (a copy to a device is done, say)
// Valid must be asked. Until it says yes, nothing made of them may be believed.
//
//	MapPages ──> read Bytes(i) ... last read ──> Valid(i)? ──> use what was made of it ──> Close
//
// The node keeps the memory in place until Close, but for 30 s at most; then it may reuse it, and Valid says no. Where
// the node has reserved huge pages, reading after that may even fault (SIGBUS). Not safe for concurrent use.
type Mapped struct {
	pages []mappedPage
	lease *Lease
	m     rpc.Sharing
	kept  *frame.Kept
	once  sync.Once
}

// mappedPage is one page in place.
type mappedPage struct {
	result PageResult
	bytes  []byte
	refs   []rpc.Ref
	done   []func() // of refs: their slab stays mapped until then
}

// MapPages maps the view of each page of r, verified in place, for reading without a copy. Only over shared memory,
// and only pages whose view is one run of one stored extent (the whole page, a range of heads, a layer of one head). A
// page that is stored otherwise is a miss with Unsupported, and where no memory is shared that is the error of the whole
// call: FetchInto serves those. A lease, which may be nil, serves the pages under it or not at all, and must not be over when Valid is
// asked. r must be within one batch. Close the Mapped exactly when its bytes are no longer read.
func (s *Session) MapPages(ctx context.Context, r Run, v page.View, lease *Lease) (*Mapped, error) {
	n, geo, v, err := s.shape(&r, v)
	if err != nil {
		return nil, err
	}
	if n > s.c.opt.BatchKeys || int64(n)*int64(page.PayloadBytes(v, geo.CellBytes)) > s.c.opt.BatchBytes {
		return nil, rpc.Errorf(reason.LimitExceeded, "more than one batch of pages")
	}
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		if invalidated(err) {
			return &Mapped{pages: missed(n, reason.StaleEpoch)}, nil
		}
		return nil, err
	}
	defer leave()
	if lease != nil && lease.Remaining() <= 0 {
		return nil, rpc.Errorf(reason.LeaseExpired, "the lease is over")
	}
	ctx, cancel := s.c.deadline(ctx)
	defer cancel()
	f := &fetch{s: s, run: r, geo: geo, view: v, lease: lease.name(), pages: make([]fetchPage, n)}
	ctx, kept := frame.Keep(ctx)
	in := &mapping{f: f, out: &Mapped{pages: missed(n, reason.Unknown), lease: lease, kept: kept}}
	err = s.why(in.stream(ctx))
	f.reports.Wait() // within CallTimeout
	if err != nil {
		in.out.Close()
		return nil, err
	}
	for i := range in.out.pages {
		s.countFetched([]PageResult{in.out.pages[i].result})
	}
	return in.out, nil
}

func missed(n int, why reason.Reason) []mappedPage {
	pages := make([]mappedPage, n)
	for i := range pages {
		pages[i].result = PageResult{Outcome: Miss, Reason: why}
	}
	return pages
}

// Pages is the number of pages asked for.
func (m *Mapped) Pages() int { return len(m.pages) }

// Result is the outcome of page i.
func (m *Mapped) Result(i int) PageResult { return m.pages[i].result }

// Bytes is the view of page i in place, nil if its result is not OK.
func (m *Mapped) Bytes(i int) []byte { return m.pages[i].bytes }

// Valid reports whether everything that was read of page i before the call was that page, and may be used.
func (m *Mapped) Valid(i int) bool {
	p := &m.pages[i]
	if p.bytes == nil || m.lease != nil && m.lease.Remaining() <= 0 {
		return false
	}
	for k := range p.refs {
		if !m.m.Valid(&p.refs[k]) {
			return false
		}
	}
	return true
}

// Close gives the memory back. Bytes must not be read from then on. Idempotent.
func (m *Mapped) Close() {
	m.once.Do(func() {
		if m.kept != nil {
			m.kept.Release()
		}
		for i := range m.pages {
			m.pages[i].drop()
		}
	})
}

// drop lets go of a page.
func (p *mappedPage) drop() {
	for _, done := range p.done {
		done()
	}
	p.bytes, p.refs, p.done = nil, nil, nil
}

// mapping takes in the stream of one MapPages.
type mapping struct {
	f        *fetch
	out      *Mapped
	received rpc.Received
	head     rpc.FetchHead

	at     int // page at hand, -1 before the first
	over   bool
	header page.Header
	opened bool
	off    int // behind the last chunk, in the extent's payload
	broken error
}

func (in *mapping) stream(ctx context.Context) error {
	all := make([]int, len(in.f.pages))
	for i := range all {
		all[i] = i
	}
	stream, err := in.f.s.c.link().pages.Fetch(ctx, in.f.request(all))
	if err != nil {
		return rpc.FromStatus(err)
	}
	if in.out.m = sharingOf(stream); in.out.m == nil {
		return rpc.Errorf(reason.Unsupported, "no memory is shared with the node")
	}
	in.at, in.over = -1, true
	in.received = rpc.Received{Head: &in.head, Begin: in.begin, Chunk: func([]byte) error { return nil }}
	for {
		err := stream.RecvMsg(&in.received)
		switch {
		case err == nil:
		case in.broken != nil:
			return in.broken
		case errors.Is(err, io.EOF):
			return nil
		default:
			return rpc.FromStatus(err)
		}
	}
}

// begin takes in one message. Its chunk is looked at here: it lies where it lies.
func (in *mapping) begin(n int) error {
	h := &in.head
	if int64(h.Page) >= int64(len(in.out.pages)) || int(h.Page) < in.at {
		in.broken = protocol("page %d after %d of %d", h.Page, in.at, len(in.out.pages))
		return in.broken
	}
	if int(h.Page) > in.at {
		in.finish(reason.Truncated)
		in.at, in.over, in.opened = int(h.Page), false, false
	}
	if in.over {
		return nil
	}
	if h.Header != nil {
		if why := in.open(); why != reason.None {
			in.finish(why)
			return nil
		}
	}
	if n > 0 {
		if why := in.chunk(n); why != reason.None {
			in.finish(why)
			return nil
		}
	}
	if h.Trailer != nil {
		in.trailer()
	}
	return nil
}

// open checks the header of the one extent that may serve the page.
func (in *mapping) open() reason.Reason {
	f, i := in.f, in.at
	if in.opened || in.head.Extent != 0 {
		return reason.Unsupported // more than one extent
	}
	key := page.Key{Family: page.Family{Namespace: f.s.id, Epoch: f.s.epoch, Scope: f.run.Scope, Group: f.run.Group}, Hash: f.s.hash(&f.run, i)}
	g := &f.geo
	want := page.Expectation{Key: &key, Heads: g.Heads, Layers: g.Layers, CellBytes: g.CellBytes, Tokens: g.Tokens, Grade: g.Grade}
	raw := append([]byte(nil), in.head.Header...) // the decoded header points into it
	if page.DecodeHeader(&in.header, raw) != nil || in.header.Expect(&want) != nil {
		return reason.Corrupt
	}
	if runs := page.RunsOf(in.header.View, f.view, g.CellBytes); runs.N != 1 || runs.Total() != int(page.PayloadBytes(f.view, g.CellBytes)) {
		return reason.Unsupported
	}
	in.opened = true
	return reason.None
}

// chunk verifies a chunk where it lies and takes it into the page.
func (in *mapping) chunk(n int) reason.Reason {
	p := &in.out.pages[in.at]
	ref := in.received.Ref
	if ref == nil {
		return reason.Unsupported // in a slab that is not shared
	}
	b, done, err := in.out.m.Resolve(ref)
	if err != nil {
		return reason.Unknown
	}
	p.done, p.refs = append(p.done, done), append(p.refs, *ref)
	off := in.head.Offset
	switch all := in.header.PayloadBytes; {
	case !in.opened || off > all || uint64(n) > all-off || len(b) != n:
		return reason.Corrupt
	case len(p.bytes) == 0:
		p.bytes = b
	case int(off) == in.off && unsafe.SliceData(b) == (*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(p.bytes)), len(p.bytes))):
		p.bytes = unsafe.Slice(unsafe.SliceData(p.bytes), len(p.bytes)+n) // the same mapping goes on
	default:
		return reason.Unsupported
	}
	in.off = int(off) + n
	sound := false
	if !guarded(func() { sound = in.verify(b, int(off)) }) || !sound {
		return reason.Corrupt
	}
	in.f.s.c.stats.fetched.Add(uint64(n))
	in.f.s.c.stats.verified.Add(uint64(n))
	in.f.s.c.stats.shared.Add(uint64(n))
	return reason.None
}

// verify sums b, which is at off of the payload, against the header, and parts of pieces against the sums in the head.
func (in *mapping) verify(b []byte, off int) bool {
	pieces, cut := in.header.Pieces(), in.head.CutSums
	for len(b) > 0 {
		i := pieces.At(off)
		from, bytes := pieces.Span(i)
		n := min(from+bytes-off, len(b))
		want := uint64(0)
		switch {
		case n == bytes:
			want = in.header.Sum(i)
		case len(cut) < 8:
			return false
		default:
			want, cut = binary.LittleEndian.Uint64(cut), cut[8:]
		}
		if kernels.Sum(b[:n]) != want {
			return false
		}
		b, off = b[n:], off+n
	}
	return true
}

// trailer finishes the page.
func (in *mapping) trailer() {
	r := resultOf(in.head.Trailer)
	p := &in.out.pages[in.at]
	switch {
	case r.Outcome == OK && len(p.bytes) == int(page.PayloadBytes(in.f.view, in.f.geo.CellBytes)):
		p.result = PageResult{Outcome: OK, Extents: []page.ExtentID{in.header.Extent}}
		in.over = true
	case r.Outcome == OK:
		in.finish(reason.Truncated)
	case r.Reason == reason.None:
		in.finish(reason.Unknown)
	default:
		in.finish(r.Reason)
	}
}

// finish makes the page at hand a miss, if it is not finished yet.
func (in *mapping) finish(why reason.Reason) {
	if in.over {
		return
	}
	in.over = true
	p := &in.out.pages[in.at]
	switch fresh := in.fresh(p); {
	case why == reason.Corrupt && fresh:
		in.f.s.reportCorrupt(&in.f.run, in.at, nil, &in.f.reports)
	case why == reason.Corrupt && in.f.lease != nil:
		why = reason.LeaseExpired
	case why == reason.Corrupt:
		why = reason.Absent
	}
	p.result = PageResult{Outcome: Miss, Reason: why}
	p.drop()
}

// fresh says whether what was read of p is still what was named: else it is no wonder that it differs.
func (in *mapping) fresh(p *mappedPage) bool {
	for i := range p.refs {
		if !in.out.m.Valid(&p.refs[i]) {
			return false
		}
	}
	return true
}
