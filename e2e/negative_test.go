package e2e

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/storetest"
)

// The five negative tests that the protocol was proposed with, against a server in a process of its own, over the
// generated stubs and over every transport: what any client could send.

// longLease is over at no time within a test.
const longLease = time.Minute

// wire is one publication of one page, step by step.
type wire struct {
	t     *testing.T
	pages quirev1.PageServiceClient
	s     *client.Session // for identity and for looking at the outcome
	ref   *quirev1.NamespaceRef
	hash  []byte
	bytes []byte
}

// newWire speaks to a server over one transport.
func newWire(t *testing.T, s *server, over client.Transport, name string) *wire {
	t.Helper()
	c := dialOver(t, s.address, over)
	return wireOf(t, c.Pages(), open(t, c, smallSpec(t)), name)
}

func wireOf(t *testing.T, pages quirev1.PageServiceClient, s *client.Session, name string) *wire {
	id := s.ID()
	w := &wire{t: t, pages: pages, s: s, hash: storetest.Chain(name, 1)}
	prov := provenanceID(s)
	w.ref = &quirev1.NamespaceRef{Id: id[:], Epoch: uint64(s.Epoch()), Provenance: prov[:]}
	_, geo := group(s)
	w.bytes = payload(geo, w.hash)
	return w
}

func (w *wire) run() *quirev1.KeyRun {
	g, _ := group(w.s)
	return &quirev1.KeyRun{Group: g[:], Hashes: w.hash}
}

func (w *wire) begin(lease time.Duration) *quirev1.BeginPublishResponse {
	w.t.Helper()
	r, err := w.pages.BeginPublish(w.t.Context(), &quirev1.BeginPublishRequest{
		Namespace: w.ref, Run: w.run(), Lease: durationpb.New(lease),
		Pages: []*quirev1.PublishPage{{Parent: &quirev1.PublishPage_Root{Root: true}, PayloadBytes: uint64(len(w.bytes))}},
	})
	if err != nil || r.Pages[0].Outcome != quirev1.Outcome_OUTCOME_GRANTED {
		w.t.Fatalf("begin: %v %v", r, err)
	}
	return r
}

func (w *wire) write(token *quirev1.FencingToken, b []byte) {
	w.t.Helper()
	if err := w.tryWrite(token, b); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) tryWrite(token *quirev1.FencingToken, b []byte) error {
	stream, err := w.pages.WritePages(w.t.Context())
	if err != nil {
		return err
	}
	const chunk = 10_000
	for off := 0; off < len(b); off += chunk {
		m := &quirev1.WritePagesRequest{Offset: uint64(off), Chunk: b[off:min(off+chunk, len(b))]}
		if off == 0 {
			m.Token, m.Namespace = token, w.ref
		}
		if stream.Send(m) != nil {
			break // the answer says why
		}
	}
	_, err = stream.CloseAndRecv()
	return rpc.FromStatus(err)
}

func (w *wire) header() []byte {
	w.t.Helper()
	_, geo := group(w.s)
	hash, err := page.MakeHash(w.hash)
	if err != nil {
		w.t.Fatal(err)
	}
	g, _ := group(w.s)
	h := page.Header{
		Key:    page.Key{Family: page.Family{Namespace: w.s.ID(), Epoch: w.s.Epoch(), Group: g}, Hash: hash},
		Tokens: geo.Tokens, View: geo.Full(), Heads: geo.Heads, Layers: geo.Layers, CellBytes: geo.CellBytes, Grade: geo.Grade,
		PayloadBytes: uint64(len(w.bytes)), Provenance: w.s.Provenance(), Extent: page.ExtentID{Writer: [16]byte{1}, Seq: 1},
	}
	sums, err := page.AppendSumsOf(nil, w.bytes, geo.Full(), geo.CellBytes)
	if err != nil {
		w.t.Fatal(err)
	}
	h.SetSums(sums)
	raw, err := h.AppendEncode(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return raw
}

func (w *wire) commit(token *quirev1.FencingToken) (*quirev1.PageStatus, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience/3)
	defer cancel()
	r, err := w.pages.CommitPublish(ctx, &quirev1.CommitPublishRequest{
		Token: token, Namespace: w.ref, Pages: []*quirev1.CommitPage{{Headers: [][]byte{w.header()}}},
	})
	if err != nil {
		return nil, err
	}
	return r.Pages[0], nil
}

// mustCommit wants one outcome and reason.
func (w *wire) mustCommit(token *quirev1.FencingToken, o quirev1.Outcome, why quirev1.Reason) {
	w.t.Helper()
	if p, err := w.commit(token); err != nil || p.Outcome != o || p.Reason != why {
		w.t.Errorf("commit: %v %v, want %v %v", p, err, o, why)
	}
}

// served says whether the page is a hit, all of its bytes right.
func (w *wire) served() bool {
	w.t.Helper()
	_, n, err := fetch(w.t.Context(), w.s, w.hash)
	if err != nil {
		w.t.Error(err)
	}
	return n == 1
}

const (
	committed = quirev1.Outcome_OUTCOME_COMMITTED
	refused   = quirev1.Outcome_OUTCOME_REFUSED
	noReason  = quirev1.Reason_REASON_UNSPECIFIED
)

func TestNegativeWrongVersionKey(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		server := startServer(t)
		w := newWire(t, server, over, "version")
		if _, err := publish(t.Context(), w.s, w.hash); err != nil {
			t.Fatal(err)
		}
		other := smallSpec(t) // same model, other weights: another version of the key's namespace
		other.Model.Weights[0] ^= 1
		o := open(t, dialOver(t, server.address, over), other)
		rs, n, err := fetch(t.Context(), o, w.hash)
		if err != nil || n != 0 || rs[0].Reason != reason.Absent {
			t.Errorf("other weights: %+v %v", rs, err)
		}
		w.ref.Epoch++ // a life that the namespace has not had
		r, err := w.pages.BatchExists(t.Context(), &quirev1.BatchExistsRequest{Namespace: w.ref, Runs: []*quirev1.KeyRun{w.run()}})
		if status.Code(err) == codes.OK && r.GetPresent()[0] != 0 {
			t.Errorf("another epoch is a hit: %v", r)
		}
		w.ref.Epoch--
		if !w.served() {
			t.Error("the page itself is not served")
		}
	})
}

func TestNegativeTruncatedPayload(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		w := newWire(t, startServer(t), over, "truncated")
		b := w.begin(longLease)
		w.write(b.Token, w.bytes[:len(w.bytes)-1])
		w.mustCommit(b.Token, refused, quirev1.Reason_REASON_TRUNCATED)
		if w.served() {
			t.Error("a truncated page is visible")
		}
		b = w.begin(longLease) // its space and its right are free again
		w.write(b.Token, w.bytes)
		w.mustCommit(b.Token, committed, noReason)
		if !w.served() {
			t.Error("the second publication is not served")
		}
	})
}

func TestNegativeDuplicateCompletion(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		server := startServer(t)
		w := newWire(t, server, over, "duplicate")
		b := w.begin(longLease)
		w.write(b.Token, w.bytes)
		for range 3 {
			w.mustCommit(b.Token, committed, noReason)
		}
		st, err := dial(t, server.address).Admin().Status(t.Context(), &quirev1.StatusRequest{})
		if err != nil || st.Pages != 1 || st.Extents != 1 {
			t.Errorf("%d pages, %d extents, %v: accounted more than once", st.GetPages(), st.GetExtents(), err)
		}
		if !w.served() {
			t.Error("not served")
		}
	})
}

func TestNegativeExpiredLease(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		w := newWire(t, startServer(t), over, "expired")
		b := w.begin(50 * time.Millisecond)
		if err := w.tryWrite(b.Token, w.bytes); err != nil && !errors.Is(err, reason.StaleToken) { // a busy machine writes late
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		w.mustCommit(b.Token, refused, quirev1.Reason_REASON_STALE_TOKEN)
		if w.served() {
			t.Error("visible under a lease that was over")
		}
		b = w.begin(longLease)
		w.write(b.Token, w.bytes)
		w.mustCommit(b.Token, committed, noReason)
		p, err := w.s.Exists(t.Context(), run(w.s, w.hash), 50*time.Millisecond)
		if err != nil || p.Lease == nil {
			t.Fatal(p, err)
		}
		time.Sleep(200 * time.Millisecond)
		_, geo := group(w.s)
		dst := [][]byte{make([]byte, page.PayloadBytes(geo.Full(), geo.CellBytes))}
		rs, err := w.s.FetchInto(t.Context(), run(w.s, w.hash), page.View{}, nil, dst, p.Lease)
		if len(rs) == 1 && rs[0].Outcome == client.OK {
			t.Errorf("served under a read lease that was over: %+v %v", rs, err)
		}
	})
}

func TestNegativeFailureBetweenTransferAndAcknowledgement(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		server := startServer(t)
		c := dialOver(t, server.address, over)
		var cut atomic.Bool
		w := wireOf(t, overCut(t, c, over, server.address, &cut), open(t, c, smallSpec(t)), "lost answer")
		b := w.begin(longLease)
		w.write(b.Token, w.bytes)
		cut.Store(true)
		if _, err := w.commit(b.Token); err == nil {
			t.Fatal("the answer was to be lost")
		}
		if _, err := w.commit(b.Token); err == nil { // and now there is not even a connection
			t.Fatal("there was to be no connection")
		}
		cut.Store(false)
		var got *quirev1.PageStatus
		var err error
		for deadline := time.Now().Add(patience / 3); ; time.Sleep(20 * time.Millisecond) { // the same commit again, over another connection
			if got, err = w.commit(b.Token); err == nil || time.Now().After(deadline) {
				break
			}
		}
		if err != nil || got.GetOutcome() != committed {
			t.Errorf("the commit repeated: %v, %v", got, err)
		}
		st, err := dial(t, server.address).Admin().Status(t.Context(), &quirev1.StatusRequest{})
		if err != nil || st.Extents != 1 {
			t.Errorf("%d extents, %v", st.GetExtents(), err)
		}
		if !w.served() {
			t.Error("not served")
		}
	})
}
