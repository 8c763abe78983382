package server

import (
	"context"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

func TestLease(t *testing.T) {
	var l Limits
	l.fill()
	for _, c := range []struct {
		in   *durationpb.Duration
		want time.Duration // 0: refused
	}{
		{nil, l.DefaultLease}, {durationpb.New(0), l.DefaultLease}, {durationpb.New(time.Second), time.Second},
		{durationpb.New(time.Hour), l.MaxLease}, {&durationpb.Duration{Seconds: math.MaxInt64}, 0}, {durationpb.New(-1), 0},
		{&durationpb.Duration{Seconds: 1, Nanos: -1}, 0}, {&durationpb.Duration{Seconds: 315_576_000_000}, l.MaxLease},
	} {
		got, err := l.lease(c.in)
		if got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%v: %v %v, want %v", c.in, got, err, c.want)
		}
	}
}

// A batch's bytes never overflow, whatever the geometry.
func TestBatchBytes(t *testing.T) {
	var l Limits
	l.fill()
	g := core.Geometry{Heads: math.MaxUint16, Layers: math.MaxUint16, CellBytes: math.MaxUint32}
	if n, err := l.batchBytes(l.MaxKeys, &g, page.View{}); err == nil {
		t.Errorf("%d bytes are let through", n)
	}
	small := core.Geometry{Heads: 1, Layers: 1, CellBytes: 1 << 20}
	if n, err := l.batchBytes(1024, &small, page.View{}); err != nil || n != 1<<30 {
		t.Errorf("exactly the bound: %d %v", n, err)
	}
	if _, err := l.batchBytes(1025, &small, page.View{}); err == nil {
		t.Error("one more than the bound is let through")
	}
}

// The number of keys that a stranger is answered for depends on what it sent, and for 32-byte hashes is the true one.
func TestStrangerKeys(t *testing.T) {
	var l Limits
	l.fill()
	run := func(n int) *quirev1.KeyRun { return &quirev1.KeyRun{Hashes: make([]byte, n)} }
	for _, c := range []struct {
		runs []*quirev1.KeyRun
		want int
	}{
		{nil, 0}, {[]*quirev1.KeyRun{nil}, 0}, {[]*quirev1.KeyRun{run(320)}, 10}, {[]*quirev1.KeyRun{run(32), run(64)}, 3},
		{[]*quirev1.KeyRun{run(48)}, 3}, {[]*quirev1.KeyRun{run(1)}, 1},
	} {
		if got, err := l.strangerKeys(c.runs); err != nil || got != c.want {
			t.Errorf("%v: %d %v, want %d", c.runs, got, err, c.want)
		}
	}
	if _, err := l.strangerKeys([]*quirev1.KeyRun{run(32 * (l.MaxKeys + 1))}); err == nil {
		t.Error("no bound for strangers")
	}
}

func FuzzView(f *testing.F) {
	f.Add(uint32(0), uint32(1), uint32(0), uint32(1), uint32(0), uint32(0))
	f.Add(uint32(0), uint32(1<<16), uint32(0), uint32(1), uint32(0), uint32(0))
	f.Add(uint32(3), uint32(1), uint32(0), uint32(1), uint32(1), uint32(0))
	f.Fuzz(func(t *testing.T, h0, h1, l0, l1, token, shard uint32) {
		in := &quirev1.View{H0: h0, H1: h1, L0: l0, L1: l1, TokenStride: token, Shards: shard}
		v, err := viewOf(in)
		if err == nil && (v.Empty() || token != 0 || shard != 0) {
			t.Fatalf("%v is let through as %v", in, v)
		}
		if err == nil && viewToProto(v).String() != in.String() {
			t.Fatalf("%v reads as %v", in, v)
		}
	})
}

func FuzzExtentID(f *testing.F) {
	f.Add([]byte("0123456789abcdef01234567fedcba9876543210"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := extentIDOf(b)
		if err == nil && string(appendExtentID(nil, id)) != string(b) {
			t.Fatalf("%x reads as %v", b, id)
		}
	})
}

func TestBudget(t *testing.T) {
	b := newBudget("things", 2, 100)
	give, err := b.take(1, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.take(1, 41); err == nil {
		t.Error("bytes beyond the bound")
	}
	give2, err := b.take(1, 40)
	if err != nil {
		t.Error(err)
	}
	if _, err := b.take(1, 0); err == nil {
		t.Error("a third at once")
	}
	other, err := b.take(2, 100)
	if err != nil {
		t.Errorf("another principal: %v", err)
	}
	for _, g := range []func(){give, give2, other} {
		g()
	}
	if n, bytes := b.total(); n != 0 || bytes != 0 || len(b.of) != 0 {
		t.Errorf("%d things, %d bytes, %d principals are left", n, bytes, len(b.of))
	}
}

func TestInflight(t *testing.T) {
	var f inflight
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	if !closed(f.whenIdle()) {
		t.Error("idle at first")
	}
	f.enter()
	f.enter()
	c := f.whenIdle()
	f.leave()
	if closed(c) || f.count() != 1 {
		t.Error("idle with one call")
	}
	f.leave()
	if !closed(c) {
		t.Error("never idle")
	}
}

// A handler that panics is answered INTERNAL without a word of why, counted, and told of; the call is over.
func TestPanicIsInternal(t *testing.T) {
	a, err := auth.New(auth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var told any
	n := &node{clock: clock.System(), metrics: newMetrics(), auth: a, panicked: func(_ string, v any, stack []byte) {
		if len(stack) > 0 {
			told = v
		}
	}}
	call := n.unary("/quire.v1.PageService/Touch", func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
		panic("secret of another tenant")
	})
	resp, err := call(nil, context.Background(), nil, nil)
	if resp != nil || err != error(errPanicked) || told != "secret of another tenant" || n.inflight.count() != 0 {
		t.Errorf("%v %v, told %v, %d in flight", resp, err, told, n.inflight.count())
	}
}

func TestSentence(t *testing.T) {
	host := store.ExtentInfo{Tier: 1, ID: page.ExtentID{Seq: 1}}
	other, disk := host, host
	other.ID.Seq, disk.Tier = 2, 2
	served := &store.Explanation{Extents: []store.ExtentInfo{host, disk, other}}
	served.Served = true
	writing := &store.Explanation{}
	writing.Open = 1
	for want, got := range map[string]string{
		"Served from host and disk by 2 extents.":                                                sentence(served, reason.None, nil),
		"Not served: the namespace is retired.":                                                  sentence(served, reason.Retired, nil),
		"Not served: nothing is committed yet, 1 extent being written.":                          sentence(writing, reason.Absent, nil),
		"Not served: it was found corrupt and is gone; the same hash lives in 2 other places.":   sentence(&store.Explanation{}, reason.Corrupt, make([]*quirev1.SameHash, 2)),
		"Not served: the 2 committed extents do not cover the page.":                             sentence(served, reason.Incomplete, nil),
		"Not served: it was computed by, or on top of, something that is not accepted here now.": sentence(served, reason.Provenance, nil),
		"Not served: no page of this hash was committed here, or it is gone.":                    sentence(&store.Explanation{}, reason.Absent, nil),
		"Not served: its time is over.":                                                          sentence(served, reason.Expired, nil),
		"Not served: the namespace has begun another life since.":                                sentence(served, reason.StaleEpoch, nil),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// What the store is told of a spec is what the spec says.
func TestGeometry(t *testing.T) {
	s := &namespace.Spec{Shape: namespace.Shape{Params: 10, Layers: 2, Heads: 3, Width: 4}, Groups: []namespace.Group{
		{Kind: namespace.KindFull, Layers: namespace.LayerRange(0, 4), PageTokens: 16, Heads: 8, Grade: page.Elements,
			Components: []namespace.Component{{Name: "k", Width: 128, Bits: 16}, {Name: "v", Width: 128, Bits: 16}}},
		{Kind: namespace.KindWindow, Window: 64, Layers: namespace.LayerRange(4, 5), PageTokens: 16, Heads: 1, Grade: page.Cell,
			Components: []namespace.Component{{Name: "k", Width: 8, Bits: 8}}},
		{Kind: namespace.KindRecurrent, Layers: namespace.LayerRange(6, 6), PageTokens: 64, Heads: 1, Grade: page.Whole,
			Components: []namespace.Component{{Name: "state", Width: 8, Bits: 32}}},
	}}
	got := geometryOf(s)
	if len(got) != 3 {
		t.Fatalf("%d groups", len(got))
	}
	full, window, state := got[s.Groups[0].ID()], got[s.Groups[1].ID()], got[s.Groups[2].ID()]
	if full.Heads != 8 || full.CellBytes != 2*128*2*16 || full.Tokens != 16 || full.Grade != page.Elements || full.Parents != core.ParentPrefix || int(full.Layers) != len(s.Groups[0].Layers) {
		t.Errorf("full: %+v", full)
	}
	if window.Parents != core.ParentWindow || state.Parents != core.ParentNone || state.CellBytes != 32 {
		t.Errorf("window %+v, state %+v", window, state)
	}
	// F(2) - F(1) = 2P + 2*L*h*d*(4-1)
	if f := full.FLOPs(1, 2); f != 2*10+2*2*3*4*3 {
		t.Errorf("FLOPs %v", f)
	}
	s.Shape.Params = 0
	if geometryOf(s)[s.Groups[0].ID()].FLOPs != nil {
		t.Error("an unknown shape has a cost")
	}
}
