package server

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// fetch is one Fetch stream. Page bytes are lent to gRPC out of tier memory; the read stays pinned until gRPC has
// given back the last of them, or the connection has ended:
//
//	Read ──> chunks lent ──> handler done ──> last buffer back ──> Close, budget given back
//	              │                                 ^
//	              └── no progress: break the connection ── its end
//
// gRPC keeps what a stalled stream has queued, also after the handler returned: only the end of the connection gets
// it back from a client that takes nothing.
type fetch struct {
	node    *node
	stream  grpc.ServerStream
	reading *store.Reading
	moved   *atomic.Int64 // clock.Instant of the last chunk taken
	scratch *fetchScratch
	msg     rpc.Chunk
	bytes   *total      // of the transport
	sharing rpc.Sharing // of a client on this host; nil: bytes travel
	ref     rpc.Ref
}

// fetchScratch is reused from fetch to fetch, so that a chunk allocates nothing here.
type fetchScratch struct {
	head   []byte
	cut    []byte
	chunks []store.Chunk
}

func (s *fetchScratch) free(to *sync.Pool) {
	clear(s.chunks[:cap(s.chunks)]) // let go of tier memory
	to.Put(s)
}

// Fetch streams pages in the order of the request.
func (s pageService) Fetch(r *quirev1.FetchRequest, stream grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
	n, ctx := s.node, stream.Context()
	a, err := n.admit(ctx, r.Namespace, namespace.RightRead, nil)
	if err == errStranger {
		keys, err := n.limits.strangerKeys([]*quirev1.KeyRun{r.Run})
		if err != nil {
			return err
		}
		return fetchNothing(keys, stream)
	}
	if err != nil {
		return err
	}
	req, bytes, err := n.readRequest(&a, r)
	if err != nil {
		return err
	}
	req.Unverified = s.frames
	give, err := n.fetches.take(a.caller.Principal, bytes)
	if err != nil {
		return err
	}
	reading, why, err := n.store.Read(ctx, a.caller, req)
	if err := answer(why, err); err != nil {
		give()
		if why == reason.Absent {
			return fetchNothing(len(req.Run.Hashes)/a.space.hashBytes, stream)
		}
		return err
	}
	n.record(AccessFetch, &a, req.Run)
	f := &fetch{
		node: n, stream: stream, reading: reading, moved: new(atomic.Int64), scratch: n.fetchScratches.Get().(*fetchScratch),
		bytes: &n.metrics.fetchBytes.of[s.transport(ctx)], sharing: rpc.SharingFrom(ctx),
	}
	defer f.scratch.free(&n.fetchScratches)
	unwatch := n.watchProgress(ctx, f.moved)
	if s.frames {
		defer unwatch() // what is sent has left; what is referred to may be kept
	}
	f.msg.Pin = n.conns.Pin(ctx, func() {
		unwatch()
		reading.Close()
		give()
	})
	defer f.msg.Pin.Done()
	for i := range len(req.Run.Hashes) / a.space.hashBytes {
		if err := f.page(i); err != nil {
			return err
		}
	}
	return nil
}

// readRequest checks counts and bytes before it allocates; bytes is what the read can pin at most.
func (n *node) readRequest(a *asked, r *quirev1.FetchRequest) (req store.ReadRequest, bytes int64, err error) {
	keys, err := n.limits.keysOf(r.Run, a.space.hashBytes)
	if err != nil {
		return req, 0, err
	}
	if req.View, err = viewOf(r.View); err != nil {
		return req, 0, err
	}
	if req.Lease, err = leaseIDOf(r.LeaseId); err != nil {
		return req, 0, err
	}
	if req.Run, err = a.runOf(r.Run); err != nil {
		return req, 0, err
	}
	if bytes, err = n.readBytes(a, &req.Run, req.View); err != nil {
		return req, 0, err
	}
	if len(r.Resume) > keys {
		return req, 0, badField("resume", "%d pages for %d keys", len(r.Resume), keys)
	}
	for _, p := range r.Resume {
		if int(p.GetPage()) >= keys || len(p.GetExtentIds()) > page.MaxRects {
			return req, 0, badField("resume", "page %d of %d with %d extents", p.GetPage(), keys, len(p.GetExtentIds()))
		}
		ids, err := extentIDsOf(p.GetExtentIds())
		if err != nil {
			return req, 0, err
		}
		if req.Resume == nil {
			req.Resume = make(map[int][]page.ExtentID, len(r.Resume))
		}
		req.Resume[int(p.GetPage())] = ids
	}
	return req, bytes, nil
}

// readBytes is the payload of a run under a view; a group that the namespace does not have has none.
func (n *node) readBytes(a *asked, run *core.Run, v page.View) (int64, error) {
	g, ok := a.space.groups[run.Family.Group]
	if !ok {
		return 0, nil
	}
	if !g.Full().Contains(v) {
		return 0, answer(reason.InvalidView, nil)
	}
	return n.limits.batchBytes(len(run.Hashes)/a.space.hashBytes, &g, v)
}

// page sends page i: its chunks and, with the last of them, its trailer. An error is the stream's.
func (f *fetch) page(i int) error {
	got := f.reading.Page(i)
	if got.Outcome != core.OK {
		return f.miss(i, got.Reason)
	}
	extents := f.reading.Extents(i)
	for x := range extents {
		chunks, why := f.reading.Chunks(i, x, f.node.limits.FetchChunkBytes, f.scratch.chunks[:0])
		f.scratch.chunks = chunks
		if why == reason.None && len(chunks) == 0 {
			why = reason.Incomplete
		}
		if why != reason.None {
			return f.miss(i, why)
		}
		for c := range chunks {
			head := rpc.FetchHead{Page: uint32(i), Extent: uint32(x), Offset: chunks[c].Offset, CutSums: f.cutSums(chunks[c].CutSums)}
			if c == 0 {
				head.Header = f.reading.Header(i, x)
			}
			f.refer(chunks[c].Bytes)
			if x == extents-1 && c == len(chunks)-1 {
				head.Trailer = f.trailer(i)
			}
			if err := f.send(&head, chunks[c].Bytes); err != nil {
				return err
			}
			f.bytes.Add(uint64(len(chunks[c].Bytes)))
		}
	}
	if extents == 0 {
		return f.miss(i, reason.Incomplete)
	}
	return nil
}

// refer names body to a client that maps it. It comes before the trailer: the generations in the name must be older
// than the last look at whether the page may be used.
func (f *fetch) refer(body []byte) {
	f.msg.Ref = nil
	if f.sharing == nil {
		return
	}
	var ok bool
	if f.ref, ok = f.sharing.Refer(body); ok {
		f.msg.Ref = &f.ref
	}
}

// okTrailer is shared: nothing writes to it.
var okTrailer = &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_OK}

// trailer asks once more, after all bytes of the page were verified, whether it may be used.
func (f *fetch) trailer(i int) *quirev1.PageStatus {
	if why := f.reading.Trailer(i); why != reason.None {
		f.node.metrics.fetch.page(core.Miss, why)
		return missOf(why)
	}
	f.node.metrics.fetch.page(core.OK, reason.None)
	return okTrailer
}

func (f *fetch) miss(i int, why reason.Reason) error {
	f.node.metrics.fetch.page(core.Miss, why)
	f.msg.Ref = nil
	return f.send(&rpc.FetchHead{Page: uint32(i), Trailer: missOf(why)}, nil)
}

func (f *fetch) cutSums(sums []uint64) []byte {
	f.scratch.cut = f.scratch.cut[:0]
	for _, s := range sums {
		f.scratch.cut = binary.LittleEndian.AppendUint64(f.scratch.cut, s)
	}
	return f.scratch.cut
}

func (f *fetch) send(head *rpc.FetchHead, body []byte) (err error) {
	if f.scratch.head, err = head.Append(f.scratch.head[:0]); err != nil {
		return rpc.Refused(err)
	}
	f.msg.Head, f.msg.Body = f.scratch.head, body
	if err := f.stream.SendMsg(&f.msg); err != nil {
		return err
	}
	f.moved.Store(int64(f.node.clock.Now()))
	return nil
}

// fetchNothing is the answer of a namespace that holds none of the pages, one that the caller cannot see, and one
// that does not exist.
func fetchNothing(keys int, stream grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
	for i := range keys {
		if err := stream.Send(&quirev1.FetchResponse{Page: uint32(i), Trailer: missOf(reason.Absent)}); err != nil {
			return err
		}
	}
	return nil
}
