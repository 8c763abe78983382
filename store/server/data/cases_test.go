package data_test

import (
	"io"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
)

// TestCase_C16_BadUpload: an upload that is truncated, lacks a chunk, has two out of order, or other bytes than its
// header says, makes nothing visible.
func TestCase_C16_BadUpload(t *testing.T) {
	n := newNode(t, false, server.Limits{})
	s, err := n.dial(t, "acme", client.Options{}).Open(n.ctx(), clienttest.Spec(t, "v1"))
	if err != nil {
		t.Fatal(err)
	}
	pages := quirev1.NewPageServiceClient(n.frames(n.token("acme"), nil))
	r, payload := one(s)
	geo, _ := s.Geometry(r.Group)
	id, of := s.ID(), s.Provenance()
	prov := namespace.DigestOf(of)
	ref := &quirev1.NamespaceRef{Id: id[:], Epoch: uint64(s.Epoch()), Provenance: prov[:]}
	run := &quirev1.KeyRun{Group: r.Group[:], Hashes: r.Hashes}
	hash, err := page.MakeHash(r.Hashes)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := page.AppendSumsOf(nil, payload, geo.Full(), geo.CellBytes)
	if err != nil {
		t.Fatal(err)
	}
	h := page.Header{
		Key:    page.Key{Family: page.Family{Namespace: id, Epoch: s.Epoch(), Group: r.Group}, Hash: hash},
		Extent: page.ExtentID{Seq: 1}, Tokens: geo.Tokens, View: geo.Full(), Heads: geo.Heads, Layers: geo.Layers,
		CellBytes: geo.CellBytes, Grade: geo.Grade, PayloadBytes: uint64(len(payload)), Provenance: of,
	}
	h.SetSums(sums)
	header, err := h.AppendEncode(nil)
	if err != nil {
		t.Fatal(err)
	}
	const chunk = 32 << 10
	other := append([]byte{payload[0] ^ 1}, payload[1:]...)
	for _, c := range []struct {
		name  string
		bytes []byte
		order []int // of chunks
		ok    bool
	}{
		{"truncated", payload, []int{0, 1, 2}, false},
		{"one missing", payload, []int{0, 1, 3}, false},
		{"out of order", payload, []int{0, 2, 1, 3}, false},
		{"other bytes", other, []int{0, 1, 2, 3}, false},
		{"whole", payload, []int{0, 1, 2, 3}, true},
	} {
		b, err := pages.BeginPublish(n.ctx(), &quirev1.BeginPublishRequest{
			Namespace: ref, Run: run, Pages: []*quirev1.PublishPage{{Parent: &quirev1.PublishPage_Root{Root: true}, PayloadBytes: uint64(len(payload))}},
		})
		if err != nil || b.GetPages()[0].GetOutcome() != quirev1.Outcome_OUTCOME_GRANTED {
			t.Fatal(c.name, b, err)
		}
		st, err := pages.WritePages(n.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range c.order {
			if err := st.Send(&quirev1.WritePagesRequest{
				Token: b.GetToken(), Namespace: ref, Offset: uint64(k * chunk), Chunk: c.bytes[k*chunk : (k+1)*chunk],
			}); err != nil {
				t.Fatal(c.name, err)
			}
		}
		if _, err := st.CloseAndRecv(); err != nil {
			t.Fatal(c.name, err)
		}
		done, err := pages.CommitPublish(n.ctx(), &quirev1.CommitPublishRequest{
			Namespace: ref, Token: b.GetToken(), Pages: []*quirev1.CommitPage{{Headers: [][]byte{header}}},
		})
		if err != nil || (done.GetPages()[0].GetOutcome() == quirev1.Outcome_OUTCOME_COMMITTED) != c.ok {
			t.Errorf("%s: %v %v", c.name, done, err)
		}
		e, err := pages.BatchExists(n.ctx(), &quirev1.BatchExistsRequest{Namespace: ref, Runs: []*quirev1.KeyRun{run}})
		if err != nil || (e.GetPresent()[0] == 1) != c.ok {
			t.Errorf("%s: visible %v %v", c.name, e, err)
		}
	}
}

// TestCase_C18_LongerThanItsLease: a fetch that takes longer than its lease renews it while it streams.
func TestCase_C18_LongerThanItsLease(t *testing.T) {
	n := newNode(t, false, server.Limits{})
	ref, run := n.published(300)
	pages := quirev1.NewPageServiceClient(n.frames(n.token("acme"), nil))
	e, err := pages.BatchExists(n.ctx(), &quirev1.BatchExistsRequest{
		Namespace: ref, Runs: []*quirev1.KeyRun{run}, Lease: durationpb.New(20 * time.Second),
	})
	if err != nil || e.GetLease().GetCovered()[0] < 100 {
		t.Fatal(e.GetLease(), err)
	}
	run.Hashes = run.Hashes[:32*e.GetLease().GetCovered()[0]]
	st, err := pages.Fetch(n.ctx(), &quirev1.FetchRequest{Namespace: ref, Run: run, LeaseId: e.GetLease().GetLeaseId()})
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for {
		m, err := st.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if tr := m.GetTrailer(); tr != nil {
			if tr.GetOutcome() != quirev1.Outcome_OUTCOME_OK {
				t.Fatalf("page %d: %v", m.GetPage(), tr)
			}
			if got++; got%4 == 0 {
				n.clock.Advance(time.Second)
			}
		}
	}
	if got < 100 {
		t.Errorf("%d pages", got)
	}
	if l, _, _ := n.held(); l != 1 {
		t.Errorf("%d leases after %d s", l, got/4)
	}
}
