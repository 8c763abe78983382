package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/rpc"
)

// Transport is a way to the page service. All answer alike; namespaces and administration always go over gRPC.
type Transport string

// The transports. Auto takes the first of SharedMemory, Data and GRPC that can be had, call by call.
const (
	Auto         Transport = ""
	SharedMemory Transport = "shm"  // frames over a UNIX socket, bytes in memory of both
	Data         Transport = "data" // frames over TCP
	GRPC         Transport = "grpc"
)

func (t Transport) valid() bool {
	return t == Auto || t == SharedMemory || t == Data || t == GRPC
}

func (t Transport) allows(x Transport) bool { return t == Auto || t == x }

// How long a transport that could not be reached is left alone: twice as long each time.
const (
	firstRest = time.Second
	longRest  = 30 * time.Second
)

// way is one transport that speaks frames.
//
//	up ──no connection──> resting ──rest is over, a call gets through──> up
type way struct {
	name  Transport
	cc    *frame.ClientConn
	clock clock.Clock

	mu    sync.Mutex // guards below
	why   error      // nil: up
	rest  time.Duration
	until clock.Instant
}

func (w *way) usable() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why == nil || w.clock.Now() >= w.until
}

// failed says why there is no connection; nil: there is one.
func (w *way) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why = err; err == nil {
		w.rest = 0
		return
	}
	w.rest = min(cmp.Or(2*w.rest, firstRest), longRest)
	w.until = w.clock.Now().Add(w.rest)
}

func (w *way) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// route is the grpc.ClientConnInterface of the page service: each call takes the first transport that has a
// connection. One that has none has sent nothing, so the call goes on to the next.
type route struct {
	c    *Client
	grpc *grpc.ClientConn
}

// over makes a call by f.
func (r *route) over(ctx context.Context, f func(grpc.ClientConnInterface) error) error {
	for _, w := range r.c.ways {
		if !w.usable() && r.c.opt.Transport == Auto {
			continue
		}
		err := f(w.cc)
		if !errors.Is(err, frame.ErrUnreachable) {
			if w.trouble() != nil {
				w.failed(nil)
			}
			return rpc.FromStatus(err)
		}
		if ctx.Err() != nil || r.c.opt.Transport != Auto {
			return rpc.FromStatus(err)
		}
		w.failed(err)
		r.c.stats.fallbacks.Add(1)
	}
	return f(r.grpc)
}

func (r *route) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	return r.over(ctx, func(cc grpc.ClientConnInterface) error { return cc.Invoke(ctx, method, args, reply, o...) })
}

func (r *route) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption) (s grpc.ClientStream, err error) {
	err = r.over(ctx, func(cc grpc.ClientConnInterface) (err error) {
		s, err = cc.NewStream(ctx, d, method, o...)
		return err
	})
	return s, err
}

// transport is what the next call takes, and why nothing better.
func (c *Client) transport() (t Transport, why error) {
	why = c.noFrames
	for _, w := range c.ways {
		e := w.trouble()
		if e == nil {
			return w.name, why
		}
		why = errors.Join(why, fmt.Errorf("%s: %w", w.name, e))
	}
	return GRPC, why
}

// choose finds the transports that server and options have in common. An error is one that was asked for and is not
// to be had.
func (c *Client) choose(ctx context.Context) error {
	for _, t := range []struct {
		name Transport
		dial func() (dialer, error)
	}{{SharedMemory, c.shmDialer}, {Data, c.dataDialer}} {
		if !c.opt.Transport.allows(t.name) {
			continue
		}
		dial, err := t.dial()
		if err == nil && dial != nil {
			err = c.addWay(ctx, t.name, dial)
		}
		if c.opt.Transport == t.name && (err != nil || dial == nil) {
			return fmt.Errorf("transport %s: %w", t.name, cmp.Or(err, errNotOffered))
		}
		if err != nil {
			c.noFrames = errors.Join(c.noFrames, fmt.Errorf("%s: %w", t.name, err))
		}
	}
	return nil
}

var (
	errNotOffered   = errors.New("the server does not offer it")
	errAnotherNode  = errors.New("another node, or another start of it, answers there")
	errTokenInClear = errors.New("the server names an address elsewhere, and without TLS the token would go in the clear")
)

type dialer = func(context.Context) (net.Conn, error)

// addWay adds a transport, resting if there is nobody yet.
func (c *Client) addWay(ctx context.Context, name Transport, dial dialer) error {
	w := &way{name: name, clock: c.opt.Clock, cc: frame.NewClientConn(frame.ClientOptions{
		Dial: dial, Token: c.opt.Token, Instance: c.opt.Instance, Conns: c.opt.DataConns,
		ConnectTimeout: c.opt.CallTimeout, MaxMessageBytes: maxMessageBytes,
	})}
	welcome, err := w.cc.Connect(ctx)
	if err == nil && string(welcome.Boot[:]) != string(c.caps.GetBootId()) {
		err = errAnotherNode
	}
	if err == errAnotherNode || err != nil && c.opt.Transport == name {
		w.cc.Close()
		return err
	}
	if err != nil {
		w.failed(err)
	}
	c.ways = append(c.ways, w)
	return nil
}

// dataDialer dials the data connections; nil: the server has none.
func (c *Client) dataDialer() (dialer, error) {
	address, err := dataAddress(c.opt.Address, c.caps)
	if address == "" || err != nil {
		return nil, err
	}
	if !c.opt.plaintext() {
		conf, err := c.opt.tls()
		if err != nil {
			return nil, err
		}
		conf.ServerName, _, _ = net.SplitHostPort(c.opt.Address)
		return func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", address)
		}, nil
	}
	if local, err := auth.Loopback(address); c.opt.Token != "" && !c.opt.Insecure && (err != nil || !local) {
		return nil, errTokenInClear
	}
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}, nil
}

// dataAddress is where the server has data connections: on the host that gRPC was reached at unless it names another.
func dataAddress(dialled string, caps *quirev1.GetCapabilitiesResponse) (string, error) {
	if caps.GetDataAddress() == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(caps.GetDataAddress())
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if _, local := rpc.UnixPath(dialled); local {
			host = "localhost"
		} else if host, _, err = net.SplitHostPort(dialled); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}
