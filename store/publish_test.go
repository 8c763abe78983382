package store_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

var whole = page.View{}

func mustPublish(t *testing.T, f *storetest.Fixture, hashes []byte, v page.View) {
	t.Helper()
	if refused := offer(t, f, hashes, v); refused > 0 {
		t.Fatalf("%d pages were not worth their room", refused)
	}
}

// offer publishes pages, and counts those that are not worth their room.
func offer(t *testing.T, f *storetest.Fixture, hashes []byte, v page.View) (refused int) {
	t.Helper()
	rs, err := f.Publish(t.Context(), f.Caller, hashes, v, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		switch {
		case r.Outcome == core.Refused && r.Reason == reason.NotWorth:
			refused++
		case r.Outcome != core.Committed && r.Outcome != core.Present:
			t.Fatalf("page %d: %v %v", i, r.Outcome, r.Reason)
		}
	}
	return refused
}

// wantPages fetches and compares every byte; miss[i] says the reason that page i must be missing with.
func wantPages(t *testing.T, f *storetest.Fixture, hashes []byte, v page.View, miss map[int]reason.Reason) {
	t.Helper()
	rs, payloads, err := f.Fetch(t.Context(), f.Caller, hashes, v, core.LeaseID{})
	if err != nil {
		t.Fatal(err)
	}
	full := v
	if full.Empty() {
		full = f.Geometry.Full()
	}
	for i, r := range rs {
		if why, ok := miss[i]; ok {
			if r.Outcome != core.Miss || r.Reason != why {
				t.Errorf("page %d: %v %v, want a miss: %v", i, r.Outcome, r.Reason, why)
			}
			continue
		}
		if r.Outcome != core.OK {
			t.Errorf("page %d: %v %v, want it served", i, r.Outcome, r.Reason)
		} else if !bytes.Equal(payloads[i], f.Payload(hashes[32*i:], full, 0)) {
			t.Errorf("page %d: wrong bytes", i)
		}
	}
}

func exists(t *testing.T, f *storetest.Fixture, hashes []byte, v page.View) (bits []bool, leading int) {
	t.Helper()
	n := len(hashes) / 32
	raw, lead := make([]byte, (n+7)/8), make([]uint32, 1)
	if why := f.Store.Exists(f.Caller, []core.Run{f.Run(hashes)}, v, raw, lead); why != reason.None {
		return make([]bool, n), 0
	}
	for i := range n {
		bits = append(bits, raw[i/8]>>(i%8)&1 == 1)
	}
	return bits, int(lead[0])
}

// begin asks for whole pages of a chain.
func begin(t *testing.T, f *storetest.Fixture, hashes []byte, ttl time.Duration) store.BeginResult {
	t.Helper()
	pages := make([]core.BeginPage, len(hashes)/32)
	for i := range pages {
		pages[i].PayloadBytes = page.PayloadBytes(f.Geometry.Full(), f.Geometry.CellBytes)
	}
	pages[0].Link = core.LinkRoot
	b, why, err := f.Store.Begin(t.Context(), f.Caller, store.BeginRequest{Run: f.Run(hashes), Pages: pages, TTL: ttl})
	if err != nil || why != reason.None {
		t.Fatal(why, err)
	}
	return b
}

func write(f *storetest.Fixture, b store.BeginResult, pageIndex, grant int, off uint64, p []byte) reason.Reason {
	ns := f.Namespace.State
	return f.Store.Write(f.Caller, ns.ID, ns.Epoch, b.Token, pageIndex, grant, off, p)
}

func commit(t *testing.T, f *storetest.Fixture, b store.BeginResult, pages ...store.CommitPage) []store.PageResult {
	t.Helper()
	ns := f.Namespace.State
	rs, why, err := f.Store.Commit(t.Context(), f.Caller, ns.ID, ns.Epoch, b.Token, pages)
	if err != nil || why != reason.None {
		t.Fatal(why, err)
	}
	return rs.Pages
}

func TestPublishFetch(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	chain := storetest.Chain("a", 20)
	if _, lead := exists(t, f, chain, whole); lead != 0 {
		t.Fatal("exists before it was published")
	}
	mustPublish(t, f, chain[:32*15], whole)
	if bits, lead := exists(t, f, chain, whole); lead != 15 || bits[15] {
		t.Fatalf("leading %d, want 15", lead)
	}
	miss := map[int]reason.Reason{}
	for i := 15; i < 20; i++ {
		miss[i] = reason.Absent
	}
	wantPages(t, f, chain, whole, miss)
	wantPages(t, f, chain, page.View{H0: 1, H1: 3, L0: 0, L1: 4}, miss)
	wantPages(t, f, chain, page.View{H0: 1, H1: 3, L0: 1, L1: 2}, miss)
}

func TestCase_C10_ManyWritersOnePage(t *testing.T) {
	for _, writers := range []int{2, 16, 64} {
		f := storetest.New(t, storetest.Options{})
		chain := storetest.Chain("c10", 3)
		start, wg := make(chan struct{}), sync.WaitGroup{}
		var mu sync.Mutex
		committed := 0
		for range writers {
			wg.Go(func() {
				<-start
				rs, err := f.Publish(context.Background(), f.Caller, chain, whole, 0)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for i, r := range rs {
					switch {
					case r.Outcome == core.Committed:
						committed++
					case r.Outcome == core.Present, r.Reason == reason.Held:
					default:
						t.Errorf("page %d: %v %v", i, r.Outcome, r.Reason)
					}
				}
			})
		}
		close(start)
		wg.Wait()
		if committed != 3 {
			t.Errorf("%d writers: %d pages committed, want 3", writers, committed)
		}
		wantPages(t, f, chain, whole, nil)
		if u := f.Store.Usage(f.Namespace.State.ID, 1); u.Extents != 3 {
			t.Errorf("%d extents stored, want 3", u.Extents)
		}
	}
}

func TestCase_C11_WriterGoneAtEachStep(t *testing.T) {
	for _, step := range []string{"begun", "half written", "written", "committed one of two"} {
		t.Run(step, func(t *testing.T) {
			m := clock.NewManual(time.Unix(1_800_000_000, 0))
			f := storetest.New(t, storetest.Options{Clock: m})
			chain := storetest.Chain(step, 2)
			b := begin(t, f, chain, time.Second)
			first := f.Payload(chain, f.Geometry.Full(), 0)
			want := map[int]reason.Reason{0: reason.Absent, 1: reason.Absent}
			switch step {
			case "half written":
				write(f, b, 0, 0, 0, first[:len(first)/2])
			case "written":
				write(f, b, 0, 0, 0, first)
			case "committed one of two":
				write(f, b, 0, 0, 0, first)
				commit(t, f, b, store.CommitPage{Page: 0, Headers: [][]byte{f.Header(chain[:32], f.Geometry.Full(), first)}})
				delete(want, 0)
			}
			wantPages(t, f, chain, whole, want)
			live := f.Store.Status().Tiers[0].Live
			m.Advance(3 * time.Second)
			if got := f.Store.Status(); got.Totals.Publications != 0 || got.Tiers[0].Live >= live {
				t.Errorf("after the lease: %d publications, %d bytes live, were %d", got.Totals.Publications, got.Tiers[0].Live, live)
			}
			wantPages(t, f, chain, whole, want)
			if why := write(f, b, 1, 0, 0, first); why != reason.StaleToken {
				t.Errorf("a write after the lease: %v", why)
			}
			mustPublish(t, f, chain, whole)
			wantPages(t, f, chain, whole, nil)
		})
	}
}

func TestCase_C12_PausedWriterWakes(t *testing.T) {
	m := clock.NewManual(time.Unix(1_800_000_000, 0))
	f := storetest.New(t, storetest.Options{Clock: m})
	chain := storetest.Chain("c12", 1)
	b := begin(t, f, chain, time.Second)
	payload := f.Payload(chain, f.Geometry.Full(), 99)
	write(f, b, 0, 0, 0, payload)
	m.Advance(2 * time.Second)
	mustPublish(t, f, chain, whole)
	rs := commit(t, f, b, store.CommitPage{Headers: [][]byte{f.Header(chain, f.Geometry.Full(), payload)}})
	if rs[0].Outcome != core.Refused || rs[0].Reason != reason.LostRace {
		t.Errorf("the stale writer's commit: %v %v, want lost_race", rs[0].Outcome, rs[0].Reason)
	}
	if f.Store.Status().Divergent != 1 {
		t.Error("other bytes for a stored page were not counted")
	}
	wantPages(t, f, chain, whole, nil)
}

func TestCase_C13_CommitTwice(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	chain := storetest.Chain("c13", 2)
	b := begin(t, f, chain, time.Minute)
	var pages []store.CommitPage
	for i := range 2 {
		h := chain[32*i : 32*i+32]
		payload := f.Payload(h, f.Geometry.Full(), 0)
		write(f, b, i, 0, 0, payload)
		pages = append(pages, store.CommitPage{Page: uint32(i), Headers: [][]byte{f.Header(h, f.Geometry.Full(), payload)}})
	}
	for range 3 {
		for i, r := range commit(t, f, b, pages...) {
			if r.Outcome != core.Committed {
				t.Fatalf("page %d: %v %v", i, r.Outcome, r.Reason)
			}
		}
		if u := f.Store.Usage(f.Namespace.State.ID, 1); u.Extents != 2 || u.Pages != 2 {
			t.Fatalf("%d extents of %d pages", u.Extents, u.Pages)
		}
	}
}

func TestCase_C14_SourceChangesAfterWrite(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	chain := storetest.Chain("c14", 1)
	b := begin(t, f, chain, time.Minute)
	payload := f.Payload(chain, f.Geometry.Full(), 0)
	header := f.Header(chain, f.Geometry.Full(), payload)
	write(f, b, 0, 0, 0, payload)
	clear(payload)
	commit(t, f, b, store.CommitPage{Headers: [][]byte{header}})
	clear(header)
	wantPages(t, f, chain, whole, nil)
}

func TestCase_C16_BrokenUploads(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	full := f.Geometry.Full()
	type upload func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason
	send := func(chunks ...[2]int) upload {
		return func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason {
			for _, c := range chunks {
				if why := write(f, b, 0, 0, uint64(c[0]), payload[c[0]:c[1]]); why != reason.None {
					return why
				}
			}
			return commit(t, f, b, store.CommitPage{Headers: [][]byte{header}})[0].Reason
		}
	}
	n := int(page.PayloadBytes(full, f.Geometry.CellBytes))
	for name, c := range map[string]struct {
		do   upload
		want reason.Reason
	}{
		"truncated":          {send([2]int{0, n - 1}), reason.Truncated},
		"a chunk is missing": {send([2]int{0, n / 4}, [2]int{n / 2, n}), reason.Truncated},
		"out of order":       {send([2]int{n / 2, n}, [2]int{0, n / 2}), reason.Truncated},
		"sent twice":         {send([2]int{0, n / 2}, [2]int{0, n / 2}), reason.Truncated},
		"nothing":            {send(), reason.Truncated},
		"too long": {func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason {
			return write(f, b, 0, 0, 0, append(payload, 0))
		}, reason.SizeMismatch},
		"other bytes than summed": {func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason {
			payload[n/3] ^= 4
			return send([2]int{0, n})(t, b, payload, header)
		}, reason.Corrupt},
		"a header of another page": {func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason {
			return send([2]int{0, n})(t, b, payload, f.Header(storetest.Chain("else", 1), full, payload))
		}, reason.SizeMismatch},
		"a damaged header": {func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason {
			header[150] ^= 1
			return send([2]int{0, n})(t, b, payload, header)
		}, reason.Corrupt},
		"no header": {func(t *testing.T, b store.BeginResult, payload, header []byte) reason.Reason {
			return send([2]int{0, n})(t, b, payload, nil)
		}, reason.Truncated},
	} {
		t.Run(name, func(t *testing.T) {
			chain := storetest.Chain(name, 1)
			b := begin(t, f, chain, time.Minute)
			payload := f.Payload(chain, full, 0)
			if why := c.do(t, b, payload, f.Header(chain, full, payload)); why != c.want {
				t.Errorf("%v, want %v", why, c.want)
			}
			wantPages(t, f, chain, whole, map[int]reason.Reason{0: reason.Absent})
			f.Store.Abort(f.Caller, f.Namespace.State.ID, 1, b.Token, nil)
			mustPublish(t, f, chain, whole)
			wantPages(t, f, chain, whole, nil)
		})
	}
}

func TestCase_C56_SamePageOtherBytes(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	chain := storetest.Chain("c56", 1)
	mustPublish(t, f, chain, whole)
	rs, err := f.Publish(t.Context(), f.Caller, chain, whole, 1)
	if err != nil || rs[0].Outcome != core.Present || len(rs[0].Stored) != 1 {
		t.Fatalf("%+v %v, want already present with the stored extent", rs, err)
	}
	var h page.Header
	if err := page.DecodeHeader(&h, f.Header(chain, f.Geometry.Full(), f.Payload(chain, f.Geometry.Full(), 0))); err != nil {
		t.Fatal(err)
	}
	if rs[0].Stored[0].Digest != h.Extent.Digest {
		t.Error("the stored digest is not the first writer's")
	}
	wantPages(t, f, chain, whole, nil)
	pages := []core.BeginPage{{Link: core.LinkRoot, PayloadBytes: 123}}
	b, _, err := f.Store.Begin(t.Context(), f.Caller, store.BeginRequest{Run: f.Run(storetest.Chain("size", 1)), Pages: pages, TTL: time.Second})
	if err != nil || b.Pages[0].Outcome != core.Refused || b.Pages[0].Reason != reason.SizeMismatch {
		t.Errorf("a size that the geometry does not give: %+v %v", b.Pages, err)
	}
}
