package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// ErrClosed answers every call after Close began.
var ErrClosed = errors.New("client: closed")

// Client is a few connections to one server. Safe for concurrent use.
type Client struct {
	opt      Options
	caps     *quirev1.GetCapabilitiesResponse
	links    []*link
	ways     []*way // transports that speak frames, the best first; fixed by Dial
	noFrames error  // why there are fewer than there could be
	turn     atomic.Uint64
	writer   [16]byte // of this instance: the first part of the extent ids that it makes
	seq      atomic.Uint64
	stages   sync.Pool // of *[]byte, stageBytes long: gathered chunks
	stats    counters
	shared   *sharedMemory // with the node, when it is on this host

	mu       sync.Mutex // guards below
	closed   bool
	sessions map[*Session]struct{}
}

// link is one gRPC connection. Its page service goes by the client's route.
type link struct {
	cc    *grpc.ClientConn
	conns *rpc.Conns
	pages quirev1.PageServiceClient
}

// Dial connects and asks what the server takes: an error says what is wrong with options, address or credentials.
func Dial(ctx context.Context, o Options) (*Client, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("client options: %w", err)
	}
	c := &Client{opt: o, sessions: map[*Session]struct{}{}, shared: newSharedMemory()}
	rand.Read(c.writer[:])
	for range o.Conns {
		l, err := c.dialLink()
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("dial %s: %w", o.Address, err)
		}
		c.links = append(c.links, l)
	}
	caps, err := repeated(ctx, c, func(ctx context.Context, p quirev1.PageServiceClient) (*quirev1.GetCapabilitiesResponse, error) {
		return p.GetCapabilities(ctx, &quirev1.GetCapabilitiesRequest{})
	})
	if err == nil {
		err = c.honour(caps)
	}
	if err == nil {
		err = c.choose(ctx)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("dial %s: %w", o.Address, err)
	}
	return c, nil
}

func (c *Client) dialLink() (*link, error) {
	o := &c.opt
	creds, err := o.transport()
	if err != nil {
		return nil, err
	}
	l := &link{conns: rpc.NewConns()}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithContextDialer(l.conns.Dial), grpc.WithStatsHandler(l.conns),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(2 * windowBytes),
		grpc.WithReadBufferSize(ioBufferBytes), grpc.WithWriteBufferSize(ioBufferBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingIdleAfter, Timeout: pingTimeout}), grpc.WithDisableServiceConfig(),
		grpc.WithChainUnaryInterceptor(typed), grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rpc.NewCodec()), grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes),
			grpc.MaxRetryRPCBufferSize(0), // what is lent is sent once; see rpc.Conns.Lend
		),
	}
	if _, local := rpc.UnixPath(o.Address); local {
		opts = append(opts, grpc.WithAuthority("localhost")) // a path is none
	}
	if o.Token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(newBearer(o.Token, !o.plaintext())))
	}
	if l.cc, err = grpc.NewClient("passthrough:///"+o.Address, append(opts, o.GRPC...)...); err != nil {
		return nil, err
	}
	l.pages = quirev1.NewPageServiceClient(&route{c, l.cc})
	return l, nil
}

// typed makes every unary call answer *rpc.Error, also those of the raw clients.
func typed(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return rpc.FromStatus(invoke(ctx, method, req, reply, cc, opts...))
}

// honour keeps batches within what the server takes.
func (c *Client) honour(caps *quirev1.GetCapabilitiesResponse) error {
	if caps.GetMaxKeys() < 1 || caps.GetMaxBatchBytes() < 1 || caps.GetMaxChunkBytes() < page.MaxPieceBytes {
		return fmt.Errorf("server limits of %d keys, %d batch bytes, %d chunk bytes: %w",
			caps.GetMaxKeys(), caps.GetMaxBatchBytes(), caps.GetMaxChunkBytes(), page.ErrUnsupported)
	}
	c.caps = caps
	c.opt.BatchKeys = min(c.opt.BatchKeys, int(caps.GetMaxKeys()))
	c.opt.BatchBytes = int64(min(uint64(c.opt.BatchBytes), caps.GetMaxBatchBytes()))
	return nil
}

// Capabilities are the server's limits, as of Dial.
func (c *Client) Capabilities() *quirev1.GetCapabilitiesResponse { return c.caps }

// Namespaces is the raw service; its errors are *rpc.Error, its calls get no default deadline.
func (c *Client) Namespaces() quirev1.NamespaceServiceClient {
	return quirev1.NewNamespaceServiceClient(c.links[0].cc)
}

// Admin is the raw service, as Namespaces.
func (c *Client) Admin() quirev1.AdminServiceClient {
	return quirev1.NewAdminServiceClient(c.links[0].cc)
}

// Pages is the raw service, as Namespaces: for WatchPages and tools. Streams answer bare gRPC errors.
func (c *Client) Pages() quirev1.PageServiceClient { return c.link().pages }

// Close ends the sessions and the connections. Idempotent and prompt: calls in flight are cancelled and waited for.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	open := make([]*Session, 0, len(c.sessions))
	for s := range c.sessions {
		open = append(open, s)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range open {
		wg.Go(func() { s.Close() })
	}
	wg.Wait()
	for _, w := range c.ways {
		w.cc.Close()
	}
	for _, l := range c.links {
		l.cc.Close()
	}
	c.shared.close()
	return nil
}

func (c *Client) link() *link { return c.links[c.turn.Add(1)%uint64(len(c.links))] }
