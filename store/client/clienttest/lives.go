package clienttest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// until waits for what the server does on its own time, without a call of ours.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(guard); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			w.t.Fatalf("%s did not happen", what)
		}
	}
}

// pausedWriter: a writer that wakes after its publication lease has ended cannot commit; the page can be published.
func pausedWriter(t *testing.T, w *world) {
	r := w.chain("paused", 1)
	items := w.items(r, w.full(r), 0)
	items[0].StillMine = func() bool { w.Advance(time.Hour); return true }
	rs, err := w.s.Publish(w.ctx(), r, page.View{}, nil, items, client.PublishOptions{TTL: time.Second})
	if err != nil || rs[0].Outcome != client.Refused || rs[0].Reason != reason.StaleToken {
		t.Fatal(rs, err)
	}
	if n := w.leading(w.s, r); n != 0 {
		t.Error("visible")
	}
	w.mustPublish(r, w.full(r))
	w.mustFetch(w.s, r, w.full(r))
}

// leaseExpired: under a lease that is over nothing is served, with that reason; without it the pages are there.
func leaseExpired(t *testing.T, w *world) {
	r := w.chain("leased", 3)
	w.mustPublish(r, w.full(r))
	p, err := w.s.Exists(w.ctx(), r, 10*time.Second)
	if err != nil || p.Lease == nil || p.Leased != 3 {
		t.Fatal(p, err)
	}
	if left := p.Lease.Remaining(); left <= 0 || left > 10*time.Second {
		t.Errorf("%v left", left)
	}
	if rs, _, err := w.fetch(w.s, r, w.full(r), p.Lease); err != nil || client.GoodPrefix(rs) != 3 {
		t.Fatal(rs, err)
	}
	w.Advance(time.Hour)
	rs, _, err := w.fetch(w.s, r, w.full(r), p.Lease)
	if !errors.Is(err, reason.LeaseExpired) {
		t.Errorf("%v %+v", err, rs)
	}
	w.shouldBe(rs, client.PageResult{Outcome: client.Miss, Reason: reason.LeaseExpired})
	w.mustFetch(w.s, r, w.full(r))
}

// corrupt: one flipped bit in the tier is a miss with its reason; the prefix before it is good; the page is gone
// then and can be published afresh.
func corrupt(t *testing.T, w *world) {
	r := w.chain("corrupt", 4)
	w.mustPublish(r, w.full(r))
	w.Damage(t, w.key(r, 2), 0)
	rs, dst, err := w.fetch(w.s, r, w.full(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	if client.GoodPrefix(rs) != 2 || rs[2].Outcome != client.Miss || rs[2].Reason != reason.Corrupt {
		t.Fatalf("%+v", rs)
	}
	for i := range 2 {
		if !bytes.Equal(dst[i], w.payload(r, i, w.full(r), 0)) {
			t.Errorf("page %d of the good prefix differs", i)
		}
	}
	if n := w.c.Stats().Corrupt; n != 0 && w.c.Stats().Transport == client.GRPC {
		t.Errorf("%d pages failed at the client: the server found it first", n)
	}
	if n := w.leading(w.s, r); n != 2 {
		t.Errorf("%d pages lead once page 2 was told corrupt, want 2", n)
	}
	out := w.publish(w.s, r, w.full(r), 0)
	if out[2].Outcome != client.Committed {
		t.Errorf("%+v", out[2])
	}
	w.mustFetch(w.s, r, w.full(r))
}

// leasesReturn: leases go back by release, by pages, and with their session; publications with theirs.
func leasesReturn(t *testing.T, w *world) {
	r := w.chain("return", 4)
	w.mustPublish(r, w.full(r))
	none := func() bool { l, p, _ := w.Held(); return l == 0 && p == 0 }
	w.until("the end of the publication", none)
	for range 3 {
		p, err := w.s.Exists(w.ctx(), r, time.Minute)
		if err != nil || p.Lease == nil {
			t.Fatal(p, err)
		}
		if err := p.Lease.ReleasePages(w.ctx(), w.s.Rest(r, 2)); err != nil {
			t.Error(err)
		}
		if l, _, _ := w.Held(); l != 1 {
			t.Errorf("%d leases", l)
		}
		if err := p.Lease.Release(w.ctx()); err != nil {
			t.Error(err)
		}
		if !none() {
			t.Error("released and still held")
		}
	}
	c := w.Dial(t, "acme", client.Options{})
	s := w.open(c, "v1")
	for range 3 {
		if p, err := s.Exists(w.ctx(), r, time.Minute); err != nil || p.Lease == nil {
			t.Fatal(p, err)
		}
	}
	if l, _, n := w.Held(); l != 3 || n != 2 {
		t.Errorf("%d leases, %d sessions", l, n)
	}
	c.Close()
	w.until("the end of the session's leases", none)
	if _, _, n := w.Held(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// fence: what is not the writer's any more does not become visible, and holds nothing.
func fence(t *testing.T, w *world) {
	r := w.chain("fence", 3)
	items := w.items(r, w.full(r), 0)
	items[2].StillMine = func() bool { return false }
	rs, err := w.s.Publish(w.ctx(), r, page.View{}, nil, items, client.PublishOptions{})
	if err != nil || client.GoodPrefix(rs) != 2 || rs[2].Outcome != client.Refused || rs[2].Reason != reason.Aborted {
		t.Fatal(rs, err)
	}
	if n := w.leading(w.s, r); n != 2 {
		t.Errorf("%d pages lead", n)
	}
	w.until("the end of the publication", func() bool { _, p, _ := w.Held(); return p == 0 })
	w.mustPublish(w.s.Rest(r, 2), w.full(r))
}

// tenants: another tenant's namespace is as if it were not; equal specs are two namespaces.
func tenants(t *testing.T, w *world) {
	r := w.chain("tenants", 2)
	w.mustPublish(r, w.full(r))
	c := w.Dial(t, "rival", client.Options{})
	if _, err := c.OpenID(w.ctx(), w.s.ID(), nil); err == nil {
		t.Error("opened another tenant's namespace")
	}
	s := w.open(c, "v1")
	if s.ID() == w.s.ID() {
		t.Error("two tenants, one namespace")
	}
	if n := w.leading(s, r); n != 0 {
		t.Errorf("%d pages of another tenant", n)
	}
}

// invalidate: what was begun before the model changed does not become visible after it.
func invalidate(t *testing.T, w *world) {
	r := w.chain("weights", 2)
	w.mustPublish(w.s.First(r, 1), w.full(r))
	if p, err := w.s.Exists(w.ctx(), w.s.First(r, 1), time.Minute); err != nil || p.Lease == nil {
		t.Fatal(p, err)
	}
	asked, invalidated := make(chan struct{}), make(chan struct{})
	item := w.items(r, w.full(r), 0)[1]
	ctx, cancel := context.WithCancel(w.ctx())
	item.StillMine = func() bool { close(asked); <-ctx.Done(); return true }
	go func() {
		defer close(invalidated)
		<-asked
		go cancel() // the writer notices late
		w.s.Invalidate()
	}()
	if rs, err := w.s.Publish(w.ctx(), w.s.Rest(r, 1), page.View{}, nil, []client.Item{item}, client.PublishOptions{}); rs[0].Outcome == client.Committed {
		t.Error(rs, err)
	}
	<-invalidated
	if n := w.leading(w.s, r); n != 0 {
		t.Error("an invalidated session finds pages")
	}
	w.until("the end of the session", func() bool { l, p, s := w.Held(); return l == 0 && p == 0 && s == 0 })
	again := w.open(w.c, "v1")
	if n := w.leading(again, r); n != 1 {
		t.Errorf("%d pages", n)
	}
}

// noLateBytes: once a fetch has returned because its context ended, its destination is the caller's again.
func noLateBytes(t *testing.T, w *world) {
	r := w.chain("late", 64)
	w.mustPublish(r, w.full(r))
	for range 4 {
		dst := make([][]byte, pages(r))
		for i := range dst {
			dst[i] = make([]byte, len(w.payload(r, 0, w.full(r), 0)))
		}
		before := w.c.Stats().FetchedBytes
		ctx, cancel := context.WithCancel(w.ctx())
		go func() {
			for w.c.Stats().FetchedBytes == before && ctx.Err() == nil {
				runtime.Gosched()
			}
			cancel()
		}()
		w.s.FetchInto(ctx, r, page.View{}, nil, dst, nil)
		cancel()
		for i := range dst {
			clear(dst[i])
		}
		w.mustFetch(w.s, w.s.First(r, 8), w.full(r)) // the connection goes on
		for i := range dst {
			if len(bytes.TrimLeft(dst[i], "\x00")) > 0 {
				t.Fatalf("late bytes in page %d", i)
			}
		}
	}
}

// workers attach by id: with the opener's provenance they publish, without one they read.
func workers(t *testing.T, w *world) {
	r := w.chain("workers", 2)
	c := w.Dial(t, "acme", client.Options{})
	worker, err := c.OpenID(w.ctx(), w.s.ID(), w.s.Provenance())
	if err != nil {
		t.Fatal(err)
	}
	reader, err := c.OpenID(w.ctx(), w.s.ID(), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.shouldBe(w.publish(worker, r, w.full(r), 0), client.PageResult{Outcome: client.Committed})
	w.mustFetch(w.s, r, w.full(r))
	w.mustFetch(reader, r, w.full(r))
	if _, err := reader.Publish(w.ctx(), r, page.View{}, nil, w.items(r, w.full(r), 0), client.PublishOptions{}); !errors.Is(err, reason.Provenance) {
		t.Error(err)
	}
	p, err := w.s.Exists(w.ctx(), r, time.Minute) // the scheduler asks, the workers read
	if err != nil || p.Lease == nil {
		t.Fatal(p, err)
	}
	if rs, _, err := w.fetch(worker, r, w.full(r), p.Lease); err != nil || client.GoodPrefix(rs) != 2 {
		t.Error(rs, err)
	}
}

// reports: what an engine says of itself is shown while its session lives, the last of what it said.
func reports(t *testing.T, w *world) {
	c := w.Dial(t, "acme", client.Options{Instance: "gpu-1:7"})
	s := w.open(c, "v1")
	for _, hits := range []uint64{1, 7} {
		again, err := s.Report(w.ctx(), client.Report{
			Adapter: "suite 1", Uptime: time.Minute, Breaker: quirev1.BreakerState_BREAKER_STATE_HALF_OPEN,
			Counters: &quirev1.EngineCounters{Lookups: hits, LookupKeys: 10, HitKeys: hits},
		})
		if err != nil || again <= 0 {
			t.Fatal(again, err)
		}
	}
	instances := func() []*quirev1.Instance {
		id := w.s.ID()
		r, err := w.c.Namespaces().Get(w.ctx(), &quirev1.GetRequest{Id: id[:]})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetNamespace().GetInstances()
	}
	all := instances()
	if len(all) != 1 || all[0].GetInstance() != "gpu-1:7" || all[0].GetCounters().GetHitKeys() != 7 || all[0].GetUptime().AsDuration() != time.Minute ||
		all[0].GetBreaker() != quirev1.BreakerState_BREAKER_STATE_HALF_OPEN || all[0].GetSessionAge() == nil {
		t.Errorf("%v", all)
	}
	s.Close()
	if _, err := s.Report(w.ctx(), client.Report{}); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	w.until("the end of the instance", func() bool { return len(instances()) == 0 })
}
