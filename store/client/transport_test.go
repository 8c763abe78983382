package client

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/frame"
)

// twoFaced is a fake behind gRPC, and its frames, which may be stopped and started again at the same address.
type twoFaced struct {
	*fake
	t       *testing.T
	address string
	stop    func()
}

func newTwoFaced(t *testing.T) *twoFaced {
	f := &twoFaced{t: t, fake: &fake{}}
	f.exists = func(*quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
		return &quirev1.BatchExistsResponse{}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.address = l.Addr().String()
	s := grpc.NewServer()
	quirev1.RegisterPageServiceServer(s, f.fake)
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-served })
	return f
}

// start serves frames, at the address of before if there was one.
func (f *twoFaced) start(boot [16]byte) {
	address := f.data
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.data = l.Addr().String()
	s := frame.NewServer(frame.ServerOptions{Boot: boot})
	quirev1.RegisterPageServiceServer(s, f.fake)
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(l) }()
	f.stop = func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Stop(ctx)
		<-served
	}
}

func (f *twoFaced) dial(o Options) (*Client, error) {
	o.Address = f.address
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	f.t.Cleanup(cancel)
	c, err := Dial(ctx, o)
	if err == nil {
		f.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func (f *twoFaced) mustDial(o Options) *Client {
	f.t.Helper()
	c, err := f.dial(o)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func call(t *testing.T, c *Client) {
	t.Helper()
	if _, err := c.Pages().BatchExists(t.Context(), &quirev1.BatchExistsRequest{}); err != nil {
		t.Fatal(err)
	}
}

func uses(t *testing.T, c *Client, want Transport, why string) {
	t.Helper()
	if s := c.Stats(); s.Transport != want || !strings.Contains(s.Why, why) || (why == "") != (s.Why == "") {
		t.Errorf("%s because %q; want %s because of %q", s.Transport, s.Why, want, why)
	}
}

// TestFallback: calls go on over gRPC while nobody speaks frames, at Dial and later, and back when somebody does.
func TestFallback(t *testing.T) {
	f := newTwoFaced(t)
	f.start([16]byte{})
	f.stop()
	clk := clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	c := f.mustDial(Options{Clock: clk})
	uses(t, c, GRPC, "refused")
	call(t, c)
	f.start([16]byte{})
	call(t, c)
	uses(t, c, GRPC, "refused") // it rests
	clk.Advance(firstRest)
	call(t, c)
	uses(t, c, Data, "")
	f.stop()
	call(t, c)
	uses(t, c, GRPC, "data")
	if n := c.Stats().Fallbacks; n != 1 {
		t.Errorf("%d fallbacks", n)
	}
	f.start([16]byte{})
	defer f.stop()
	for range 3 {
		clk.Advance(longRest)
		call(t, c)
		uses(t, c, Data, "")
	}
}

// TestForcedTransport: what was asked for is taken, or Dial says why not.
func TestForcedTransport(t *testing.T) {
	f := newTwoFaced(t)
	if _, err := f.dial(Options{Transport: Data}); err == nil || !strings.Contains(err.Error(), errNotOffered.Error()) {
		t.Error(err)
	}
	uses(t, f.mustDial(Options{}), GRPC, "")
	f.start([16]byte{})
	uses(t, f.mustDial(Options{}), Data, "")
	c := f.mustDial(Options{Transport: GRPC})
	uses(t, c, GRPC, "")
	c = f.mustDial(Options{Transport: Data, Retries: -1})
	call(t, c)
	f.stop()
	if _, err := c.Pages().BatchExists(t.Context(), &quirev1.BatchExistsRequest{}); err == nil {
		t.Error("a call over a transport that was not asked for")
	}
	if _, err := f.dial(Options{Transport: Data}); err == nil {
		t.Error("nobody is there")
	}
	f.start([16]byte{7})
	defer f.stop()
	if _, err := f.dial(Options{Transport: Data}); err == nil || !strings.Contains(err.Error(), errAnotherNode.Error()) {
		t.Error(err)
	}
	uses(t, f.mustDial(Options{}), GRPC, errAnotherNode.Error())
}

func TestDataAddress(t *testing.T) {
	for _, c := range []struct{ grpc, data, want string }{
		{"h:1", "", ""}, {"h:1", ":2", "h:2"}, {"h:1", "0.0.0.0:2", "h:2"}, {"[fe80::1]:1", "[::]:2", "[fe80::1]:2"},
		{"h:1", "10.0.0.1:2", "10.0.0.1:2"}, {"h:1", "other:2", "other:2"},
	} {
		if got, err := dataAddress(c.grpc, &quirev1.GetCapabilitiesResponse{DataAddress: c.data}); err != nil || got != c.want {
			t.Errorf("%+v: %q %v", c, got, err)
		}
	}
	if _, err := dataAddress("h:1", &quirev1.GetCapabilitiesResponse{DataAddress: "garbage"}); err == nil {
		t.Error("garbage")
	}
	c := &Client{opt: Options{Address: "127.0.0.1:1", Token: "qk_x"}, caps: &quirev1.GetCapabilitiesResponse{DataAddress: "10.0.0.1:2"}}
	if _, err := c.dataDialer(); err != errTokenInClear {
		t.Errorf("the token would go to another host in the clear: %v", err)
	}
}
