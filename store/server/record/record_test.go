package record

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file takes a recording in memory; it can be as slow as a test wants.
type file struct {
	mu     sync.Mutex
	b      bytes.Buffer
	closed bool
	slow   chan struct{} // nil: it is fast; else each write waits until it can receive
	fails  error
}

func (f *file) Write(p []byte) (int, error) {
	if f.slow != nil {
		<-f.slow
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails != nil {
		return 0, f.fails
	}
	return f.b.Write(p)
}

func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *file) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.b.String()
}

// rig is a recorder with a clock of its own.
type rig struct {
	t     *testing.T
	clock *clock.Manual
	file  *file
	r     *Recorder
	ended chan error
}

func newRig(t *testing.T, change func(*Options)) *rig {
	t.Helper()
	g := &rig{t: t, clock: clock.NewManual(time.Unix(1e9, 0)), file: &file{}, ended: make(chan error, 1)}
	o := Options{Clock: g.clock, Out: g.file, Ended: func(why error) { g.ended <- why }}
	if change != nil {
		change(&o)
	}
	var err error
	if g.r, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.r.Close(deadline(t)) })
	return g
}

func deadline(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return c
}

// chain is the hashes of the pages called name/from up to name/to.
func chain(name string, from, to int) []byte {
	var out []byte
	for i := from; i < to; i++ {
		h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", name, i))
		out = append(out, h[:]...)
	}
	return out
}

func family(n byte) page.Family {
	return page.Family{Namespace: page.NamespaceID{n}, Epoch: 1, Group: page.GroupID{n}}
}

func access(kind server.AccessKind, hashes []byte, change ...func(*server.Access)) *server.Access {
	a := &server.Access{Kind: kind, Tenant: "tenant-a", Family: family(1), PageTokens: 16, HashBytes: 32, Hashes: hashes}
	for _, c := range change {
		c(a)
	}
	return a
}

func root(a *server.Access) { a.Link = core.LinkRoot }

func after(hash []byte) func(*server.Access) {
	return func(a *server.Access) {
		a.Link = core.LinkHash
		a.Parent, _ = page.MakeHash(hash)
	}
}

// closed ends the recording and reads it back.
func (g *rig) closed() []replay.Request {
	g.t.Helper()
	if err := g.r.Close(deadline(g.t)); err != nil {
		g.t.Fatal(err)
	}
	return g.read()
}

func (g *rig) read() []replay.Request {
	g.t.Helper()
	var out []replay.Request
	for in := replay.NewReader(strings.NewReader(g.file.text())); ; {
		q, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			g.t.Fatal(err)
		}
		out = append(out, q)
	}
}

// shape is a request without its names: pages of which so many were asked for, its depth and whether a parent is named.
func shape(q *replay.Request) string {
	depth, parent := "?", ""
	if q.Depth != nil {
		depth = fmt.Sprint(*q.Depth)
	}
	if q.Parent != nil {
		parent = " after"
	}
	return fmt.Sprintf("%d/%d at %s%s", q.Asked, len(q.Blocks), depth, parent)
}

// TestRequestsArePutTogether: what a session does around one prompt is one request.
func TestRequestsArePutTogether(t *testing.T) {
	lookup, publish, fetch := server.AccessLookup, server.AccessPublish, server.AccessFetch
	a, b := func(from, to int) []byte { return chain("a", from, to) }, func(from, to int) []byte { return chain("b", from, to) }
	for _, c := range []struct {
		name  string
		calls []*server.Access
		want  []string
	}{
		{"looked up alone", []*server.Access{access(lookup, a(0, 5))}, []string{"5/5 at ?"}},
		{"missed and published", []*server.Access{access(lookup, a(0, 5)), access(publish, a(0, 5), root)}, []string{"5/5 at 0"}},
		{"by every rank", []*server.Access{access(lookup, a(0, 5)), access(publish, a(0, 5), root), access(publish, a(0, 5), root)}, []string{"5/5 at 0"}},
		{"what was generated goes behind", []*server.Access{
			access(lookup, a(0, 5)), access(publish, a(0, 5), root), access(publish, a(5, 7), after(a(4, 5))), access(publish, a(6, 9), after(a(5, 6))),
		}, []string{"5/9 at 0"}},
		{"prompt and answer at once", []*server.Access{access(lookup, a(0, 5)), access(publish, a(2, 8), after(a(1, 2)))}, []string{"5/8 at ?"}},
		{"fetched what was found", []*server.Access{access(lookup, a(0, 5)), access(fetch, a(0, 3))}, []string{"5/5 at ?"}},
		{"fetched without asking", []*server.Access{access(fetch, a(0, 3))}, []string{"3/3 at ?"}},
		{"published without asking", []*server.Access{access(publish, a(0, 3), root)}, []string{"0/3 at 0"}},
		{"asked twice", []*server.Access{access(lookup, a(0, 3)), access(lookup, a(0, 3))}, []string{"3/3 at ?", "3/3 at ?"}},
		{"a later turn", []*server.Access{
			access(lookup, a(0, 2)), access(publish, a(0, 2), root), access(lookup, append(a(0, 2), b(0, 3)...)), access(publish, b(0, 3), after(a(1, 2))),
		}, []string{"2/2 at 0", "5/5 at 0"}},
		{"only what the engine lacks", []*server.Access{
			access(publish, a(0, 4), root), access(lookup, a(2, 6)), access(publish, a(4, 6), after(a(3, 4))),
		}, []string{"0/4 at 0", "4/4 at 2"}},
		{"what stands before it is not known", []*server.Access{access(lookup, a(3, 6)), access(publish, a(3, 6), after(a(2, 3)))}, []string{"3/3 at ? after"}},
		{"two answers to one prompt", []*server.Access{
			access(lookup, a(0, 3)), access(publish, a(0, 3), root), access(publish, a(3, 5), after(a(2, 3))), access(publish, b(0, 2), after(a(2, 3))),
		}, []string{"3/5 at 0", "0/2 at 3 after"}},
		{"the right one of two with one beginning", []*server.Access{
			access(lookup, append(a(0, 3), a(10, 12)...)), access(lookup, append(a(0, 3), b(0, 2)...)),
			access(publish, append(a(0, 3), a(10, 14)...), root), access(publish, append(a(0, 3), b(0, 3)...), root),
		}, []string{"5/7 at 0", "5/6 at 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, nil)
			for _, call := range c.calls {
				g.r.Record(call)
			}
			var got []string
			for _, q := range g.closed() {
				got = append(got, shape(&q))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestAnAnswerIsOfItsRequest: told while the request takes calls in, of its last page that is known, it is written with it.
func TestAnAnswerIsOfItsRequest(t *testing.T) {
	g := newRig(t, nil)
	tells := func(tokens uint32) func(*server.Access) { return func(a *server.Access) { a.Answer = tokens } }
	a, b := chain("a", 0, 4), append(chain("a", 0, 2), chain("b", 0, 2)...) // two with one beginning
	for _, call := range []*server.Access{
		access(server.AccessLookup, a), access(server.AccessLookup, b), access(server.AccessLookup, chain("c", 0, 1)),
		access(server.AccessAnswer, append(a, chain("a", 4, 6)...), tells(7)), access(server.AccessAnswer, b, tells(1<<32-1)),
		access(server.AccessAnswer, chain("d", 0, 3), tells(9)), // nobody asked for those
	} {
		g.r.Record(call)
	}
	var got []int
	for _, q := range g.closed() {
		got = append(got, q.OutputTokens)
	}
	if want := []int{7, maxAnswer, 0}; !slices.Equal(got, want) {
		t.Errorf("answers of %d tokens, want %d", got, want)
	}
}

// TestTheFileTellsNoHash: no page's hash is in it, nothing of one, no name of tenant or namespace; and what is one page in
// two recordings has two names.
func TestTheFileTellsNoHash(t *testing.T) {
	const n = 300
	hashes := chain("secret", 0, n)
	var names [2][]uint64
	for i := range names {
		g := newRig(t, nil)
		g.r.Record(access(server.AccessLookup, hashes))
		g.r.Record(access(server.AccessPublish, hashes, root))
		requests := g.closed()
		if len(requests) != 1 || len(requests[0].Blocks) != n {
			t.Fatalf("read back %d requests", len(requests))
		}
		names[i] = requests[0].Blocks
		text := g.file.text()
		if strings.Contains(text, "tenant-a") || strings.Contains(text, "secret") {
			t.Errorf("the file names the tenant:\n%s", text[:200])
		}
		for h := range n {
			hash := hashes[32*h : 32*h+32]
			sum := sha256.Sum256(hash)
			for _, leak := range [][]byte{hash, sum[:]} {
				if strings.Contains(text, string(leak)) || strings.Contains(text, hex.EncodeToString(leak[:8])) {
					t.Fatalf("the file has the hash of page %d", h)
				}
				for at := 0; at+8 <= len(leak); at++ {
					for _, v := range []uint64{binary.BigEndian.Uint64(leak[at:]), binary.LittleEndian.Uint64(leak[at:])} {
						for _, part := range []uint64{v, v >> (64 - idBits), v & (1<<idBits - 1)} {
							if part == names[i][h] {
								t.Fatalf("page %d is called by a part of its hash", h)
							}
						}
					}
				}
			}
		}
	}
	seen := map[uint64]bool{}
	for _, id := range names[0] {
		if seen[id] || id >= 1<<idBits {
			t.Errorf("name %d", id)
		}
		seen[id] = true
	}
	for _, id := range names[1] {
		if seen[id] {
			t.Errorf("%d is in two recordings: their key is not random", id)
		}
	}
}

// TestOnePageIsOneName: equal hashes have one name in one family, and other names in others; tenants and namespaces are
// numbered as they come.
func TestOnePageIsOneName(t *testing.T) {
	g := newRig(t, nil)
	hashes := chain("x", 0, 3)
	for _, n := range []byte{1, 2, 1} {
		g.r.Record(access(server.AccessLookup, hashes, func(a *server.Access) { a.Family, a.Tenant = family(n), fmt.Sprintf("tenant-%d", n) }))
	}
	q := g.closed()
	if len(q) != 3 {
		t.Fatalf("%d requests", len(q))
	}
	if fmt.Sprint(q[0].Blocks) != fmt.Sprint(q[2].Blocks) || fmt.Sprint(q[0].Blocks) == fmt.Sprint(q[1].Blocks) {
		t.Errorf("names %v, %v, %v", q[0].Blocks, q[1].Blocks, q[2].Blocks)
	}
	for i, want := range []int{1, 2, 1} {
		if q[i].Tenant != want || q[i].Namespace != want || q[i].Group != want || q[i].PageTokens != 16 || q[i].InputTokens != 48 {
			t.Errorf("request %d: %+v", i, q[i])
		}
	}
}

// TestASlowFileDropsAndNeverBlocks: while the file takes nothing, calls go on and are counted; what was taken in is
// written when it goes on.
func TestASlowFileDropsAndNeverBlocks(t *testing.T) {
	g := newRig(t, func(o *Options) { o.QueueBytes, o.Window = 64<<10, time.Millisecond })
	g.file.slow = make(chan struct{})
	const calls = 20_000
	for i := range calls { // far more than the buffer and the queue take
		g.r.Record(access(server.AccessLookup, chain(fmt.Sprint(i%7), 0, 20)))
		if i%100 == 0 {
			g.clock.Advance(time.Millisecond)
		}
	}
	if s := g.r.Stats(); s.Dropped == 0 || s.Bytes != 0 || !s.Running {
		t.Fatalf("with a file that takes nothing: %+v", s)
	}
	if queued := g.r.queued.Load(); queued > g.r.o.QueueBytes {
		t.Errorf("%d bytes wait, at most %d may", queued, g.r.o.QueueBytes)
	}
	late, cancel := context.WithCancel(context.Background())
	cancel()
	if err := g.r.Close(late); !errors.Is(err, context.Canceled) {
		t.Errorf("close beside a file that takes nothing: %v", err)
	}
	close(g.file.slow)
	requests := g.closed()
	if s := g.r.Stats(); uint64(len(requests)) != s.Requests || s.Requests+s.Dropped != calls || !g.file.closed {
		t.Errorf("%d requests read back, %+v, closed %v", len(requests), s, g.file.closed)
	}
}

// TestTheLimitEndsTheRecording: the file stays below it, ends with a whole line, and calls cost nothing any more.
func TestTheLimitEndsTheRecording(t *testing.T) {
	const limit = 10_000
	g := newRig(t, func(o *Options) { o.LimitBytes, o.Window = limit, time.Millisecond })
	for i := range 100 {
		g.r.Record(access(server.AccessLookup, chain(fmt.Sprint(i), 0, 20)))
		g.clock.Advance(2 * time.Millisecond)
	}
	g.r.Record(access(server.AccessLookup, chain("last", 0, 1)))
	select {
	case why := <-g.ended:
		if !errors.Is(why, ErrLimit) {
			t.Errorf("it ended with: %v", why)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the limit does not end it")
	}
	text := g.file.text()
	if len(text) > limit || len(text) < limit*8/10 || !strings.HasSuffix(text, "}\n") {
		t.Errorf("%d bytes of %d were written, ending with %q", len(text), limit, text[len(text)-10:])
	}
	g.read()
	before := g.r.Stats()
	g.r.Record(access(server.AccessLookup, chain("after", 0, 20)))
	if after := g.r.Stats(); after != before || after.Running || after.Bytes != uint64(len(text)) {
		t.Errorf("after its end: %+v, before %+v", after, before)
	}
	if err := g.r.Close(deadline(t)); err != nil {
		t.Errorf("close after the end: %v", err)
	}
}

// TestAFileThatFailsEndsTheRecording and nothing else.
func TestAFileThatFailsEndsTheRecording(t *testing.T) {
	broken := errors.New("no space left on device")
	g := newRig(t, func(o *Options) { o.Window = time.Millisecond })
	g.file.fails = broken
	g.r.Record(access(server.AccessLookup, chain("x", 0, 20)))
	for {
		select {
		case why := <-g.ended:
			if !errors.Is(why, broken) {
				t.Errorf("it ended with: %v", why)
			}
			return
		case <-t.Context().Done():
			t.Fatal("it does not end")
		default:
			g.clock.Advance(10 * time.Millisecond)
			runtime.Gosched()
		}
	}
}

// TestRequestsLeaveAfterTheirWindow: what nobody adds to is written without another call, in the order of the calls.
func TestRequestsLeaveAfterTheirWindow(t *testing.T) {
	g := newRig(t, nil)
	g.r.Record(access(server.AccessLookup, chain("x", 0, 20)))
	end := time.Now().Add(20 * time.Second)
	for g.file.text() == "" && time.Now().Before(end) {
		g.clock.Advance(g.r.o.Window)
		<-time.After(time.Millisecond)
	}
	g.r.Record(access(server.AccessPublish, chain("x", 20, 22), after(chain("x", 19, 20))))
	q := g.closed()
	if len(q) != 2 || q[1].TimestampMS < g.r.o.Window.Milliseconds() || shape(&q[1]) != "0/2 at ? after" {
		t.Errorf("read back %+v", q)
	}
}

// TestOpenRequestsAreBounded: pages, requests and names that are kept.
func TestOpenRequestsAreBounded(t *testing.T) {
	a := newAssembly([32]byte{}, 1000)
	open := func(name string, n int) *call {
		c := &call{Access: *access(server.AccessLookup, nil), hashes: chain(name, 0, n)}
		return c
	}
	written, last := 0, int64(0)
	take := func(c *call) {
		a.take(c)
		for _, q := range a.due {
			if q.at < last {
				t.Fatalf("a request of %d ms is written after one of %d ms", q.at, last)
			}
			last = q.at
		}
		written += len(a.due)
		a.due = a.due[:0]
	}
	for i := range maxOpen + 500 {
		take(open(fmt.Sprint(i), 1))
	}
	for i := range 40 {
		take(open(fmt.Sprint("large", i), 20_000))
	}
	pages := 0
	for _, q := range a.open {
		pages += len(q.ids)
	}
	if len(a.open) > maxOpen || pages > maxOpenPages || pages != a.pages || len(a.places) > pages || written == 0 {
		t.Errorf("%d open with %d pages (counted %d), %d places, %d written", len(a.open), pages, a.pages, len(a.places), written)
	}
	if a.take(open("too large", maxRequestPages+1)) {
		t.Error("a request of too many pages was taken in whole")
	}
	a.all()
	if a.pages != 0 || len(a.places) != 0 {
		t.Errorf("after all are written %d pages and %d places are left", a.pages, len(a.places))
	}
	for i := range 2 * maxFamilyKeys {
		c := open("f", 1)
		binary.BigEndian.PutUint64(c.Family.Scope[:], uint64(i))
		a.take(c)
	}
	if len(a.names.families) > maxFamilyKeys {
		t.Errorf("%d families are kept", len(a.names.families))
	}
}

// BenchmarkRecord is what a call of so many keys pays for being recorded, while there is room in the queue.
func BenchmarkRecord(b *testing.B) {
	for _, n := range []int{1, 128, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, err := New(Options{Out: &file{}, LimitBytes: 1 << 40})
			if err != nil {
				b.Fatal(err)
			}
			a := access(server.AccessLookup, chain("x", 0, n))
			b.ReportAllocs()
			for b.Loop() {
				if r.queued.Load() > r.o.QueueBytes/2 || len(r.queue) > maxQueued/2 {
					b.StopTimer()
					for r.queued.Load() > 0 {
						runtime.Gosched()
					}
					b.StartTimer()
				}
				r.Record(a)
			}
			if d := r.Stats().Dropped; d > 0 {
				b.Errorf("%d were dropped", d)
			}
			_ = r.Close(context.Background())
		})
	}
}

// BenchmarkAssembly is what the writing goroutine does for each key.
func BenchmarkAssembly(b *testing.B) {
	const n = 1000
	a := newAssembly([32]byte{}, 1)
	c := &call{Access: *access(server.AccessLookup, nil), hashes: chain("x", 0, n)}
	var line []byte
	for i := 0; b.Loop(); i++ {
		c.at = int64(i)
		a.take(c)
		for _, q := range a.due {
			line = q.append(line[:0])
		}
		a.due = a.due[:0]
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/key")
}
