package frame

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/store/rpc"
)

// handle runs one call. An error ends the connection.
func (k *serverConn) handle(h *header) error {
	body, err := k.readBody(int(h.body))
	if err != nil {
		return err
	}
	var m *method
	if int(h.method) < len(k.s.methods) {
		m = k.s.methods[h.method]
	}
	x, more := &k.x, h.flags&flagMore != 0
	if !follows(h.method) {
		k.begun = rpc.Begun{}
	}
	x.c, x.method, x.call = k.conn, h.method, h.call
	defer x.end()
	ctx, cancel := k.ctx, func() {}
	if h.extra > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(h.extra)*time.Millisecond)
	}
	s := &serverStream{k: k, ctx: ctx, body: body, method: m, more: more}
	switch {
	case m == nil:
		err = status.Error(codes.Unimplemented, "this method has no frames here")
	case more != (m.stream != nil && m.stream.ClientStreams):
		cancel()
		return ErrProtocol
	case m.unary != nil:
		err = s.callUnary()
	default:
		err = s.callStream()
	}
	cancel()
	if err = s.answer(err); err == nil {
		err = s.broken
	}
	k.hold(x)
	if err == nil && more {
		err = s.drain()
	}
	return err
}

// serverStream is the grpc.ServerStream of one call.
type serverStream struct {
	k      *serverConn
	ctx    context.Context
	method *method
	body   []byte // of the request; nil once it was received
	more   bool   // messages of the client are still to come
	reply  proto.Message
	broken error // the bytes that come next cannot be made sense of
}

func (s *serverStream) callUnary() (err error) {
	s.k.watch()
	defer s.k.unwatch()
	got, err := s.method.unary(s.method.impl, s.ctx, func(m any) error { return refuseMessage(unmarshal(s.body, m)) }, nil)
	if err != nil {
		return err
	}
	s.reply, _ = got.(proto.Message)
	return nil
}

func (s *serverStream) callStream() error {
	if !s.more {
		s.k.watch()
		defer s.k.unwatch()
		return s.method.stream.Handler(s.method.impl, s)
	}
	s.k.exact = true
	if _, ok := s.ctx.Deadline(); ok {
		defer context.AfterFunc(s.ctx, func() {
			if errors.Is(s.ctx.Err(), context.DeadlineExceeded) {
				s.k.breakOff(context.DeadlineExceeded) // it may be waiting for the client
			}
		})()
	}
	return s.method.stream.Handler(s.method.impl, s)
}

// answer ends the call on the wire.
func (s *serverStream) answer(err error) error {
	x := &s.k.x
	if err == nil && (s.method.stream == nil || !s.method.stream.ServerStreams) {
		x.behind = s.k.behind() || s.method.stream != nil && s.k.wire.Ready() // nothing was read ahead of a stream
		if s.reply == nil {
			err = status.Error(codes.Internal, "no answer")
		} else if err = x.sendLast(x.header(kindResponse), s.reply); !errors.Is(err, ErrTooLarge) {
			return err
		} else {
			err = status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	if err == nil {
		return x.sendLast(x.header(kindStatus), nil)
	}
	return x.sendLast(x.header(kindStatus), statusOf(err).Proto())
}

// drain reads what the client still sends to a call that is over, the rest of a batch first.
func (s *serverStream) drain() error {
	if err := s.k.skip(s.k.x.in.data); err != nil {
		return err
	}
	for s.more {
		if err := s.nextFrame(func(h *header) error { return s.k.discard(h) }); err != nil {
			return err
		}
	}
	return nil
}

// nextFrame reads frames of the client up to a message, which it gives to f, or the end.
func (s *serverStream) nextFrame(f func(h *header) error) error {
	for {
		var h header
		if err := s.k.next(&h); err != nil {
			return err
		}
		switch {
		case h.kind == kindRelease && h.body == 0:
			if err := s.k.releaseHeld(h.call, h.extra); err != nil {
				return err
			}
		case h.kind == kindMessage && h.call == s.k.x.call:
			return f(&h)
		case h.kind == kindEnd && h.call == s.k.x.call && h.body == 0:
			s.more = false
			s.k.exact = false
			return nil
		default:
			return fmt.Errorf("%w: kind %d of call %d in call %d", ErrProtocol, h.kind, h.call, s.k.x.call)
		}
	}
}

// discard reads a frame that nobody wants.
func (c *conn) discard(h *header) error {
	if _, err := c.readBody(int(h.body)); err != nil {
		return err
	}
	return c.skip(int(h.data))
}

// skip reads n bytes of data that nobody wants.
func (c *conn) skip(left int) error {
	if left == 0 {
		return nil
	}
	piece := c.pieces.Get().(*[pieceBytes]byte)
	defer c.pieces.Put(piece)
	for left > 0 {
		n := min(left, pieceBytes)
		if err := c.readData(piece[:n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

func (s *serverStream) Context() context.Context { return s.ctx }

// SendMsg sends the answer, or one message of it. Chunks are gathered until a window is full or the call ends.
func (s *serverStream) SendMsg(m any) error {
	if !s.method.stream.ServerStreams {
		s.reply, _ = m.(proto.Message)
		return nil
	}
	if err := s.k.x.send(m); err != nil {
		return s.why(err)
	}
	return nil
}

// RecvMsg receives the request, or the next message of the client.
func (s *serverStream) RecvMsg(m any) error {
	x := &s.k.x
	if s.body != nil && !s.method.stream.ClientStreams {
		b := s.body
		s.body = nil
		return refuseMessage(take(b, m))
	}
	if x.in.active() {
		return s.received(x.nextChunk(m))
	}
	if !s.more {
		return io.EOF
	}
	if x.taken > x.told {
		if err := s.k.released(x.call, x.taken); err != nil {
			return s.why(err)
		}
		x.told = x.taken
	}
	err := s.nextFrame(func(h *header) error { return x.receive(h, m) })
	if err == nil && !s.more {
		return io.EOF
	}
	return s.received(err)
}

// released tells the client of a write how many of its references are read.
func (k *serverConn) released(call, count uint32) error {
	if !k.behind() {
		return k.sendRelease(call, count)
	}
	var frame [headerBytes]byte
	(&header{kind: kindRelease, call: call, extra: count}).put(frame[:])
	k.putOff(frame[:])
	return nil
}

func (s *serverStream) received(err error) error {
	if err == nil {
		return nil
	}
	s.broken = err
	return s.why(err)
}

// why is what a handler is told of an error of the connection.
func (s *serverStream) why(err error) error {
	if s.ctx.Err() != nil {
		return status.FromContextError(s.ctx.Err()).Err()
	}
	if errors.Is(err, ErrProtocol) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unavailable, err.Error())
}

func refuseMessage(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

func (s *serverStream) SetHeader(metadata.MD) error  { return nil }
func (s *serverStream) SendHeader(metadata.MD) error { return nil }
func (s *serverStream) SetTrailer(metadata.MD)       {}

// statusOf is what gRPC would make of a handler's error.
func statusOf(err error) *status.Status {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return s
}
