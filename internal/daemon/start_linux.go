package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/disk"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/server/record"
	"github.com/quire-kv/quire/store/shm/socket"
	"github.com/quire-kv/quire/store/tier"
)

// releaseTimeout is what giving back memory, registry and queued traces may take after the drain.
const releaseTimeout = 10 * time.Second

// Daemon is a running server. Safe for concurrent use.
type Daemon struct {
	config Config
	log    *slog.Logger

	registry *namespace.Registry
	host     *host.Driver
	disk     *disk.Driver // nil: there is none
	store    *store.Store
	server   *server.Server
	recorder *record.Recorder // nil: nothing is recorded
	tls      *tls.Config      // of the services that others reach; nil: plain text
	tracing  *tracing
	admin    *admin // nil: off

	grpc     net.Listener
	data     net.Listener   // nil: off
	services []service      // ways to reach server
	serving  sync.WaitGroup // their ends
	started  atomic.Bool
	draining atomic.Bool
	first    sync.Once
	ended    chan struct{} // closed by first, when a service serves no more
	endErr   error         // why, set before ended is closed

	stop    sync.Once
	stopErr error // guarded by stop
}

// Start brings up everything that a resolved and valid config asks for, or nothing: on an error all that was begun is
// undone. ctx bounds the start alone. The caller ends the daemon by Stop.
func Start(ctx context.Context, config Config, deps Deps) (*Daemon, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	deps.fill()
	d := &Daemon{config: config, log: deps.Logger, ended: make(chan struct{})}
	if err := d.start(ctx, deps); err != nil {
		return nil, errors.Join(err, d.release(ctx))
	}
	d.announce()
	return d, nil
}

func (d *Daemon) start(ctx context.Context, deps Deps) (err error) {
	if d.config.AdminListen != off { // first: a long recovery is alive and not ready
		listener, err := listen(d.config.AdminListen)
		if err != nil {
			return fmt.Errorf("admin_listen: %w", err)
		}
		d.admin = startAdmin(listener, d.profiles(), d.checks(), deps.Metrics)
	}
	if d.registry, err = openRegistry(ctx, &d.config); err != nil {
		return err
	}
	if err = d.firstToken(ctx, deps.Clock); err != nil {
		return err
	}
	if err = d.openStore(ctx, deps); err != nil {
		return err
	}
	if d.tracing, err = startTracing(ctx, &d.config, deps.Version); err != nil {
		return err
	}
	if err = d.startRecorder(deps); err != nil {
		return err
	}
	if err = d.newServer(deps); err != nil {
		return err
	}
	if err = d.recover(ctx, deps.Metrics); err != nil { // the server has told the store of all namespaces
		return err
	}
	if err = d.openServices(deps); err != nil {
		return err
	}
	for _, s := range d.services {
		d.serving.Go(func() { d.serve(s) })
	}
	d.started.Store(true)
	return nil
}

// checks are the conditions of /readyz. A disk tier that takes nothing is a warning: the other tiers serve.
func (d *Daemon) checks() []check {
	all := []check{
		{name: "serving", ok: func() error {
			if d.draining.Load() {
				return errors.New("stopping")
			}
			select {
			case <-d.ended:
				return errors.New("a listener ended")
			default:
				return nil
			}
		}},
		{name: "tier_" + evict.Host.String(), ok: func() error { return writable(d.host) }},
	}
	if d.config.DiskBytes > 0 {
		all = append(all, check{name: "tier_" + evict.Disk.String(), warns: true, ok: func() error {
			if u := d.disk.Usage(); u.Writable && u.Trouble != "" {
				return errors.New(u.Trouble)
			}
			return writable(d.disk)
		}})
	}
	for i := range all {
		ok := all[i].ok
		all[i].ok = func() error {
			if !d.started.Load() {
				return errors.New("starting")
			}
			return ok()
		}
	}
	return all
}

func writable(d tier.Driver) error {
	u := d.Usage()
	switch {
	case u.Writable:
		return nil
	case u.Trouble != "":
		return errors.New(u.Trouble)
	}
	return tier.ErrDegraded
}

// announce says what runs, in one line, and what an operator must know of it.
func (d *Daemon) announce() {
	c := &d.config
	d.log.Info("serving", "grpc", d.GRPCAddress(), "data", d.DataAddress(), "shm", c.ShmSocket, "admin", d.AdminAddress(), "memory_bytes", c.MemoryBytes,
		"metadata_bytes", c.MetadataBytes, "disk_bytes", c.DiskBytes, "shards", c.Shards, "auth", string(c.Auth),
		"tls", c.TLSCert != "", "directory", c.DataDir)
	if c.Auth == AuthNone {
		d.log.Warn("no authentication: everyone who can connect is an operator; set auth to token or mtls")
	}
	for _, w := range d.host.Warnings() {
		d.log.Warn("host memory is slower than it could be", "detail", w)
	}
	if c.DataDir == "" {
		d.log.Warn("no data directory: namespaces, grants and tokens are in memory and a restart forgets them; set data")
	}
}

// GRPCAddress is host:port of gRPC, with the port that was taken, or unix:/path.
func (d *Daemon) GRPCAddress() string {
	if l, local := d.grpc.(*socket.Listener); local {
		return "unix:" + l.Path()
	}
	return d.grpc.Addr().String()
}

// DataAddress is host:port of data connections, with the port that was taken; "" when they are off.
func (d *Daemon) DataAddress() string {
	if d.data == nil {
		return ""
	}
	return d.data.Addr().String()
}

// AdminAddress is host:port of the admin listener, "" when it is off.
func (d *Daemon) AdminAddress() string {
	if d.admin == nil {
		return ""
	}
	return d.admin.listener.Addr().String()
}

// Wait blocks until a service serves no more, by Stop or by a failure, which it answers. Call Stop all the same.
func (d *Daemon) Wait() error {
	<-d.ended
	return d.endErr
}

// Stop says NOT_SERVING, lets calls finish within the drain timeout or until ctx ends, and gives everything back.
// It answers with what could not end in order. Idempotent: later calls wait for the first and answer the same.
func (d *Daemon) Stop(ctx context.Context) error {
	d.stop.Do(func() {
		d.log.Info("stopping", "drain_timeout", d.config.DrainTimeout.String())
		d.draining.Store(true)
		drain, cancel := context.WithTimeout(ctx, d.config.DrainTimeout)
		defer cancel()
		err := d.stopServices(drain)
		if flushErr := d.store.Flush(drain); flushErr != nil {
			d.log.Warn("not all pages in memory were written to disk in time; they are lost", "error", flushErr)
		}
		d.stopErr = errors.Join(err, d.release(ctx))
		d.log.Info("stopped", "clean", d.stopErr == nil)
	})
	return d.stopErr
}

// release gives back what was begun, in the reverse order; what was not begun is nil.
func (d *Daemon) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var errs []error
	end := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	if d.data != nil {
		d.data.Close() // as those below: one that was served is closed
	}
	for _, s := range d.services {
		s.listener.Close()
	}
	if d.server != nil {
		end("stop server", d.server.Stop(ctx)) // after Stop: nothing to do
	}
	if d.recorder != nil {
		end("end the recording", d.recorder.Close(ctx))
	}
	if d.store != nil {
		end("close store", d.store.Close(ctx))
	}
	if d.registry != nil {
		end("close registry", d.registry.Close())
	}
	end("send traces", d.tracing.stop(ctx))
	if d.admin != nil {
		end("stop admin listener", d.admin.stop(ctx))
	}
	return errors.Join(errs...)
}
