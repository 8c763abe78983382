package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/client/clienttest"
	"github.com/quire-kv/quire/store/page"
)

// hostPair is one node and one client of its host.
type hostPair struct {
	*node
	t     testing.TB
	holds *clock.Manual // by which the node counts how long it holds memory
	c     *client.Client
	s     *client.Session
	g     page.GroupID
}

func newHostPair(t testing.TB, o client.Options) *hostPair {
	t.Helper()
	holds := clock.NewManual(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	n := newHoldingNode(t, 64<<20, holds)
	n.transport = client.SharedMemory
	h := &hostPair{node: n, t: t, holds: holds, c: n.dial(t, "acme", o)}
	h.s, h.g = h.open(h.c)
	return h
}

func (h *hostPair) open(c *client.Client) (*client.Session, page.GroupID) {
	h.t.Helper()
	s, err := c.Open(h.t.Context(), clienttest.Spec(h.t, "shm"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, g := range s.Namespace().GetGroups() {
		if g.GetKind() == "full" {
			return s, page.GroupID(g.GetId())
		}
	}
	h.t.Fatal("no group")
	return nil, page.GroupID{}
}

// another is a client that shares no memory.
func (h *hostPair) another() *client.Session {
	h.t.Helper()
	was := h.transport
	h.transport = client.GRPC
	c := h.dial(h.t, "acme", client.Options{})
	h.transport = was
	s, _ := h.open(c)
	return s
}

const wholePage = 8 * 4 * 4096 // of the suite's full group

func (h *hostPair) run(name string, n int) client.Run {
	r := client.Run{Group: h.g}
	prev := sha256.Sum256([]byte(name))
	for range n {
		prev = sha256.Sum256(prev[:])
		r.Hashes = append(r.Hashes, prev[:]...)
	}
	return r
}

// fill is what page i of a run holds.
func fill(r client.Run, i int, b []byte) []byte {
	rand.NewChaCha8([32]byte(r.Hashes[32*i : 32*i+32])).Read(b)
	return b
}

func (h *hostPair) publish(s *client.Session, r client.Run, mem []byte) {
	h.t.Helper()
	items := make([]client.Item, len(r.Hashes)/32)
	for i := range items {
		b := make([]byte, wholePage)
		if mem != nil {
			b = mem[i*wholePage : (i+1)*wholePage]
		}
		items[i] = client.Item{ParentUnknown: true, Bytes: fill(r, i, b)}
	}
	rs, err := s.Publish(h.t.Context(), r, page.View{}, nil, items, client.PublishOptions{})
	if err != nil || client.GoodPrefix(rs) != len(rs) {
		h.t.Fatal(err, rs)
	}
}

func (h *hostPair) fetch(s *client.Session, r client.Run, l *client.Lease) ([]client.PageResult, [][]byte, error) {
	h.t.Helper()
	dst := make([][]byte, len(r.Hashes)/32)
	for i := range dst {
		dst[i] = make([]byte, wholePage)
	}
	rs, err := s.FetchInto(h.t.Context(), r, page.View{}, nil, dst, l)
	for i := range rs {
		if rs[i].Outcome == client.OK && !bytes.Equal(dst[i], fill(r, i, make([]byte, wholePage))) {
			h.t.Fatalf("page %d is OK and wrong", i)
		}
	}
	return rs, dst, err
}

func (h *hostPair) mustFetch(s *client.Session, r client.Run) {
	h.t.Helper()
	if rs, _, err := h.fetch(s, r, nil); err != nil || client.GoodPrefix(rs) != len(rs) {
		h.t.Fatal(err, rs)
	}
}

func (h *hostPair) delete(s *client.Session, r client.Run) {
	h.t.Helper()
	if rs, err := s.Delete(context.Background(), r); err != nil {
		h.t.Fatal(err, rs)
	}
}

func (h *hostPair) until(what string, ok func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			h.t.Fatalf("%s did not happen", what)
		}
	}
}

// live is what the tier holds.
func (h *hostPair) live() int64 { return h.tier.Usage().Live }

// TestSharedBytes: what a client on the node's host publishes and fetches is never sent.
func TestSharedBytes(t *testing.T) {
	h := newHostPair(t, client.Options{})
	const n = 40
	st, err := h.c.Staging(n * wholePage)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	h.publish(h.s, h.run("own memory", n), nil)
	h.publish(h.s, h.run("staged", n), st.Bytes())
	h.mustFetch(h.s, h.run("own memory", n))
	h.mustFetch(h.s, h.run("staged", n))
	s := h.c.Stats()
	if s.Transport != client.SharedMemory || s.StagedBytes != 2*n*wholePage || s.SharedBytes != 2*n*wholePage || s.FetchedBytes != s.SharedBytes {
		t.Errorf("%+v", s)
	}
}

// TestMixedSlabsAreSent: what was stored before anybody shared its namespace's memory lies beside pages of others, and
// is sent.
func TestMixedSlabsAreSent(t *testing.T) {
	n := newNode(t)
	h := &hostPair{node: n, t: t}
	n.transport = client.GRPC
	first := n.dial(t, "acme", client.Options{})
	h.s, h.g = h.open(first)
	h.publish(h.s, h.run("before", 4), nil)
	n.transport = client.SharedMemory
	h.c = n.dial(t, "acme", client.Options{})
	h.s, _ = h.open(h.c)
	h.publish(h.s, h.run("after", 4), nil)
	h.mustFetch(h.s, h.run("before", 4))
	h.mustFetch(h.s, h.run("after", 4))
	if s := h.c.Stats(); s.SharedBytes != 4*wholePage || s.FetchedBytes != 8*wholePage {
		t.Errorf("%+v", s)
	}
	m, err := h.s.MapPages(t.Context(), h.run("before", 4), page.View{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if r := m.Result(0); r.Reason != reason.Unsupported || m.Valid(0) || m.Bytes(0) != nil {
		t.Errorf("%+v", r)
	}
}

// TestCase_C19_SharedMemory: a bit flips in a slab. The client finds it, the node verifies again and drops the page,
// which can be published afresh; what is before it is served.
func TestCase_C19_SharedMemory(t *testing.T) {
	h := newHostPair(t, client.Options{})
	r := h.run("flip", 4)
	h.publish(h.s, r, nil)
	hash, _ := page.MakeHash(r.Hashes[64:96])
	key := &page.Key{Family: page.Family{Namespace: h.s.ID(), Epoch: h.s.Epoch(), Group: h.g}, Hash: hash}
	h.damage(t, key, 0)
	m, err := h.s.MapPages(t.Context(), h.s.First(r, 2), page.View{}, nil)
	if err != nil || !m.Valid(0) || !m.Valid(1) {
		t.Fatal(err)
	}
	m.Close()
	rs, _, err := h.fetch(h.s, r, nil)
	if err != nil || client.GoodPrefix(rs) != 2 || rs[2].Reason != reason.Corrupt || rs[3].Outcome != client.OK {
		t.Fatal(err, rs)
	}
	h.until("the end of the corrupt page", func() bool { return h.extents(key) == 0 })
	if s := h.c.Stats(); s.Corrupt != 1 {
		t.Errorf("%+v", s)
	}
	h.publish(h.s, client.Run{Group: h.g, Hashes: r.Hashes[64:96]}, nil)
	h.mustFetch(h.s, r)
}

// reuse waits until the node has taken back the memory of r, which is deleted, and gives it to others.
func (h *hostPair) reuse(s *client.Session, r client.Run) {
	h.t.Helper()
	before := h.live()
	h.delete(s, r)
	h.until("the end of the hold", func() bool {
		h.holds.Advance(time.Minute)
		return h.live() <= before-int64(len(r.Hashes)/32*wholePage)
	})
	for i := range len(r.Hashes) / 32 {
		h.publish(s, h.run("other"+string(rune('a'+i)), 1), nil)
	}
}

// TestCase_C65_ReaderIsStopped between its last byte and its look: the slots have other pages by then, and it notices.
func TestCase_C65_ReaderIsStopped(t *testing.T) {
	var stop func()
	o := client.Options{Parallel: 1}
	client.SetCopied(&o, func() {
		if f := stop; f != nil {
			stop = nil
			f()
		}
	})
	h := newHostPair(t, o)
	s := h.another()
	r := h.run("stopped", 3)
	h.publish(h.s, r, nil)
	stop = func() { h.reuse(s, r) }
	rs, _, err := h.fetch(h.s, r, nil)
	if err != nil || rs[0].Outcome != client.Miss || rs[0].Reason != reason.Absent || stop != nil {
		t.Fatal(err, rs)
	}
	if s := h.c.Stats(); s.Corrupt != 0 {
		t.Errorf("%d pages are called corrupt", s.Corrupt)
	}
	// The same page again in another place: the fetch starts over and has it.
	again := h.run("again", 2)
	h.publish(h.s, again, nil)
	stop = func() { h.reuse(s, again); h.publish(s, again, nil) }
	h.mustFetch(h.s, again)
}

// TestCase_C17_SharedMemory: a reader that is slower than its lease, and than what the node waits: a typed expiry.
func TestCase_C17_SharedMemory(t *testing.T) {
	var stop func()
	o := client.Options{Parallel: 1, Retries: -1}
	client.SetCopied(&o, func() {
		if f := stop; f != nil {
			stop = nil
			f()
		}
	})
	h := newHostPair(t, o)
	s := h.another()
	r := h.run("leased", 3)
	h.publish(h.s, r, nil)
	p, err := h.s.Exists(t.Context(), r, 50*time.Millisecond)
	if err != nil || p.Lease == nil {
		t.Fatal(p, err)
	}
	stop = func() { h.clock.Advance(time.Minute); h.reuse(s, r) }
	rs, _, _ := h.fetch(h.s, r, p.Lease)
	for i := range rs {
		if rs[i].Outcome != client.Miss || rs[i].Reason != reason.LeaseExpired {
			t.Errorf("page %d: %+v", i, rs[i])
		}
	}
}

// TestMapPages: in place, whole and by heads; the node keeps the memory until Close.
func TestMapPages(t *testing.T) {
	h := newHostPair(t, client.Options{})
	s := h.another()
	r := h.run("mapped", 5)
	h.publish(h.s, r, nil)
	geo, _ := h.s.Geometry(h.g)
	for _, v := range []page.View{{}, {H0: 2, H1: 5, L1: geo.Layers}, {H0: 3, H1: 4, L0: 1, L1: 3}} {
		m, err := h.s.MapPages(t.Context(), r, v, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.Pages() {
			want := fill(r, i, make([]byte, wholePage))
			if v.H1 > 0 {
				cell := func(h, l uint16) int { return (int(h)*int(geo.Layers) + int(l)) * int(geo.CellBytes) }
				want = want[cell(v.H0, v.L0):cell(v.H1-1, v.L1)]
			}
			if m.Result(i).Outcome != client.OK || len(m.Result(i).Extents) != 1 || !bytes.Equal(m.Bytes(i), want) || !m.Valid(i) {
				t.Errorf("page %d of %v: %+v, %d bytes", i, v, m.Result(i), len(m.Bytes(i)))
			}
		}
		m.Close()
		m.Close()
	}
	m, err := h.s.MapPages(t.Context(), r, page.View{H1: 2, L0: 1, L1: 2}, nil)
	if err != nil || m.Result(0).Reason != reason.Unsupported {
		t.Errorf("a view that is not contiguous: %v, %+v", err, m.Result(0))
	}
	m.Close()
	m, err = h.s.MapPages(t.Context(), h.run("absent", 2), page.View{}, nil)
	if err != nil || m.Result(1).Reason != reason.Absent || m.Valid(1) {
		t.Errorf("%v, %+v", err, m.Result(1))
	}
	m.Close()
	if _, err := s.MapPages(t.Context(), r, page.View{}, nil); !errors.Is(err, reason.Unsupported) {
		t.Errorf("mapped over gRPC: %v", err)
	}
	m, err = h.s.MapPages(t.Context(), r, page.View{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := h.live()
	h.delete(s, r)
	for i := range m.Pages() {
		if want := fill(r, i, make([]byte, wholePage)); !m.Valid(i) || !bytes.Equal(m.Bytes(i), want) || h.live() != before {
			t.Error("memory went under a mapped page that was deleted")
		}
	}
	m.Close()
	h.until("the end of the pages", func() bool { return h.live() < before })
}

// TestMappedIsOutdated: by the time that the node waits, by the end of the lease, and by the end of the namespace.
func TestMappedIsOutdated(t *testing.T) {
	h := newHostPair(t, client.Options{})
	s := h.another()
	mapped := func(r client.Run, l *client.Lease) *client.Mapped {
		m, err := h.s.MapPages(t.Context(), r, page.View{}, l)
		if err != nil || !m.Valid(0) {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	slow := h.run("slow", 2)
	h.publish(h.s, slow, nil)
	m := mapped(slow, nil)
	h.reuse(s, slow)
	if m.Valid(0) || m.Valid(1) {
		t.Error("valid although other pages lie there")
	}
	leased := h.run("leased", 2)
	h.publish(h.s, leased, nil)
	p, err := h.s.Exists(t.Context(), leased, time.Minute)
	if err != nil || p.Lease == nil {
		t.Fatal(p, err)
	}
	m = mapped(leased, p.Lease)
	if err := p.Lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.Valid(0) {
		t.Error("valid although the lease is over")
	}
	kept := h.run("retired", 2)
	h.publish(h.s, kept, nil)
	m = mapped(kept, nil)
	id := h.s.ID()
	operator := h.operator().Namespaces()
	if _, err := operator.Drain(t.Context(), &quirev1.DrainRequest{Id: id[:]}); err != nil || !m.Valid(0) {
		t.Fatal(err, m.Valid(0))
	}
	if _, err := operator.Retire(t.Context(), &quirev1.RetireRequest{Id: id[:]}); err != nil {
		t.Fatal(err)
	}
	if m.Valid(0) || m.Valid(1) {
		t.Error("valid after the retirement was answered")
	}
}

// operator is a client that may end namespaces.
func (h *hostPair) operator() *client.Client {
	h.t.Helper()
	secret := auth.NewSecret()
	by := namespace.Principal{Name: "operator", Tenant: "acme", Role: namespace.RoleOperator}
	r := namespace.TokenRecord{Name: by.Name, Hash: secret.Hash(), By: by, Created: h.clock.Wall().Time()}
	if err := h.registry.PutToken(h.t.Context(), root, r); err != nil {
		h.t.Fatal(err)
	}
	c, err := client.Dial(h.t.Context(), client.Options{Address: h.address, Token: secret.Reveal()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// TestCase_C58_ClientIsKilled: what it held goes with its socket, not at a timer.
func TestCase_C58_ClientIsKilled(t *testing.T) {
	h := newHostPair(t, client.Options{})
	s := h.another()
	r := h.run("killed", 6)
	h.publish(h.s, r, nil)
	st, err := h.c.Staging(wholePage)
	if err != nil {
		t.Fatal(err)
	}
	h.publish(h.s, h.run("staged", 1), st.Bytes())
	if p, err := h.s.Exists(t.Context(), r, time.Minute); err != nil || p.Lease == nil {
		t.Fatal(p, err)
	}
	m, err := h.s.MapPages(t.Context(), r, page.View{}, nil)
	if err != nil || !m.Valid(0) {
		t.Fatal(err)
	}
	before := h.live()
	h.holds.Advance(10 * time.Millisecond) // from now on the node listens for the end of long calls
	h.c.Close()                            // the mapped pages are never given back
	h.until("the end of its leases", func() bool { l, p, _ := h.held(); return l == 0 && p == 0 })
	h.delete(s, r)
	h.until("the end of its pages", func() bool { return h.live() < before })
	st.Close()
	h.until("the end of its staging", func() bool { return mappings(t, "quire-staging") == 0 })
	m.Close()
	h.publish(s, h.run("killed", 6), nil)
	h.mustFetch(s, r)
}

// mappings counts what this process has mapped of a name.
func mappings(t testing.TB, name string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), name)
}

// TestSlabsAreUnmapped: a client lets go of slabs that are gone.
func TestSlabsAreUnmapped(t *testing.T) {
	h := newHostPair(t, client.Options{})
	h.publish(h.s, h.run("one", 4), nil)
	h.mustFetch(h.s, h.run("one", 4))
	used := mappings(t, "quire-generations")
	h.c.Close()
	if n := mappings(t, "quire-generations"); used != n+1 {
		t.Errorf("%d mappings with a client, %d without", used, n)
	}
}

// TestCase_C53_SharedMemory: a tenant gets neither pages nor descriptors of another's. The stranger is a process of
// its own, which looks at what it holds.
func TestCase_C53_SharedMemory(t *testing.T) {
	h := newHostPair(t, client.Options{})
	r := h.run("secret", 4)
	h.publish(h.s, r, nil)
	h.mustFetch(h.s, r)
	for tenant, want := range map[string]bool{"rival": false, "acme": true} {
		id := h.s.ID()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSharedStranger$", "-test.v")
		cmd.Env = append(os.Environ(), "QUIRE_TEST_ADDRESS="+h.address, "QUIRE_TEST_TOKEN="+h.token(t, tenant),
			"QUIRE_TEST_NAMESPACE="+hex.EncodeToString(id[:]), "QUIRE_TEST_GROUP="+hex.EncodeToString(h.g[:]),
			"QUIRE_TEST_HASHES="+hex.EncodeToString(r.Hashes))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := strings.Contains(string(out), "holds a slab"); got != want {
			t.Errorf("%s holds a slab: %v\n%s", tenant, got, out)
		}
		if got := strings.Contains(string(out), "was served"); got != want {
			t.Errorf("%s was served: %v\n%s", tenant, got, out)
		}
	}
}

// TestSharedStranger is the stranger: it tries everything and says what it holds.
func TestSharedStranger(t *testing.T) {
	if os.Getenv("QUIRE_TEST_ADDRESS") == "" {
		t.Skip("is run by TestCase_C53_SharedMemory")
	}
	of := func(name string) []byte {
		b, err := hex.DecodeString(os.Getenv("QUIRE_TEST_" + name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	c, err := client.Dial(t.Context(), client.Options{
		Address: os.Getenv("QUIRE_TEST_ADDRESS"), Token: os.Getenv("QUIRE_TEST_TOKEN"), Transport: client.SharedMemory,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	run := &quirev1.KeyRun{Group: of("GROUP"), Hashes: of("HASHES")}
	ref := &quirev1.NamespaceRef{Id: of("NAMESPACE"), Epoch: 1}
	stream, err := c.Pages().Fetch(t.Context(), &quirev1.FetchRequest{Namespace: ref, Run: run})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		if m.GetTrailer().GetOutcome() == quirev1.Outcome_OUTCOME_OK {
			t.Log("was served")
		}
	}
	held := mappings(t, "quire-host")
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(to, "quire-") {
			held++
		}
	}
	if held > 0 {
		t.Logf("holds a slab: %d", held)
	}
}

// TestSocketOfAnotherNode: nobody answers at the path, or it is another node's: the client takes another transport.
func TestSocketOfAnotherNode(t *testing.T) {
	n := newNode(t)
	if err := os.Remove(n.socket); err != nil {
		t.Fatal(err)
	}
	c := n.dial(t, "acme", client.Options{})
	if s := c.Stats(); s.Transport != client.Data || s.Why == "" {
		t.Errorf("%+v", s)
	}
	other := newNode(t)
	if err := os.Symlink(other.socket, n.socket); err != nil {
		t.Fatal(err)
	}
	c = n.dial(t, "acme", client.Options{})
	if s := c.Stats(); s.Transport != client.Data || s.Why == "" {
		t.Errorf("%+v", s)
	}
}
