package frame

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/rpc"
)

const guard = 20 * time.Second // of what must happen; never waited for when it does

// fake is a page service whose methods a test gives.
type fake struct {
	quirev1.UnimplementedPageServiceServer
	exists func(ctx context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error)
	fetch  func(r *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error
	write  func(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error
	attach func(s grpc.ServerStreamingServer[quirev1.AttachResponse]) error
}

func (f *fake) BatchExists(ctx context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
	return f.exists(ctx, r)
}

func (f *fake) Fetch(r *quirev1.FetchRequest, s grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
	return f.fetch(r, s)
}

func (f *fake) WritePages(s grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
	return f.write(s)
}

func (f *fake) Attach(_ *quirev1.AttachRequest, s grpc.ServerStreamingServer[quirev1.AttachResponse]) error {
	return f.attach(s)
}

// world is a server with a fake and a client of it.
type world struct {
	*fake
	t      testing.TB
	server *Server
	l      net.Listener
	cc     *ClientConn
	pages  quirev1.PageServiceClient
}

// how is a way that connections of a world are made.
type how struct {
	name   string
	wrap   func(net.Conn) net.Conn // both ends; nil: raw
	server ServerOptions
	client ClientOptions
	tls    *tls.Config // the client's
}

// plain hides what a connection is: frames go by Read and Write.
type plain struct{ net.Conn }

var ways = []how{
	{name: "raw"},
	{name: "plain", wrap: func(c net.Conn) net.Conn { return plain{c} }},
}

// each runs a test over raw and over other connections.
func each(t *testing.T, test func(t *testing.T, w *world)) {
	for _, h := range ways {
		t.Run(h.name, func(t *testing.T) { test(t, newWorld(t, h)) })
	}
}

type wrapping struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

func (l wrapping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.wrap != nil {
		c = l.wrap(c)
	}
	return c, err
}

func newWorld(t testing.TB, h how) *world {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, fake: &fake{}, l: l, server: NewServer(h.server)}
	quirev1.RegisterPageServiceServer(w.server, w.fake)
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(wrapping{l, h.wrap}) }()
	o := h.client
	o.Dial = func(ctx context.Context) (net.Conn, error) {
		if h.tls != nil {
			return (&tls.Dialer{Config: h.tls}).DialContext(ctx, "tcp", l.Addr().String())
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err == nil && h.wrap != nil {
			c = h.wrap(c)
		}
		return c, err
	}
	w.cc = NewClientConn(o)
	w.pages = quirev1.NewPageServiceClient(w.cc)
	t.Cleanup(func() {
		w.cc.Close()
		ctx, cancel := context.WithTimeout(context.Background(), guard)
		defer cancel()
		if err := w.server.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	w.t.Cleanup(cancel)
	return ctx
}

func await(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(guard):
		t.Fatalf("%s did not happen", what)
	}
}

// shared is a connection whose ends share the memory that a test registers. Resolve of what is not there is an error.
type shared struct {
	net.Conn
	m *sharedMemory
}

type sharedMemory struct {
	mu   sync.Mutex // guards below
	all  [][]byte
	done int
}

func (m *sharedMemory) Refer(b []byte) (rpc.Ref, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, b)
	return rpc.Ref{Slab: uint64(len(m.all) - 1), Bytes: uint64(len(b))}, true
}

func (m *sharedMemory) Resolve(r *rpc.Ref) ([]byte, func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Slab >= uint64(len(m.all)) {
		return nil, nil, net.ErrClosed
	}
	return m.all[r.Slab], func() { m.mu.Lock(); m.done++; m.mu.Unlock() }, nil
}

func (m *sharedMemory) Valid(*rpc.Ref) bool { return true }

func (s shared) Refer(b []byte) (rpc.Ref, bool)             { return s.m.Refer(b) }
func (s shared) Resolve(r *rpc.Ref) ([]byte, func(), error) { return s.m.Resolve(r) }
func (s shared) Valid(r *rpc.Ref) bool                      { return s.m.Valid(r) }
