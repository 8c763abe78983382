package client

import (
	"context"
	"errors"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

// maxSendBytes bounds a chunk that is sent: large enough that its head costs nothing, small enough that two of them
// are all that a stream holds.
const maxSendBytes = 1 << 20

// upload is one WritePages stream. What it is given is lent to gRPC until wait returns.
type upload struct {
	s        *Session
	link     *link
	ctx      context.Context
	cancel   context.CancelCauseFunc
	stream   grpc.ClientStreamingClient[quirev1.WritePagesRequest, quirev1.WritePagesResponse]
	stop     func() // of the watch
	sent     *atomic.Uint64
	pin      *rpc.Pin
	released chan struct{}

	head    rpc.WriteHead // of the next chunk
	headBuf []byte
	message rpc.Chunk

	sharing  rpc.Sharing // with the node of this host; nil: bytes travel
	ref      rpc.Ref
	referred int // bytes referred to since the last flush
}

// openUpload opens a stream that is ended when sent stands still. wait must be called if err is nil.
func (s *Session) openUpload(ctx context.Context, sent *atomic.Uint64) (*upload, error) {
	u := &upload{s: s, link: s.c.link(), sent: sent, released: make(chan struct{})}
	u.ctx, u.cancel = context.WithCancelCause(ctx)
	lending, pin := u.link.conns.Lend(u.ctx, func() { close(u.released) })
	u.pin, u.stop = pin, s.c.watch(u.ctx, sent, u.cancel)
	var err error
	if u.stream, err = u.link.pages.WritePages(lending); err != nil {
		err = s.c.stalled(u.ctx, rpc.FromStatus(err))
		u.wait()
		return nil, err
	}
	u.sharing = sharingOf(u.stream)
	return u, nil
}

// send sends body as what comes next in the grant of head, lent under pin.
func (u *upload) send(body []byte, pin *rpc.Pin) (err error) {
	if u.headBuf, err = u.head.Append(u.headBuf[:0]); err != nil {
		return err
	}
	u.message = rpc.Chunk{Head: u.headBuf, Body: body, Pin: pin}
	if err := u.refer(body); err != nil {
		return err
	}
	if err := u.stream.SendMsg(&u.message); err != nil {
		return err
	}
	u.head.Token, u.head.Namespace = nil, nil // first message only
	u.head.Offset += uint64(len(body))
	u.sent.Add(1)
	return nil
}

// refer names body to a node of this host, and has what was named before sent now and then, so that it has work while
// more is made.
func (u *upload) refer(body []byte) error {
	if u.sharing == nil {
		return nil
	}
	if u.referred >= flushBytes {
		u.referred = 0
		if err := frameOf(u.stream).Flush(); err != nil {
			return err
		}
	}
	var ok bool
	if u.ref, ok = u.sharing.Refer(body); ok {
		u.message.Ref = &u.ref
		u.referred += len(body)
		u.s.c.stats.staged.Add(uint64(len(body)))
	}
	return nil
}

// stage is at most n bytes, at least one unit of s, of memory to gather into: where the node reads it, if it is on
// this host. free gives it back.
func (u *upload) stage(s *source, n int) (b []byte, free func(), err error) {
	c, ok := u.sharing.(*sharedConn)
	for ok {
		if b, free, ok = c.room(min(n, max(maxSendBytes, s.cell))); b != nil {
			return b, free, nil
		}
		if ok {
			u.referred = 0
			if err := frameOf(u.stream).AwaitRelease(); err != nil {
				return nil, nil, err
			}
		}
	}
	st := u.s.c.stage(s)
	return *st, func() { u.s.c.stages.Put(st) }, nil
}

// reaches says whether the node reads b where it lies.
func (u *upload) reaches(b []byte) bool {
	_, ok := u.sharing.Refer(b)
	return ok
}

// finish closes the stream and returns the server's answer. err is what ended the sending; io.EOF means that the
// server knows why.
func (u *upload) finish(err error) (*quirev1.WritePagesResponse, error) {
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, u.s.c.stalled(u.ctx, rpc.FromStatus(err))
	}
	r, err := u.stream.CloseAndRecv()
	if err != nil {
		return nil, u.s.c.stalled(u.ctx, rpc.FromStatus(err))
	}
	return r, nil
}

// wait ends the stream, whatever its state, and returns when gRPC reads nothing any more of what was lent. A peer
// that does not even let go of it costs the connection.
func (u *upload) wait() {
	u.stop()
	u.cancel(nil)
	u.pin.Done()
	stop := u.s.c.opt.Clock.AfterFunc(breakAfter, func() { u.link.conns.Break(u.pin) })
	<-u.released
	stop()
}
