package client_test

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/server/data"
	"github.com/quire-kv/quire/store/server/shm"
)

// TestConformance: the suite over each transport against a real server with a real store.
func TestConformance(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			clienttest.Run(t, func(t testing.TB) *clienttest.Pair { return newPair(t, transport) })
		})
	}
}

// transports are those that newNode serves.
var transports = []client.Transport{client.GRPC, client.Data, client.SharedMemory}

var root = namespace.Principal{Name: "root", Tenant: "root", Role: namespace.RoleOperator}

// node is a whole server over loopback TCP.
type node struct {
	clock     *clock.Manual
	tier      *host.Driver
	store     *store.Store
	registry  *namespace.Registry
	address   string
	socket    string            // of shared memory
	transport client.Transport  // of dial
	tokens    map[string]string // of the one engine principal of each tenant
}

func newPair(t testing.TB, transport client.Transport) *clienttest.Pair {
	n := newNode(t)
	n.transport = transport
	return &clienttest.Pair{Dial: n.dial, Advance: n.clock.Advance, Damage: n.damage, Held: n.held, Extents: n.extents}
}

func newNode(t testing.TB) *node { return newNodeOf(t, 64<<20) }

func newNodeOf(t testing.TB, capacityBytes int64) *node { return newHoldingNode(t, capacityBytes, nil) }

// newHoldingNode counts how long clients of its host hold memory by a clock of its own.
func newHoldingNode(t testing.TB, capacityBytes int64, holds clock.Clock) *node {
	t.Helper()
	n := &node{tokens: map[string]string{}, clock: clock.NewManual(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	var err error
	if n.tier, err = host.New(host.Options{CapacityBytes: capacityBytes}); err != nil {
		t.Fatal(err)
	}
	so := store.Options{Clock: n.clock}
	so.Tiers[evict.Host] = n.tier
	if n.store, err = store.New(so); err != nil {
		t.Fatal(err)
	}
	wall := func() time.Time { return n.clock.Wall().Time() }
	if n.registry, err = namespace.NewRegistry(context.Background(), memregistry.New(), namespace.Options{Now: wall}); err != nil {
		t.Fatal(err)
	}
	l, dl := listen(t), listen(t)
	n.socket = filepath.Join(t.TempDir(), "shm")
	srv, err := server.New(server.Options{
		Store: n.store, Registry: n.registry, Clock: n.clock, Version: "test", Auth: auth.Tokens, DataAddress: dl.Addr().String(), ShmSocket: n.socket,
	})
	if err != nil {
		t.Fatal(err)
	}
	frames := data.New(srv, data.Options{Auth: auth.Tokens})
	ul, err := shm.Listen(shm.ListenOptions{Path: n.socket, Memory: n.tier})
	if err != nil {
		t.Fatal(err)
	}
	shared := shm.New(srv, frame.ServerOptions{Clock: holds})
	n.address = l.Addr().String()
	served := make(chan error, 3)
	go func() { served <- srv.Serve(l) }()
	go func() { served <- frames.Serve(dl) }()
	go func() { served <- shared.Serve(ul) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped := make(chan error, 2)
		go func() { stopped <- frames.Stop(ctx) }()
		go func() { stopped <- shared.Stop(ctx) }()
		for _, err := range []error{srv.Stop(ctx), <-stopped, <-stopped, <-served, <-served, <-served, n.store.Close(ctx), n.registry.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (n *node) token(t testing.TB, tenant string) string {
	t.Helper()
	if n.tokens[tenant] == "" {
		secret := auth.NewSecret()
		by := namespace.Principal{Name: "engine-" + tenant, Tenant: tenant, Role: namespace.RoleEngine}
		r := namespace.TokenRecord{Name: by.Name, Hash: secret.Hash(), By: by, Created: n.clock.Wall().Time()}
		if err := n.registry.PutToken(context.Background(), root, r); err != nil {
			t.Fatal(err)
		}
		n.tokens[tenant] = secret.Reveal()
	}
	return n.tokens[tenant]
}

func (n *node) dial(t testing.TB, tenant string, o client.Options) *client.Client {
	t.Helper()
	o.Address, o.Token, o.Transport = n.address, n.token(t, tenant), n.transport
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (n *node) damage(t testing.TB, k *page.Key, x int) {
	t.Helper()
	e := n.store.Explain(t.Context(), k)
	if x >= len(e.Parts) {
		t.Fatalf("page has %d extents", len(e.Parts))
	}
	r, ok := n.tier.Lookup(e.Parts[x].Place.Handle, e.Parts[x].Place.Offset)
	if !ok {
		t.Fatal("extent has no region")
	}
	r.Memory[len(r.Memory)-1] ^= 1
}

func (n *node) held() (leases, publications, sessions int) {
	s := n.store.Status()
	return int(s.Totals.ReadLeases), int(s.Totals.Publications), s.Sessions
}

func (n *node) extents(k *page.Key) int { return len(n.store.Explain(context.Background(), k).Parts) }
