package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/tier"
)

// nodeTimeout is what an orderly end may take.
const nodeTimeout = 10 * time.Second

// node is a whole server on a loopback port: the one that serve runs, over a tier of the benchmark's choice.
type node struct {
	registry *namespace.Registry
	store    *store.Store
	server   *server.Server
	listener net.Listener
	served   chan error // the end of Serve
}

// openTier is a host tier of so many bytes, or the blank tier for 0.
func openTier(memoryBytes int64) (tier.Driver, error) {
	if memoryBytes == 0 {
		return &blankTier{}, nil
	}
	d, err := host.New(host.Options{CapacityBytes: memoryBytes})
	if err != nil {
		return nil, fmt.Errorf("host memory: %w", err)
	}
	return d, nil
}

func startNode(ctx context.Context, memoryBytes int64) (_ *node, err error) {
	n := &node{served: make(chan error, 1)}
	defer func() {
		if err != nil {
			n.stop()
		}
	}()
	if n.registry, err = namespace.NewRegistry(ctx, memregistry.New(), namespace.Options{}); err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	driver, err := openTier(memoryBytes)
	if err != nil {
		return nil, err
	}
	if n.store, err = store.New(store.Options{Tiers: [evict.NumTiers]tier.Driver{evict.Host: driver}}); err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	if n.server, err = server.New(server.Options{Store: n.store, Registry: n.registry, Version: "bench"}); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.listener = l
	go func() { n.served <- n.server.Serve(l) }()
	return n, nil
}

// stop ends what was started, in order.
func (n *node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	var errs []error
	if n.server != nil {
		errs = append(errs, n.server.Stop(ctx))
	}
	if n.listener != nil {
		errs = append(errs, <-n.served)
	}
	if n.store != nil {
		errs = append(errs, n.store.Close(ctx))
	}
	if n.registry != nil {
		errs = append(errs, n.registry.Close())
	}
	return errors.Join(errs...)
}

// Fill says which pages a node shall store, each whole and with zeros for a payload.
type Fill struct {
	Namespace  page.NamespaceID
	Epoch      page.Epoch
	Group      page.GroupID
	Provenance []byte // canonical
	PageBytes  int
	Pages      int
}

// fill stores pages of the stored keys, past the network.
func (n *node) fill(ctx context.Context, f Fill) error {
	w := newWriter(n.store, f.Namespace, f.Epoch, f.Group, f.Provenance, f.PageBytes)
	zeros := make([]byte, f.PageBytes)
	blank, err := w.sourceOf(zeros)
	if err != nil {
		return err
	}
	sources := make([]source, fillBatch)
	for i := range sources {
		sources[i] = blank
	}
	for at := 0; at < f.Pages; at += fillBatch {
		many := min(fillBatch, f.Pages-at)
		keys := make([]byte, 0, many*hashBytes)
		for i := range many {
			keys = appendKey(keys, storedKeys, uint64(at+i))
		}
		if err := w.publish(ctx, keys, sources[:many]); err != nil {
			return fmt.Errorf("fill the store at page %d: %w", at, err)
		}
	}
	return nil
}
