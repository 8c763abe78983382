package frame

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/quire-kv/quire/store/rpc"
)

// noticeAfter is how long a call runs before its connection is watched for the end of its client. Shorter calls would
// pay a goroutine each for nothing.
const noticeAfter = 2 * time.Millisecond

// serverConn is one connection of a server:
//
//	accepted ─TLS─ hello ──> idle ──request──> busy ──status──> idle ... ──> closed
type serverConn struct {
	s     *Server
	net   net.Conn
	name  string // who said hello, once named
	named bool
	*conn
	ctx    context.Context // of all its calls; ends with the connection
	cancel context.CancelCauseFunc

	mu       sync.Mutex // guards below
	closed   bool
	busy     bool
	leaving  bool // close when idle
	watching bool
	unlook   func() bool
	held     map[uint32]*held // references that outlive their call

	x     exchange
	begun rpc.Begun
}

// held are the pins of a call that is over, until the client has released what it was referred to.
type held struct {
	stop func() bool

	mu   sync.Mutex // guards lent
	lent lent
}

// Addr is the address of a connection's other end, as peer.FromContext tells a handler.
type Addr struct {
	net.Addr
	conn *serverConn
}

// Break ends the connection under its call: for a client that takes nothing.
func (a Addr) Break() { a.conn.breakOff(errSlow) }

var errSlow = status.Error(codes.Unavailable, "the client takes nothing")

func (k *serverConn) serve() {
	defer k.end()
	if k.greet() == nil {
		k.loop()
	}
}

// end closes the connection and gives back all that its client held.
func (k *serverConn) end() {
	k.breakOff(net.ErrClosed)
	if k.conn != nil {
		k.join() // a read ahead ends with the connection
	}
	k.letGo()
}

// loop takes one call after the other, until the connection ends.
func (k *serverConn) loop() {
	defer k.flushLater()
	for {
		k.exact = false
		var h header
		if k.next(&h) != nil {
			return
		}
		switch h.kind {
		case kindRelease:
			if h.body != 0 || k.releaseHeld(h.call, h.extra) != nil {
				return
			}
		case kindRequest:
			if !k.begin() || k.handle(&h) != nil || !k.rest() {
				return
			}
		default:
			return
		}
	}
}

// greet goes from accept to welcome within HelloTimeout.
func (k *serverConn) greet() error {
	o := &k.s.o
	defer o.Clock.AfterFunc(o.HelloTimeout, func() { k.breakOff(context.DeadlineExceeded) })()
	c, info, err := k.secure()
	if err != nil {
		return err
	}
	sharing, _ := c.(rpc.Sharing)
	w := wireOf(c)
	k.mu.Lock()
	k.conn = newConn(w, sharing, limits{body: helloBodyBytes}, k.s.pieces)
	closed := k.closed
	k.mu.Unlock()
	if closed {
		w.Close()
		return net.ErrClosed
	}
	k.gives = limits{o.MaxMessageBytes, maxDataBytes}
	var h header
	if err := k.next(&h); err != nil {
		return err
	}
	body, err := k.readBody(int(h.body))
	if err != nil {
		return err
	}
	var said hello
	if err := said.decode(body); err != nil || h.kind != kindHello {
		return ErrProtocol
	}
	if said.version < Version {
		return k.refuse(status.Error(codes.FailedPrecondition, fmt.Sprintf("version %d of the frames is not spoken here", said.version)))
	}
	k.dress(&said, info, sharing)
	name, err := o.Identify(k.ctx)
	if err == nil {
		err = k.s.name(k, name)
	}
	if err != nil {
		return k.refuse(err)
	}
	k.takes = limits{o.MaxMessageBytes, maxDataBytes}
	welcome := (&Welcome{Version: Version, BodyBytes: uint32(o.MaxMessageBytes), DataBytes: maxDataBytes, Boot: o.Boot}).append(make([]byte, headerBytes))
	if _, err := k.seal(welcome, 0, header{kind: kindWelcome}); err != nil {
		return err
	}
	return k.write([][]byte{welcome})
}

// secure does what TLS does.
func (k *serverConn) secure() (net.Conn, credentials.AuthInfo, error) {
	tune(k.net)
	if k.s.o.TLS == nil {
		if a, ok := k.net.(interface{ AuthInfo() credentials.AuthInfo }); ok {
			return k.net, a.AuthInfo(), nil
		}
		return k.net, nil, nil
	}
	t := tls.Server(k.net, k.s.o.TLS)
	if err := t.HandshakeContext(k.ctx); err != nil {
		return nil, nil, err
	}
	common := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return t, credentials.TLSInfo{State: t.ConnectionState(), CommonAuthInfo: common}, nil
}

// dress makes the context of all calls say who calls, as gRPC would.
func (k *serverConn) dress(h *hello, info credentials.AuthInfo, sharing rpc.Sharing) {
	p := &peer.Peer{Addr: Addr{k.net.RemoteAddr(), k}, LocalAddr: k.net.LocalAddr(), AuthInfo: info}
	k.ctx = peer.NewContext(k.ctx, p)
	md := metadata.MD{}
	if h.token != "" {
		md.Set("authorization", "Bearer "+h.token)
	}
	k.ctx = metadata.NewIncomingContext(k.ctx, md)
	k.ctx = rpc.WithBegun(k.ctx, &k.begun)
	if sharing != nil {
		k.ctx = rpc.WithSharing(k.ctx, sharing)
	}
}

func (k *serverConn) refuse(err error) error {
	b, e := k.appendFrame(nil, header{kind: kindStatus}, statusOf(err).Proto())
	if e == nil {
		k.write([][]byte{b})
	}
	return err
}

// begin makes the connection busy; false: it is to end.
func (k *serverConn) begin() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy = !k.leaving && !k.closed
	return k.busy
}

// rest makes it idle.
func (k *serverConn) rest() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy = false
	return !k.leaving && !k.closed
}

// retire closes the connection as soon as it has no call.
func (k *serverConn) retire() {
	k.mu.Lock()
	k.leaving = true
	busy := k.busy
	k.mu.Unlock()
	if !busy {
		k.breakOff(errStopping)
	}
}

// breakOff ends the connection and the contexts of its calls. Idempotent.
func (k *serverConn) breakOff(why error) {
	k.mu.Lock()
	first := !k.closed
	k.closed = true
	var w wire
	if k.conn != nil {
		w = k.wire
	}
	k.mu.Unlock()
	if !first {
		return
	}
	k.cancel(why)
	if w == nil {
		k.net.Close()
		return
	}
	w.Close()
}

// watch notices, for as long as a call runs, when its client is gone. It must not read meanwhile. unwatch ends it.
func (k *serverConn) watch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watching = true
	k.unlook = k.s.o.Clock.AfterFunc(noticeAfter, k.look)
}

func (k *serverConn) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.watching || k.closed {
		return
	}
	k.ahead(k.breakOff)
	if k.owing.Load() { // who waits for an answer does not wait for a long call behind it
		go func() {
			if err := k.flushLater(); err != nil {
				k.breakOff(err)
			}
		}()
	}
}

func (k *serverConn) unwatch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.watching = false
	k.unlook()
}

// hold keeps what the client of x was referred to after the call, until it is released or Hold is over.
func (k *serverConn) hold(x *exchange) {
	if x.lent.all() {
		return
	}
	h := &held{lent: x.lent}
	x.lent = lent{}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = map[uint32]*held{}
	}
	call := x.call
	k.held[call] = h
	h.stop = k.s.o.Clock.AfterFunc(k.s.o.Hold, func() { k.dropHeld(call, h) })
}

// releaseHeld gives back what the client has released of a call that is over.
func (k *serverConn) releaseHeld(call, count uint32) error {
	k.mu.Lock()
	h := k.held[call]
	k.mu.Unlock()
	if h == nil {
		return nil // the time to hold it was over
	}
	h.mu.Lock()
	back, err := h.lent.upTo(count)
	all := h.lent.all()
	h.mu.Unlock()
	giveBack(back)
	if all {
		k.dropHeld(call, h)
	}
	return err
}

func (k *serverConn) dropHeld(call uint32, h *held) {
	k.mu.Lock()
	if k.held[call] == h {
		delete(k.held, call)
		h.stop()
	}
	k.mu.Unlock()
	h.mu.Lock()
	back := h.lent.rest()
	h.mu.Unlock()
	giveBack(back)
}

// letGo gives back everything: the connection has ended, and the client with it.
func (k *serverConn) letGo() {
	k.mu.Lock()
	left := maps.Clone(k.held)
	k.mu.Unlock()
	for call, h := range left {
		k.dropHeld(call, h)
	}
}
