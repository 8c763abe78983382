package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// TestFetchAssembles: any view, out of any extents that tile it, in chunks of any size, arrives byte for byte.
func TestFetchAssembles(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for name, geo := range map[string]Geometry{"small": small, "large": large} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, tr, geo, Options{})
				var view page.View
				var extents []*extent
				chunk := 0
				w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
					for k := range keys(r.GetRun()) {
						if err := sendAll(st, w.messages(k, view, chunk, extents...)); err != nil {
							return err
						}
					}
					return nil
				}
				rapid.Check(t, func(t *rapid.T) {
					view = anyView(t, "view", geo.Full())
					extents = []*extent{w.extent(0, 1, anyView(t, "first", geo.Full()))}
					rest, _ := view.Uncovered(nil, []page.View{extents[0].header.View})
					for _, v := range rest {
						extents = append(extents, w.extent(0, 2, v))
					}
					extents = slices.DeleteFunc(extents, func(e *extent) bool { return e.header.View.Intersect(view).Empty() })
					chunk = rapid.IntRange(1, 200).Draw(t, "chunk KiB") << 10
					dst := w.buffers(1, view)
					rs, err := w.s.FetchInto(w.ctx(), w.run(1), view, nil, dst, nil)
					if err != nil || rs[0].Outcome != OK {
						t.Fatal(err, rs)
					}
					if want := assembled(w, view, extents); !bytes.Equal(dst[0], want) {
						t.Fatal("bytes differ")
					}
				})
			})
		}
	})
}

func anyView(t *rapid.T, name string, in page.View) page.View {
	h0 := rapid.Uint16Range(0, in.H1-1).Draw(t, name+".h0")
	l0 := rapid.Uint16Range(0, in.L1-1).Draw(t, name+".l0")
	return page.View{H0: h0, H1: rapid.Uint16Range(h0+1, in.H1).Draw(t, name+".h1"), L0: l0, L1: rapid.Uint16Range(l0+1, in.L1).Draw(t, name+".l1")}
}

// assembled is the plain way to the same bytes: cell by cell, from the first extent that holds it.
func assembled(w *world, v page.View, extents []*extent) (out []byte) {
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			c := page.View{H0: h, H1: h + 1, L0: l, L1: l + 1}
			for _, e := range extents {
				if e.header.View.Contains(c) {
					out = append(out, w.payload(0, int(e.header.Extent.Writer[0]), c)...)
					break
				}
			}
		}
	}
	return out
}

// TestCase_C57_BufferSize: a buffer that is not exactly as large as the view is refused before a byte moves.
func TestCase_C57_BufferSize(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		w.fake.fetch = func(*quirev1.FetchRequest, grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			t.Error("the server was asked")
			return nil
		}
		full := int(page.PayloadBytes(small.Full(), small.CellBytes))
		for _, n := range []int{0, 1, full - 1, full + 1, 2 * full} {
			dst := [][]byte{make([]byte, full), make([]byte, n)}
			if _, err := w.s.FetchInto(w.ctx(), w.run(2), page.View{}, nil, dst, nil); !errors.Is(err, reason.BufferSize) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		if _, err := w.s.FetchInto(w.ctx(), w.run(2), page.View{}, nil, make([][]byte, 1), nil); !errors.Is(err, reason.BufferSize) {
			t.Errorf("too few buffers: %v", err)
		}
	})
}

// TestCase_C19_Lies: whatever a wire or a server does to one page of three, that page is a miss with its reason, the
// others are whole, and no page is OK with other bytes than those asked for.
func TestCase_C19_Lies(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		const corrupt, truncated = reason.Corrupt, reason.Truncated
		other := func(w *world) *extent { return w.extent(2, 1, small.Full()) }
		for name, c := range map[string]struct {
			lie    func(w *world, e *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse
			reason reason.Reason
			told   bool // the server is told
		}{
			"flipped bit in the first chunk": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[0].Chunk[17] ^= 4
				return ms
			}, corrupt, true},
			"flipped bit in the last chunk": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				c := ms[len(ms)-2].Chunk
				c[len(c)-1] ^= 128
				return ms
			}, corrupt, true},
			"flipped bit in a cut sum": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[0].CutSums[3] ^= 1
				return ms
			}, corrupt, true},
			"cut sum missing": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[0].CutSums = ms[0].CutSums[:7]
				return ms
			}, corrupt, true},
			"flipped bit in the header": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[0].Header = bytes.Clone(ms[0].Header)
				ms[0].Header[300] ^= 1
				return ms
			}, corrupt, true},
			"header cut short": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[0].Header = ms[0].Header[:100]
				return ms
			}, corrupt, true},
			"no header": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[0].Header = nil
				return ms
			}, corrupt, true},
			"another page, sound in itself": {func(w *world, _ *extent, _ []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return w.messages(1, small.Full(), 40<<10, other(w))
			}, corrupt, true},
			"another page under the right header": {func(w *world, e *extent, _ []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms := w.messages(1, small.Full(), 40<<10, other(w))
				ms[0].Header = e.raw
				return ms
			}, corrupt, true},
			"another geometry": {func(w *world, e *extent, _ []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				e.header.Tokens = 32
				e.seal()
				return w.messages(1, small.Full(), 40<<10, e)
			}, corrupt, true},
			"another packing": {func(w *world, e *extent, _ []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				e.header.Grade = page.Cell
				e.seal()
				return w.messages(1, small.Full(), 40<<10, e)
			}, corrupt, true},
			"another epoch": {func(w *world, e *extent, _ []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				e.header.Key.Epoch = 2
				e.seal()
				return w.messages(1, small.Full(), 40<<10, e)
			}, corrupt, true},
			"one chunk missing": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return slices.Delete(ms, 1, 2)
			}, corrupt, true},
			"one chunk missing, the next begins a cell": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return slices.Delete(ms, 2, 3)
			}, truncated, false},
			"last chunk missing": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return slices.Delete(ms, len(ms)-2, len(ms)-1)
			}, truncated, false},
			"two chunks swapped": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[1], ms[2] = ms[2], ms[1]
				return ms
			}, corrupt, true},
			"one chunk twice": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return slices.Insert(ms, 3, ms[2])
			}, corrupt, true},
			"chunk beyond the payload": {func(_ *world, e *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[3].Offset = uint64(len(e.payload)) - 5
				return ms
			}, corrupt, true},
			"offset that overflows": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[3].Offset = 1<<64 - 3
				return ms
			}, corrupt, true},
			"extent that was not opened": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[3].Extent = 1 << 31
				return ms
			}, corrupt, true},
			"trailer only": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return ms[len(ms)-1:]
			}, truncated, false},
			"no trailer": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return ms[:len(ms)-1]
			}, truncated, false},
			"trailer says retired": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				return append(ms[:len(ms)-1], missAll(reason.Retired, 1)...)
			}, reason.Retired, false},
			"trailer of an unknown outcome": {func(_ *world, _ *extent, ms []*quirev1.FetchResponse) []*quirev1.FetchResponse {
				ms[len(ms)-1].Trailer.Outcome = 77
				return ms
			}, reason.Unknown, false},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, tr, small, Options{Parallel: 1})
				w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
					for k := range 3 {
						e := w.extent(k, 1, small.Full())
						ms := w.messages(k, small.Full(), 40<<10, e)
						if k == 1 {
							ms = c.lie(w, e, ms)
						}
						if err := sendAll(st, ms); err != nil {
							return err
						}
					}
					return nil
				}
				dst := w.buffers(3, small.Full())
				rs, err := w.s.FetchInto(w.ctx(), w.run(3), page.View{}, nil, dst, nil)
				if err != nil {
					t.Fatal(err)
				}
				if rs[1].Outcome != Miss || rs[1].Reason != c.reason || GoodPrefix(rs) != 1 {
					t.Errorf("got %+v, want a miss with %v", rs[1], c.reason)
				}
				for _, i := range []int{0, 2} {
					if rs[i].Outcome != OK || !bytes.Equal(dst[i], w.payload(i, 1, small.Full())) {
						t.Errorf("page %d: %+v", i, rs[i])
					}
				}
				w.s.Close() // waits for reports
				if told := len(w.fake.reports) == 1; told != c.told {
					t.Errorf("server told: %v", told)
				}
			})
		}
	})
}

// TestFetchBreaksOffProtocolErrors: a stream that names pages that were not asked for, or goes back, ends; what had
// been served is OK.
func TestFetchBreaksOffProtocolErrors(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for name, second := range map[string]uint32{"page beyond the request": 2, "huge page": 1 << 31} {
			w := newWorld(t, tr, small, Options{Parallel: 1, Retries: -1})
			w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
				ms := append(w.messages(0, small.Full(), 1<<20, w.extent(0, 1, small.Full())), &quirev1.FetchResponse{Page: second})
				return sendAll(st, ms)
			}
			rs, err := w.s.FetchInto(w.ctx(), w.run(2), page.View{}, nil, w.buffers(2, small.Full()), nil)
			if err == nil || GoodPrefix(rs) != 1 || rs[1].Outcome != Miss || rs[1].Reason != reason.Unknown {
				t.Errorf("%s: %v %+v", name, err, rs)
			}
		}
	})
}

// TestCase_C64_NoLateBytes: once FetchInto has returned by its deadline, nothing of it is written into the
// destination any more, although the server goes on sending.
func TestCase_C64_NoLateBytes(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		w := newWorld(t, tr, small, Options{})
		half, returned, tried := make(chan struct{}), make(chan struct{}), make(chan struct{})
		w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			defer close(tried)
			ms := w.messages(0, small.Full(), 40<<10, w.extent(0, 1, small.Full()))
			if err := sendAll(st, ms[:3]); err != nil {
				return err
			}
			close(half)
			<-returned
			return sendAll(st, ms[3:])
		}
		ctx, cancel := context.WithCancel(w.ctx())
		go func() { <-half; cancel() }()
		dst := w.buffers(1, small.Full())
		rs, err := w.s.FetchInto(ctx, w.run(1), page.View{}, nil, dst, nil)
		if !errors.Is(err, context.Canceled) || rs[0].Outcome != Miss {
			t.Fatal(err, rs)
		}
		reused := bytes.Repeat([]byte{0x55}, len(dst[0]))
		copy(dst[0], reused)
		close(returned)
		<-tried
		w.c.Close()
		if !bytes.Equal(dst[0], reused) {
			t.Fatal("late bytes")
		}
	})
}

// TestCase_C76_Resume: a stream that breaks in the middle of a page is taken up on another for what is left. The page
// stays on the extents that it had begun with or starts over, and is never a mix.
func TestCase_C76_Resume(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for name, second := range map[string]struct {
			page1  func(w *world, first *extent) []*quirev1.FetchResponse
			writer int // of the result; 0: a miss
		}{
			"same extents": {func(w *world, first *extent) []*quirev1.FetchResponse {
				return w.messages(0, small.Full(), 40<<10, first)
			}, 1},
			"gone": {func(w *world, _ *extent) []*quirev1.FetchResponse { return missAll(reason.Absent, 0) }, 2},
			"another writer's, unasked": {func(w *world, _ *extent) []*quirev1.FetchResponse {
				return w.messages(0, small.Full(), 40<<10, w.extent(1, 2, small.Full()))
			}, 2},
			"a mix": {func(w *world, first *extent) []*quirev1.FetchResponse {
				ms := w.messages(0, small.Full(), 40<<10, w.extent(1, 2, small.Full()))
				return append(ms[:2], w.messages(0, small.Full(), 40<<10, first)[2:]...)
			}, 0},
		} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, tr, small, Options{Parallel: 1})
				first := w.extent(1, 1, small.Full())
				var asked [][]int
				var resumes [][][]byte
				w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
					var pages []int
					for k := range keys(r.GetRun()) {
						pages = append(pages, pageOf(r, k))
					}
					asked = append(asked, pages)
					switch len(asked) {
					case 1:
						ms := w.messages(0, small.Full(), 40<<10, w.extent(0, 1, small.Full()))
						ms = append(ms, w.messages(1, small.Full(), 40<<10, first)[:3]...)
						sendAll(st, ms)
						return rpc.Errorf(reason.Unknown, "broken")
					case 2:
						for _, p := range r.GetResume() {
							resumes = append(resumes, p.GetExtentIds())
						}
						sendAll(st, second.page1(w, first))
					case 3:
						if len(r.GetResume()) != 0 {
							t.Error("asked again for what is gone")
						}
						sendAll(st, w.messages(0, small.Full(), 40<<10, w.extent(1, 2, small.Full())))
					}
					return nil
				}
				dst := w.buffers(2, small.Full())
				rs, err := w.s.FetchInto(w.ctx(), w.run(2), page.View{}, nil, dst, nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(asked) < 2 || !slices.Equal(asked[1], []int{1}) {
					t.Fatalf("asked for %v", asked)
				}
				if len(resumes) != 1 || !bytes.Equal(resumes[0][0], first.header.Extent.AppendEncode(nil)) {
					t.Fatalf("resumed on %x", resumes)
				}
				if rs[0].Outcome != OK || (rs[1].Outcome == OK) != (second.writer != 0) {
					t.Fatalf("%+v", rs)
				}
				if second.writer != 0 && !bytes.Equal(dst[1], w.payload(1, second.writer, small.Full())) {
					t.Fatal("not the bytes of one writer")
				}
				if got := w.c.Stats().Retries; got != uint64(len(asked)-1) {
					t.Errorf("%d retries counted for %d streams", got, len(asked))
				}
			})
		}
	})
}

// TestCase_C43_StalledServer: a server that says nothing more costs CallTimeout per attempt, not for ever, and the
// prefix that was good stays good.
func TestCase_C43_StalledServer(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		clk := clock.NewManual(time.Unix(1e9, 0))
		w := newWorld(t, tr, small, Options{Clock: clk, Parallel: 1, Retries: 1, CallTimeout: guard})
		w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			if pageOf(r, 0) == 0 {
				sendAll(st, w.messages(0, small.Full(), 40<<10, w.extent(0, 1, small.Full())))
			}
			<-st.Context().Done()
			return nil
		}
		defer ticking(clk, time.Second)()
		rs, err := w.s.FetchInto(w.ctx(), w.run(2), page.View{}, nil, w.buffers(2, small.Full()), nil)
		if err == nil || rs[1].Outcome != Miss || rs[1].Reason != reason.Unknown {
			t.Fatal(err, rs)
		}
		if n := w.c.Stats().Retries; n != 1 {
			t.Errorf("%d retries", n)
		}
	})
}

// TestFetchSpreads: pages are split into batches by keys and bytes, over several streams at once, and each page goes
// to its own buffer.
func TestFetchSpreads(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		pageSize := int64(page.PayloadBytes(small.Full(), small.CellBytes))
		w := newWorld(t, tr, small, Options{Parallel: 3, BatchKeys: 5, BatchBytes: 4 * pageSize})
		w.fake.fetch = func(r *quirev1.FetchRequest, st grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
			n := keys(r.GetRun())
			if n > 4 {
				t.Errorf("%d pages in one call", n)
			}
			for k := range n {
				i := pageOf(r, k)
				if i == 7 {
					sendAll(st, missAll(reason.Expired, k))
					continue
				}
				if err := sendAll(st, w.messages(k, small.Full(), 1<<20, w.extent(i, 1, small.Full()))); err != nil {
					return err
				}
			}
			return nil
		}
		dst := w.buffers(20, small.Full())
		rs, err := w.s.FetchInto(w.ctx(), w.run(20), page.View{}, nil, dst, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rs {
			if i == 7 {
				if r.Outcome != Miss || r.Reason != reason.Expired {
					t.Errorf("page 7: %+v", r)
				}
			} else if r.Outcome != OK || !bytes.Equal(dst[i], w.payload(i, 1, small.Full())) {
				t.Errorf("page %d: %+v", i, r)
			}
		}
		if GoodPrefix(rs) != 7 {
			t.Error(GoodPrefix(rs))
		}
		st := w.c.Stats()
		if st.Hits != 19 || st.Misses[reason.Expired] != 1 || st.FetchedBytes != 19*uint64(pageSize) || st.VerifiedBytes != st.FetchedBytes {
			t.Errorf("%+v", st)
		}
	})
}

// TestFetchRefusals: a refusal of the whole call is the error and the reason of every page.
func TestFetchRefusals(t *testing.T) {
	over(t, func(t *testing.T, tr Transport) {
		for _, why := range []reason.Reason{reason.Retired, reason.LeaseExpired, reason.StaleEpoch, reason.Unauthorized} {
			w := newWorld(t, tr, small, Options{})
			w.fake.fetch = func(*quirev1.FetchRequest, grpc.ServerStreamingServer[quirev1.FetchResponse]) error {
				return rpc.Errorf(why, "no")
			}
			rs, err := w.s.FetchInto(w.ctx(), w.run(2), page.View{}, nil, w.buffers(2, small.Full()), nil)
			if !errors.Is(err, why) || rs[0].Outcome != Miss || rs[0].Reason != why || rs[1].Reason != why {
				t.Error(why, err, rs)
			}
		}
	})
}

func ExampleGoodPrefix() {
	fmt.Println(GoodPrefix([]PageResult{{Outcome: OK}, {Outcome: OK}, {Outcome: Miss, Reason: reason.Corrupt}, {Outcome: OK}}))
	// Output: 2
}
