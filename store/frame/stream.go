package frame

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/store/rpc"
)

// Invoke implements grpc.ClientConnInterface. Call options are ignored.
func (c *ClientConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	number, ok := methodNumber(method)
	if !ok {
		return errNoMethod(method)
	}
	m, ok := args.(proto.Message)
	if !ok {
		return c.failed(ctx, errNoMessage)
	}
	k, err := c.acquire(ctx, short)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { k.wire.Close() })
	answered, err := k.invoke(ctx, number, m, reply)
	if !stop() { // the connection is being closed
		if answered = false; err != nil {
			err = c.failed(ctx, err)
		}
	} else if err != nil && !answered {
		err = c.failed(ctx, err)
	}
	c.free(k, short, answered)
	return err
}

func errNoMethod(method string) error {
	return status.Error(codes.Unimplemented, "method "+method+" has no frames")
}

// invoke is a whole call; answered says that the connection may take the next, whatever err is.
func (k *clientConn) invoke(ctx context.Context, method uint16, args proto.Message, reply any) (answered bool, err error) {
	k.exact = false
	if err := k.start(ctx, method, 0, args); err != nil {
		return false, err
	}
	if err := k.x.flush(); err != nil {
		return false, err
	}
	var h header
	if err := k.next(&h); err != nil {
		return false, err
	}
	body, err := k.readBody(int(h.body))
	switch {
	case err != nil:
		return false, err
	case h.call != k.call:
		return false, errOtherCall(&h, k.call)
	case h.kind == kindResponse:
		return true, unmarshal(body, reply)
	case h.kind == kindStatus:
		if err = readStatus(body); err == nil {
			return false, fmt.Errorf("%w: a status of OK without an answer", ErrProtocol)
		}
		return true, err
	}
	return false, fmt.Errorf("%w: kind %d in place of an answer", ErrProtocol, h.kind)
}

func errOtherCall(h *header, call uint32) error {
	return fmt.Errorf("%w: kind %d of call %d in call %d", ErrProtocol, h.kind, h.call, call)
}

// Stream is the grpc.ClientStream of one call. Unlike gRPC's, its SendMsg and RecvMsg are not to be called at once.
// It ends when RecvMsg returns an error, io.EOF for a good end, or its context is done.
type Stream struct {
	c      *ClientConn
	ctx    context.Context
	desc   *grpc.StreamDesc
	method uint16
	class  class
	kept   *Kept

	mu    sync.Mutex  // held while a call on the stream runs; guards below
	k     *clientConn // nil once over
	err   error       // of RecvMsg from then on
	stop  func() bool // of what ends it with ctx
	begun bool        // the request is on its way
	ended bool        // all messages of ours are
}

// NewStream implements grpc.ClientConnInterface. Call options are ignored. The stream holds its connection until its
// end: receive up to an error, or end ctx.
func (c *ClientConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	number, ok := methodNumber(method)
	if !ok {
		return nil, errNoMethod(method)
	}
	of := classOf(method, true)
	k, err := c.acquire(ctx, of)
	if err != nil {
		return nil, err
	}
	k.exact = of == bulk
	s := &Stream{c: c, ctx: ctx, desc: desc, method: number, class: of, k: k}
	s.kept, _ = ctx.Value(keptKey{}).(*Kept)
	if desc.ClientStreams {
		if err := k.start(ctx, number, flagMore, nil); err != nil {
			c.free(k, of, false)
			return nil, c.failed(ctx, err)
		}
		s.begun = true
	}
	s.mu.Lock() // ctx may be over by now
	defer s.mu.Unlock()
	s.stop = context.AfterFunc(ctx, func() {
		k.wire.Close() // what runs on it returns
		s.mu.Lock()
		defer s.mu.Unlock()
		s.over(status.FromContextError(ctx.Err()).Err(), false)
	})
	return s, nil
}

// over ends the stream; usable says that the connection may take the next call.
func (s *Stream) over(err error, usable bool) error {
	if s.k == nil {
		return s.err
	}
	k := s.k
	if s.stop != nil && !s.stop() {
		usable = false
	}
	if usable && s.desc.ClientStreams && !s.ended {
		usable = k.x.sendLast(k.x.header(kindEnd), nil) == nil // the server reads up to here
	}
	if usable && k.x.taken > 0 {
		if s.kept != nil {
			s.kept.add(k.conn, k.call, k.x.taken)
		} else {
			usable = k.sendRelease(k.call, k.x.taken) == nil
		}
	}
	s.k, s.err = nil, err
	s.c.free(k, s.class, usable)
	return err
}

func (s *Stream) fail(err error) error { return s.over(s.c.failed(s.ctx, err), false) }

// SendMsg sends the request, or one message of it. Chunks are gathered until a window is full; their memory is lent
// under their pins until it has left. io.EOF means that the stream is over and RecvMsg says why.
func (s *Stream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil {
		return io.EOF
	}
	if s.desc.ClientStreams {
		if err := s.k.x.send(m); err != nil {
			return s.broke(err)
		}
		return nil
	}
	pm, ok := m.(proto.Message)
	if !ok || s.begun {
		return s.fail(errNoMessage)
	}
	s.begun, s.ended = true, true
	if err := s.k.start(s.ctx, s.method, 0, pm); err != nil {
		return s.fail(err)
	}
	if err := s.k.x.flush(); err != nil {
		return s.fail(err)
	}
	return nil
}

// broke ends the stream because its connection did not take a message.
func (s *Stream) broke(err error) error {
	s.fail(err)
	return io.EOF
}

// Flush sends what was gathered.
func (s *Stream) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil {
		return io.EOF
	}
	if err := s.k.x.flush(); err != nil {
		return s.broke(err)
	}
	return nil
}

// CloseSend says that no more messages come.
func (s *Stream) CloseSend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil || s.ended || !s.desc.ClientStreams {
		return nil
	}
	s.ended = true
	if err := s.k.x.sendLast(s.k.x.header(kindEnd), nil); err != nil {
		s.fail(err)
	}
	return nil
}

// RecvMsg receives the answer, or the next message of it.
func (s *Stream) RecvMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil {
		return s.err
	}
	x := &s.k.x
	if x.in.active() {
		if err := x.nextChunk(m); err != nil {
			return s.fail(err)
		}
		return nil
	}
	if err := x.flush(); err != nil {
		return s.fail(err)
	}
	for {
		var h header
		if err := s.k.next(&h); err != nil {
			return s.fail(err)
		}
		if over, err := s.frame(&h, m); over {
			return err
		}
	}
}

// frame takes in one frame; over says that RecvMsg has its result.
func (s *Stream) frame(h *header, m any) (over bool, err error) {
	x := &s.k.x
	if h.call != x.call {
		return true, s.fail(errOtherCall(h, x.call))
	}
	switch h.kind {
	case kindRelease:
		back, err := x.lent.upTo(h.extra)
		if err != nil {
			return true, s.fail(err)
		}
		giveBack(back)
		return false, nil
	case kindMessage:
		if !s.desc.ServerStreams {
			break
		}
		if err := x.receive(h, m); err != nil {
			return true, s.fail(err)
		}
		return true, nil
	case kindResponse, kindStatus:
		body, err := s.k.readBody(int(h.body))
		if err != nil {
			return true, s.fail(err)
		}
		return true, s.last(h, body, m)
	}
	return true, s.fail(fmt.Errorf("%w: kind %d in a stream", ErrProtocol, h.kind))
}

// last takes in the end of the call.
func (s *Stream) last(h *header, body []byte, m any) error {
	if h.kind == kindStatus {
		if err := readStatus(body); err != nil {
			return s.over(err, true)
		}
		return s.over(io.EOF, true)
	}
	if s.desc.ServerStreams {
		return s.fail(fmt.Errorf("%w: one answer to a stream", ErrProtocol))
	}
	if err := unmarshal(body, m); err != nil {
		return s.fail(err)
	}
	s.over(io.EOF, true)
	return nil
}

// Context is the stream's.
func (s *Stream) Context() context.Context { return s.ctx }

// Header is empty: there are none.
func (s *Stream) Header() (metadata.MD, error) { return nil, nil }

// Trailer is empty: there are none.
func (s *Stream) Trailer() metadata.MD { return nil }

// Sharing is the shared memory of the stream's connection; nil: none, or the stream is over.
func (s *Stream) Sharing() rpc.Sharing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil {
		return nil
	}
	return s.k.sharing
}

// AwaitRelease sends what was gathered and waits until the server has released something of what it was referred to:
// those pins have been given back. io.EOF: the stream is over, and RecvMsg says why.
func (s *Stream) AwaitRelease() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.k == nil {
		return io.EOF
	}
	x := &s.k.x
	if err := x.flush(); err != nil {
		return s.broke(err)
	}
	var h header
	if err := s.k.next(&h); err != nil {
		return s.broke(err)
	}
	if h.call == x.call && h.kind == kindStatus { // the server needs no more
		body, err := s.k.readBody(int(h.body))
		if err != nil {
			return s.broke(err)
		}
		s.last(&h, body, nil)
		return io.EOF
	}
	if h.call != x.call || h.kind != kindRelease {
		return s.broke(errOtherCall(&h, x.call))
	}
	back, err := x.lent.upTo(h.extra)
	if err != nil {
		return s.broke(err)
	}
	giveBack(back)
	return nil
}
