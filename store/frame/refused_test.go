package frame

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

// TestARefusedWriteLeavesTheConnection: a write that is refused at the first chunk of a batch with bytes behind it; the call
// after it, sent before the refusal came, is answered.
func TestARefusedWriteLeavesTheConnection(t *testing.T) {
	w := newWorld(t, how{})
	w.write = func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
		in := &rpc.Received{Head: &rpc.WriteHead{}, Begin: func(int) error { return nil }, Chunk: func([]byte) error { return nil }}
		if err := s.RecvMsg(in); err != nil {
			t.Error(err)
		}
		return status.Error(codes.ResourceExhausted, "no more")
	}
	w.exists = func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		return &quirev1.BatchExistsResponse{Present: []byte{1}}, nil
	}
	c, err := net.Dial("tcp", w.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(guard))
	var out []byte
	frame := func(h header, body, data []byte) {
		h.body, h.data = uint32(len(body)), uint32(len(data))
		var b [headerBytes]byte
		h.put(b[:])
		out = append(append(append(out, b[:]...), body...), data...)
	}
	frame(header{kind: kindHello}, []byte{1, 0, 0, 0, 0, 0, 0, 0}, nil)
	frame(header{kind: kindRequest, method: 5, call: 1, flags: flagMore}, nil, nil)
	for range 2 {
		var entries []byte
		for range 3 {
			entries = binary.LittleEndian.AppendUint32(entries, 2)
			entries = append(binary.LittleEndian.AppendUint32(entries, 100_000), 24, 1)
		}
		frame(header{kind: kindMessage, method: 5, call: 1, flags: flagChunks}, entries, bytes.Repeat([]byte("QRF1"), 75_000))
	}
	frame(header{kind: kindEnd, method: 5, call: 1}, nil, nil)
	frame(header{kind: kindRequest, method: 3, call: 2}, nil, nil)
	if _, err := c.Write(out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []kind{kindWelcome, kindStatus, kindResponse} {
		var b [headerBytes]byte
		var h header
		if _, err := io.ReadFull(c, b[:]); err != nil {
			t.Fatalf("kind %d: %v", want, err)
		}
		if err := h.decode(&b, &limits{1 << 20, 1 << 20}); err != nil || h.kind != want {
			t.Fatalf("kind %d, want %d: %v", h.kind, want, err)
		}
		if _, err := io.CopyN(io.Discard, c, int64(h.body)); err != nil {
			t.Fatal(err)
		}
	}
}
