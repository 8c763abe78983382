package frame

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

// said is a connection that reads what a test gives and takes whatever is written.
type said struct {
	net.Conn
	b []byte
}

func (s *said) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}
func (s *said) ReadFull(p []byte) error { _, err := io.ReadFull(readerOf{s}, p); return err }
func (s *said) Write([][]byte) error    { return nil }
func (s *said) Gone() bool              { return false }
func (s *said) Ready() bool             { return false }
func (s *said) Close() error            { return nil }

type readerOf struct{ s *said }

func (r readerOf) Read(p []byte) (int, error) { return r.s.Read(p) }

func frameBytes(h header, body, data []byte) []byte {
	h.body, h.data = uint32(len(body)), uint32(len(data))
	b := make([]byte, headerBytes)
	h.put(b)
	return append(append(b, body...), data...)
}

// FuzzServer: whatever a client says after its hello, nothing panics, and no more memory is taken than what came.
func FuzzServer(f *testing.F) {
	h := header{kind: kindRequest, method: 10, call: 1}
	f.Add(frameBytes(h, nil, nil))
	h.method, h.flags = 5, flagMore
	upload := frameBytes(h, nil, nil)
	var b batch
	b.add(&rpc.Chunk{Head: []byte{24, 1}, Body: []byte("payload")})
	b.add(&rpc.Chunk{Head: []byte{24, 2}, Body: []byte("other"), Ref: &rpc.Ref{}})
	m := header{kind: kindMessage, flags: flagChunks, call: 1}
	upload = append(upload, frameBytes(m, b.head[headerBytes:], []byte("payload"))...)
	f.Add(append(upload, frameBytes(header{kind: kindEnd, call: 1}, nil, nil)...))
	f.Add(frameBytes(header{kind: kindRelease, call: 9, extra: 1 << 31}, nil, nil))
	svc := &fake{
		fetch: func(r *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			return s.Send(&quirev1.FetchResponse{Page: 1})
		},
		write: func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			in := &rpc.Received{Head: &rpc.WriteHead{}, Begin: func(int) error { return nil }, Chunk: func([]byte) error { return nil }}
			for {
				if err := s.RecvMsg(in); err == io.EOF {
					return s.SendAndClose(&quirev1.WritePagesResponse{})
				} else if err != nil {
					return err
				}
				if _, err := s.Recv(); err != nil && err != io.EOF {
					return err
				}
			}
		},
		exists: func(context.Context, *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			return nil, errors.New("no")
		},
		attach: func(grpc.ServerStreamingServer[quirev1.AttachResponse]) error { return nil },
	}
	s := NewServer(ServerOptions{MaxMessageBytes: 1 << 20})
	quirev1.RegisterPageServiceServer(s, svc)
	f.Fuzz(func(t *testing.T, b []byte) {
		k := &serverConn{s: s, conn: newConn(&said{b: b}, &sharedMemory{}, limits{1 << 20, maxDataBytes}, s.pieces)}
		k.gives = k.takes
		k.ctx, k.cancel = context.WithCancelCause(context.Background())
		k.loop()
		k.end()
	})
}

// FuzzClient: whatever a server answers, nothing panics.
func FuzzClient(f *testing.F) {
	f.Add(frameBytes(header{kind: kindStatus, call: 1}, nil, nil), true)
	f.Add(frameBytes(header{kind: kindResponse, call: 1}, []byte{10, 1, 1}, nil), false)
	var b batch
	b.add(&rpc.Chunk{Head: []byte{8, 1}, Body: []byte("payload")})
	m := header{kind: kindMessage, flags: flagChunks, call: 1}
	f.Add(frameBytes(m, b.head[headerBytes:], []byte("payload")), true)
	f.Fuzz(func(t *testing.T, b []byte, stream bool) {
		cc := NewClientConn(ClientOptions{})
		k := &clientConn{conn: newConn(&said{b: b}, nil, limits{1 << 20, maxDataBytes}, cc.pieces)}
		k.gives, k.x.c = k.takes, k.conn
		cc.idle, cc.all[k] = []*clientConn{k}, struct{}{}
		pages := quirev1.NewPageServiceClient(cc)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if !stream {
			pages.BatchExists(ctx, &quirev1.BatchExistsRequest{})
			return
		}
		s, err := pages.Fetch(ctx, &quirev1.FetchRequest{})
		if err != nil {
			return
		}
		placed := make([]byte, 10)
		in := &rpc.Received{Head: &rpc.FetchHead{}, Begin: func(int) error { return nil }, Chunk: func([]byte) error { return nil }}
		in.Place, in.Placed = func(n int) []byte { return placed[:min(n, len(placed))] }, func() {}
		for err == nil {
			if err = s.RecvMsg(in); err == nil {
				_, err = s.Recv()
			}
		}
	})
}
