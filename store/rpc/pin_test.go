package rpc

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/emptypb"
)

const guard = 20 * time.Second // of what must happen; never waited for when it does

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(guard):
		t.Fatalf("%s did not happen", what)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestPinReleasesOnce(t *testing.T) {
	for name, steps := range map[string][]func(p *Pin){
		"done, back":             {(*Pin).Done, (*Pin).Back},
		"back, done":             {(*Pin).Back, (*Pin).Done},
		"ended, done":            {(*Pin).ConnEnded, (*Pin).Done},
		"done, ended":            {(*Pin).Done, (*Pin).ConnEnded},
		"done, ended, late free": {(*Pin).Done, (*Pin).ConnEnded, (*Pin).Back},
	} {
		n := 0
		p := NewPin(func() { n++ })
		p.Lend()
		for i, step := range steps {
			step(p)
			if want := i > 0; (n == 1) != want {
				t.Errorf("%s: %d releases after step %d", name, n, i)
			}
		}
		p.Done()
		p.ConnEnded()
		if n != 1 {
			t.Errorf("%s: %d releases", name, n)
		}
	}
}

// TestDialUNIX: connections of one client over a UNIX socket, both ends of which have no name or one, are told apart.
func TestDialUNIX(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conns := NewConns()
	var ids []context.Context
	for range 2 {
		c, err := conns.Dial(t.Context(), "unix://"+path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ids = append(ids, conns.TagConn(t.Context(), &stats.ConnTagInfo{LocalAddr: c.LocalAddr(), RemoteAddr: c.RemoteAddr()}))
	}
	if a, b := ids[0].Value(connKey{}).(*conn), ids[1].Value(connKey{}).(*conn); a == b || a.raw == nil || b.raw == nil {
		t.Errorf("%+v and %+v", a, b)
	}
	if _, err := conns.Dial(t.Context(), "unix:"+path+"x"); err == nil {
		t.Error("dialled nobody")
	}
}

// gate is a listener whose connections can be made to stop reading, as a stopped process would.
type gate struct {
	net.Listener
	mu    sync.Mutex
	shut  chan struct{} // nil: open
	conns []net.Conn
}

func (g *gate) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, c)
	return gated{c, g}, nil
}

func (g *gate) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
}

func (g *gate) set(shut chan struct{}) { g.mu.Lock(); g.shut = shut; g.mu.Unlock() }

type gated struct {
	net.Conn
	g *gate
}

func (c gated) Read(p []byte) (int, error) {
	c.g.mu.Lock()
	shut := c.g.shut
	c.g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	return c.Conn.Read(p)
}

// pair is one client and one server with one bidirectional stream method whose handler the test gives.
type pair struct {
	gate   *gate
	conns  *Conns // the client's
	client *grpc.ClientConn
}

func newPair(t *testing.T, handle func(conns *Conns, s grpc.ServerStream) error) *pair {
	serverConns, codec := NewConns(), NewCodec()
	s := grpc.NewServer(grpc.ForceServerCodecV2(codec), grpc.StatsHandler(serverConns), grpc.MaxRecvMsgSize(8<<20))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "q", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "F", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, st grpc.ServerStream) error { return handle(serverConns, st) },
	}}}, struct{}{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{gate: &gate{Listener: l}, conns: NewConns()}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(p.gate) }()
	p.client, err = grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20), grpc.WithContextDialer(p.conns.Dial),
		grpc.WithStatsHandler(p.conns), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec), grpc.MaxRetryRPCBufferSize(0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.client.Close(); s.Stop(); <-served })
	return p
}

func (p *pair) stream(t *testing.T, ctx context.Context) grpc.ClientStream {
	st, err := p.client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/q/F")
	if err != nil {
		t.Fatal(err)
	}
	return st
}

const chunks = 64 // of 1 MiB: far more than the windows let through unread

// TestServerPinReturns: a handler that lends far more than the client's window gets its pin back when the client
// drains, cancels, or its connection dies, and not before.
func TestServerPinReturns(t *testing.T) {
	for _, how := range []string{"drain", "cancel", "kill"} {
		t.Run(how, func(t *testing.T) {
			released := make(chan struct{})
			body := make([]byte, 1<<20)
			body[5] = 7
			p := newPair(t, func(conns *Conns, st grpc.ServerStream) (err error) {
				pin := conns.Pin(st.Context(), func() { close(released) })
				defer pin.Done()
				for i := 0; i < chunks && err == nil; i++ {
					err = st.SendMsg(&Chunk{Body: body, Pin: pin})
				}
				return err
			})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			st := p.stream(t, ctx)
			r := newCollect(&FetchHead{})
			if err := st.RecvMsg(&r.Received); err != nil || len(r.chunk) != 1<<20 || r.chunk[5] != 7 {
				t.Fatal(err, len(r.chunk))
			}
			if closed(released) {
				t.Fatal("released while the handler was sending")
			}
			switch how {
			case "cancel":
				cancel()
			case "kill":
				p.gate.kill()
			case "drain":
				for r.chunk = nil; st.RecvMsg(&r.Received) == nil; r.chunk = nil {
				}
			}
			await(t, released, "the release of the pin")
		})
	}
}

// TestClientPinReturns: lent memory of a sender comes back when the server reads it all, refuses, dies, or stops
// reading; in the last case only because the connection is broken on purpose.
func TestClientPinReturns(t *testing.T) {
	for _, how := range []string{"read", "refuse", "kill", "stuck"} {
		t.Run(how, func(t *testing.T) {
			began, shut := make(chan struct{}), make(chan struct{})
			p := newPair(t, func(_ *Conns, st grpc.ServerStream) error {
				r := newCollect(&WriteHead{})
				if err := st.RecvMsg(&r.Received); err != nil {
					return err
				}
				close(began)
				switch how {
				case "refuse":
					return nil
				case "read":
					for r.chunk = nil; st.RecvMsg(&r.Received) == nil; r.chunk = nil {
					}
					return nil
				}
				<-st.Context().Done()
				return nil
			})
			t.Cleanup(func() { close(shut) })
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			released := make(chan struct{})
			ctx, pin := p.conns.Lend(ctx, func() { close(released) })
			st := p.stream(t, ctx)
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				body := make([]byte, 1<<20)
				for i := 0; i < chunks && st.SendMsg(&Chunk{Body: body, Pin: pin}) == nil; i++ {
				}
				st.CloseSend()
			}()
			await(t, began, "the first chunk")
			switch how {
			case "kill":
				p.gate.kill()
			case "stuck":
				p.gate.set(shut)
				cancel()
			}
			for st.RecvMsg(&emptypb.Empty{}) == nil {
			}
			await(t, sent, "the end of sending")
			if closed(released) {
				t.Fatal("released before the sender was done")
			}
			pin.Done()
			if how == "stuck" {
				p.conns.Break(pin)
			}
			await(t, released, "the release of the pin")
		})
	}
}

// TestConnsForgetsFailedDials: dials that never became connections do not pile up.
func TestConnsForgetsFailedDials(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewConns()
	for range 5 {
		raw, err := c.Dial(context.Background(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		raw.Close()
	}
	if n := len(c.dialed); n != 1 {
		t.Fatalf("%d remembered", n)
	}
	raw, _ := c.Dial(context.Background(), l.Addr().String())
	defer raw.Close()
	ctx := c.TagConn(context.Background(), &stats.ConnTagInfo{LocalAddr: raw.LocalAddr()})
	c.HandleConn(ctx, &stats.ConnEnd{Client: true})
	if n := len(c.dialed); n != 0 {
		t.Fatalf("%d remembered after the end", n)
	}
}
