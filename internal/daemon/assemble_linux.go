package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/namespace/pebbleregistry"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/tier"
)

// Files of the data directory.
const (
	registryDir       = "registry"
	pagesDir          = "pages" // of the disk tier
	operatorTokenFile = "operator.token"

	// readyBytes of host memory are populated ahead of any need, at most a quarter of the tier: what engines on one host
	// write in a burst, and a second or two of one core after a start or a purge.
	readyBytes = 1 << 30
)

func openRegistry(ctx context.Context, c *Config) (*namespace.Registry, error) {
	backend, err := openBackend(c)
	if err != nil {
		return nil, err
	}
	r, err := namespace.NewRegistry(ctx, backend, namespace.Options{})
	if err != nil {
		backend.Close()
		return nil, fmt.Errorf("load registry: %w", err)
	}
	return r, nil
}

func openBackend(c *Config) (namespace.Backend, error) {
	if c.DataDir == "" {
		return memregistry.New(), nil
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	backend, err := pebbleregistry.Open(filepath.Join(c.DataDir, registryDir), pebbleregistry.Options{})
	if err != nil {
		return nil, err // names the directory; a nil *Backend is no nil Backend
	}
	return backend, nil
}

// self is the daemon when it asks the registry.
func self() namespace.Principal {
	return namespace.Principal{Name: "daemon", Role: namespace.RoleOperator}
}

// firstToken makes the operator's token of a registry that has none. The file is written before the token counts: a
// crash between the two costs nothing but another token at the next start.
func (d *Daemon) firstToken(ctx context.Context, c clock.Clock) error {
	if d.config.Auth != AuthToken {
		return nil
	}
	tokens, err := d.registry.Tokens(self())
	if err != nil || len(tokens) > 0 {
		return err
	}
	secret := auth.NewSecret()
	path := filepath.Join(d.config.DataDir, operatorTokenFile)
	if err := writeSecret(path, secret.Reveal()); err != nil {
		return fmt.Errorf("write the operator's token: %w", err)
	}
	err = d.registry.PutToken(ctx, self(), namespace.TokenRecord{
		Name: "operator", Hash: secret.Hash(), Created: c.Wall().Time(),
		By: namespace.Principal{Name: "operator", Tenant: "default", Role: namespace.RoleOperator},
	})
	if err != nil {
		return fmt.Errorf("store the operator's token: %w", err)
	}
	d.log.Info("first start: the operator's token was written", "file", path)
	return nil
}

// writeSecret replaces a file that only its owner can read, whole or not at all.
func writeSecret(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".token-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text + "\n")
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// openStore opens the tiers and the store over them, which closes them; on an error they are closed.
func (d *Daemon) openStore(ctx context.Context, deps Deps) (err error) {
	c := &d.config
	var tiers [evict.NumTiers]tier.Driver
	defer func() {
		if err == nil {
			return
		}
		for _, t := range tiers {
			if t != nil {
				err = errors.Join(err, t.Close())
			}
		}
	}()
	if d.host, err = host.New(host.Options{CapacityBytes: int64(c.MemoryBytes - c.MetadataBytes), ReadyBytes: readyBytes}); err != nil {
		return fmt.Errorf("set up host memory: %w", err)
	}
	tiers[evict.Host] = d.host
	if c.DiskBytes > 0 {
		if d.disk, err = d.openDisk(ctx, deps); err != nil {
			return err
		}
		tiers[evict.Disk] = d.disk
	}
	newPolicy, err := c.newPolicy()
	if err != nil {
		return err
	}
	d.store, err = store.New(store.Options{
		Clock: deps.Clock, Shards: c.Shards, Tiers: tiers, NoWriteBehind: c.NoWriteBehind, NewPolicy: newPolicy,
		Limits: c.limits(), MetadataBytes: c.MetadataBytes, PrefillFLOPS: c.PrefillFLOPS,
		Core: core.Options{MaxLeaseTTL: c.MaxLease, FingerprintKey: c.fingerprintKey()},
	})
	if err != nil {
		return fmt.Errorf("set up store: %w", err)
	}
	return nil
}

func (d *Daemon) serverOptions(deps Deps) server.Options {
	c := &d.config
	o := server.Options{
		Store: d.store, Registry: d.registry, Clock: deps.Clock, Version: deps.Version,
		Auth: c.authMode(), Insecure: c.Insecure, Eviction: c.evictionSetting(), Metrics: deps.Metrics, GRPC: d.tracing.options(),
		Limits: server.Limits{
			MaxKeys: c.MaxKeys, MaxBatchBytes: int64(c.MaxBatchBytes), MaxChunkBytes: int(c.MaxChunkBytes),
			MaxMessageBytes: messageBytes(c), MaxLease: c.MaxLease, DefaultLease: c.DefaultLease,
		},
		Panicked: func(method string, value any, stack []byte) {
			d.log.Error("a handler panicked", "method", method, "panic", fmt.Sprint(value), "stack", string(stack))
		},
	}
	if d.recorder != nil {
		o.Recorder = d.recorder // a nil *Recorder is no nil Recorder
	}
	return o
}

// profiles says whether /debug/pprof is served: memory is for nobody else to see.
func (d *Daemon) profiles() bool {
	local, err := auth.Loopback(d.config.AdminListen)
	return err == nil && local || d.config.Insecure
}
