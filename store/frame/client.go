package frame

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quire-kv/quire/store/rpc"
)

// ErrUnreachable says that there is no connection and none could be made. Nothing of the call was sent: it may take
// another way. errors.Is tells it; the status is UNAVAILABLE, or what the server refused the connection with.
var ErrUnreachable = errors.New("frame: no connection")

// ClientOptions of a ClientConn. Zero values are documented defaults.
type ClientOptions struct {
	// Dial makes one more connection, TLS included. Required.
	Dial            func(ctx context.Context) (net.Conn, error)
	Token, Instance string
	// Conns is how many bulk streams run at once, and how many other calls; default 4. More wait. Streams that live
	// long have connections of their own.
	Conns           int
	ConnectTimeout  time.Duration // of a dial and hello; default 5 s, less where the call has less
	MaxMessageBytes int           // received; default 32 MiB
}

// ClientConn is a grpc.ClientConnInterface over a pool of connections. Connections are made when they are needed.
// Safe for concurrent use.
type ClientConn struct {
	o      ClientOptions
	slots  [numClasses]chan struct{}
	pieces *sync.Pool

	mu     sync.Mutex // guards below
	closed bool
	idle   []*clientConn // the one used last is last
	all    map[*clientConn]struct{}
}

// clientConn is one connection, used by one call at a time.
type clientConn struct {
	*conn
	call uint32
	x    exchange
}

// class is a kind of calls that share a bound, so that none waits for one of another kind: a lease is renewed while
// all bulk streams run.
type class int

const (
	bulk class = iota
	short
	long
	numClasses
)

const maxLong = 256 // streams that live long

func classOf(method string, isStream bool) class {
	switch {
	case longLived(method):
		return long
	case isStream:
		return bulk
	}
	return short
}

// NewClientConn makes a ClientConn without a connection.
func NewClientConn(o ClientOptions) *ClientConn {
	o.Conns = cmp.Or(o.Conns, 4)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 5*time.Second)
	o.MaxMessageBytes = cmp.Or(o.MaxMessageBytes, 32<<20)
	c := &ClientConn{o: o, pieces: newPieces(), all: map[*clientConn]struct{}{}}
	c.slots = [numClasses]chan struct{}{make(chan struct{}, o.Conns), make(chan struct{}, o.Conns), make(chan struct{}, maxLong)}
	return c
}

var errClosed = status.Error(codes.Canceled, "the client is closed")

// Connect makes a connection now and keeps it: to see whether and whose server is there.
func (c *ClientConn) Connect(ctx context.Context) (Welcome, error) {
	k, w, err := c.connect(ctx)
	if err != nil {
		return Welcome{}, err
	}
	c.putBack(k)
	return w, nil
}

// acquire takes a connection for one call.
func (c *ClientConn) acquire(ctx context.Context, of class) (*clientConn, error) {
	select {
	case c.slots[of] <- struct{}{}:
	default:
		select {
		case c.slots[of] <- struct{}{}:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	if k := c.takeIdle(); k != nil {
		return k, nil
	}
	k, _, err := c.connect(ctx)
	if err != nil {
		<-c.slots[of]
		return nil, err
	}
	return k, nil
}

// free gives a connection and its place back. Only one whose call has ended well may be used again.
func (c *ClientConn) free(k *clientConn, of class, ended bool) {
	if k.x.end(); ended {
		c.putBack(k)
	} else {
		c.discard(k)
	}
	<-c.slots[of]
}

// takeIdle is the connection that was used last, if the server has not closed it meanwhile.
func (c *ClientConn) takeIdle() *clientConn {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			return nil
		}
		k := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if !k.wire.Gone() {
			return k
		}
		c.discard(k)
	}
}

func (c *ClientConn) putBack(k *clientConn) {
	c.mu.Lock()
	if !c.closed {
		c.idle = append(c.idle, k)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.discard(k)
}

func (c *ClientConn) discard(k *clientConn) {
	c.mu.Lock()
	delete(c.all, k)
	c.mu.Unlock()
	k.wire.Close()
}

// connect dials and says hello.
func (c *ClientConn) connect(call context.Context) (*clientConn, Welcome, error) {
	ctx, cancel := context.WithTimeout(call, c.o.ConnectTimeout)
	defer cancel()
	raw, err := c.o.Dial(ctx)
	if err != nil {
		return nil, Welcome{}, unreachable(call, err)
	}
	tune(raw)
	if t, ok := raw.(interface{ NetConn() net.Conn }); ok {
		tune(t.NetConn())
	}
	sharing, _ := raw.(rpc.Sharing)
	k := &clientConn{conn: newConn(wireOf(raw), sharing, limits{body: helloBodyBytes}, c.pieces)}
	k.x.c = k.conn
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.all[k] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		k.wire.Close()
		return nil, Welcome{}, errClosed
	}
	stop := context.AfterFunc(ctx, func() { k.wire.Close() })
	w, err := c.greet(k)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.discard(k)
		return nil, w, unreachable(call, err)
	}
	return k, w, nil
}

func (c *ClientConn) greet(k *clientConn) (w Welcome, err error) {
	b, err := (&hello{version: Version, token: c.o.Token, instance: c.o.Instance}).append(make([]byte, headerBytes))
	if err != nil {
		return w, err
	}
	k.gives = limits{body: helloBodyBytes}
	if _, err = k.seal(b, 0, header{kind: kindHello}); err != nil {
		return w, err
	}
	if err = k.write([][]byte{b}); err != nil {
		return w, err
	}
	var h header
	if err = k.next(&h); err != nil {
		return w, err
	}
	body, err := k.readBody(int(h.body))
	switch {
	case err != nil:
		return w, err
	case h.kind == kindStatus:
		return w, readStatus(body)
	case h.kind != kindWelcome:
		return w, fmt.Errorf("%w: kind %d in place of a welcome", ErrProtocol, h.kind)
	}
	if err = w.decode(body); err != nil {
		return w, err
	}
	k.takes = limits{c.o.MaxMessageBytes, maxDataBytes}
	k.gives = limits{int(min(w.BodyBytes, 1<<30)), int(w.DataBytes)}
	if k.gives.body < 2*windowHeadBytes || k.gives.data < maxDataBytes {
		return w, fmt.Errorf("%w: the server takes bodies of %d and data of %d bytes", ErrProtocol, w.BodyBytes, w.DataBytes)
	}
	return w, nil
}

// unreachable is err as the end of a call of which nothing was sent. Where the call itself is over, that is its status,
// whatever its connection says: it was closed for that.
func unreachable(call context.Context, err error) error {
	s, ok := status.FromError(err)
	if over := ended(call); !ok && over != nil {
		s = status.FromContextError(over)
	} else if !ok {
		s = status.New(codes.Unavailable, err.Error())
	}
	return &unreachableError{s, err}
}

// unreachableError is ErrUnreachable with its status.
type unreachableError struct {
	s     *status.Status
	cause error
}

func (e *unreachableError) Error() string              { return e.s.Message() }
func (e *unreachableError) GRPCStatus() *status.Status { return e.s }
func (e *unreachableError) Unwrap() []error            { return []error{ErrUnreachable, e.cause} }

// readStatus is the error that a status frame says; nil: none.
func readStatus(body []byte) error {
	p := status.New(codes.OK, "").Proto()
	if err := unmarshal(body, p); err != nil {
		return err
	}
	return status.FromProto(p).Err()
}

// Close ends all calls and connections. Idempotent.
func (c *ClientConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.idle = nil
	all := c.all
	c.all = map[*clientConn]struct{}{}
	c.mu.Unlock()
	for k := range all {
		k.wire.Close()
	}
	return nil
}

// start makes k ready for a call and appends its request to what goes out next.
func (k *clientConn) start(ctx context.Context, method uint16, flags uint8, m proto.Message) (err error) {
	k.call++
	x := &k.x
	x.method, x.call = method, k.call
	h := x.header(kindRequest)
	h.flags = flags
	if h.extra, err = timeLeft(ctx); err != nil {
		return err
	}
	x.before, err = k.appendFrame(x.before, h, m)
	return err
}

// failed is the status of a call that an error of its connection ended.
func (c *ClientConn) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return errClosed
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	case errors.Is(err, ErrTooLarge):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, ErrProtocol), errors.Is(err, errNoMessage):
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(codes.Unavailable, "connection: "+err.Error())
}
