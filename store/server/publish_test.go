package server_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/server"
	"github.com/quire-kv/quire/store/storetest"
)

func engineSpace(t testing.TB, l server.Limits) *space {
	return newWorld(t, l).as("a", namespace.RoleEngine).open("w", "1")
}

func TestPublishAndFetch(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 40)
	s.mustExist(hashes, 0)
	s.publish(hashes)
	s.mustExist(hashes, 40)
	s.mustServe(hashes)
	if got := s.begin(hashes); got.Token != nil || got.Pages[7].Outcome != quirev1.Outcome_OUTCOME_PRESENT || len(got.Pages[7].ExtentIds) != 1 {
		t.Errorf("a second writer: %v", got.Pages[7])
	}
	// A view is exactly its bytes.
	got, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes[:64]), View: &quirev1.View{H0: 2, H1: 3, L0: 1, L1: 3}})
	if err != nil || len(got) != 2 {
		t.Fatalf("%d pages, %v", len(got), err)
	}
	for i, p := range got {
		whole, cell := s.fix.Payload(hashes[32*i:32*i+32], s.fix.Geometry.Full(), 0), 4<<10
		if p.status.GetOutcome() != quirev1.Outcome_OUTCOME_OK || string(p.payload[0]) != string(whole[9*cell:11*cell]) {
			t.Errorf("page %d of a view: %v, %d bytes", i, p.status, len(p.payload[0]))
		}
	}
}

// Truncated, one chunk missing, one out of order, a wrong byte: nothing is visible, and the page can be published.
func TestCase_C16_BadUploads(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	for name, c := range map[string]struct {
		tamper func(n int, m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest
		write  reason.Reason // of the write's answer; None: only the commit notices
		commit reason.Reason
	}{
		"truncated": {func(n int, m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
			if n == 3 {
				return nil
			}
			return m
		}, reason.None, reason.Truncated},
		"hole": {func(n int, m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
			if n == 1 {
				return nil
			}
			return m
		}, reason.Truncated, reason.Truncated},
		"out of order": {func(n int, m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
			if n == 1 {
				m.Offset += uint64(len(m.Chunk))
			}
			return m
		}, reason.Truncated, reason.Truncated},
		"flipped bit": {func(n int, m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
			if n == 2 {
				m.Chunk = slices.Clone(m.Chunk)
				m.Chunk[77] ^= 4
			}
			return m
		}, reason.None, reason.Corrupt},
		"too long": {func(n int, m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
			if n == 3 {
				m.Chunk = append(slices.Clone(m.Chunk), 1)
			}
			return m
		}, reason.SizeMismatch, reason.Truncated},
	} {
		t.Run(name, func(t *testing.T) {
			hashes := storetest.Chain(name, 1)
			b := s.begin(hashes)
			n := -1
			got, err := s.write(b, hashes, func(m *quirev1.WritePagesRequest) *quirev1.WritePagesRequest {
				n++
				return c.tamper(n, m)
			})
			if err != nil {
				t.Fatal(err)
			}
			if why := rpc.FromProto(got.Pages[0].Reason); why != c.write {
				t.Errorf("write answers %v, want %v", why, c.write)
			}
			s.mustExist(hashes, 0)
			committed, err := s.commit(b, hashes, 0)
			if err != nil {
				t.Fatal(err)
			}
			if p := committed.Pages[0]; p.Outcome != quirev1.Outcome_OUTCOME_REFUSED || rpc.FromProto(p.Reason) != c.commit {
				t.Errorf("commit answers %v, want %v", p, c.commit)
			}
			s.mustExist(hashes, 0)
			s.mustMiss(hashes, reason.Absent)
			s.publish(hashes)
			s.mustServe(hashes)
		})
	}
}

func TestCase_C13_CommitTwice(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 3)
	b := s.begin(hashes)
	if _, err := s.write(b, hashes, nil); err != nil {
		t.Fatal(err)
	}
	r := &quirev1.CommitPublishRequest{Token: b.Token, Namespace: s.ref}
	for i := range 3 {
		h := hashes[32*i : 32*i+32]
		v := s.fix.Geometry.Full()
		r.Pages = append(r.Pages, &quirev1.CommitPage{Page: uint32(i), Headers: [][]byte{s.fix.Header(h, v, s.fix.Payload(h, v, 0))}})
	}
	for range 3 {
		got, err := s.page.CommitPublish(ctx(t), r)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range got.Pages {
			if p.Outcome != quirev1.Outcome_OUTCOME_COMMITTED {
				t.Errorf("page %d: %v", i, p)
			}
		}
	}
	if st := s.w.store.Status(); st.Totals.Pages != 3 || st.Totals.Extents != 3 {
		t.Errorf("accounted more than once: %d pages, %d extents", st.Totals.Pages, st.Totals.Extents)
	}
}

// A writer that slept past its lease while another took over cannot commit.
func TestCase_C12_StaleToken(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	other := s.w.as("a", namespace.RoleEngine).open("w", "1")
	hashes := storetest.Chain("x", 1)
	slow := s.begin(hashes)
	if _, err := s.write(slow, hashes, nil); err != nil {
		t.Fatal(err)
	}
	held := other.begin(hashes)
	if p := held.Pages[0]; p.Outcome != quirev1.Outcome_OUTCOME_REFUSED || p.Reason != quirev1.Reason_REASON_HELD {
		t.Fatalf("a held page: %v", p)
	}
	s.w.clock.Advance(2 * time.Minute)
	fresh := other.begin(hashes)
	if fresh.Pages[0].Outcome != quirev1.Outcome_OUTCOME_GRANTED {
		t.Fatalf("after the lease: %v", fresh.Pages[0])
	}
	got, err := s.commit(slow, hashes, 0)
	if err != nil {
		t.Fatal(err)
	}
	if p := got.Pages[0]; p.Outcome != quirev1.Outcome_OUTCOME_REFUSED || p.Reason != quirev1.Reason_REASON_STALE_TOKEN {
		t.Errorf("the sleeper's commit: %v", p)
	}
	s.mustExist(hashes, 0)
	_, err = s.page.RenewLease(ctx(t), &quirev1.RenewLeaseRequest{Namespace: s.ref, Lease: &quirev1.RenewLeaseRequest_Token{Token: slow.Token}})
	is(t, err, reason.StaleToken)
	if _, err := other.write(fresh, hashes, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := other.commit(fresh, hashes, 0); err != nil || got.Pages[0].Outcome != quirev1.Outcome_OUTCOME_COMMITTED {
		t.Errorf("the other's commit: %v %v", got, err)
	}
	s.mustServe(hashes)
}

// A token of another principal is worth nothing.
func TestTokenIsItsPrincipals(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	other := s.w.as("a", namespace.RoleEngine).open("w", "1")
	hashes := storetest.Chain("x", 1)
	b := s.begin(hashes)
	got, err := other.write(b, hashes, nil)
	if err != nil || got.Pages[0].Reason != quirev1.Reason_REASON_STALE_TOKEN {
		t.Errorf("another's write: %v %v", got, err)
	}
	if _, err := other.page.AbortPublish(ctx(t), &quirev1.AbortPublishRequest{Namespace: other.ref, Token: b.Token}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.write(b, hashes, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := s.commit(b, hashes, 0); err != nil || got.Pages[0].Outcome != quirev1.Outcome_OUTCOME_COMMITTED {
		t.Errorf("another's abort took the grant away: %v %v", got, err)
	}
}

// Same key and view, other bytes: the first stays, the second is told what is stored, and it is counted.
func TestCase_C56_OtherBytes(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 1)
	s.publish(hashes)
	again := s.begin(hashes)
	p := again.Pages[0]
	if p.Outcome != quirev1.Outcome_OUTCOME_PRESENT || len(p.ExtentIds) != 1 || len(p.ExtentIds[0]) != 40 {
		t.Fatalf("got %v", p)
	}
	got, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes), Resume: []*quirev1.ResumePage{{Page: 0, ExtentIds: p.ExtentIds}}})
	if err != nil || got[0].status.Outcome != quirev1.Outcome_OUTCOME_OK {
		t.Errorf("the stored digest does not name what is stored: %v %v", got, err)
	}
	other := slices.Clone(p.ExtentIds[0])
	other[39] ^= 1
	got, err = s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes), Resume: []*quirev1.ResumePage{{Page: 0, ExtentIds: [][]byte{other}}}})
	if err != nil || got[0].status.Outcome != quirev1.Outcome_OUTCOME_MISS || len(got[0].payload) != 0 {
		t.Errorf("resumed on another extent: %v %v", got, err)
	}
}

// A size that the spec does not allow is refused before a byte moves.
func TestCase_C57_SizeMismatch(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 1)
	for _, size := range []uint64{0, 1, pageBytes - 1, pageBytes + 1, 2 * pageBytes} {
		got, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{
			Namespace: s.ref, Run: s.run(hashes),
			Pages: []*quirev1.PublishPage{{Parent: &quirev1.PublishPage_Root{Root: true}, PayloadBytes: size}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if p := got.Pages[0]; p.Outcome != quirev1.Outcome_OUTCOME_REFUSED || p.Reason != quirev1.Reason_REASON_SIZE_MISMATCH || got.Token != nil {
			t.Errorf("%d bytes: %v", size, p)
		}
	}
}

// The pages stay, and the reporter is counted under its name.
func TestCase_C79_UnconfirmedReport(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 2)
	s.publish(hashes)
	got, err := s.page.ReportCorrupt(ctx(t), &quirev1.ReportCorruptRequest{Namespace: s.ref, Run: s.run(hashes)})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got.Pages {
		if p.Outcome != quirev1.Outcome_OUTCOME_OK {
			t.Errorf("page %d: %v", i, p)
		}
	}
	s.mustServe(hashes)
	counts := s.w.store.Status().ReportsUnconfirmed
	if len(counts) != 1 {
		t.Fatalf("counted %v", counts)
	}
	for name := range counts {
		if name[:9] != "a/engine/" {
			t.Errorf("counted under %q", name)
		}
	}
	if v := s.w.metric("quire_corrupt_reports_total", "unconfirmed"); v == 0 {
		t.Error("the metric does not count it")
	}
}

// A read lease pins, is renewed and released from any connection of its principal, and by no other principal.
func TestLeases(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 4)
	s.publish(hashes)
	got, err := s.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes), Lease: durationpb.New(5 * time.Second)})
	if err != nil || got.Lease == nil || got.Lease.Covered[0] != 4 || got.Leading[0] != 4 {
		t.Fatalf("%v %v", got, err)
	}
	other := s.w.as("a", namespace.RoleEngine)
	renew := func(p *peer) error {
		_, err := p.page.RenewLease(ctx(t), &quirev1.RenewLeaseRequest{Namespace: s.ref, Lease: &quirev1.RenewLeaseRequest_LeaseId{LeaseId: got.Lease.LeaseId}})
		return err
	}
	is(t, renew(other), reason.LeaseExpired)
	if err := renew(s.peer); err != nil {
		t.Error(err)
	}
	pages, err := s.fetch(&quirev1.FetchRequest{Namespace: s.ref, Run: s.run(hashes), LeaseId: got.Lease.LeaseId})
	if err != nil || pages[3].status.Outcome != quirev1.Outcome_OUTCOME_OK {
		t.Errorf("fetch under the lease: %v", err)
	}
	if _, err := s.page.ReleaseLease(ctx(t), &quirev1.ReleaseLeaseRequest{Namespace: s.ref, LeaseId: got.Lease.LeaseId}); err != nil {
		t.Fatal(err)
	}
	is(t, renew(s.peer), reason.LeaseExpired)
	if st := s.w.store.Status(); st.Totals.ReadLeases != 0 || st.Totals.PinnedBytes != 0 {
		t.Errorf("%d leases, %d bytes pinned after the release", st.Totals.ReadLeases, st.Totals.PinnedBytes)
	}
}

// A lookup that nobody follows, by a client that is gone: its session's leases end with the stream, the others with
// their time.
func TestCase_C21_LeasesEnd(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	hashes := storetest.Chain("x", 4)
	s.publish(hashes)
	attached, err := s.page.Attach(ctx(t), &quirev1.AttachRequest{Instance: "i"})
	if err != nil {
		t.Fatal(err)
	}
	hello, err := attached.Recv()
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(p *peer, session []byte) error {
		_, err := p.page.BatchExists(ctx(t), &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: s.runs(hashes), Lease: durationpb.New(30 * time.Second), SessionId: session})
		return err
	}
	if err := lookup(s.peer, hello.SessionId); err != nil {
		t.Fatal(err)
	}
	if err := lookup(s.peer, nil); err != nil {
		t.Fatal(err)
	}
	is(t, lookup(s.w.as("a", namespace.RoleEngine), hello.SessionId), reason.LeaseExpired) // another's session
	if n := s.w.store.Status().Totals.ReadLeases; n != 2 {
		t.Fatalf("%d leases, want 2", n)
	}
	(<-s.raw).Close() // the client is killed
	s.w.eventually("the session's lease ends", func() bool { return s.w.store.Status().Totals.ReadLeases == 1 })
	s.w.clock.Advance(2 * time.Minute)
	s.w.eventually("the other lease ends", func() bool { return s.w.store.Status().Totals.ReadLeases == 0 })
	if st := s.w.store.Status(); st.Sessions != 0 || st.Totals.PinnedBytes != 0 {
		t.Errorf("%d sessions, %d bytes pinned", st.Sessions, st.Totals.PinnedBytes)
	}
	is(t, lookup(s.w.as("a", namespace.RoleEngine), hello.SessionId), reason.LeaseExpired)
}

// TestDefaultDurability: what a publication that names none gets is the namespace's; a node without a disk tier refuses
// what it cannot keep, whoever asked for it.
func TestDefaultDurability(t *testing.T) {
	s := engineSpace(t, server.Limits{})
	op := s.w.as("ops", namespace.RoleOperator)
	policy := func(d quirev1.Durability) (*quirev1.SetPolicyResponse, error) {
		return op.ns.SetPolicy(ctx(t), &quirev1.SetPolicyRequest{Id: s.ref.Id, Policy: &quirev1.NamespacePolicy{DefaultDurability: d}})
	}
	begin := func(d quirev1.Durability) error {
		_, err := s.page.BeginPublish(ctx(t), &quirev1.BeginPublishRequest{
			Namespace: s.ref, Run: s.run(storetest.Chain(d.String(), 1)), Durability: d,
			Pages: []*quirev1.PublishPage{{Parent: &quirev1.PublishPage_Root{Root: true}, PayloadBytes: pageBytes}},
		})
		return err
	}
	if err := begin(quirev1.Durability_DURABILITY_UNSPECIFIED); err != nil {
		t.Error(err)
	}
	got, err := policy(quirev1.Durability_DURABILITY_DISK)
	if err != nil || got.Namespace.Policy.DefaultDurability != quirev1.Durability_DURABILITY_DISK {
		t.Fatalf("%v, %v", got, err)
	}
	is(t, begin(quirev1.Durability_DURABILITY_UNSPECIFIED), reason.Unsupported)
	if err := begin(quirev1.Durability_DURABILITY_MEMORY); err != nil {
		t.Errorf("memory, by the writer's own word: %v", err)
	}
	is(t, begin(7), reason.InvalidSpec)
	_, err = policy(7)
	is(t, err, reason.InvalidSpec)
	if got, err = policy(quirev1.Durability_DURABILITY_UNSPECIFIED); err != nil || got.Namespace.Policy.DefaultDurability != quirev1.Durability_DURABILITY_MEMORY {
		t.Fatalf("%v, %v", got, err)
	}
	if err := begin(quirev1.Durability_DURABILITY_UNSPECIFIED); err != nil {
		t.Error(err)
	}
}
