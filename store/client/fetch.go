package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// FetchInto fills dst[i] with the view of page i in l's order (nil: Quire's) and verifies every byte after the last
// copy. The zero view is the whole page. A lease, which may be nil, serves the pages under it or not at all, and is
// renewed meanwhile. Each dst[i] must be exactly as long as the view (or l.PageBytes): BufferSize, before a byte moves.
//
// It returns only when nothing can write into dst any more. A page whose result is not OK has undefined bytes in dst.
// Results are aligned with r also next to an error; see GoodPrefix.
func (s *Session) FetchInto(ctx context.Context, r Run, v page.View, l *Layout, dst [][]byte, lease *Lease) ([]PageResult, error) {
	n, geo, v, err := s.shape(&r, v)
	if err != nil {
		return nil, err
	}
	o, err := orderOf(l, &geo, v)
	if err != nil {
		return nil, err
	}
	if err := exactly(dst, n, pageBytes(o, &geo, v)); err != nil {
		return nil, err
	}
	ctx, leave, err := s.enter(ctx)
	if invalidated(err) {
		return s.countFetched(all(n, Miss, reason.StaleEpoch)), nil
	}
	if err != nil {
		return all(n, Miss, reason.Unknown), err
	}
	defer leave()
	f := &fetch{s: s, run: r, geo: geo, view: v, order: o, dst: dst, pages: make([]fetchPage, n)}
	err = s.why(f.do(ctx, lease))
	f.reports.Wait() // within CallTimeout
	return s.countFetched(f.results(err)), err
}

// exactly refuses buffers that are not n times bytes long.
func exactly(dst [][]byte, n, bytes int) error {
	if len(dst) != n {
		return rpc.Errorf(reason.BufferSize, "%d buffers for %d pages", len(dst), n)
	}
	for i, d := range dst {
		if len(d) != bytes {
			return rpc.Errorf(reason.BufferSize, "buffer %d is %d bytes; the view is %d", i, len(d), bytes)
		}
	}
	return nil
}

func (s *Session) countFetched(rs []PageResult) []PageResult {
	for i := range rs {
		if rs[i].Outcome == OK {
			s.c.stats.hits.Add(1)
		} else {
			countReason(&s.c.stats.misses, rs[i].Reason)
		}
	}
	return rs
}

// fetch is one FetchInto.
type fetch struct {
	s        *Session
	run      Run
	geo      Geometry
	view     page.View
	order    *order
	dst      [][]byte
	pages    []fetchPage
	lease    []byte        // id to be served under
	progress atomic.Uint64 // messages received, over all streams
	reports  sync.WaitGroup
}

// fetchPage is what is known of one page. Each is touched by one stream at a time.
type fetchPage struct {
	done   bool
	stale  bool // memory of the node was taken back before it was read to the end
	result PageResult
	resume []page.ExtentID // a broken stream had begun with these: asked for again, else it starts over
}

// do splits the pages over Parallel streams and waits for all of them.
func (f *fetch) do(ctx context.Context, lease *Lease) error {
	if lease != nil && lease.Remaining() <= 0 {
		return rpc.Errorf(reason.LeaseExpired, "the lease is over")
	}
	f.lease = lease.name()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if lease != nil {
		stop := f.s.c.keepAlive(ctx, lease.ttl, &f.progress, lease.renew)
		defer stop()
	}
	batch := f.batch()
	var next atomic.Int64
	var wg sync.WaitGroup
	var failed onceError
	for range min(f.s.c.opt.Parallel, (len(f.pages)+batch-1)/max(batch, 1)) {
		wg.Go(func() {
			for {
				to := int(next.Add(int64(batch)))
				if from := to - batch; from >= len(f.pages) || failed.get() != nil {
					return
				} else if err := f.pagesFrom(ctx, from, min(to, len(f.pages))); err != nil {
					failed.set(err)
				}
			}
		})
	}
	wg.Wait()
	return failed.get()
}

// batch is the pages of one stream: within the bounds of a call, and small enough that all streams have work.
func (f *fetch) batch() int {
	o := &f.s.c.opt
	each := int64(page.PayloadBytes(f.view, f.geo.CellBytes))
	n := min(o.BatchKeys, max(1, int(o.BatchBytes/each)))
	return max(1, min(n, (len(f.pages)+o.Parallel-1)/o.Parallel))
}

// pagesFrom fetches pages [from, to), on another stream for what is left when one breaks. Only this goroutine writes
// into their destinations.
func (f *fetch) pagesFrom(ctx context.Context, from, to int) error {
	left := make([]int, 0, to-from)
	for attempt := 0; ; attempt++ {
		left = left[:0]
		for i := from; i < to; i++ {
			if !f.pages[i].done {
				left = append(left, i)
			}
		}
		if len(left) == 0 {
			return nil
		}
		err := f.stream(ctx, left)
		if err == nil {
			err = errCutShort // ended well, but pages are left: those that must start over
		}
		if !f.unfinished(left) {
			return nil
		}
		if attempt >= f.s.c.opt.Retries || !transient(err) || ctx.Err() != nil || !f.s.c.pause(ctx, attempt) {
			return err
		}
		f.s.c.stats.retries.Add(1)
	}
}

func (f *fetch) unfinished(pages []int) bool {
	for _, i := range pages {
		if !f.pages[i].done {
			return true
		}
	}
	return false
}

// errCutShort is a stream that ended before its last page was answered.
var errCutShort = rpc.Errorf(reason.Unknown, "the stream ended before the last page")

// stream asks for pages on one stream and takes in what comes. It returns when the stream is over: every copy into a
// destination is made by this goroutine, inside of RecvMsg.
func (f *fetch) stream(ctx context.Context, pages []int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := newIntake(f, pages)
	defer f.s.c.watch(ctx, &in.messages, cancel)()
	stream, err := f.s.c.link().pages.Fetch(ctx, f.request(pages))
	if err != nil {
		return f.s.c.stalled(ctx, rpc.FromStatus(err))
	}
	in.sharing = sharingOf(stream)
	for {
		err := stream.RecvMsg(&in.received)
		switch {
		case err == nil:
			in.messages.Add(1)
			f.progress.Add(1)
		case in.broken != nil:
			return in.broken
		case errors.Is(err, io.EOF):
			in.stay()
			return nil
		default:
			in.stay()
			return f.s.c.stalled(ctx, rpc.FromStatus(err))
		}
	}
}

func (f *fetch) request(pages []int) *quirev1.FetchRequest {
	req := &quirev1.FetchRequest{Namespace: f.s.ref, View: wireView(f.view), LeaseId: f.lease}
	hb := f.s.hashBytes
	req.Run = f.s.wire(&f.run, 0, 0)
	req.Run.Hashes = make([]byte, 0, len(pages)*hb)
	for k, i := range pages {
		req.Run.Hashes = append(req.Run.Hashes, f.run.Hashes[i*hb:(i+1)*hb]...)
		if ids := f.pages[i].resume; ids != nil {
			rp := &quirev1.ResumePage{Page: uint32(k)}
			for _, id := range ids {
				rp.ExtentIds = append(rp.ExtentIds, id.AppendEncode(nil))
			}
			req.Resume = append(req.Resume, rp)
		}
	}
	return req
}

// results gives what err left open the reason that err has.
func (f *fetch) results(err error) []PageResult {
	why := reason.Unknown
	if r := reason.None; errors.As(err, &r) {
		why = r
	}
	out := make([]PageResult, len(f.pages))
	for i := range f.pages {
		switch p := &f.pages[i]; {
		case p.done:
			out[i] = p.result
		case p.stale && f.lease != nil:
			out[i] = PageResult{Outcome: Miss, Reason: reason.LeaseExpired}
		case p.stale:
			out[i] = PageResult{Outcome: Miss, Reason: reason.Absent}
		default:
			out[i] = PageResult{Outcome: Miss, Reason: why}
		}
	}
	return out
}

// onceError keeps the first error.
type onceError struct{ p atomic.Pointer[error] }

func (e *onceError) set(err error) { e.p.CompareAndSwap(nil, &err) }

func (e *onceError) get() error {
	if p := e.p.Load(); p != nil {
		return *p
	}
	return nil
}

// protocol is a stream that says what no server may say.
func protocol(format string, a ...any) error {
	return rpc.Errorf(reason.Unknown, "protocol: %s", fmt.Sprintf(format, a...))
}
