package e2e

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/frame"
)

// cutConn is a connection to a server. While cut is set, what the server answers is thrown away and the connection
// with it: the request arrived, its answer does not.
type cutConn struct {
	net.Conn
	cut *atomic.Bool
}

func (c cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// overCut is the page service of the server that c speaks to, over connections that can be cut.
func overCut(t *testing.T, c *client.Client, over client.Transport, address string, cut *atomic.Bool) quirev1.PageServiceClient {
	t.Helper()
	network := "tcp"
	switch over {
	case client.Data:
		address = c.Capabilities().GetDataAddress()
	case client.SharedMemory:
		network, address = "unix", c.Capabilities().GetShmSocket()
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return cutConn{conn, cut}, err
	}
	if over != client.GRPC {
		cc := frame.NewClientConn(frame.ClientOptions{Dial: dial})
		t.Cleanup(func() { cc.Close() })
		return quirev1.NewPageServiceClient(cc)
	}
	// A connection that is dialed while cut fails too: the next attempt is not to wait for gRPC's usual second.
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}, MinConnectTimeout: 10 * time.Second}
	cc, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return quirev1.NewPageServiceClient(cc)
}
