package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quire-kv/quire/internal/daemon"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

const (
	firstTenant  = "research"
	secondTenant = "support"
	stopTimeout  = 10 * time.Second
)

// world is a server of this process on loopback, and those who call it, each with a token of its own.
//
//	operator            first token, written by the server at its first start
//	engine-a, engine-b  tenant research
//	engine-c            tenant support
type world struct {
	dir      string // registry, pages and operator's token
	keep     bool   // dir outlives the demo
	found    uint64 // pages that were there at the start
	daemon   *daemon.Daemon
	operator *client.Client
	clients  []*client.Client // all of them
	a, b, c  *engine
	spec     *namespace.Spec
	group    namespace.GroupInfo
}

func openWorld(ctx context.Context, o *Options) (_ *world, err error) {
	w := &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.spec, err = newSpec(); err != nil {
		return nil, err
	}
	w.group = w.spec.Groups[0].Info()
	if err := w.startServer(ctx, o); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	secret, err := os.ReadFile(filepath.Join(w.dir, "operator.token"))
	if err != nil {
		return nil, fmt.Errorf("read the operator's token: %w", err)
	}
	if w.operator, err = w.dial(ctx, strings.TrimSpace(string(secret)), "operator"); err != nil {
		return nil, err
	}
	for _, e := range []struct {
		to           **engine
		kind         engineKind
		name, tenant string
	}{{&w.a, engineA, "engine-a", firstTenant}, {&w.b, engineB, "engine-b", firstTenant}, {&w.c, engineA, "engine-c", secondTenant}} {
		if *e.to, err = w.newEngine(ctx, e.name, e.tenant, e.kind); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return w, nil
}

func (w *world) startServer(ctx context.Context, o *Options) (err error) {
	config := daemon.Config{
		GRPCListen: "127.0.0.1:0", AdminListen: "off", MemoryBytes: o.MemoryBytes, Auth: daemon.AuthToken,
		DrainTimeout: stopTimeout,
	}
	if w.dir, w.keep = o.DataDir, o.DataDir != ""; w.keep {
		config.DiskBytes = o.DiskBytes
	} else if w.dir, err = os.MkdirTemp("", "quire-demo-"); err != nil {
		return err
	}
	config.DataDir = w.dir
	if w.daemon, err = daemon.Start(ctx, config.Resolve(o.MemoryBytes), daemon.Deps{Version: o.Version}); err != nil {
		return err
	}
	w.found = w.daemon.Store().Status().Totals.Pages
	return nil
}

func (w *world) dial(ctx context.Context, token, name string) (*client.Client, error) {
	c, err := client.Dial(ctx, client.Options{Address: w.daemon.GRPCAddress(), Token: token, Instance: name})
	if err == nil {
		w.clients = append(w.clients, c)
	}
	return c, err
}

// newEngine creates a token for an engine, as an operator does, and opens the model with it.
func (w *world) newEngine(ctx context.Context, name, tenant string, kind engineKind) (*engine, error) {
	if err := w.revoke(ctx, name); err != nil {
		return nil, err
	}
	t, err := w.operator.Admin().CreateToken(ctx, &quirev1.CreateTokenRequest{Name: name, Tenant: tenant, Role: "engine"})
	if err != nil {
		return nil, fmt.Errorf("create token: %w", err)
	}
	c, err := w.dial(ctx, t.GetSecret(), name)
	if err != nil {
		return nil, err
	}
	s, err := c.Open(ctx, w.spec)
	if err != nil {
		return nil, err
	}
	return &engine{engineKind: kind, name: name, client: c, session: s, cellBytes: int(w.group.CellBytes)}, nil
}

// revoke takes back the token that an earlier demo gave to an engine of this name: its secret is not kept.
func (w *world) revoke(ctx context.Context, name string) error {
	l, err := w.operator.Admin().ListTokens(ctx, &quirev1.ListTokensRequest{})
	if err != nil {
		return fmt.Errorf("list tokens: %w", err)
	}
	for _, t := range l.GetTokens() {
		if t.GetName() == name {
			if _, err := w.operator.Admin().RevokeToken(ctx, &quirev1.RevokeTokenRequest{Name: name}); err != nil {
				return fmt.Errorf("revoke token: %w", err)
			}
		}
	}
	return nil
}

// run is pages of the model's one group.
func (w *world) run(hashes []byte) client.Run { return client.Run{Group: w.group.ID, Hashes: hashes} }

// full is the view of a whole page.
func (w *world) full() page.View { return page.View{H1: w.group.Heads, L1: w.group.Layers} }

func (w *world) close() error {
	var errs []error
	for _, c := range w.clients {
		errs = append(errs, c.Close())
	}
	if w.daemon != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*stopTimeout)
		defer cancel()
		errs = append(errs, w.daemon.Stop(ctx))
	}
	if w.dir != "" && !w.keep {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(errs...)
}
