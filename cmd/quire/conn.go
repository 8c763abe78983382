package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc/codes"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/rpc"
)

// remote is one connection to a server and the calls on it.
type remote struct {
	*client.Client
	namespaces quirev1.NamespaceServiceClient
	admin      quirev1.AdminServiceClient
	pages      quirev1.PageServiceClient
}

func remoteOf(c *client.Client) *remote {
	return &remote{Client: c, namespaces: c.Namespaces(), admin: c.Admin(), pages: c.Pages()}
}

// connect is a connection to the server, made within the timeout and open beyond it. Close it.
func (a *app) connect(ctx context.Context) (*remote, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	return remoteOf(c), nil
}

// with runs f against the server, within the timeout, and closes the connection.
func (a *app) with(ctx context.Context, f func(context.Context, *remote) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(ctx, remoteOf(c))
}

func (a *app) dial(ctx context.Context) (*client.Client, error) {
	if err := client.CheckAddress(a.server); err != nil {
		return nil, usagef("--server %q is no address; write host:port, for example %s, or unix:/path", a.server, defaultServer)
	}
	if a.timeout <= 0 {
		return nil, usagef("--timeout %v is no time; write for example %v", a.timeout, defaultTimeout)
	}
	for flag, file := range map[string]string{"token-file": a.tokenFile, "ca": a.ca, "cert": a.cert, "key": a.key} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return nil, notFoundf("--%s: %v", flag, err)
		}
	}
	c, err := client.Dial(ctx, client.Options{
		Address: a.server, TokenFile: a.tokenFile, CAFile: a.ca, CertFile: a.cert, KeyFile: a.key, Insecure: a.insecure,
		CallTimeout: a.timeout, Conns: 1, Retries: -1, Instance: "quire command line",
	})
	if err == nil {
		return c, nil
	}
	var refused *rpc.Error
	if errors.As(err, &refused) && (refused.Code == codes.Unavailable || refused.Code == codes.DeadlineExceeded) {
		return nil, &exitError{exitUnavailable, fmt.Sprintf("no server answers at %s (%s); start one with 'quire serve', or "+
			"name another by --server", a.server, cause(refused.Text))}
	}
	return nil, err
}

// cause is the end of gRPC's chain of descriptions: "connect: connection refused".
func cause(text string) string {
	parts := strings.Split(strings.TrimRight(text, `"`), ": ")
	return strings.Join(parts[max(0, len(parts)-2):], ": ")
}

// readBounded reads a whole file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAllBounded(f, path, limit)
}

func readAllBounded(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, nil
}
