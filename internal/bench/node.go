package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/daemon"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/tier"
)

// nodeTimeout is what an orderly end may take.
const nodeTimeout = 10 * time.Second

// Node says what a benchmark's server is made of. The zero value keeps no payloads, so that millions of pages cost
// their index alone.
type Node struct {
	MemoryBytes   int64  `json:"memory,omitempty"`   // the host tier's
	MetadataBytes int64  `json:"metadata,omitempty"` // of the index, beside MemoryBytes; default what serve has
	DiskBytes     int64  `json:"disk,omitempty"`     // the disk tier's, in Dir; 0: none
	Dir           string `json:"dir,omitempty"`      // data directory; empty: all is in memory
	Socket        string `json:"socket,omitempty"`   // path of its UNIX socket; empty: it has none
	NoWriteBehind bool   `json:"no_write_behind,omitempty"`
}

// node is a whole server on free ports: the one that serve runs, or a bare one over the blank tier.
type node struct {
	store   *store.Store
	address string // of gRPC
	end     []func(context.Context) error
}

func startNode(ctx context.Context, o Node) (*node, error) {
	n := &node{}
	start := n.startDaemon
	if o.MemoryBytes == 0 {
		start = n.startBlank
	}
	if err := start(ctx, o); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

// startDaemon assembles what serve does, with data connections and a UNIX socket. It evicts by LRU, which takes in all that is
// offered: pages that nobody asks for again are not worth their room to the default.
func (n *node) startDaemon(ctx context.Context, o Node) error {
	c := daemon.Config{
		DataDir: o.Dir, GRPCListen: "127.0.0.1:0", AdminListen: "off", DataListen: "127.0.0.1:0", ShmSocket: cmp.Or(o.Socket, "off"),
		MemoryBytes: uint64(o.MemoryBytes + o.MetadataBytes), MetadataBytes: uint64(o.MetadataBytes), DiskBytes: uint64(o.DiskBytes),
		NoWriteBehind: o.NoWriteBehind, DrainTimeout: nodeTimeout, Eviction: "lru",
	}
	c = c.Resolve(c.MemoryBytes)
	if o.MetadataBytes == 0 {
		c.MemoryBytes += c.MetadataBytes
	}
	d, err := daemon.Start(ctx, c, daemon.Deps{Version: "bench"})
	if err != nil {
		return err
	}
	n.end = append(n.end, d.Stop)
	n.store, n.address = d.Store(), d.GRPCAddress()
	return nil
}

// startBlank serves over a tier without payloads, which no daemon would.
func (n *node) startBlank(ctx context.Context, _ Node) error {
	registry, err := namespace.NewRegistry(ctx, memregistry.New(), namespace.Options{})
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	n.end = append(n.end, func(context.Context) error { return registry.Close() })
	if n.store, err = store.New(store.Options{Tiers: [evict.NumTiers]tier.Driver{evict.Host: &blankTier{}}}); err != nil {
		return err
	}
	n.end = append(n.end, n.store.Close)
	s, err := server.New(server.Options{Store: n.store, Registry: registry, Version: "bench"})
	if err != nil {
		return err
	}
	n.end = append(n.end, s.Stop)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	n.end = append(n.end, func(ctx context.Context) error { return errors.Join(s.Stop(ctx), <-served) })
	n.address = l.Addr().String()
	return nil
}

// stop ends what was started, last first.
func (n *node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), nodeTimeout)
	defer cancel()
	var errs []error
	for i := len(n.end) - 1; i >= 0; i-- {
		errs = append(errs, n.end[i](ctx))
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
	Durable    bool
}

// fill stores pages of the stored keys, past the network.
func (n *node) fill(ctx context.Context, f Fill) error {
	w := newWriter(n.store, f.Namespace, f.Epoch, f.Group, f.Provenance, f.PageBytes)
	w.durable = f.Durable
	zeros := make([]byte, f.PageBytes)
	blank, err := w.sourceOf(zeros)
	if err != nil {
		return err
	}
	batch := batchOf(f.PageBytes)
	sources := make([]source, batch)
	for i := range sources {
		sources[i] = blank
	}
	for at := 0; at < f.Pages; at += batch {
		many := min(batch, f.Pages-at)
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

// batchOf is the pages of one publication of a fill: bounded in both, keys and bytes.
func batchOf(pageBytes int) int { return min(fillBatch, max(1, fillBatchBytes/pageBytes)) }

const (
	fillBatch      = 1000
	fillBatchBytes = 16 << 20
)
