package client

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// fake is a server that does as a test says: stock gRPC with its stock codec, and frames; no store. Every method that is not set
// answers Unsupported.
type fake struct {
	quirev1.UnimplementedPageServiceServer
	quirev1.UnimplementedNamespaceServiceServer

	record  *quirev1.Namespace
	data    string // where it speaks frames
	fetch   func(*quirev1.FetchRequest, grpc.ServerStreamingServer[quirev1.FetchResponse]) error
	exists  func(*quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error)
	begin   func(*quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error)
	write   func(grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error
	commit  func(*quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error)
	renew   func(*quirev1.RenewLeaseRequest) (*quirev1.RenewLeaseResponse, error)
	aborts  chan *quirev1.AbortPublishRequest
	reports chan *quirev1.ReportCorruptRequest

	mu       sync.Mutex // guards below
	attached int
}

var errUnset = rpc.Errorf(reason.Unsupported, "not in this test")

func (f *fake) GetCapabilities(context.Context, *quirev1.GetCapabilitiesRequest) (*quirev1.GetCapabilitiesResponse, error) {
	return &quirev1.GetCapabilitiesResponse{MaxKeys: 100, MaxBatchBytes: 1 << 30, MaxChunkBytes: 1 << 20, BootId: make([]byte, 16), DataAddress: f.data}, nil
}

func (f *fake) Attach(_ *quirev1.AttachRequest, st grpc.ServerStreamingServer[quirev1.AttachResponse]) error {
	f.mu.Lock()
	f.attached++
	n := f.attached
	f.mu.Unlock()
	if err := st.Send(&quirev1.AttachResponse{SessionId: []byte{byte(n)}}); err != nil {
		return err
	}
	<-st.Context().Done()
	return nil
}

func (f *fake) Get(context.Context, *quirev1.GetRequest) (*quirev1.GetResponse, error) {
	return &quirev1.GetResponse{Namespace: f.record}, nil
}

func (f *fake) Fetch(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
	if f.fetch == nil {
		return errUnset
	}
	return f.fetch(r, st)
}

func (f *fake) BatchExists(_ context.Context, r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
	if f.exists == nil {
		return nil, errUnset
	}
	return f.exists(r)
}

func (f *fake) BeginPublish(_ context.Context, r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
	if f.begin == nil {
		return nil, errUnset
	}
	return f.begin(r)
}

func (f *fake) WritePages(st grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
	if f.write == nil {
		return errUnset
	}
	return f.write(st)
}

func (f *fake) CommitPublish(_ context.Context, r *quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
	if f.commit == nil {
		return nil, errUnset
	}
	return f.commit(r)
}

func (f *fake) RenewLease(_ context.Context, r *quirev1.RenewLeaseRequest) (*quirev1.RenewLeaseResponse, error) {
	if f.renew == nil {
		return nil, errUnset
	}
	return f.renew(r)
}

func (f *fake) AbortPublish(_ context.Context, r *quirev1.AbortPublishRequest) (*quirev1.AbortPublishResponse, error) {
	f.aborts <- r
	return &quirev1.AbortPublishResponse{}, nil
}

func (f *fake) ReportCorrupt(_ context.Context, r *quirev1.ReportCorruptRequest) (*quirev1.ReportCorruptResponse, error) {
	f.reports <- r
	return &quirev1.ReportCorruptResponse{}, nil
}

// world is a fake, a client and a session of a namespace with one group.
type world struct {
	t     *testing.T
	fake  *fake
	geo   Geometry
	group page.GroupID
	c     *Client
	s     *Session
	seq   uint64
	conns *gate
	cells map[[4]int][]byte // payload by page, version, head, layer
}

// small is 4 heads x 3 layers of 24 KiB cells: two cells a piece, the last of a head one cell.
var small = Geometry{Heads: 4, Layers: 3, CellBytes: 24 << 10, Tokens: 16, Grade: page.Elements}

// large has cells of more than a piece: 64 KiB and 8 KiB.
var large = Geometry{Heads: 2, Layers: 3, CellBytes: 72 << 10, Tokens: 16, Grade: page.Elements}

// over runs a test over each transport that has a stock server.
func over(t *testing.T, test func(t *testing.T, tr Transport)) {
	for _, tr := range []Transport{GRPC, Data} {
		t.Run(string(tr), func(t *testing.T) { test(t, tr) })
	}
}

func newWorld(t *testing.T, tr Transport, geo Geometry, o Options) *world {
	t.Helper()
	w := &world{t: t, geo: geo, group: page.GroupID{9}, cells: map[[4]int][]byte{}, fake: &fake{
		aborts: make(chan *quirev1.AbortPublishRequest, 100), reports: make(chan *quirev1.ReportCorruptRequest, 100),
	}}
	w.fake.record = &quirev1.Namespace{Id: make([]byte, 32), Epoch: 1, HashBytes: 32, Groups: []*quirev1.Group{{
		Id: w.group[:], Kind: "full", PageTokens: geo.Tokens, KvHeads: uint32(geo.Heads), Layers: uint32(geo.Layers),
		CellBytes: uint64(geo.CellBytes), Grade: geo.Grade.String(),
	}}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.conns = &gate{Listener: l}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(8 << 20))
	quirev1.RegisterPageServiceServer(s, w.fake)
	quirev1.RegisterNamespaceServiceServer(s, w.fake)
	served := make(chan struct{})
	conns := w.conns
	go func() { defer close(served); s.Serve(conns) }()
	t.Cleanup(func() { conns.open(); s.Stop(); <-served })
	w.frames(tr)
	o.Address, o.Transport = l.Addr().String(), tr
	if w.c, err = Dial(w.ctx(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.c.Close() })
	if w.s, err = w.c.OpenID(w.ctx(), page.NamespaceID{}, []byte("engine=fake")); err != nil {
		t.Fatal(err)
	}
	return w
}

// frames serves the fake over frames too; the gate is theirs then.
func (w *world) frames(tr Transport) {
	if tr != Data {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.conns = &gate{Listener: l}
	w.fake.data = l.Addr().String()
	s := frame.NewServer(frame.ServerOptions{})
	quirev1.RegisterPageServiceServer(s, w.fake)
	served := make(chan struct{})
	conns := w.conns
	go func() { defer close(served); s.Serve(conns) }()
	w.t.Cleanup(func() {
		conns.open()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Stop(ctx)
		<-served
	})
}

const guard = 20 * time.Second // of what must happen; never waited for when it does

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	w.t.Cleanup(cancel)
	return ctx
}

// run is n pages with hashes that say their number.
func (w *world) run(n int) Run {
	r := Run{Group: w.group, Hashes: make([]byte, 32*n)}
	for i := range n {
		r.Hashes[32*i] = byte(i + 1)
	}
	return r
}

// payload is view v of page i as version ver of it, head-major: a function of page, version, head, layer and offset.
func (w *world) payload(i, ver int, v page.View) []byte {
	b := make([]byte, 0, v.Cells()*int(w.geo.CellBytes))
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			b = append(b, w.cell(i, ver, int(h), int(l))...)
		}
	}
	return b
}

func (w *world) cell(i, ver, h, l int) []byte {
	w.fake.mu.Lock()
	defer w.fake.mu.Unlock()
	k := [4]int{i, ver, h, l}
	if w.cells[k] == nil {
		rng := rand.NewPCG(uint64(i)<<32|uint64(ver), uint64(h)<<16|uint64(l))
		b := make([]byte, 0, w.geo.CellBytes)
		for range w.geo.CellBytes / 8 {
			b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
		}
		w.cells[k] = b
	}
	return w.cells[k]
}

// extent is one stored body of bytes.
type extent struct {
	header  page.Header
	raw     []byte
	payload []byte
}

func (w *world) extent(i, ver int, v page.View) *extent {
	e := &extent{payload: w.payload(i, ver, v)}
	w.fake.mu.Lock()
	w.seq++
	seq := w.seq
	w.fake.mu.Unlock()
	h, _ := page.MakeHash(w.run(i + 1).Hashes[32*i:])
	sums, err := page.AppendSumsOf(nil, e.payload, v, w.geo.CellBytes)
	if err != nil {
		w.t.Fatal(err)
	}
	e.header = page.Header{
		Key: page.Key{Family: page.Family{Epoch: 1, Group: w.group}, Hash: h}, Extent: page.ExtentID{Writer: [16]byte{byte(ver)}, Seq: seq},
		Tokens: w.geo.Tokens, View: v, Heads: w.geo.Heads, Layers: w.geo.Layers, CellBytes: w.geo.CellBytes, Grade: w.geo.Grade,
		PayloadBytes: uint64(len(e.payload)), Provenance: []byte("p"),
	}
	e.header.SetSums(sums)
	e.seal()
	return e
}

// seal encodes the header as it is now.
func (e *extent) seal() {
	raw, err := e.header.AppendEncode(nil)
	if err != nil {
		panic(err)
	}
	e.raw = raw
}

// messages are what an honest server sends for view v of requested page k out of extents, in chunks of at most
// chunkBytes, trailer included.
func (w *world) messages(k int, v page.View, chunkBytes int, extents ...*extent) []*quirev1.FetchResponse {
	views := make([]page.View, len(extents))
	for i, e := range extents {
		views[i] = e.header.View
	}
	parts, ok := v.Tile(nil, views)
	if !ok {
		w.t.Fatalf("extents %v do not tile %v", views, v)
	}
	var out []*quirev1.FetchResponse
	for x, p := range parts {
		e := extents[p.Index]
		header := e.raw
		runs := page.RunsBetween(e.header.View, v, p.View, w.geo.CellBytes)
		for r := range runs.N {
			src, _, n := runs.Run(r)
			for at := 0; at < n; at += chunkBytes {
				off, c := src+at, min(chunkBytes, n-at)
				out = append(out, &quirev1.FetchResponse{
					Page: uint32(k), Extent: uint32(x), Header: header, Offset: uint64(off),
					CutSums: e.cutSums(off, c), Chunk: append([]byte(nil), e.payload[off:off+c]...),
				})
				header = nil
			}
		}
	}
	return append(out, &quirev1.FetchResponse{Page: uint32(k), Trailer: &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_OK}})
}

func (e *extent) cutSums(off, n int) (sums []byte) {
	pieces := e.header.Pieces()
	first, end, _, _ := pieces.Touched(off, n)
	for i := first; i < end; i++ {
		at, bytes := pieces.Span(i)
		from, to := max(at, off), min(at+bytes, off+n)
		if from != at || to != at+bytes {
			sums = binary.LittleEndian.AppendUint64(sums, page.PieceSum(e.payload[from:to]))
		}
	}
	return sums
}

func sendAll(st grpc.ServerStreamingServer[quirev1.FetchResponse], ms []*quirev1.FetchResponse) error {
	for _, m := range ms {
		if err := st.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func missAll(why reason.Reason, k int) []*quirev1.FetchResponse {
	return []*quirev1.FetchResponse{{Page: uint32(k), Trailer: &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_MISS, Reason: rpc.ToProto(why)}}}
}

// buffers are destinations full of a pattern that no page has.
func (w *world) buffers(n int, v page.View) [][]byte {
	dst := make([][]byte, n)
	for i := range dst {
		dst[i] = make([]byte, page.PayloadBytes(v, w.geo.CellBytes))
		for k := range dst[i] {
			dst[i][k] = 0xEE
		}
	}
	return dst
}

// pageOf is the number that run gave the k-th key of a request.
func pageOf(r *quirev1.FetchRequest, k int) int { return int(r.GetRun().GetHashes()[32*k]) - 1 }

func keys(r *quirev1.KeyRun) int { return len(r.GetHashes()) / 32 }

// tick moves a manual clock whenever something waits for it, until stop.
func ticking(c *clock.Manual, step time.Duration) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				c.Advance(step)
			}
		}
	}()
	return func() { close(done); <-ended }
}

func grantAll(r *quirev1.BeginPublishRequest) *quirev1.BeginPublishResponse {
	out := &quirev1.BeginPublishResponse{Token: &quirev1.FencingToken{BootId: make([]byte, 16), Sequence: 7}, Lease: durationpb.New(10 * time.Second)}
	for _, p := range r.GetPages() {
		out.Pages = append(out.Pages, &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_GRANTED, Grants: []*quirev1.View{p.GetView()}})
	}
	return out
}

// gate is a listener whose connections can be killed, and made to stop reading as a stopped process would.
type gate struct {
	net.Listener
	mu    sync.Mutex // guards below
	shut  chan struct{}
	conns []net.Conn
}

func (g *gate) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns = append(g.conns, c)
	return gated{c, g}, nil
}

// kill closes what was accepted so far.
func (g *gate) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
}

// stop makes reads wait until open.
func (g *gate) stop() { g.mu.Lock(); g.shut = make(chan struct{}); g.mu.Unlock() }

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

type gated struct {
	net.Conn
	g *gate
}

func (c gated) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.g.mu.Lock()
	shut := c.g.shut
	c.g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	return n, err
}
