package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/server/data"
	"github.com/quire-kv/quire/store/server/shm"
	"github.com/quire-kv/quire/store/shm/socket"
)

// service is one way to reach the server.
type service struct {
	name     string
	listener net.Listener
	serve    func(net.Listener) error    // until stop, which it answers with nil; closes the listener
	stop     func(context.Context) error // idempotent
}

// newServer makes what all services serve. Where data connections are is part of its answers, so their listener comes
// before it; nobody is served yet.
func (d *Daemon) newServer(deps Deps) (err error) {
	c := &d.config
	if d.tls, err = c.serverTLS(); err != nil {
		return err
	}
	if c.DataListen != off {
		if d.data, err = listen(c.DataListen); err != nil {
			return fmt.Errorf("data_listen: %w", err)
		}
	}
	o := d.serverOptions(deps)
	o.TLS, o.DataAddress = d.tls, d.DataAddress()
	if c.ShmSocket != off {
		if o.ShmSocket, err = filepath.Abs(c.ShmSocket); err != nil {
			return fmt.Errorf("shm_socket: %w", err)
		}
	}
	if d.server, err = server.New(o); err != nil {
		return fmt.Errorf("set up the server: %w", err)
	}
	return nil
}

// openServices makes the services. gRPC, where clients look first, opens when all is there: until then they are turned
// away rather than kept waiting.
func (d *Daemon) openServices(deps Deps) (err error) {
	c := &d.config
	frames := frame.ServerOptions{MaxMessageBytes: messageBytes(c), Clock: deps.Clock}
	if d.data != nil {
		s := data.New(d.server, data.Options{TLS: d.tls, Auth: c.authMode(), Insecure: c.Insecure, Frames: frames})
		d.services = append(d.services, service{"data connections", d.data, s.Serve, s.Stop})
	}
	if c.ShmSocket != off {
		l, err := d.listenShm()
		if err != nil {
			return fmt.Errorf("shm_socket: %w", err)
		}
		s := shm.New(d.server, frames)
		d.services = append(d.services, service{"shared memory", l, s.Serve, s.Stop})
	}
	if d.grpc, err = d.listenGRPC(); err != nil {
		return fmt.Errorf("grpc_listen: %w", err)
	}
	d.services = append(d.services, service{"gRPC", d.grpc, d.server.Serve, d.server.Stop})
	return nil
}

func (c *Config) serverTLS() (*tls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	mtls := c.Auth == AuthMTLS
	t, err := auth.ServerTLS(auth.Files{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSClientCA}, mtls, mtls)
	if err != nil {
		return nil, fmt.Errorf("set up TLS: %w", err)
	}
	return t, nil
}

// socketMode opens UNIX sockets to this process's user and root; to everyone whom their directory lets in where a token
// says who calls, as on loopback.
func (d *Daemon) socketMode() os.FileMode {
	if d.config.Auth == AuthToken {
		return 0o666
	}
	return 0o600
}

func (d *Daemon) listenShm() (net.Listener, error) {
	return shm.Listen(shm.ListenOptions{
		Path: d.config.ShmSocket, Memory: d.host, Mode: d.socketMode(), AnyUser: d.config.Auth == AuthToken,
	})
}

func (d *Daemon) listenGRPC() (net.Listener, error) {
	if path, local := rpc.UnixPath(d.config.GRPCListen); local {
		l, err := socket.Listen(path, d.socketMode())
		if err != nil {
			return nil, err // a nil *Listener is no nil Listener
		}
		return l, nil
	}
	return listen(d.config.GRPCListen)
}

// serve runs one service to its end; the first that ends, ends the daemon's Wait.
func (d *Daemon) serve(s service) {
	err := s.serve(s.listener)
	d.first.Do(func() {
		if err != nil {
			d.endErr = fmt.Errorf("serve %s: %w", s.name, err)
		}
		close(d.ended)
	})
}

func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w; free the address or choose another (port 0 takes a free one)", err)
	}
	return l, nil
}

// stopServices stops all at once: streams that live long end with the server, whichever way they came.
func (d *Daemon) stopServices(ctx context.Context) error {
	errs := make([]error, len(d.services))
	var stops sync.WaitGroup
	for i, s := range d.services {
		stops.Go(func() {
			if err := s.stop(ctx); err != nil {
				errs[i] = fmt.Errorf("stop %s: %w", s.name, err)
			}
		})
	}
	stops.Wait()
	d.serving.Wait()
	return errors.Join(errs...)
}
