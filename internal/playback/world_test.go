package playback_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/internal/playback"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// excerpt is the first 800 requests of the Mooncake conversation trace: 17,019 pages.
func excerpt(t testing.TB) *replay.Workload {
	t.Helper()
	w, err := replay.LoadFile("../../evict/replay/testdata/mooncake_conversation_800.jsonl", replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// model is a spec that is built in.
func model(t testing.TB, name string) *namespace.Spec {
	t.Helper()
	s, err := namespace.ParseExample(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// setting of a world.
type setting struct {
	shards    int // 0: defaultShards
	tierBytes int64
	pageBytes int // payload
	records   int // of pages; 0: no bound
	policy    func() evict.Policy
}

// slotBytes is what a page takes of the host tier.
func (o *setting) slotBytes() uint64 { return uint64(o.pageBytes) + 4096 } // its header is less

const (
	defaultShards = 4
	maxAhead      = 12 // requests, of the first that is not done
)

// seed is any one: the same play shall be the same each time.
const seed = 7

// tag is by what the policies of the store know a page.
func tag(p int32) uint64 { return playback.KeyTag(seed, p) }

// spread puts requests below each root into one of n namespaces, as a recording of as many tenants has them.
func spread(w *replay.Workload, n int32) *replay.Workload {
	out := *w
	out.Requests, out.Spaces = slices.Clone(w.Requests), make([]int32, w.Pages())
	for p, parent := range w.Parents {
		if out.Spaces[p] = int32(p) % n; parent >= 0 {
			out.Spaces[p] = out.Spaces[parent]
		}
	}
	for i := range out.Requests {
		if r := &out.Requests[i]; len(r.Pages) > 0 {
			r.Space = out.Spaces[r.Pages[0]]
		}
	}
	return &out
}

// world is a server over loopback TCP whose clock stands still until it is moved, and a workload to play against it.
type world struct {
	clock    *clock.Manual
	store    *store.Store
	sessions []*client.Session // of each namespace
	group    page.GroupID
	workload *replay.Workload
	costs    []float64 // as llama-3-70b
}

func newWorld(t testing.TB, w *replay.Workload, o setting) *world {
	t.Helper()
	x := &world{clock: clock.NewManual(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), workload: w}
	tier, err := host.New(host.Options{CapacityBytes: o.tierBytes})
	if err != nil {
		t.Fatal(err)
	}
	so := store.Options{Clock: x.clock, Shards: cmp.Or(o.shards, defaultShards), NewPolicy: func(int) evict.Policy { return o.policy() }}
	so.Core.FingerprintKey = page.FingerprintKey(seed)
	so.Limits.Pages = uint64(o.records)
	so.Tiers[evict.Host] = tier
	if x.store, err = store.New(so); err != nil {
		t.Fatal(err)
	}
	wall := func() time.Time { return x.clock.Wall().Time() }
	registry, err := namespace.NewRegistry(context.Background(), memregistry.New(), namespace.Options{Now: wall})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := server.New(server.Options{Store: x.store, Registry: registry, Clock: x.clock, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, err := range []error{srv.Stop(ctx), <-served, x.store.Close(ctx), registry.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	x.open(t, l.Addr().String(), o.pageBytes)
	return x
}

func (x *world) open(t testing.TB, address string, pageBytes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Address: address, Transport: client.GRPC})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for n := range x.workload.Namespaces() {
		spec, err := playback.Spec(model(t, "llama-3-70b"), x.workload.Name, fmt.Sprint("test ", n), x.workload.PageTokens, pageBytes)
		if err != nil {
			t.Fatal(err)
		}
		shape, ok := cost.ShapeOf(spec)
		if !ok {
			t.Fatal("the spec has no shape")
		}
		x.costs, x.group = x.workload.Costs(shape), spec.Groups[0].ID()
		s, err := c.Open(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		x.sessions = append(x.sessions, s)
	}
}

// node is what replays the store, with as many pages as it held at most.
func (x *world) node(o *setting, held int) replay.Node {
	n := replay.Node{Host: held, Pages: o.records}
	if o.records > 0 {
		n.Host = x.workload.Pages() // it is not what ended first
	}
	shards := cmp.Or(o.shards, defaultShards)
	for range shards {
		n.Policies = append(n.Policies, o.policy())
	}
	n.ShardOf = func(space int32) int {
		s := x.sessions[space]
		return page.ShardOf(s.ID(), s.Epoch(), shards)
	}
	return n
}

// play plays the whole workload; the store's clock shows the time of the trace. held is how many pages the store held
// at most.
func (x *world) play(t testing.TB, o playback.Options) (r playback.Result, held int) {
	t.Helper()
	o.Group, o.Clock = x.group, x.clock
	done := make([]chan struct{}, len(x.workload.Requests))
	for i := range done {
		done[i] = make(chan struct{})
	}
	o.Before = func(ctx context.Context, i int, seconds float64) error {
		if i >= maxAhead { // the trace runs away from no request under way: its leases would end
			select {
			case <-done[i-maxAhead]:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		x.clock.Advance(time.Duration(seconds*float64(time.Second)) - time.Duration(x.clock.Now()))
		return nil
	}
	o.After = func(_ context.Context, i int, _ *playback.Result) error {
		close(done[i])
		held = max(held, int(x.store.Status().Totals.Pages))
		return nil
	}
	r, err := playback.Play(t.Context(), x.workload, x.costs, x.sessions, o)
	if err != nil {
		t.Fatal(err)
	}
	return r, held
}
