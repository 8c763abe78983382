package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/kernels"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// uploads is what a fake was sent: payload by page and grant.
type uploads struct {
	mu  sync.Mutex // guards got
	got map[[2]uint32][]byte
}

// take is an honest WritePages: chunks of a grant in order and without holes.
func (u *uploads) take(t *testing.T) func(grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
	u.got = map[[2]uint32][]byte{}
	return func(st grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
		for first := true; ; first = false {
			m, err := st.Recv()
			if errors.Is(err, io.EOF) {
				return st.SendAndClose(&quirev1.WritePagesResponse{})
			}
			if err != nil {
				return err
			}
			if (m.GetToken() != nil) != first || (m.GetNamespace() != nil) != first {
				t.Error("token and namespace come with the first message and with no other")
			}
			u.mu.Lock()
			k := [2]uint32{m.GetPage(), m.GetGrant()}
			if uint64(len(u.got[k])) != m.GetOffset() {
				t.Errorf("page %d grant %d: chunk at %d after %d bytes", k[0], k[1], m.GetOffset(), len(u.got[k]))
			}
			if len(m.GetChunk()) > 1<<20 {
				t.Errorf("chunk of %d bytes", len(m.GetChunk()))
			}
			u.got[k] = append(u.got[k], m.GetChunk()...)
			u.mu.Unlock()
		}
	}
}

// commitAll is an honest CommitPublish: headers are decoded and held against what was sent.
func (w *world) commitAll(u *uploads) func(*quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
	return func(r *quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
		out := &quirev1.CommitPublishResponse{}
		for _, p := range r.GetPages() {
			st := &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_COMMITTED}
			for g, raw := range p.GetHeaders() {
				var h page.Header
				if err := page.DecodeHeader(&h, raw); err != nil {
					w.t.Error(err)
				}
				sums, err := page.AppendSumsOf(nil, u.got[[2]uint32{p.GetPage(), uint32(g)}], h.View, h.CellBytes)
				if err != nil || !bytes.Equal(sums, h.SumsLE) {
					st = &quirev1.PageStatus{Outcome: quirev1.Outcome_OUTCOME_REFUSED, Reason: quirev1.Reason_REASON_CORRUPT}
				}
				st.ExtentIds = append(st.ExtentIds, h.Extent.AppendEncode(nil))
			}
			out.Pages = append(out.Pages, st)
		}
		return out, nil
	}
}

func (w *world) items(n int, v page.View) []Item {
	items := make([]Item, n)
	for i := range items {
		items[i] = Item{Bytes: w.payload(i, 1, v)}
	}
	return items
}

// TestPublishSends: whatever rectangles are granted, out of whatever view and layout, lent or staged, arrive as the
// bytes of those rectangles, with headers that say so.
func TestPublishSends(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for name, geo := range map[string]Geometry{"small": small, "large": large} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, tr, geo, Options{})
				u := &uploads{}
				w.fake.commit = w.commitAll(u)
				var grants []page.View
				w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
					a := grantAll(r)
					a.Pages[0].Grants = nil
					for _, g := range grants {
						a.Pages[0].Grants = append(a.Pages[0].Grants, wireView(g))
					}
					return a, nil
				}
				rapid.Check(t, func(rt *rapid.T) {
					w.fake.write = u.take(t)
					view := anyView(rt, "view", geo.Full())
					grants = append([]page.View{}, view)
					if held := anyView(rt, "held", geo.Full()); rapid.Bool().Draw(rt, "hole") && !held.Contains(view) {
						grants, _ = view.Uncovered(nil, []page.View{held})
					}
					items, layout := w.items(1, view), anyLayout(rt, geo, view)
					if layout != nil {
						items[0].Bytes = inLayout(rt, layout, items[0].Bytes)
					}
					rs, err := w.s.Publish(w.ctx(), w.run(1), view, layout, items, PublishOptions{Stage: rapid.Bool().Draw(rt, "stage")})
					if err != nil || rs[0].Outcome != Committed || len(rs[0].Extents) != len(grants) {
						rt.Fatal(err, rs)
					}
					for g, v := range grants {
						if !bytes.Equal(u.got[[2]uint32{0, uint32(g)}], w.payload(0, 1, v)) {
							rt.Fatalf("grant %v of %v: bytes differ", v, view)
						}
					}
				})
			})
		}
	})
}

// anyLayout is nil, or one of the orders that engines use: layer first, token-major with heads inside, with padding.
func anyLayout(t *rapid.T, geo Geometry, v page.View) *Layout {
	heads, layers, tokens := int(v.H1-v.H0), int(v.L1-v.L0), int(geo.Tokens)
	row := int(geo.CellBytes) / 2 / tokens
	l := &Layout{Layout: kernels.Layout{Heads: heads, Layers: layers, Tokens: tokens}}
	comp := func(offset, head, layer, token int) {
		l.Components = append(l.Components, kernels.Component{RowBytes: row, Offset: offset, HeadStride: head, LayerStride: layer, TokenStride: token})
	}
	switch rapid.SampledFrom([]string{"none", "layer [kv][token][head]", "kv apart", "padded cells"}).Draw(t, "layout") {
	case "none":
		return nil
	case "layer [kv][token][head]":
		for c := range 2 {
			comp(c*tokens*heads*row, row, 2*tokens*heads*row, heads*row)
		}
		l.PageBytes = layers * 2 * tokens * heads * row
	case "kv apart":
		for c := range 2 {
			comp(c*layers*tokens*heads*row, tokens*row, tokens*heads*row, row)
		}
		l.PageBytes = 2 * layers * tokens * heads * row
	case "padded cells":
		cell := 2*tokens*row + 64
		for c := range 2 {
			comp(c*tokens*row+32, cell, heads*cell, row)
		}
		l.PageBytes = heads * layers * cell
	}
	return l
}

// inLayout is the plain way: byte by byte.
func inLayout(t *rapid.T, l *Layout, canonical []byte) []byte {
	out := make([]byte, l.PageBytes)
	for i := range out {
		out[i] = 0xDD
	}
	at := 0
	for h := range l.Heads {
		for y := range l.Layers {
			for _, c := range l.Components {
				for tok := range l.Tokens {
					for b := range c.RowBytes {
						out[c.Offset+h*c.HeadStride+y*c.LayerStride+tok*c.TokenStride+b] = canonical[at]
						at++
					}
				}
			}
		}
	}
	if at != len(canonical) {
		t.Fatalf("layout holds %d of %d bytes", at, len(canonical))
	}
	return out
}

// TestFetchIntoLayouts: what arrives in an engine's order is the same page.
func TestFetchIntoLayouts(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for name, geo := range map[string]Geometry{"small": small, "large": large} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, tr, geo, Options{})
				var view page.View
				chunk := 0
				w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
					return sendAll(st, w.messages(0, view, chunk, w.extent(0, 1, geo.Full())))
				}
				rapid.Check(t, func(rt *rapid.T) {
					view = anyView(rt, "view", geo.Full())
					chunk = rapid.IntRange(1, 200).Draw(rt, "chunk KiB") << 10
					layout := anyLayout(rt, geo, view)
					if layout == nil {
						rt.Skip("the order of TestFetchAssembles")
					}
					dst := bytes.Repeat([]byte{0xDD}, layout.PageBytes)
					rs, err := w.s.FetchInto(w.ctx(), w.run(1), view, layout, [][]byte{dst}, nil)
					if err != nil || rs[0].Outcome != OK {
						rt.Fatal(err, rs)
					}
					if !bytes.Equal(dst, inLayout(rt, layout, w.payload(0, 1, view))) {
						rt.Fatal("bytes differ")
					}
				})
			})
		}
	})
}

// TestCase_C5_Layouts: an order of elements is for packing elements; cell lets cells move; whole lets nothing.
func TestCase_C5_Layouts(t *testing.T) {
	cells := func(geo Geometry) *Layout { // whole cells, layer first
		cell := int(geo.CellBytes)
		return &Layout{PageBytes: geo.Full().Cells() * cell, Layout: kernels.Layout{
			Heads: int(geo.Heads), Layers: int(geo.Layers), Tokens: 1,
			Components: []kernels.Component{{RowBytes: cell, HeadStride: cell, LayerStride: int(geo.Heads) * cell}},
		}}
	}
	elements := func(geo Geometry) *Layout {
		cell, row := int(geo.CellBytes), int(geo.CellBytes/geo.Tokens)
		return &Layout{PageBytes: geo.Full().Cells() * cell, Layout: kernels.Layout{
			Heads: int(geo.Heads), Layers: int(geo.Layers), Tokens: int(geo.Tokens),
			Components: []kernels.Component{{RowBytes: row, HeadStride: row, LayerStride: int(geo.Heads) * cell, TokenStride: int(geo.Heads) * row}},
		}}
	}
	for _, c := range []struct {
		grade  page.Grade
		layout func(Geometry) *Layout
		ok     bool
	}{
		{page.Elements, elements, true}, {page.Elements, cells, true},
		{page.Cell, elements, false}, {page.Cell, cells, true},
		{page.Whole, elements, false}, {page.Whole, cells, false},
	} {
		geo := small
		geo.Grade = c.grade
		_, err := orderOf(c.layout(geo), &geo, geo.Full())
		if c.ok != (err == nil) || err != nil && !errors.Is(err, reason.InvalidView) {
			t.Errorf("%v: %v", c.grade, err)
		}
	}
	short := elements(small)
	short.PageBytes--
	if _, err := orderOf(short, &small, small.Full()); !errors.Is(err, reason.BufferSize) {
		t.Error(err)
	}
}

// TestCase_C46_Fence: a page whose memory is not the writer's any more after it was sent does not become visible, and
// is given back; the others commit.
func TestCase_C46_Fence(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		u := &uploads{}
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) { return grantAll(r), nil }
		w.fake.write, w.fake.commit = u.take(t), w.commitAll(u)
		items := w.items(3, small.Full())
		items[1].StillMine = func() bool {
			if len(u.got[[2]uint32{1, 0}]) != len(items[1].Bytes) {
				t.Error("asked before the bytes were sent")
			}
			return false
		}
		items[2].StillMine = func() bool { return true }
		rs, err := w.s.Publish(w.ctx(), w.run(3), page.View{}, nil, items, PublishOptions{})
		if err != nil || rs[0].Outcome != Committed || rs[1].Outcome != Refused || rs[1].Reason != reason.Aborted || rs[2].Outcome != Committed {
			t.Fatal(err, rs)
		}
		if a := <-w.fake.aborts; len(a.GetPages()) != 1 || a.GetPages()[0] != 1 {
			t.Errorf("aborted %v", a.GetPages())
		}
	})
}

// TestCase_C14_ChangedWhileSent: bytes that change between sum and send are refused by the server and nothing wrong
// is stored; the page is given back.
func TestCase_C14_ChangedWhileSent(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		u := &uploads{}
		honest := u.take(t)
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) { return grantAll(r), nil }
		w.fake.write = func(st grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
			err := honest(st)
			u.mu.Lock()
			u.got[[2]uint32{0, 0}][5] ^= 1 // as if the writer had changed it on the way
			u.mu.Unlock()
			return err
		}
		w.fake.commit = w.commitAll(u)
		rs, err := w.s.Publish(w.ctx(), w.run(1), page.View{}, nil, w.items(1, small.Full()), PublishOptions{})
		if err != nil || rs[0].Outcome != Refused || rs[0].Reason != reason.Corrupt {
			t.Fatal(err, rs)
		}
		<-w.fake.aborts
	})
}

// TestCase_C56_Divergence: a page that is stored already is Present; the writer learns whether its own bytes differ.
func TestCase_C56_Divergence(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for ver, want := range map[int]bool{1: false, 2: true} {
			w := newWorld(t, tr, small, Options{})
			stored := w.extent(0, ver, small.Full())
			w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
				return &quirev1.BeginPublishResponse{Pages: []*quirev1.PageStatus{{
					Outcome: quirev1.Outcome_OUTCOME_PRESENT, ExtentIds: [][]byte{stored.header.Extent.AppendEncode(nil)},
				}}}, nil
			}
			rs, err := w.s.Publish(w.ctx(), w.run(1), page.View{}, nil, w.items(1, small.Full()), PublishOptions{})
			if err != nil || rs[0].Outcome != Present || rs[0].Divergent != want || rs[0].Extents[0] != stored.header.Extent {
				t.Errorf("version %d: %v %+v", ver, err, rs)
			}
			if n := w.c.Stats().Divergent; (n == 1) != want {
				t.Errorf("%d counted", n)
			}
		}
	})
}

// TestCase_C62_Invalidate: a publication that was begun before the model changed does not commit after Invalidate has
// returned, and the session answers for itself from then on.
func TestCase_C62_Invalidate(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		u := &uploads{}
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) { return grantAll(r), nil }
		w.fake.write = u.take(t)
		w.fake.commit = func(*quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
			t.Error("committed")
			return nil, errUnset
		}
		items := w.items(1, small.Full())
		asked := make(chan struct{})
		items[0].StillMine = func() bool {
			close(asked)
			<-w.s.ctx.Done() // the weights are updated while the page is on its way
			return true
		}
		invalidated := make(chan struct{})
		go func() { defer close(invalidated); <-asked; w.s.Invalidate() }()
		rs, err := w.s.Publish(w.ctx(), w.run(1), page.View{}, nil, items, PublishOptions{})
		if !errors.Is(err, reason.StaleEpoch) || rs[0].Outcome != Refused {
			t.Fatal(err, rs)
		}
		<-invalidated
		if p, err := w.s.Exists(w.ctx(), w.run(3), 0); err != nil || p.Leading != 0 || p.Has(0) || len(p.Bits) != 1 {
			t.Error(p, err)
		}
		rs, err = w.s.FetchInto(w.ctx(), w.run(1), page.View{}, nil, w.buffers(1, small.Full()), nil)
		if err != nil || rs[0].Outcome != Miss || rs[0].Reason != reason.StaleEpoch {
			t.Error(rs, err)
		}
		rs, err = w.s.Publish(w.ctx(), w.run(1), page.View{}, nil, w.items(1, small.Full()), PublishOptions{})
		if err != nil || rs[0].Outcome != Refused || rs[0].Reason != reason.StaleEpoch {
			t.Error(rs, err)
		}
		if rs, err = w.s.Delete(w.ctx(), w.run(1)); err != nil || rs[0].Reason != reason.StaleEpoch {
			t.Error(rs, err)
		}
	})
}

// TestPublishFailures: whatever fails, every page has a result with its reason, and what was granted is given back.
func TestPublishFailures(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		type write = func(grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error
		for name, c := range map[string]struct {
			write  write
			commit func(*quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error)
			err    error
			why    [2]reason.Reason
		}{
			"stream refused at once": {
				write: func(grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
					return rpc.Errorf(reason.StaleToken, "no")
				}, err: reason.StaleToken, why: [2]reason.Reason{reason.StaleToken, reason.StaleToken}},
			"one page refused while writing": {
				write: func(st grpc.ClientStreamingServer[quirev1.WritePagesRequest, quirev1.WritePagesResponse]) error {
					return st.SendAndClose(&quirev1.WritePagesResponse{Pages: []*quirev1.PageStatus{
						{}, {Outcome: quirev1.Outcome_OUTCOME_REFUSED, Reason: quirev1.Reason_REASON_TRUNCATED}}})
				},
				commit: func(r *quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
					if len(r.GetPages()) != 1 || r.GetPages()[0].GetPage() != 0 {
						return nil, rpc.Errorf(reason.InvalidSpec, "%v", r)
					}
					return &quirev1.CommitPublishResponse{Pages: []*quirev1.PageStatus{{Outcome: quirev1.Outcome_OUTCOME_REFUSED, Reason: quirev1.Reason_REASON_TRUNCATED}}}, nil
				}, why: [2]reason.Reason{reason.Truncated, reason.Truncated}},
			"commit refused": {
				commit: func(*quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
					return nil, rpc.Errorf(reason.Retired, "no")
				}, err: reason.Retired, why: [2]reason.Reason{reason.Retired, reason.Retired}},
			"commit answers too few": {
				commit: func(*quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
					return &quirev1.CommitPublishResponse{}, nil
				}, why: [2]reason.Reason{reason.Unknown, reason.Unknown}},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, tr, small, Options{})
				u := &uploads{}
				w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) { return grantAll(r), nil }
				if w.fake.write = c.write; c.write == nil {
					w.fake.write = u.take(t)
				}
				w.fake.commit = c.commit
				rs, err := w.s.Publish(w.ctx(), w.run(2), page.View{}, nil, w.items(2, small.Full()), PublishOptions{})
				if !errors.Is(err, c.err) {
					t.Error(err)
				}
				for i, r := range rs {
					if r.Outcome != Refused || r.Reason != c.why[i] {
						t.Errorf("page %d: %+v", i, r)
					}
				}
				if a := <-w.fake.aborts; len(a.GetPages()) != 2 {
					t.Errorf("gave back %v", a.GetPages())
				}
			})
		}
	})
}

// TestCase_C48_CommitRepeats: a commit whose answer is lost is sent again, with the same headers; a begin is not.
func TestCase_C48_CommitRepeats(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		u := &uploads{}
		begins := 0
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
			begins++
			return grantAll(r), nil
		}
		w.fake.write = u.take(t)
		honest := w.commitAll(u)
		var seen [][]byte
		w.fake.commit = func(r *quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
			seen = append(seen, r.GetPages()[0].GetHeaders()[0])
			if len(seen) < 3 {
				return nil, rpc.Errorf(reason.Unknown, "lost")
			}
			return honest(r)
		}
		rs, err := w.s.Publish(w.ctx(), w.run(1), page.View{}, nil, w.items(1, small.Full()), PublishOptions{})
		if err != nil || rs[0].Outcome != Committed || begins != 1 || len(seen) != 3 || !bytes.Equal(seen[0], seen[2]) {
			t.Fatal(err, rs, begins, len(seen))
		}
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
			begins++
			return nil, rpc.Errorf(reason.Unknown, "lost")
		}
		rs, err = w.s.Publish(w.ctx(), w.run(1), page.View{}, nil, w.items(1, small.Full()), PublishOptions{})
		if err == nil || begins != 2 || rs[0].Outcome != Refused {
			t.Fatal(err, begins, rs)
		}
	})
}

// TestPublishParents: the parent is what the item says, else the page before, also across batches.
func TestPublishParents(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{BatchKeys: 2})
		u := &uploads{}
		var pages []*quirev1.PublishPage
		w.fake.begin = func(r *quirev1.BeginPublishRequest) (*quirev1.BeginPublishResponse, error) {
			pages = append(pages, r.GetPages()...)
			return grantAll(r), nil
		}
		w.fake.write = u.take(t)
		var parents []page.Hash
		var unknown []bool
		honest := w.commitAll(u)
		w.fake.commit = func(r *quirev1.CommitPublishRequest) (*quirev1.CommitPublishResponse, error) {
			for _, p := range r.GetPages() {
				var h page.Header
				page.DecodeHeader(&h, p.GetHeaders()[0])
				parents, unknown = append(parents, h.Parent), append(unknown, h.ParentUnknown)
			}
			a, err := honest(r)
			u.mu.Lock()
			u.got = map[[2]uint32][]byte{}
			u.mu.Unlock()
			return a, err
		}
		items, run := w.items(5, small.Full()), w.run(5)
		named, _ := page.MakeHash(bytes.Repeat([]byte{0xAB}, 32))
		items[0].Root, items[3].ParentUnknown, items[4].Parent = true, true, named
		if rs, err := w.s.Publish(w.ctx(), run, page.View{}, nil, items, PublishOptions{}); err != nil || GoodPrefix(rs) != 5 {
			t.Fatal(err, rs)
		}
		h := func(i int) page.Hash { return w.s.hash(&run, i) }
		for i, want := range []page.Hash{{}, h(0), h(1), {}, named} {
			if parents[i] != want || unknown[i] != (i == 3) {
				t.Errorf("page %d: parent %v unknown %v", i, parents[i], unknown[i])
			}
		}
		if !pages[0].GetRoot() || pages[1].GetParent() != nil || string(pages[2].GetParentHash()) != string(run.Hashes[32:64]) ||
			!pages[3].GetParentUnknown() || pages[4].GetParentHash()[0] != 0xAB {
			t.Errorf("begun with %v", pages)
		}
	})
}

// TestLeases: a lease's time counts from when it was asked for; it is renewed while a fetch makes progress and only
// then; a lookup in batches keeps the longest prefix.
func TestLeases(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		clk := clock.NewManual(time.Unix(1e9, 0))
		w := newWorld(t, tr, small, Options{Clock: clk, BatchKeys: 4, Parallel: 1, CallTimeout: 1000 * time.Hour})
		var leased []bool
		w.fake.exists = func(r *quirev1.BatchExistsRequest) (*quirev1.BatchExistsResponse, error) {
			clk.Advance(time.Second) // the answer is slow
			leased = append(leased, r.GetLease() != nil)
			a := &quirev1.BatchExistsResponse{Present: []byte{0x0F}, Leading: []uint32{4}}
			if r.GetLease() != nil {
				a.Lease = &quirev1.LeaseGrant{LeaseId: make([]byte, 16), Ttl: r.GetLease(), Covered: []uint32{3}}
			}
			return a, nil
		}
		p, err := w.s.Exists(w.ctx(), w.run(10), 10*time.Second)
		if err != nil || p.Leading != 10 || p.Leased != 3 || len(leased) != 3 || !leased[0] || leased[1] || !p.Has(9) {
			t.Fatal(p, err, leased)
		}
		if left := p.Lease.Remaining(); left != 7*time.Second {
			t.Errorf("%v left: the time counts from when it was asked for", left)
		}
		renewed := make(chan struct{}, 100)
		w.fake.renew = func(r *quirev1.RenewLeaseRequest) (*quirev1.RenewLeaseResponse, error) {
			renewed <- struct{}{}
			return &quirev1.RenewLeaseResponse{Ttl: r.GetTtl()}, nil
		}
		w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			if len(r.GetLeaseId()) != 16 {
				t.Error("not under the lease")
			}
			ms := w.messages(0, small.Full(), 40<<10, w.extent(0, 1, small.Full()))
			if err := sendAll(st, ms[:2]); err != nil {
				return err
			}
			stop := ticking(clk, 100*time.Millisecond) // until the progress made was seen
			<-renewed
			stop()
			return sendAll(st, ms[2:])
		}
		rs, err := w.s.FetchInto(w.ctx(), w.s.First(w.run(3), 1), page.View{}, nil, w.buffers(1, small.Full()), p.Lease)
		if err != nil || rs[0].Outcome != OK {
			t.Fatal(err, rs)
		}
		for len(renewed) > 0 {
			<-renewed
		}
		clk.Advance(time.Minute)
		if len(renewed) != 0 {
			t.Error("renewed while nobody reads")
		}
		rs, err = w.s.FetchInto(w.ctx(), w.s.First(w.run(3), 1), page.View{}, nil, w.buffers(1, small.Full()), p.Lease)
		if !errors.Is(err, reason.LeaseExpired) || rs[0].Reason != reason.LeaseExpired {
			t.Error(err, rs)
		}
	})
}

// TestCloseIsPrompt: Close ends calls in flight, from any state, any number of times.
func TestCloseIsPrompt(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		in := make(chan struct{})
		w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			close(in)
			<-st.Context().Done()
			return nil
		}
		failed := make(chan error)
		go func() {
			_, err := w.s.FetchInto(context.Background(), w.run(1), page.View{}, nil, w.buffers(1, small.Full()), nil)
			failed <- err
		}()
		<-in
		go w.c.Close()
		if err := <-failed; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		w.c.Close()
		if _, err := w.s.Exists(w.ctx(), w.run(1), 0); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if _, err := w.c.OpenID(w.ctx(), page.NamespaceID{}, nil); err == nil {
			t.Error("opened after Close")
		}
	})
}
