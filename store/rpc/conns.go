package rpc

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/stats"
)

// Conns is a stats.Handler that ends pins with the connection that carries them. A server passes it by
// grpc.StatsHandler and takes pins from Pin; a client passes it by grpc.WithStatsHandler, dials by Dial and takes
// pins from Lend. gRPC reports the end of a connection after its reader and its writer are through. Safe for
// concurrent use.
type Conns struct {
	mu     sync.Mutex       // guards dialed and conn.tagged
	dialed map[string]*conn // client: live connections by local address; at most one dial runs at a time
	dials  uint64
}

// NewConns returns a handler for one server or one client connection.
func NewConns() *Conns { return &Conns{dialed: map[string]*conn{}} }

type (
	connKey struct{}
	pinKey  struct{}
)

// conn is one live connection and the pins that end with it.
type conn struct {
	raw    net.Conn // client only
	tagged bool     // the handshake succeeded: gRPC will report the end

	mu    sync.Mutex // guards below; never taken with a Pin's
	ended bool
	pins  map[*Pin]struct{}
}

// Pin returns a pin that ends with the connection on which the server handles ctx.
func (c *Conns) Pin(ctx context.Context, release func()) *Pin {
	p := NewPin(release)
	if k, ok := ctx.Value(connKey{}).(*conn); ok {
		p.bind(k)
	}
	return p
}

// Lend returns a pin for the one stream that is opened with the context returned: it ends with the connection that
// the stream gets. The stream must not be retried by gRPC once it has sent (grpc.MaxRetryRPCBufferSize(0)).
func (c *Conns) Lend(ctx context.Context, release func()) (context.Context, *Pin) {
	p := NewPin(release)
	return context.WithValue(ctx, pinKey{}, p), p
}

// UnixPath is the path of an address "unix:/path"; "unix:///path" is the same. ok is false for host:port.
func UnixPath(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, "unix:")
	if ok && path != "" {
		path = filepath.Clean(path)
	}
	return path, ok
}

// Dial is a grpc.WithContextDialer over TCP, or over a UNIX socket (UnixPath), that remembers what it dialled.
func (c *Conns) Dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	path, local := UnixPath(address)
	if local {
		network, address = "unix", path
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if local {
		c.dials++
		raw = named{raw, localName(c.dials)}
	}
	for a, k := range c.dialed {
		if !k.tagged {
			delete(c.dialed, a) // an earlier dial whose handshake failed
		}
	}
	c.dialed[raw.LocalAddr().String()] = &conn{raw: raw}
	return raw, nil
}

// Break closes the connection that carries p: for a peer that does not read, so that lent memory returns.
func (c *Conns) Break(p *Pin) {
	p.mu.Lock()
	k := p.conn
	p.mu.Unlock()
	if k != nil && k.raw != nil {
		k.raw.Close()
	}
}

// TagConn remembers the connection in its context.
func (c *Conns) TagConn(ctx context.Context, i *stats.ConnTagInfo) context.Context {
	k := c.byAddr(i.LocalAddr)
	if k == nil {
		k = &conn{}
	}
	c.mu.Lock()
	k.tagged = true
	c.mu.Unlock()
	return context.WithValue(ctx, connKey{}, k)
}

// HandleConn ends the pins of a connection that ended.
func (c *Conns) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); !ok {
		return
	}
	k, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return
	}
	if k.raw != nil {
		c.drop(k)
	}
	k.end()
}

// TagRPC adds nothing.
func (c *Conns) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC learns which connection a lending stream got.
func (c *Conns) HandleRPC(ctx context.Context, s stats.RPCStats) {
	h, ok := s.(*stats.OutHeader)
	if !ok || !h.Client {
		return
	}
	p, ok := ctx.Value(pinKey{}).(*Pin)
	if !ok {
		return
	}
	if k := c.byAddr(h.LocalAddr); k != nil {
		p.bind(k)
	} else {
		p.ConnEnded() // it ended before the stream could send
	}
}

// named is a connection over a UNIX socket. The dialling end of those has no address, so that gRPC could not tell two
// of one client apart.
type named struct {
	net.Conn
	local localName
}

func (c named) LocalAddr() net.Addr { return c.local }

type localName uint64

func (localName) Network() string  { return "unix" }
func (n localName) String() string { return "unix:" + strconv.FormatUint(uint64(n), 10) }

func (c *Conns) byAddr(a net.Addr) *conn {
	if a == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialed[a.String()]
}

func (c *Conns) drop(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for a, x := range c.dialed {
		if x == k {
			delete(c.dialed, a)
		}
	}
}

func (k *conn) remember(p *Pin) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return false
	}
	if k.pins == nil {
		k.pins = map[*Pin]struct{}{}
	}
	k.pins[p] = struct{}{}
	return true
}

func (k *conn) forget(p *Pin) {
	k.mu.Lock()
	delete(k.pins, p)
	k.mu.Unlock()
}

// end tells the pins outside the lock: they come back by forget.
func (k *conn) end() {
	k.mu.Lock()
	k.ended = true
	pins := make([]*Pin, 0, len(k.pins))
	for p := range k.pins {
		pins = append(pins, p)
	}
	k.mu.Unlock()
	for _, p := range pins {
		p.ConnEnded()
	}
}
