package frame

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

func newShared(t *testing.T, c clock.Clock) (*world, *sharedMemory) {
	m := &sharedMemory{}
	return newWorld(t, how{wrap: func(c net.Conn) net.Conn { return shared{c, m} }, server: ServerOptions{Clock: c, Hold: time.Minute}}), m
}

// lend is a Fetch that refers to three pieces of memory.
func lend(memory [][]byte, back chan<- struct{}) func(*quirev1.FetchRequest, grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
	return func(_ *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
		pin := rpc.NewPin(func() { back <- struct{}{} })
		defer pin.Done()
		for i, b := range memory {
			ref, ok := rpc.SharingFrom(s.Context()).Refer(b)
			if !ok {
				return errors.New("not shared")
			}
			head, _ := (&rpc.FetchHead{Page: uint32(i + 1)}).Append(nil)
			if err := s.SendMsg(&rpc.Chunk{Head: head, Body: b, Pin: pin, Ref: &ref}); err != nil {
				return err
			}
		}
		return nil
	}
}

// takeAll reads a stream of references and answers what they named.
func takeAll(s grpc.ClientStream) (got [][]byte, err error) {
	in := &rpc.Received{Head: &rpc.FetchHead{}, Begin: func(int) error { return nil }}
	in.Chunk = func(p []byte) error {
		if in.Ref == nil {
			return errors.New("inline")
		}
		got = append(got, bytes.Clone(p))
		return nil
	}
	for err == nil {
		err = s.RecvMsg(in)
	}
	return got, err
}

func settled(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestReferences: what is referred to is held until the stream is over, or for as long as it is kept; the connection
// goes on meanwhile; Hold and the end of the connection end it too.
func TestReferences(t *testing.T) {
	manual := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	w, m := newShared(t, manual)
	memory := [][]byte{[]byte("one"), []byte("two"), bytes.Repeat([]byte("three"), 100_000)}
	back := make(chan struct{}, 8)
	w.fetch = lend(memory, back)
	w.exists = func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		return &quirev1.BatchExistsResponse{}, nil
	}
	fetch := func(ctx context.Context) {
		t.Helper()
		s, err := w.pages.Fetch(ctx, &quirev1.FetchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := takeAll(s)
		if err != io.EOF || len(got) != 3 || !bytes.Equal(got[2], memory[2]) {
			t.Fatal(len(got), err)
		}
	}
	call := func() {
		t.Helper()
		if _, err := w.pages.BatchExists(w.ctx(), &quirev1.BatchExistsRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	fetch(w.ctx())
	await(t, back, "the release")
	if m.done != 3 {
		t.Errorf("%d of 3 resolved are done", m.done)
	}

	ctx, kept := Keep(w.ctx())
	fetch(ctx)
	call()
	if settled(back) {
		t.Error("released though kept")
	}
	kept.Release()
	kept.Release()
	call()
	await(t, back, "the release of what was kept")

	ctx, kept = Keep(w.ctx())
	fetch(ctx)
	call()
	manual.Advance(2 * time.Minute)
	await(t, back, "the end of the time to keep")
	kept.Release()
	call()

	ctx, _ = Keep(w.ctx())
	fetch(ctx)
	if len(w.cc.all) != 1 {
		t.Errorf("%d connections", len(w.cc.all))
	}
	w.cc.Close()
	await(t, back, "the end of the connection")
}

// TestUploadReferences: the server releases what it is done with while the call runs, and the rest with its end.
func TestUploadReferences(t *testing.T) {
	w, m := newShared(t, nil)
	var got []byte
	w.write = func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
		in := &rpc.Received{Head: &rpc.WriteHead{}, Begin: func(int) error { return nil },
			Chunk: func(p []byte) error { got = append(got, p...); return nil }}
		for {
			err := s.RecvMsg(in)
			if errors.Is(err, io.EOF) {
				return s.SendAndClose(&quirev1.WritePagesResponse{})
			}
			if err != nil {
				return err
			}
			if len(got) > 20 {
				return status.Error(codes.Aborted, "enough")
			}
		}
	}
	s, err := w.pages.WritePages(w.ctx())
	if err != nil {
		t.Fatal(err)
	}
	f := s.(*grpc.GenericClientStream[quirev1.WritePagesRequest, quirev1.WritePagesResponse]).ClientStream.(*Stream)
	send := func(text string) <-chan struct{} {
		t.Helper()
		b := []byte(text)
		ref, ok := f.Sharing().Refer(b)
		if !ok {
			t.Fatal("not shared")
		}
		back := make(chan struct{})
		pin := rpc.NewPin(func() { close(back) })
		if err := s.SendMsg(&rpc.Chunk{Head: []byte{24, 1}, Body: b, Pin: pin, Ref: &ref}); err != nil {
			t.Fatal(err)
		}
		pin.Done()
		return back
	}
	first := send("first")
	if settled(first) {
		t.Error("released before it was sent")
	}
	if err := f.AwaitRelease(); err != nil || !settled(first) {
		t.Error(err)
	}
	second := send("second")
	if _, err := s.CloseAndRecv(); err != nil || !settled(second) {
		t.Error(err)
	}
	if string(got) != "firstsecond" || m.done != 2 {
		t.Errorf("%q, %d done", got, m.done)
	}
	// A server that has had enough: AwaitRelease says so, and CloseAndRecv why.
	if s, err = w.pages.WritePages(w.ctx()); err != nil {
		t.Fatal(err)
	}
	f = s.(*grpc.GenericClientStream[quirev1.WritePagesRequest, quirev1.WritePagesResponse]).ClientStream.(*Stream)
	last := send("a third that is too long")
	for err == nil {
		err = f.AwaitRelease()
	}
	if err != io.EOF || !settled(last) {
		t.Error(err)
	}
	if _, err := s.CloseAndRecv(); status.Code(err) != codes.Aborted {
		t.Error(err)
	}
}

// TestReferenceRefused: a name that nobody gave, and a name where nothing is shared, end the call.
func TestReferenceRefused(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"nothing shared": func(c net.Conn) net.Conn { return plain{c} },
		"unknown name":   func(c net.Conn) net.Conn { return shared{c, &sharedMemory{}} },
	} {
		w := newWorld(t, how{wrap: wrap})
		w.fetch = func(_ *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			return s.SendMsg(&rpc.Chunk{Body: []byte("x"), Ref: &rpc.Ref{Slab: 7, Bytes: 1}})
		}
		s, err := w.pages.Fetch(w.ctx(), &quirev1.FetchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Recv(); status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", name, err)
		}
		if len(w.cc.all) != 0 {
			t.Errorf("%s: the connection is used again", name)
		}
	}
}
