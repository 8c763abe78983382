package client

import (
	"sync/atomic"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// intake takes in one Fetch stream. Pages come one after the other; of each page the headers of its extents, their
// chunks, a trailer:
//
//	begin ─> [open extent] ─> [chunk: segment, segment...] ─> [finish] ─> begin ...
//
// A segment is what a chunk holds of one piece. It is copied to its place (the destination; a scratch cell when the
// caller has an order of its own) and hashed there before the next one starts. A page that went wrong is finished as
// a miss at once; the rest of it is dropped, and the stream goes on with the next page.
type intake struct {
	f        *fetch
	pages    []int // index of each requested page in the fetch
	received rpc.Received
	head     rpc.FetchHead
	messages atomic.Uint64
	broken   error // a protocol error: nothing more of this stream is believed

	sharing rpc.Sharing // of the stream; nil: everything comes inline
	refs    []rpc.Ref   // what of the page at hand lies in memory of the node

	at      int // requested page that is being taken in; -1 before the first
	body    body
	dropped bool // the page at hand is done: drop what comes
	left    int  // of the chunk at hand
}

func newIntake(f *fetch, pages []int) *intake {
	in := &intake{f: f, pages: pages, at: -1, dropped: true}
	in.body.init(f)
	in.received = rpc.Received{Head: &in.head, Begin: in.begin, Chunk: in.chunk, Place: in.place, Placed: in.placed}
	return in
}

// begin is called with each message's head.
func (in *intake) begin(chunkBytes int) error {
	h := &in.head
	if int64(h.Page) >= int64(len(in.pages)) || int(h.Page) < in.at {
		return in.breakOff(protocol("page %d after %d of %d", h.Page, in.at, len(in.pages)))
	}
	if int(h.Page) > in.at {
		in.miss(reason.Truncated) // the page before had no trailer
		in.start(int(h.Page))
	}
	if h.Header != nil {
		in.extent()
	}
	if in.received.Ref != nil && !in.dropped {
		in.refs = append(in.refs, *in.received.Ref)
		in.f.s.c.stats.shared.Add(uint64(chunkBytes))
	}
	in.left = chunkBytes
	in.f.s.c.stats.fetched.Add(uint64(chunkBytes))
	if chunkBytes > 0 && !in.dropped && !in.body.startChunk(h.Extent, h.Offset, chunkBytes, h.CutSums) {
		in.miss(reason.Corrupt)
	}
	if chunkBytes == 0 {
		in.trailer()
	}
	return nil
}

func (in *intake) breakOff(err error) error {
	in.miss(reason.Truncated)
	in.broken = err
	return err
}

// start is the first message of a requested page. A page that was done before this stream is not asked for again.
func (in *intake) start(k int) {
	in.at, in.dropped, in.refs = k, false, in.refs[:0]
	i := in.pages[k]
	in.body.reset(in.f.s.hash(&in.f.run, i), in.f.dst[i])
}

// extent opens the extent whose header is at hand.
func (in *intake) extent() {
	if !in.dropped && !in.body.open(in.head.Extent, in.head.Header) {
		in.miss(reason.Corrupt)
	}
}

func (in *intake) chunk(p []byte) error {
	in.left -= len(p)
	if !in.dropped && !in.take(p) {
		in.miss(reason.Corrupt)
	}
	if in.left == 0 {
		in.trailer()
	}
	return nil
}

// take copies p, which may be memory of the node.
func (in *intake) take(p []byte) (ok bool) {
	if in.received.Ref == nil {
		return in.body.take(p)
	}
	return guarded(func() { ok = in.body.take(p) }) && ok
}

// stale says, after the last byte of the page at hand was copied, whether the node has taken back any of the memory
// that it was copied from: then it is nobody's page.
func (in *intake) stale() bool {
	if len(in.refs) > 0 && in.f.s.c.opt.copied != nil {
		in.f.s.c.opt.copied()
	}
	for i := range in.refs {
		if !in.sharing.Valid(&in.refs[i]) {
			return true
		}
	}
	return false
}

// again leaves the page at hand for another stream, where it starts over.
func (in *intake) again() {
	p := &in.f.pages[in.pages[in.at]]
	p.stale, p.resume, in.dropped = true, nil, true
}

// place is where the transport reads the next bytes of the chunk; nil: it drops them.
func (in *intake) place(n int) []byte {
	if in.dropped {
		return nil
	}
	p := in.body.place(n)
	if p == nil {
		in.miss(reason.Corrupt)
	}
	return p
}

func (in *intake) placed() {
	if in.left -= len(in.body.seg); !in.body.arrived() {
		in.miss(reason.Corrupt)
	}
	if in.left == 0 {
		in.trailer()
	}
}

// trailer finishes the page if the message at hand says so.
func (in *intake) trailer() {
	if in.head.Trailer == nil || in.dropped {
		return
	}
	r := resultOf(in.head.Trailer)
	p := &in.f.pages[in.pages[in.at]]
	switch {
	case r.Outcome == OK && in.stale():
		in.again()
	case r.Outcome == OK && in.body.complete():
		r.Reason, r.Extents = reason.None, in.body.ids()
		in.finish(r)
	case r.Outcome == OK:
		in.miss(reason.Truncated)
	case r.Reason == reason.Absent && p.resume != nil:
		p.resume, in.dropped = nil, true // what it had begun with is gone: start over on another stream
	case r.Reason == reason.None:
		in.miss(reason.Unknown)
	default: // also Corrupt: the server found it itself
		in.finish(PageResult{Outcome: Miss, Reason: r.Reason})
	}
}

func (in *intake) finish(r PageResult) {
	p := &in.f.pages[in.pages[in.at]]
	p.done, p.result, in.dropped = true, r, true
}

// miss finishes the page at hand, if there is one that is not done.
func (in *intake) miss(why reason.Reason) {
	if in.dropped {
		return
	}
	if why == reason.Corrupt && in.stale() {
		in.again()
		return
	}
	if why == reason.Corrupt {
		in.f.s.reportCorrupt(&in.f.run, in.pages[in.at], in.body.ids(), &in.f.reports)
	}
	in.finish(PageResult{Outcome: Miss, Reason: why})
}

// stay asks for the extents that the page at hand had begun with, if all of them are known. Another stream fills the
// page from its first byte, so that it is of one writer a rectangle also when it gets others.
func (in *intake) stay() {
	if !in.dropped && in.body.covered() {
		in.f.pages[in.pages[in.at]].resume = in.body.ids()
	}
}
