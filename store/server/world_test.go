package server_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

// world is a whole server over loopback TCP: a real store with a host tier, a registry in memory, tokens.
type world struct {
	t        testing.TB
	clock    *clock.Manual
	store    *store.Store
	host     *host.Driver
	registry *namespace.Registry
	server   *server.Server
	metrics  *prometheus.Registry
	listener net.Listener
}

var root = namespace.Principal{Name: "root", Tenant: "root", Role: namespace.RoleOperator}

// start is the wall time of every world.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newWorld(t testing.TB, limits server.Limits, change ...func(*server.Options)) *world {
	t.Helper()
	w := &world{t: t, clock: clock.NewManual(start), metrics: prometheus.NewRegistry()}
	var err error
	if w.host, err = host.New(host.Options{CapacityBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	so := store.Options{Clock: w.clock}
	so.Tiers[evict.Host] = w.host
	if w.store, err = store.New(so); err != nil {
		t.Fatal(err)
	}
	w.registry, err = namespace.NewRegistry(context.Background(), memregistry.New(), namespace.Options{Now: func() time.Time { return w.clock.Wall().Time() }})
	if err != nil {
		t.Fatal(err)
	}
	o := server.Options{
		Store: w.store, Registry: w.registry, Clock: w.clock, Limits: limits, Version: "test", Auth: auth.Tokens, Metrics: w.metrics,
		Panicked: func(method string, v any, stack []byte) { t.Errorf("%s panicked: %v\n%s", method, v, stack) },
	}
	for _, c := range change {
		c(&o)
	}
	if w.server, err = server.New(o); err != nil {
		t.Fatal(err)
	}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.server.Serve(w.listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := w.server.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := w.store.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := w.registry.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// peer is one caller with its connection.
type peer struct {
	w     *world
	page  quirev1.PageServiceClient
	ns    quirev1.NamespaceServiceClient
	admin quirev1.AdminServiceClient
	cc    *grpc.ClientConn
	raw   chan net.Conn // connections dialled
}

// as connects a caller of its own token. Every call has a deadline.
func (w *world) as(tenant string, role namespace.Role, options ...grpc.DialOption) *peer {
	w.t.Helper()
	secret := auth.NewSecret()
	name := fmt.Sprintf("p%x", sha256.Sum256([]byte(secret.Reveal())))[:12]
	err := w.registry.PutToken(context.Background(), root, namespace.TokenRecord{
		Name: name, Hash: secret.Hash(), By: namespace.Principal{Name: name, Tenant: tenant, Role: role}, Created: start,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.dial(append(options, grpc.WithPerRPCCredentials(auth.PerRPC(secret, true)))...)
}

func (w *world) dial(options ...grpc.DialOption) *peer {
	w.t.Helper()
	p := &peer{w: w, raw: make(chan net.Conn, 16)}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err == nil {
				p.raw <- c
			}
			return c, err
		}),
	}, options...)
	cc, err := grpc.NewClient(w.listener.Addr().String(), options...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { cc.Close() })
	p.cc = cc
	p.page, p.ns, p.admin = quirev1.NewPageServiceClient(cc), quirev1.NewNamespaceServiceClient(cc), quirev1.NewAdminServiceClient(cc)
	return p
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return c
}

func cancelable(t testing.TB) (context.Context, context.CancelFunc) {
	return deadline(t, 20*time.Second)
}

func deadline(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	c, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return c, cancel
}

func digest(s string) string { return namespace.DigestOf([]byte(s)).String() }

// specText is a small model: 4 heads x 4 layers of 4 KiB cells, 64 KiB pages of 16 tokens.
func specText(weights, version string) string {
	return fmt.Sprintf(`
model: {id: test/small, weights: %q, config: %q}
rope: {regime: none}
attention: {mask: causal, multimodal: none}
hash: {algorithm: sha256_cbor, seed: %q, unit: 16, bytes: 32, probe: %q, extra_keys: 1}
depends_on: prefix
groups:
- kind: full
  layers: 0-3
  page_tokens: 16
  kv_heads: 4
  grade: elements
  components:
  - {name: k, width: 64, bits: 16, dtype: bfloat16, scale: none}
  - {name: v, width: 64, bits: 16, dtype: bfloat16, scale: none}
provenance: {engine: vllm, engine_version: %q, runner: v1, attention_backend: flash, kernel_build: k1, device_arch: sm90}
`, digest(weights), digest("config"), digest(""), digest("probe"), version)
}

// space is a namespace as one caller opened it.
type space struct {
	*peer
	ref  *quirev1.NamespaceRef
	open *quirev1.OpenResponse
	fix  *storetest.Fixture // makes pages of it
}

func (p *peer) open(weights, version string) *space {
	p.w.t.Helper()
	got, err := p.ns.Open(ctx(p.w.t), &quirev1.OpenRequest{Spec: specText(weights, version)})
	if err != nil {
		p.w.t.Fatal(err)
	}
	return p.spaceOf(got)
}

func (p *peer) spaceOf(got *quirev1.OpenResponse) *space {
	s := &space{peer: p, open: got, ref: &quirev1.NamespaceRef{Id: got.Namespace.Id, Epoch: got.Namespace.Epoch, Provenance: got.Provenance}}
	s.fix = &storetest.Fixture{
		Namespace: store.Namespace{State: core.NamespaceState{ID: page.NamespaceID(got.Namespace.Id), Epoch: page.Epoch(got.Namespace.Epoch)}},
		Group:     page.GroupID(got.Namespace.Groups[0].Id),
		Geometry:  core.Geometry{Heads: 4, Layers: 4, CellBytes: 4 << 10, Tokens: 16, Grade: page.Elements},
		Canonical: got.CanonicalProvenance,
	}
	return s
}

// seenBy is the same namespace named by another caller, who states no provenance.
func (s *space) seenBy(p *peer) *space {
	out := *s
	out.peer, out.ref = p, &quirev1.NamespaceRef{Id: s.ref.Id, Epoch: s.ref.Epoch}
	return &out
}

const pageBytes = 64 << 10

func (s *space) run(hashes []byte) *quirev1.KeyRun {
	return &quirev1.KeyRun{Group: s.fix.Group[:], Hashes: hashes}
}

func (s *space) runs(hashes []byte) []*quirev1.KeyRun { return []*quirev1.KeyRun{s.run(hashes)} }

func (s *space) begin(hashes []byte) *quirev1.BeginPublishResponse {
	s.w.t.Helper()
	return s.beginAfter(hashes, false)
}

// beginAfter asks for pages that begin a chain, or go on after pages that the writer does not know.
func (s *space) beginAfter(hashes []byte, more bool) *quirev1.BeginPublishResponse {
	s.w.t.Helper()
	r := &quirev1.BeginPublishRequest{Namespace: s.ref, Run: s.run(hashes), Lease: durationpb.New(30 * time.Second)}
	for i := range len(hashes) / 32 {
		p := &quirev1.PublishPage{PayloadBytes: pageBytes}
		switch {
		case i == 0 && more:
			p.Parent = &quirev1.PublishPage_ParentUnknown{ParentUnknown: true}
		case i == 0:
			p.Parent = &quirev1.PublishPage_Root{Root: true}
		}
		r.Pages = append(r.Pages, p)
	}
	got, err := s.page.BeginPublish(ctx(s.w.t), r)
	if err != nil {
		s.w.t.Fatal(err)
	}
	return got
}

// write sends the payload of each page in chunks; tamper may change or drop (nil) a message.
func (s *space) write(b *quirev1.BeginPublishResponse, hashes []byte, tamper func(*quirev1.WritePagesRequest) *quirev1.WritePagesRequest) (*quirev1.WritePagesResponse, error) {
	s.w.t.Helper()
	st, err := s.page.WritePages(ctx(s.w.t))
	if err != nil {
		s.w.t.Fatal(err)
	}
	first := true
	for i := range len(hashes) / 32 {
		payload := s.fix.Payload(hashes[32*i:32*i+32], s.fix.Geometry.Full(), 0)
		for off := 0; off < len(payload); off += 20_000 {
			m := &quirev1.WritePagesRequest{Page: uint32(i), Offset: uint64(off), Chunk: payload[off:min(off+20_000, len(payload))]}
			if first {
				m.Token, m.Namespace, first = b.Token, s.ref, false
			}
			if tamper != nil {
				m = tamper(m)
			}
			if m == nil {
				continue
			}
			if err := st.Send(m); err != nil && !errors.Is(err, io.EOF) {
				s.w.t.Fatal(err)
			}
		}
	}
	return st.CloseAndRecv()
}

func (s *space) commit(b *quirev1.BeginPublishResponse, hashes []byte, salt uint64) (*quirev1.CommitPublishResponse, error) {
	r := &quirev1.CommitPublishRequest{Token: b.Token, Namespace: s.ref}
	for i := range len(hashes) / 32 {
		h := hashes[32*i : 32*i+32]
		v := s.fix.Geometry.Full()
		r.Pages = append(r.Pages, &quirev1.CommitPage{Page: uint32(i), Headers: [][]byte{s.fix.Header(h, v, s.fix.Payload(h, v, salt))}})
	}
	return s.page.CommitPublish(ctx(s.w.t), r)
}

// publish puts a whole chain in.
func (s *space) publish(hashes []byte) {
	s.w.t.Helper()
	s.publishAfter(hashes, false)
}

func (s *space) publishAfter(hashes []byte, more bool) {
	s.w.t.Helper()
	b := s.beginAfter(hashes, more)
	if _, err := s.write(b, hashes, nil); err != nil {
		s.w.t.Fatal(err)
	}
	got, err := s.commit(b, hashes, 0)
	if err != nil {
		s.w.t.Fatal(err)
	}
	for i, p := range got.Pages {
		if p.Outcome != quirev1.Outcome_OUTCOME_COMMITTED {
			s.w.t.Fatalf("page %d: %v", i, p)
		}
	}
}

func (s *space) exists(hashes []byte) (leading uint32, err error) {
	got, err := s.page.BatchExists(ctx(s.w.t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes)})
	if err != nil {
		return 0, err
	}
	return got.Leading[0], nil
}

func (s *space) mustExist(hashes []byte, want uint32) {
	s.w.t.Helper()
	if got, err := s.exists(hashes); err != nil || got != want {
		s.w.t.Fatalf("exists: %d leading, want %d (%v)", got, want, err)
	}
}

// fetched is one page as a stock client puts it together.
type fetched struct {
	status  *quirev1.PageStatus
	payload map[uint32][]byte // by extent
	headers map[uint32][]byte
	ends    map[uint32]uint64 // where the next chunk may begin
}

func (s *space) fetch(r *quirev1.FetchRequest) ([]fetched, error) {
	st, err := s.page.Fetch(ctx(s.w.t), r)
	if err != nil {
		return nil, err
	}
	return collect(st)
}

func collect(st grpc.ServerStreamingClient[quirev1.FetchResponse]) (out []fetched, err error) {
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if out, err = take(out, m); err != nil {
			return out, err
		}
	}
}

func take(out []fetched, m *quirev1.FetchResponse) ([]fetched, error) {
	for int(m.Page) >= len(out) {
		out = append(out, fetched{payload: map[uint32][]byte{}, headers: map[uint32][]byte{}, ends: map[uint32]uint64{}})
	}
	if int(m.Page) != len(out)-1 {
		return out, fmt.Errorf("page %d after page %d", m.Page, len(out)-1)
	}
	p := &out[m.Page]
	if p.status != nil {
		return out, fmt.Errorf("page %d goes on after its trailer", m.Page)
	}
	if m.Header != nil {
		p.headers[m.Extent] = m.Header
	}
	if m.Chunk != nil {
		if at, begun := p.ends[m.Extent]; begun && m.Offset < at {
			return out, fmt.Errorf("page %d: chunk at %d after %d", m.Page, m.Offset, at)
		}
		p.ends[m.Extent] = m.Offset + uint64(len(m.Chunk))
		p.payload[m.Extent] = append(p.payload[m.Extent], m.Chunk...)
	}
	p.status = m.Trailer
	return out, nil
}

// mustServe fetches whole pages and compares every byte.
func (s *space) mustServe(hashes []byte) {
	s.w.t.Helper()
	got, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	if err != nil {
		s.w.t.Fatal(err)
	}
	if len(got) != len(hashes)/32 {
		s.w.t.Fatalf("%d pages for %d hashes", len(got), len(hashes)/32)
	}
	for i, p := range got {
		want := s.fix.Payload(hashes[32*i:32*i+32], s.fix.Geometry.Full(), 0)
		if p.status.GetOutcome() != quirev1.Outcome_OUTCOME_OK || string(p.payload[0]) != string(want) || len(p.headers[0]) == 0 {
			s.w.t.Fatalf("page %d: %v, %d of %d bytes, header of %d", i, p.status, len(p.payload[0]), len(want), len(p.headers[0]))
		}
	}
}

// mustMiss fetches and wants a miss of one reason for every page.
func (s *space) mustMiss(hashes []byte, want reason.Reason) {
	s.w.t.Helper()
	got, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes)})
	if err != nil {
		s.w.t.Fatal(err)
	}
	if len(got) != len(hashes)/32 {
		s.w.t.Fatalf("%d pages for %d hashes", len(got), len(hashes)/32)
	}
	for i, p := range got {
		if p.status.GetOutcome() != quirev1.Outcome_OUTCOME_MISS || rpc.FromProto(p.status.GetReason()) != want || len(p.payload) > 0 {
			s.w.t.Fatalf("page %d: %v with %d extents, want a miss: %v", i, p.status, len(p.payload), want)
		}
	}
}

// is fails unless err is the reason, over the wire.
func is(t testing.TB, err error, want reason.Reason) {
	t.Helper()
	if !errors.Is(rpc.FromStatus(err), want) {
		t.Fatalf("got %v, want %v", rpc.FromStatus(err), want)
	}
}

// eventually polls without sleeping: each round is a call of the server, which takes its time.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("never: %s", what)
		}
	}
}

// metric is the value of a metric, of the series with one of the label values where some are given.
func (w *world) metric(name string, label ...string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			match := len(label) == 0
			for _, l := range m.Label {
				match = match || slices.Contains(label, l.GetValue())
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// storeExists asks the store itself, as if the server did not stand before it.
func (w *world) storeExists(p core.Principal, s *space, hashes []byte) reason.Reason {
	run := core.Run{Family: s.fix.Family(), Hashes: hashes}
	return w.store.Exists(store.Caller{Principal: p}, []core.Run{run}, page.View{}, make([]byte, (len(hashes)/32+7)/8), make([]uint32, 1))
}
