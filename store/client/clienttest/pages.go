package clienttest

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

func publishThenFetch(t *testing.T, w *world) {
	for _, mla := range []bool{false, true} {
		g, geo := w.group(mla)
		r := chainOf(g, "chain", 5)
		if n := w.leading(w.s, r); n != 0 {
			t.Fatalf("%d pages before anything was published", n)
		}
		rs, _, err := w.fetch(w.s, r, geo.Full(), nil)
		if err != nil {
			t.Fatal(err)
		}
		w.shouldBe(rs, client.PageResult{Outcome: client.Miss, Reason: reason.Absent})
		w.mustPublish(r, geo.Full())
		if n := w.leading(w.s, r); n != 5 {
			t.Errorf("%d of 5", n)
		}
		w.mustFetch(w.s, r, geo.Full())
		w.shouldBe(w.publish(w.s, r, geo.Full(), 0), client.PageResult{Outcome: client.Present})
		if rs, err := w.s.Touch(w.ctx(), r); err != nil || client.GoodPrefix(rs) != 5 {
			t.Error(rs, err)
		}
		if at, err := w.s.Answered(w.ctx(), r, 20); err != nil || at < 0 {
			t.Error(at, err)
		}
		if rs, err := w.s.Pin(w.ctx(), w.s.First(r, 1)); err != nil || client.GoodPrefix(rs) != 1 {
			t.Error(rs, err)
		}
		if rs, err := w.s.Unpin(w.ctx(), w.s.First(r, 1)); err != nil || client.GoodPrefix(rs) != 1 {
			t.Error(rs, err)
		}
	}
	if st := w.c.Stats(); st.VerifiedBytes == 0 || st.VerifiedBytes != st.FetchedBytes || st.Corrupt != 0 || st.Divergent != 0 {
		t.Errorf("%+v", st)
	}
}

// batches: more pages than one call takes, over several streams.
func batches(t *testing.T, w *world) {
	c := w.Dial(t, "acme", client.Options{BatchKeys: 3, BatchBytes: 300 << 10, Parallel: 3})
	s := w.open(c, "v1")
	r := w.chain("batches", 20)
	v := page.View{H0: 2, H1: 6, L0: 1, L1: 3}
	rs := w.publish(s, r, w.full(r), 0)
	w.shouldBe(rs, client.PageResult{Outcome: client.Committed})
	w.mustFetch(s, r, v)
	if n := w.leading(s, r); n != 20 {
		t.Errorf("%d of 20", n)
	}
	if rs, err := s.Delete(w.ctx(), s.Rest(r, 15)); err != nil || client.GoodPrefix(rs) != 5 {
		t.Error(rs, err)
	}
	if n := w.leading(s, r); n != 15 {
		t.Errorf("%d of 15", n)
	}
}

// layouts: what one engine wrote in its order another reads in another.
func layouts(t *testing.T, w *world) {
	r := w.chain("layouts", 2)
	geo, _ := w.s.Geometry(r.Group)
	v, row := geo.Full(), int(geo.CellBytes/2/geo.Tokens)
	heads, layers, tokens := int(geo.Heads), int(geo.Layers), int(geo.Tokens)
	token := &client.Layout{PageBytes: v.Cells() * int(geo.CellBytes), Layout: kernels.Layout{Heads: heads, Layers: layers, Tokens: tokens}}
	for k := range 2 { // [layer][k or v][token][head]
		token.Components = append(token.Components, kernels.Component{
			RowBytes: row, Offset: k * tokens * heads * row, HeadStride: row, LayerStride: 2 * tokens * heads * row, TokenStride: heads * row,
		})
	}
	items := w.items(r, v, 0)
	for i := range items {
		canonical := items[i].Bytes
		items[i].Bytes = make([]byte, token.PageBytes)
		permute(token, items[i].Bytes, canonical)
	}
	rs, err := w.s.Publish(w.ctx(), r, v, token, items, client.PublishOptions{})
	if err != nil || client.GoodPrefix(rs) != 2 {
		t.Fatal(rs, err)
	}
	w.mustFetch(w.s, r, v)
	w.mustFetch(w.s, r, page.View{H0: 3, H1: 4, L0: 1, L1: 4})
	dst := [][]byte{make([]byte, token.PageBytes), make([]byte, token.PageBytes)}
	if rs, err = w.s.FetchInto(w.ctx(), r, v, token, dst, nil); err != nil || client.GoodPrefix(rs) != 2 {
		t.Fatal(rs, err)
	}
	for i := range dst {
		if !bytes.Equal(dst[i], items[i].Bytes) {
			t.Errorf("page %d differs", i)
		}
	}
}

// permute is the plain way into an engine's order, byte by byte.
func permute(l *client.Layout, dst, canonical []byte) {
	at := 0
	for h := range l.Heads {
		for y := range l.Layers {
			for _, c := range l.Components {
				for tok := range l.Tokens {
					at += copy(dst[c.Offset+h*c.HeadStride+y*c.LayerStride+tok*c.TokenStride:][:c.RowBytes], canonical[at:])
				}
			}
		}
	}
}

func otherWeights(t *testing.T, w *world) {
	r := w.chain("weights", 3)
	w.mustPublish(r, w.full(r))
	other := w.open(w.c, "v2")
	if other.ID() == w.s.ID() {
		t.Fatal("one namespace for two weights")
	}
	if n := w.leading(other, r); n != 0 {
		t.Errorf("%d pages of other weights", n)
	}
	rs, _, err := w.fetch(other, r, w.full(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.shouldBe(rs, client.PageResult{Outcome: client.Miss, Reason: reason.Absent})
	w.mustFetch(w.s, r, w.full(r))
}

// manyWriters: writers from several connections publish one chain at once: each page is stored once, and whoever
// reads sees whole pages only.
func manyWriters(t *testing.T, w *world) {
	r := w.chain("many", 3)
	const writers = 8
	results := make([][]client.PageResult, writers)
	var wg sync.WaitGroup
	for k := range writers {
		c := w.Dial(t, "acme", client.Options{})
		s := w.open(c, "v1")
		wg.Go(func() {
			rs, err := s.Publish(w.ctx(), r, page.View{}, nil, w.items(r, w.full(r), 0), client.PublishOptions{})
			if err != nil {
				t.Error(err)
			}
			results[k] = rs
		})
		wg.Go(func() {
			rs, dst, err := w.fetch(s, r, w.full(r), nil)
			for i := range rs {
				if err != nil || rs[i].Outcome == client.OK && !bytes.Equal(dst[i], w.payload(r, i, w.full(r), 0)) {
					t.Errorf("page %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range pages(r) {
		committed := 0
		for _, rs := range results {
			switch p := rs[i]; {
			case p.Outcome == client.Committed:
				committed++
			case p.Outcome == client.Present, p.Reason == reason.Held, p.Reason == reason.LostRace, p.Reason == reason.ParentMissing:
			default:
				t.Errorf("page %d: %+v", i, p)
			}
		}
		if committed != 1 || w.Extents(w.key(r, i)) != 1 {
			t.Errorf("page %d: committed %d times, %d extents", i, committed, w.Extents(w.key(r, i)))
		}
	}
	w.mustFetch(w.s, r, w.full(r))
}

func deleteAndPublishAgain(t *testing.T, w *world) {
	r := w.chain("delete", 4)
	w.mustPublish(r, w.full(r))
	if rs, err := w.s.Delete(w.ctx(), w.s.Rest(r, 2)); err != nil || client.GoodPrefix(rs) != 2 {
		t.Fatal(rs, err)
	}
	if n := w.leading(w.s, r); n != 2 {
		t.Errorf("%d of 2", n)
	}
	rs, _, err := w.fetch(w.s, w.s.Rest(r, 2), w.full(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.shouldBe(rs, client.PageResult{Outcome: client.Miss, Reason: reason.Absent})
	out := w.publish(w.s, r, w.full(r), 0)
	w.shouldBe(out[:2], client.PageResult{Outcome: client.Present})
	w.shouldBe(out[2:], client.PageResult{Outcome: client.Committed})
	w.mustFetch(w.s, r, w.full(r))
}

// everyShape: TP and PP slices of every width are written and read in every pair, and stored once.
func everyShape(t *testing.T, w *world) {
	shapes := map[string][]page.View{}
	for _, tp := range []int{1, 2, 4, 8} {
		for _, pp := range []int{1, 2} {
			name := string(rune('0'+tp)) + "x" + string(rune('0'+pp))
			for rank := range tp {
				v, err := page.TPView(rank, tp, 8, 4)
				if err != nil {
					t.Fatal(err)
				}
				for stage := range pp {
					l := uint16(4 / pp)
					shapes[name] = append(shapes[name], page.View{H0: v.H0, H1: v.H1, L0: uint16(stage) * l, L1: uint16(stage+1) * l})
				}
			}
		}
	}
	for writer, views := range shapes {
		r := w.chain("shape "+writer, 2)
		for _, v := range views {
			w.shouldBe(w.publish(w.s, r, v, 0), client.PageResult{Outcome: client.Committed})
		}
		if n := w.leading(w.s, r); n != 2 {
			t.Fatalf("written as %s: %d of 2", writer, n)
		}
		for reader, readers := range shapes {
			for _, v := range readers {
				w.mustFetch(w.s, r, v)
				if rs := w.publish(w.s, r, v, 0); rs[0].Outcome != client.Present {
					t.Errorf("written as %s, offered as %s: %+v", writer, reader, rs[0])
				}
			}
		}
		if n := w.Extents(w.key(r, 0)); n != len(views) {
			t.Errorf("written as %s: %d extents for %d views", writer, n, len(views))
		}
	}
}

// holes: three of four ranks committed: no rank gets the page; another shape fills exactly the hole.
func holes(t *testing.T, w *world) {
	r := w.chain("holes", 2)
	rank := func(k int) page.View { v, _ := page.TPView(k, 4, 8, 4); return v.View }
	for _, k := range []int{0, 1, 3} {
		w.shouldBe(w.publish(w.s, r, rank(k), 0), client.PageResult{Outcome: client.Committed})
	}
	if n := w.leading(w.s, r); n != 0 {
		t.Errorf("%d incomplete pages are there", n)
	}
	rs, _, err := w.fetch(w.s, r, w.full(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.shouldBe(rs, client.PageResult{Outcome: client.Miss, Reason: reason.Incomplete})
	w.mustFetch(w.s, r, rank(1))
	w.shouldBe(w.publish(w.s, r, page.View{H0: 4, H1: 8, L0: 0, L1: 4}, 0), client.PageResult{Outcome: client.Committed})
	if n := w.leading(w.s, r); n != 2 {
		t.Errorf("%d of 2", n)
	}
	if n := w.Extents(w.key(r, 0)); n != 4 {
		t.Errorf("%d extents", n)
	}
	w.mustFetch(w.s, r, w.full(r))
}

func sameKeyOtherBytes(t *testing.T, w *world) {
	r := w.chain("divergent", 1)
	w.mustPublish(r, w.full(r))
	rs := w.publish(w.s, r, w.full(r), 99)
	if rs[0].Outcome != client.Present || !rs[0].Divergent || len(rs[0].Extents) != 1 {
		t.Errorf("%+v", rs[0])
	}
	if n := w.c.Stats().Divergent; n != 1 {
		t.Errorf("%d counted", n)
	}
	w.mustFetch(w.s, r, w.full(r))
}

func bufferSize(t *testing.T, w *world) {
	r := w.chain("buffers", 1)
	w.mustPublish(r, w.full(r))
	n := len(w.payload(r, 0, w.full(r), 0))
	for _, size := range []int{0, n - 1, n + 1} {
		dst := bytes.Repeat([]byte{7}, size)
		if _, err := w.s.FetchInto(w.ctx(), r, page.View{}, nil, [][]byte{dst}, nil); !errors.Is(err, reason.BufferSize) {
			t.Errorf("%d bytes for %d: %v", size, n, err)
		}
		if bytes.Count(dst, []byte{7}) != size {
			t.Errorf("%d bytes for %d: written to", size, n)
		}
		if _, err := w.s.Publish(w.ctx(), r, page.View{}, nil, []client.Item{{Bytes: dst}}, client.PublishOptions{}); !errors.Is(err, reason.SizeMismatch) {
			t.Errorf("published %d bytes for %d: %v", size, n, err)
		}
	}
}

// parentMissing: a page whose parent is absent is refused, naming it, so that it can be published.
func parentMissing(t *testing.T, w *world) {
	r := w.chain("orphans", 3)
	items := w.items(r, w.full(r), 0)
	parent := w.key(r, 1).Hash
	last := w.s.Rest(r, 2)
	item := client.Item{Bytes: items[2].Bytes, Parent: parent, Expire: time.Hour}
	rs, err := w.s.Publish(w.ctx(), last, page.View{}, nil, []client.Item{item}, client.PublishOptions{})
	if err != nil || rs[0].Outcome != client.Refused || rs[0].Reason != reason.ParentMissing || rs[0].Ancestor != parent {
		t.Fatal(rs, err)
	}
	w.mustPublish(w.s.First(r, 2), w.full(r))
	rs, err = w.s.Publish(w.ctx(), last, page.View{}, nil, []client.Item{item}, client.PublishOptions{})
	if err != nil || rs[0].Outcome != client.Committed {
		t.Fatal(rs, err)
	}
	w.mustFetch(w.s, r, w.full(r))
}
