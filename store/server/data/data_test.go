package data_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/server/data"
)

var root = namespace.Principal{Name: "root", Tenant: "root", Role: namespace.RoleOperator}

// node is a server with gRPC and data connections over TLS.
type node struct {
	t        testing.TB
	dir      string // of certificates
	clock    *clock.Manual
	tier     *host.Driver
	store    *store.Store
	registry *namespace.Registry
	address  string
	data     string
	tokens   map[string]string
}

var engine = namespace.Principal{Tenant: "acme", Role: namespace.RoleEngine, Name: "certified"}

func newNode(t testing.TB, secure bool, limits server.Limits) *node {
	t.Helper()
	n := &node{t: t, tokens: map[string]string{}, clock: clock.NewManual(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
	var err error
	if n.tier, err = host.New(host.Options{CapacityBytes: 64 << 20}); err != nil {
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
	n.address, n.data = l.Addr().String(), dl.Addr().String()
	o := server.Options{Store: n.store, Registry: n.registry, Clock: n.clock, Version: "test", Auth: auth.Tokens | auth.MTLS, DataAddress: n.data, Limits: limits}
	if secure {
		o.TLS = n.certificates()
	}
	srv, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	frames := data.New(srv, data.Options{TLS: o.TLS, Auth: o.Auth})
	served := make(chan error, 2)
	go func() { served <- srv.Serve(l) }()
	go func() { served <- frames.Serve(dl) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		stopped := make(chan error, 1)
		go func() { stopped <- frames.Stop(ctx) }()
		for _, err := range []error{srv.Stop(ctx), <-stopped, <-served, <-served, n.store.Close(ctx), n.registry.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

func (n *node) certificates() *tls.Config {
	n.dir = n.t.TempDir()
	if _, err := auth.WriteDevCA(auth.DevCA{Dir: n.dir, Clients: []namespace.Principal{engine}}); err != nil {
		n.t.Fatal(err)
	}
	config, err := auth.ServerTLS(auth.Files{Cert: n.file(auth.ServerCertFile), Key: n.file(auth.ServerKeyFile), CA: n.file(auth.CAFile)}, true, false)
	if err != nil {
		n.t.Fatal(err)
	}
	return config
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (n *node) token(tenant string) string {
	n.t.Helper()
	if n.tokens[tenant] == "" {
		secret := auth.NewSecret()
		by := namespace.Principal{Name: "engine-" + tenant, Tenant: tenant, Role: namespace.RoleEngine}
		r := namespace.TokenRecord{Name: by.Name, Hash: secret.Hash(), By: by, Created: n.clock.Wall().Time()}
		if err := n.registry.PutToken(context.Background(), root, r); err != nil {
			n.t.Fatal(err)
		}
		n.tokens[tenant] = secret.Reveal()
	}
	return n.tokens[tenant]
}

func (n *node) dial(t testing.TB, tenant string, o client.Options) *client.Client {
	t.Helper()
	o.Address, o.Token, o.Transport = n.address, n.token(tenant), client.Data
	if n.dir != "" {
		o.CAFile = n.file(auth.CAFile)
	}
	return n.dialAs(t, o)
}

func (n *node) dialAs(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	c, err := client.Dial(n.ctx(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

const guard = 30 * time.Second // of what must happen; never waited for when it does

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	n.t.Cleanup(cancel)
	return ctx
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(guard); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s did not happen", what)
		}
	}
}

func (n *node) held() (leases, publications, sessions int) {
	s := n.store.Status()
	return int(s.Totals.ReadLeases), int(s.Totals.Publications), s.Sessions
}

func (n *node) damage(t testing.TB, k *page.Key, x int) {
	t.Helper()
	e := n.store.Explain(t.Context(), k)
	r, ok := n.tier.Lookup(e.Parts[x].Place.Handle, e.Parts[x].Place.Offset)
	if !ok {
		t.Fatal("extent has no region")
	}
	r.Memory[len(r.Memory)-1] ^= 1
}

// TestConformanceTLS: the suite of all transports over TLS. That of plain connections is store/client's.
func TestConformanceTLS(t *testing.T) {
	clienttest.Run(t, func(t testing.TB) *clienttest.Pair {
		n := newNode(t, true, server.Limits{})
		return &clienttest.Pair{
			Dial: n.dial, Advance: n.clock.Advance, Damage: n.damage, Held: n.held,
			Extents: func(k *page.Key) int { return len(n.store.Explain(t.Context(), k).Parts) },
		}
	})
}

// TestListenPolicy: plain text is for loopback.
func TestListenPolicy(t *testing.T) {
	n := newNode(t, false, server.Limits{})
	srv, err := server.New(server.Options{Store: n.store, Registry: n.registry, Clock: n.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Stop(n.ctx())
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Skip(err)
	}
	if err := data.New(srv, data.Options{}).Serve(l); err == nil {
		t.Error("served where others can reach it")
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error("the listener is open:", err)
	}
}

// TestCertificate: a client certificate is a principal over data connections too; nobody is refused.
func TestCertificate(t *testing.T) {
	n := newNode(t, true, server.Limits{})
	cert, key := auth.ClientFiles(engine)
	o := client.Options{Address: n.address, Transport: client.Data, CAFile: n.file(auth.CAFile), CertFile: n.file(cert), KeyFile: n.file(key)}
	c := n.dialAs(t, o)
	s, err := c.Open(n.ctx(), clienttest.Spec(t, "v1"))
	if err != nil {
		t.Fatal(err)
	}
	r, payload := one(s)
	if rs, err := s.Publish(n.ctx(), r, page.View{}, nil, []client.Item{{Bytes: payload, Root: true}}, client.PublishOptions{}); err != nil || rs[0].Outcome != client.Committed {
		t.Fatal(rs, err)
	}
	dst := [][]byte{make([]byte, len(payload))}
	if rs, err := s.FetchInto(n.ctx(), r, page.View{}, nil, dst, nil); err != nil || rs[0].Outcome != client.OK || !bytes.Equal(dst[0], payload) {
		t.Fatal(rs, err)
	}
	_, err = n.frames("", &tls.Config{RootCAs: pool(t, n)}).Connect(n.ctx())
	if status.Code(err) != codes.Unauthenticated || !errors.Is(err, frame.ErrUnreachable) {
		t.Error(err)
	}
}

func pool(t *testing.T, n *node) *x509.CertPool {
	c, err := auth.ClientTLS(auth.Files{CA: n.file(auth.CAFile)}, "")
	if err != nil {
		t.Fatal(err)
	}
	return c.RootCAs
}

// one is the suite's first page and bytes for it.
func one(s *client.Session) (client.Run, []byte) {
	for _, g := range s.Namespace().GetGroups() {
		if g.GetKind() != "full" {
			continue
		}
		id := page.GroupID(g.GetId())
		geo, _ := s.Geometry(id)
		payload := bytes.Repeat([]byte("0123456789abcdef"), int(page.PayloadBytes(geo.Full(), geo.CellBytes))/16)
		return client.Run{Group: id, Hashes: clienttest.Hashes("one", 1)}, payload
	}
	return client.Run{}, nil
}

// frames is a bare client of the node's data connections.
func (n *node) frames(token string, conf *tls.Config) *frame.ClientConn {
	cc := frame.NewClientConn(frame.ClientOptions{Token: token, Dial: func(ctx context.Context) (net.Conn, error) {
		if conf != nil {
			return (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", n.data)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", n.data)
	}})
	n.t.Cleanup(func() { cc.Close() })
	return cc
}

// published is a namespace with many pages and the reference to it.
func (n *node) published(pages int) (*quirev1.NamespaceRef, *quirev1.KeyRun) {
	n.t.Helper()
	s, err := n.dial(n.t, "acme", client.Options{}).Open(n.ctx(), clienttest.Spec(n.t, "v1"))
	if err != nil {
		n.t.Fatal(err)
	}
	r, payload := one(s)
	r.Hashes = clienttest.Hashes("many", pages)
	items := make([]client.Item, pages)
	for i := range items {
		items[i] = client.Item{Bytes: payload, Root: i == 0}
	}
	if rs, err := s.Publish(n.ctx(), r, page.View{}, nil, items, client.PublishOptions{}); err != nil || client.GoodPrefix(rs) != pages {
		n.t.Fatal(rs, err)
	}
	id := s.ID()
	return &quirev1.NamespaceRef{Id: id[:], Epoch: uint64(s.Epoch())}, &quirev1.KeyRun{Group: r.Group[:], Hashes: r.Hashes}
}

// TestCase_C21_KilledClient: what a client held goes with its connections, at once.
func TestCase_C21_KilledClient(t *testing.T) {
	n := newNode(t, false, server.Limits{})
	ref, run := n.published(8)
	cc := n.frames(n.token("acme"), nil)
	pages := quirev1.NewPageServiceClient(cc)
	attached, err := pages.Attach(n.ctx(), &quirev1.AttachRequest{Instance: "killed"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := attached.Recv()
	if err != nil {
		t.Fatal(err)
	}
	r, err := pages.BatchExists(n.ctx(), &quirev1.BatchExistsRequest{
		Namespace: ref, Runs: []*quirev1.KeyRun{run}, Lease: durationpb.New(time.Hour), SessionId: m.GetSessionId(),
	})
	if err != nil || len(r.GetLease().GetLeaseId()) == 0 {
		t.Fatal(r, err)
	}
	if l, _, s := n.held(); l != 1 || s != 2 {
		t.Fatalf("%d leases, %d sessions", l, s)
	}
	cc.Close()
	n.until("the end of the lease", func() bool { l, _, s := n.held(); return l == 0 && s == 1 })
}

// TestCase_C43_SlowReader: a client that asks and does not read loses its connection, and holds nothing.
func TestCase_C43_SlowReader(t *testing.T) {
	n := newNode(t, false, server.Limits{FetchesPerPrincipal: 1})
	ref, run := n.published(200) // more than the sockets take
	cc := frame.NewClientConn(frame.ClientOptions{Token: n.token("acme"), Dial: func(ctx context.Context) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", n.data)
		if err == nil {
			c.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return c, err
	}})
	defer cc.Close()
	st, err := quirev1.NewPageServiceClient(cc).Fetch(n.ctx(), &quirev1.FetchRequest{Namespace: ref, Run: run})
	if err != nil {
		t.Fatal(err)
	}
	other := quirev1.NewPageServiceClient(n.frames(n.token("acme"), nil))
	busy := func() bool { // the one fetch that a principal may have is going on
		ctx, cancel := context.WithCancel(n.ctx())
		defer cancel()
		s, err := other.Fetch(ctx, &quirev1.FetchRequest{Namespace: ref, Run: run})
		if err == nil {
			_, err = s.Recv()
		}
		if err != nil && status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
		return err != nil
	}
	n.until("the fetch", busy)
	n.until("the end of what the fetch pinned", func() bool { n.clock.Advance(time.Minute); return !busy() })
	for err == nil {
		_, err = st.Recv()
	}
	if err == io.EOF || status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

// TestRevokedToken: a revoked token ends streams and refuses calls on connections that stand.
func TestRevokedToken(t *testing.T) {
	n := newNode(t, false, server.Limits{})
	cc := n.frames(n.token("acme"), nil)
	pages := quirev1.NewPageServiceClient(cc)
	st, err := pages.Attach(n.ctx(), &quirev1.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := pages.GetCapabilities(n.ctx(), &quirev1.GetCapabilitiesRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := n.registry.RevokeToken(n.ctx(), root, "engine-acme"); err != nil {
		t.Fatal(err)
	}
	if _, err := pages.GetCapabilities(n.ctx(), &quirev1.GetCapabilitiesRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() {
		for err == nil {
			_, err = st.Recv()
		}
		ended <- err
	}()
	n.until("the end of the stream", func() bool {
		n.clock.Advance(time.Minute)
		select {
		case err := <-ended:
			if status.Code(err) != codes.Unauthenticated {
				t.Error(err)
			}
			return true
		default:
			return false
		}
	})
	if _, err := cc.Connect(n.ctx()); status.Code(err) != codes.Unauthenticated {
		t.Error(err)
	}
}
