package frame

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

func TestUnary(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.exists = func(_ context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			return &quirev1.BatchExistsResponse{Present: r.GetSessionId(), Leading: []uint32{7}}, nil
		}
		for _, n := range []int{0, 1, 1000, bufferBytes, 300 << 10, 5 << 20} {
			id := bytes.Repeat([]byte{byte(n)}, n)
			r, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{SessionId: id})
			if err != nil || !bytes.Equal(r.GetPresent(), id) || r.GetLeading()[0] != 7 {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
		if n := len(w.cc.all); n != 1 {
			t.Errorf("%d connections for calls one after the other", n)
		}
	})
}

// TestStatus: a status with details arrives byte for byte, and the connection takes the next call.
func TestStatus(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		said, err := status.New(codes.FailedPrecondition, "no").WithDetails(&quirev1.ErrorDetail{Reason: 9, Path: "a.b"})
		if err != nil {
			t.Fatal(err)
		}
		w.exists = func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			return nil, said.Err()
		}
		w.fetch = func(*quirev1.FetchRequest, grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			return said.Err()
		}
		w.write = func(grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			return said.Err()
		}
		want, _ := proto.MarshalOptions{Deterministic: true}.Marshal(said.Proto())
		same := func(what string, err error) {
			t.Helper()
			got, _ := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(err).Proto())
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		for range 3 {
			_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
			same("unary", err)
			s, err := w.pages.Fetch(w.ctx(), &quirev1.FetchRequest{})
			if err == nil {
				_, err = s.Recv()
			}
			same("answered stream", err)
			u, err := w.pages.WritePages(w.ctx())
			if err != nil {
				t.Fatal(err)
			}
			for range 40 { // the server reads them all and keeps none
				if err := u.SendMsg(&rpc.Chunk{Head: []byte{8, 1}, Body: make([]byte, 1<<20)}); err != nil {
					break
				}
			}
			_, err = u.CloseAndRecv()
			same("stream of messages", err)
		}
		if n := len(w.cc.all); n != 1 {
			t.Errorf("%d connections", n)
		}
		_, err = w.pages.Touch(w.ctx(), &quirev1.TouchRequest{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%v", err)
		}
	})
}

// TestContext: a handler sees who calls, as over gRPC, and how long it has.
func TestContext(t *testing.T) {
	h := ways[0]
	h.client = ClientOptions{Token: "qk_secret", Instance: "engine"}
	names := make(chan string, 8)
	h.server.Identify = func(ctx context.Context) (string, error) {
		names <- metadata.ValueFromIncomingContext(ctx, "authorization")[0]
		return "x", nil
	}
	w := newWorld(t, h)
	w.exists = func(ctx context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		if v := metadata.ValueFromIncomingContext(ctx, "authorization"); len(v) != 1 || v[0] != "Bearer qk_secret" {
			t.Errorf("metadata %v", v)
		}
		if p, ok := peer.FromContext(ctx); !ok || !strings.HasPrefix(p.Addr.String(), "127.0.0.1:") {
			t.Errorf("peer %v", p)
		}
		if d, ok := ctx.Deadline(); !ok || time.Until(d) > time.Minute || time.Until(d) < guard/2 {
			t.Errorf("deadline %v %v", d, ok)
		}
		return &quirev1.BatchExistsResponse{}, nil
	}
	if _, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := <-names; n != "Bearer qk_secret" {
		t.Error(n)
	}
}

// TestDeadline: a call ends with its deadline on both sides.
func TestDeadline(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		ended := make(chan error, 1)
		var began atomic.Bool
		w.exists = func(ctx context.Context, _ *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			began.Store(true)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
		for d := 20 * time.Millisecond; !began.Load(); d *= 2 { // one that is over before the call arrives shows nothing of the server
			if d > guard {
				t.Fatal("no call arrives")
			}
			ctx, cancel := context.WithTimeout(w.ctx(), d)
			_, err := w.pages.BatchExists(ctx, &quirev1.BatchExistsRequest{})
			cancel()
			if status.Code(err) != codes.DeadlineExceeded {
				t.Error(err)
			}
		}
		select {
		case <-ended:
		case <-time.After(guard):
			t.Error("the handler goes on")
		}
	})
}

// TestCancel: giving up a call ends its handler, whatever it waits for.
func TestCancel(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		began, ended := make(chan struct{}), make(chan struct{})
		wait := func(ctx context.Context) error {
			began <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return ctx.Err()
		}
		w.exists = func(ctx context.Context, _ *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			return nil, wait(ctx)
		}
		w.attach = func(s grpc.ServerStreamingServer[quirev1.AttachResponse]) error { return wait(s.Context()) }
		w.write = func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			began <- struct{}{}
			_, err := s.Recv()
			ended <- struct{}{}
			return err
		}
		for name, call := range map[string]func(ctx context.Context) error{
			"unary": func(ctx context.Context) error {
				_, err := w.pages.BatchExists(ctx, &quirev1.BatchExistsRequest{})
				return err
			},
			"attach": func(ctx context.Context) error {
				s, err := w.pages.Attach(ctx, &quirev1.AttachRequest{})
				if err == nil {
					_, err = s.Recv()
				}
				return err
			},
			"write": func(ctx context.Context) error {
				s, err := w.pages.WritePages(ctx)
				if err == nil {
					s.(*grpc.GenericClientStream[quirev1.WritePagesRequest, quirev1.WritePagesResponse]).ClientStream.(*Stream).Flush()
					err = s.RecvMsg(&quirev1.WritePagesResponse{})
				}
				return err
			},
		} {
			ctx, cancel := context.WithCancel(w.ctx())
			result := make(chan error, 1)
			go func() { result <- call(ctx) }()
			await(t, began, name)
			cancel()
			await(t, ended, name+" ends")
			if err := <-result; status.Code(err) != codes.Canceled {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestClose: closing the client ends its calls, on both sides, and later calls are refused.
func TestClose(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		began, ended := make(chan struct{}), make(chan struct{})
		w.exists = func(ctx context.Context, _ *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			close(began)
			<-ctx.Done()
			close(ended)
			return nil, ctx.Err()
		}
		result := make(chan error, 1)
		go func() {
			_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
			result <- err
		}()
		await(t, began, "the call")
		w.cc.Close()
		await(t, ended, "the end of the handler")
		if err := <-result; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		if _, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{}); status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	})
}

// TestStop: a server that stops closes idle connections at once, lets calls end and refuses new ones; one that may not
// wait breaks them.
func TestStop(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		began, finish := make(chan struct{}), make(chan struct{})
		w.exists = func(ctx context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			if len(r.GetSessionId()) > 0 {
				close(began)
				<-finish
			}
			return &quirev1.BatchExistsResponse{Leading: []uint32{1}}, nil
		}
		if _, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{}); err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() {
			_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{SessionId: []byte{1}})
			result <- err
		}()
		await(t, began, "the call")
		stopped := make(chan error, 1)
		go func() { stopped <- w.server.Stop(w.ctx()) }()
		for {
			_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
			if errors.Is(err, ErrUnreachable) {
				break
			}
		}
		close(finish)
		if err := <-result; err != nil {
			t.Error(err)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, ways[0])
	began := make(chan struct{})
	w.exists = func(ctx context.Context, _ *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	result := make(chan error, 1)
	go func() {
		_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
		result <- err
	}()
	await(t, began, "the call")
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	if err := w.server.Stop(ctx); err == nil {
		t.Error("stopped with a call running, and said nothing")
	}
	if err := <-result; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// TestLimits: connections of one name, connections in all, calls at once; a refusal at hello is told with its status.
func TestLimits(t *testing.T) {
	h := ways[0]
	h.server = ServerOptions{MaxConnsOf: 1}
	w := newWorld(t, h)
	release := make(chan struct{})
	began := make(chan struct{}, 1)
	w.exists = func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		began <- struct{}{}
		<-release
		return &quirev1.BatchExistsResponse{}, nil
	}
	result := make(chan error, 1)
	go func() {
		_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
		result <- err
	}()
	await(t, began, "the call")
	_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
	if status.Code(err) != codes.ResourceExhausted || !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	close(release)
	if err := <-result; err != nil {
		t.Error(err)
	}
	h = ways[0]
	h.server = ServerOptions{Identify: func(context.Context) (string, error) { return "", status.Error(codes.Unauthenticated, "who?") }}
	w = newWorld(t, h)
	if _, err := w.cc.Connect(w.ctx()); status.Code(err) != codes.Unauthenticated || status.Convert(err).Message() != "who?" {
		t.Error(err)
	}
	h = ways[0]
	h.client = ClientOptions{Conns: 2}
	w = newWorld(t, h)
	release = make(chan struct{})
	began = make(chan struct{}, 8)
	w.exists = func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		began <- struct{}{}
		<-release
		return &quirev1.BatchExistsResponse{}, nil
	}
	results := make(chan error, 4)
	for range 4 {
		go func() {
			_, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{})
			results <- err
		}()
	}
	await(t, began, "a call")
	await(t, began, "a second call")
	ctx, cancel := context.WithCancel(w.ctx())
	cancel()
	if _, err := w.pages.BatchExists(ctx, &quirev1.BatchExistsRequest{}); status.Code(err) != codes.Canceled {
		t.Error("a third call ran:", err)
	}
	close(release)
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if n := len(w.cc.all); n > 2 {
		t.Errorf("%d connections", n)
	}
}

// TestChunks: chunks arrive whole and in order, in frames of many, into whatever asks for them.
func TestChunks(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		memory := make([]byte, 6<<20)
		for i := range memory {
			memory[i] = byte(i * i >> 7)
		}
		cuts := []int{0, 100, 100, 70_000, 1 << 20, 1<<20 + 1, 3 << 20, 6 << 20}
		released := make(chan struct{}, 16)
		w.fetch = func(r *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			pin := rpc.NewPin(func() { released <- struct{}{} })
			defer pin.Done()
			for i := range len(cuts) - 1 {
				head, err := (&rpc.FetchHead{Page: uint32(i), Offset: uint64(cuts[i])}).Append(nil)
				if err != nil {
					return err
				}
				if err := s.SendMsg(&rpc.Chunk{Head: head, Body: memory[cuts[i]:cuts[i+1]], Pin: pin}); err != nil {
					return err
				}
				clear(head) // it is the sender's again
			}
			return s.Send(&quirev1.FetchResponse{Page: 99})
		}
		for range 2 {
			s, err := w.pages.Fetch(w.ctx(), &quirev1.FetchRequest{})
			if err != nil {
				t.Fatal(err)
			}
			got, at := make([]byte, len(memory)), 0
			head, pages := &rpc.FetchHead{}, []uint32{}
			in := &rpc.Received{Head: head, Begin: func(int) error { pages = append(pages, head.Page); at = int(head.Offset); return nil },
				Chunk: func([]byte) error { return errors.New("copied") }}
			last := 0
			in.Place = func(n int) []byte {
				last = min(n, 99_999)
				return got[at : at+last]
			}
			in.Placed = func() { at += last }
			for err == nil {
				err = s.RecvMsg(in)
			}
			if err != io.EOF || !bytes.Equal(got, memory) || len(pages) != len(cuts) || pages[7] != 99 {
				t.Error(err, pages)
			}
			await(t, released, "the end of the pin")
		}
		s, err := w.pages.Fetch(w.ctx(), &quirev1.FetchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range cuts {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if i < len(cuts)-1 && (m.Page != uint32(i) || !bytes.Equal(m.Chunk, memory[cuts[i]:cuts[i+1]])) {
				t.Errorf("chunk %d differs", i)
			}
		}
		if _, err := s.Recv(); err != io.EOF {
			t.Error(err)
		}
		await(t, released, "the end of the pin")
	})
}

// TestUpload: chunks of a client arrive, lent or copied; pins come back when the bytes have left.
func TestUpload(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var got []byte
		w.write = func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			got = got[:0]
			in := &rpc.Received{Head: &rpc.WriteHead{}, Begin: func(int) error { return nil },
				Chunk: func(p []byte) error { got = append(got, p...); return nil }}
			for {
				if err := s.RecvMsg(in); errors.Is(err, io.EOF) {
					return s.SendAndClose(&quirev1.WritePagesResponse{Pages: []*quirev1.PageStatus{{}}})
				} else if err != nil {
					return err
				}
			}
		}
		memory := make([]byte, 5<<20)
		for i := range memory {
			memory[i] = byte(i * i >> 9)
		}
		for range 2 {
			s, err := w.pages.WritePages(w.ctx())
			if err != nil {
				t.Fatal(err)
			}
			released := make(chan struct{})
			pin := rpc.NewPin(func() { close(released) })
			for at := 0; at < len(memory); at += 300_000 {
				c := &rpc.Chunk{Head: []byte{24, 1}, Body: memory[at:min(at+300_000, len(memory))], Pin: pin}
				if at%600_000 == 0 {
					c.Pin, c.Body = nil, bytes.Clone(c.Body)
				}
				if err := s.SendMsg(c); err != nil {
					t.Fatal(err)
				}
				if c.Pin == nil {
					clear(c.Body) // it is the caller's again
				}
			}
			r, err := s.CloseAndRecv()
			if err != nil || len(r.GetPages()) != 1 || !bytes.Equal(got, memory) {
				t.Error(err)
			}
			pin.Done()
			await(t, released, "the end of the pin")
		}
	})
}
