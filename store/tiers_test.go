package store_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
	"github.com/quire-kv/quire/store/tier"
)

func mustPublishDurable(t *testing.T, f *storetest.Fixture, chain []byte) {
	t.Helper()
	rs, err := f.PublishDurable(t.Context(), f.Caller, chain, whole, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if r.Outcome != core.Committed && r.Outcome != core.Present {
			t.Fatalf("page %d: %v %v", i, r.Outcome, r.Reason)
		}
	}
}

// settle waits until the disk tier has all that it is to have: a barrier passes everything that was queued before.
func settle(t *testing.T, f *storetest.Fixture) {
	t.Helper()
	if err := f.Store.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func onDisk() storetest.Options {
	return storetest.Options{CapacityBytes: 16 << 20, Disk: &storetest.Disk{}}
}

func TestDurablePagesOutliveTheProcess(t *testing.T) {
	o := onDisk()
	o.NoWriteBehind = true
	f := storetest.New(t, o)
	durable, memory := storetest.Chain("durable", 20), storetest.Chain("memory", 20)
	mustPublishDurable(t, f, durable)
	mustPublish(t, f, memory, whole)
	for range 3 {
		f.Restart(t)
		wantPages(t, f, durable, whole, nil)
		if _, lead := exists(t, f, memory, whole); lead != 0 {
			t.Fatalf("%d pages that were in memory only came back", lead)
		}
	}
	if f.Recovery.Extents != 20 || f.Recovery.Dropped != 0 {
		t.Errorf("recovered %+v, want 20 extents", f.Recovery)
	}
}

func TestPresentIsDurableToo(t *testing.T) {
	o := onDisk()
	o.NoWriteBehind = true
	f := storetest.New(t, o)
	chain := storetest.Chain("twice", 8)
	mustPublish(t, f, chain, whole)
	mustPublishDurable(t, f, chain) // all of it is there, but not yet on disk
	f.Restart(t)
	wantPages(t, f, chain, whole, nil)
}

func TestMemoryPagesAreWrittenBehind(t *testing.T) {
	f := storetest.New(t, onDisk())
	chain := storetest.Chain("behind", 20)
	mustPublish(t, f, chain, whole)
	f.Restart(t)
	wantPages(t, f, chain, whole, nil)
}

func TestPagesThatLeftMemoryAreReadFromDisk(t *testing.T) {
	f := storetest.New(t, onDisk())
	var chains [][]byte
	for i := range 40 { // 40 x 8 x 64 KiB: more than twice the host tier
		chains = append(chains, storetest.Chain(fmt.Sprint("spill", i), 8))
		mustPublish(t, f, chains[i], whole)
		settle(t, f)
	}
	for round := range 2 {
		for _, chain := range chains {
			wantPages(t, f, chain, whole, nil)
			wantPages(t, f, chain, page.View{H0: 1, H1: 2, L1: 4}, nil)
		}
		if got := f.Store.Status().PromotedBytes; got == 0 {
			t.Fatalf("round %d: nothing was read from disk", round)
		}
	}
}

func TestCase_C24_ListedIsFetchableAfterACrashBetweenTiers(t *testing.T) {
	r := seeded(t)
	for range 12 {
		fs := memfs.NewCrashable()
		o := onDisk()
		o.CapacityBytes = 8 << 20
		o.Disk = &storetest.Disk{FS: fs, CapacityBytes: 32 << 20}
		f := storetest.New(t, o)
		for i := range 20 {
			if r.IntN(4) == 0 {
				mustPublishDurable(t, f, storetest.Chain(fmt.Sprint("c24", i), 1+r.IntN(8)))
			} else {
				mustPublish(t, f, storetest.Chain(fmt.Sprint("c24", i), 1+r.IntN(8)), whole)
			}
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		after := o
		after.Disk = &storetest.Disk{FS: crashed, CapacityBytes: 32 << 20}
		g := storetest.New(t, after)
		for i := range 20 {
			chain := storetest.Chain(fmt.Sprint("c24", i), 8)
			bits, _ := exists(t, g, chain, whole)
			for j, b := range bits {
				if b {
					wantPages(t, g, chain[32*j:32*j+32], whole, nil)
				}
			}
		}
	}
}

// bounds samples every tier until stop and fails the test where one holds more than it may.
func bounds(t *testing.T, f *storetest.Fixture) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	most := map[evict.Tier]int64{}
	wg.Go(func() {
		for {
			for _, ts := range f.Store.Status().Tiers {
				held := ts.Live + ts.Slack + ts.Metadata
				most[ts.Tier] = max(most[ts.Tier], held*1000/ts.Capacity)
				if held > ts.Capacity {
					t.Errorf("%v holds %d bytes, bound %d", ts.Tier, held, ts.Capacity)
				}
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		for tier, share := range most {
			t.Logf("%v: at most %d.%d %% of its bound", tier, share/10, share%10)
		}
	}
}

func TestCase_C25_TenTimesTheCapacityOfBothTiers(t *testing.T) {
	o := onDisk()
	o.Disk.CapacityBytes = 48 << 20
	f := storetest.New(t, o)
	stop := bounds(t, f)
	n := 10 * (48 << 20) / (8 * 64 << 10)
	if testing.Short() {
		n /= 4
	}
	for i := range n {
		mustPublish(t, f, storetest.Chain(fmt.Sprint("ten", i), 8), whole)
	}
	settle(t, f)
	stop()
	survivors := 0
	for i := range n {
		chain := storetest.Chain(fmt.Sprint("ten", i), 8)
		bits, lead := exists(t, f, chain, whole)
		for j, b := range bits {
			if b != (j < lead) {
				t.Fatalf("chain %d: what survives is no prefix: %v", i, bits)
			}
		}
		if survivors += lead; lead > 0 {
			wantPages(t, f, chain[:32*lead], whole, nil)
		}
	}
	if low := 24 << 20 / (64 << 10); survivors < low {
		t.Errorf("%d pages survive, want the disk at least half full (%d)", survivors, low)
	}
	st := f.Store.Status()
	t.Logf("%d pages survive; %d MiB written to disk, %d MiB moved to clean segments", survivors, st.PersistedBytes>>20, st.CleanedBytes>>20)
}

// flipOnDisk flips one bit of a segment file at an offset where what is found.
func flipOnDisk(t *testing.T, f *storetest.Fixture, fs vfs.FS, dir string, what []byte) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		if info, err := fs.Stat(path); err != nil || info.IsDir() {
			continue
		}
		all, err := memfs.ReadFile(fs, path)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(all, what); at >= 0 {
			out, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := out.WriteAt([]byte{all[at] ^ 1}, int64(at)); err != nil {
				t.Fatal(err)
			}
			if err := out.Close(); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the payload is in no file")
}

func TestCase_C19_FlippedBitOnDisk(t *testing.T) {
	o := onDisk()
	o.Disk.FS = memfs.New()
	f := storetest.New(t, o)
	chain := storetest.Chain("flip on disk", 6)
	mustPublishDurable(t, f, chain)
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	flipOnDisk(t, f, o.Disk.FS, "pages", f.Payload(chain[32*3:32*4], f.Geometry.Full(), 0)[5000:5064])
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantPages(t, f, chain, whole, map[int]reason.Reason{3: reason.Corrupt})
	if got := f.Store.Status().CorruptFound; got != 1 {
		t.Errorf("%d corrupt extents counted, want 1", got)
	}
	wantPages(t, f, chain, whole, map[int]reason.Reason{3: reason.Absent})
	mustPublishDurable(t, f, chain) // C55: it can be published again
	f.Restart(t)
	wantPages(t, f, chain, whole, nil)
}

func TestScrubFindsWhatNobodyReads(t *testing.T) {
	o := onDisk()
	o.Disk.FS = memfs.New()
	f := storetest.New(t, o)
	chain := storetest.Chain("scrub", 12)
	mustPublishDurable(t, f, chain)
	f.RegionOf(t, chain[32*2:32*3], 0)[9000] ^= 4
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	flipOnDisk(t, f, o.Disk.FS, "pages", f.Payload(chain[32*7:32*8], f.Geometry.Full(), 0)[100:164])
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantPages(t, f, chain[:32*3], whole, nil) // into memory
	f.RegionOf(t, chain[32*2:32*3], 0)[9000] ^= 4
	for _, ts := range []evict.Tier{evict.Host, evict.Disk} {
		var last store.ScrubProgress
		if err := f.Store.Scrub(t.Context(), ts, 0, func(p store.ScrubProgress) error { last = p; return nil }); err != nil {
			t.Fatal(err)
		}
		if last.Corrupt != 1 || last.Extents == 0 {
			t.Errorf("scrub of %v: %+v, want one corrupt extent", ts, last)
		}
	}
	wantPages(t, f, chain, whole, map[int]reason.Reason{7: reason.Absent}) // page 2 is still whole on disk
}

// gate is a disk tier whose writes wait until they are let through.
type gate struct {
	tier.Durable
	mu   sync.Mutex
	held []tier.Op
	open bool
	came chan struct{} // one slot
	fail error
}

func (g *gate) Submit(ops []tier.Op) {
	g.mu.Lock()
	var now []tier.Op
	for _, op := range ops {
		switch {
		case op.Write && g.fail != nil:
			done, err := op.Done, g.fail
			go done(err)
		case op.Write && !g.open:
			g.held = append(g.held, op)
			select {
			case g.came <- struct{}{}:
			default:
			}
		default:
			now = append(now, op)
		}
	}
	g.mu.Unlock()
	if now != nil {
		g.Durable.Submit(now)
	}
}

func (g *gate) let() {
	g.mu.Lock()
	held := g.held
	g.held, g.open = nil, true
	g.mu.Unlock()
	g.Durable.Submit(held)
}

func TestCase_C22_DeletedWhileItIsWrittenToDisk(t *testing.T) {
	var g *gate
	o := onDisk()
	o.Disk.FS = memfs.New()
	o.Disk.Wrap = func(d tier.Durable) tier.Durable {
		g = &gate{Durable: d, came: make(chan struct{}, 1)}
		return g
	}
	f := storetest.New(t, o)
	chain := storetest.Chain("c22", 4)
	mustPublish(t, f, chain, whole)
	<-g.came
	gone := map[int]reason.Reason{2: reason.Absent}
	watching, hidden, deleted := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go f.Store.Watch(t.Context(), f.Namespace.State.ID, 1, func(events []store.PageEvent, _ bool) error {
		if events == nil {
			close(watching)
		}
		for _, e := range events {
			if e.Removed {
				close(hidden)
				return io.EOF
			}
		}
		return nil
	})
	<-watching
	go func() {
		defer close(deleted)
		if _, why, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(chain[32*2 : 32*3])}); err != nil || why != reason.None {
			t.Error(why, err)
		}
	}()
	<-hidden
	wantPages(t, f, chain, whole, gone)
	select {
	case <-deleted:
		t.Error("answered while a copy was on its way to disk: a crash could bring it back")
	default:
	}
	g.let()
	<-deleted
	settle(t, f)
	wantPages(t, f, chain, whole, gone)
	o.Disk.Wrap = nil
	f.Restart(t)
	wantPages(t, f, chain, whole, gone)
}

func TestCase_C28_ADiskThatFailsDegradesAlone(t *testing.T) {
	var g *gate
	o := onDisk()
	o.Disk.Wrap = func(d tier.Durable) tier.Durable {
		g = &gate{Durable: d, open: true, fail: syscall.EIO}
		return g
	}
	f := storetest.New(t, o)
	for i := range 60 { // several times the host tier: what cannot go to disk is dropped, and nothing is refused
		mustPublish(t, f, storetest.Chain(fmt.Sprint("c28", i), 8), whole)
	}
	wantPages(t, f, storetest.Chain("c28/59", 1)[:0], whole, nil)
	last := storetest.Chain("c2859", 8)
	wantPages(t, f, last, whole, nil)
	rs, err := f.PublishDurable(t.Context(), f.Caller, storetest.Chain("durable", 2), whole, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if r.Outcome != core.Refused || r.Reason != reason.Busy {
			t.Errorf("durable page %d on a disk that fails: %v %v, want a typed refusal", i, r.Outcome, r.Reason)
		}
	}
	if f.Store.Status().DiskWriteErrors == 0 {
		t.Error("no write error was counted")
	}
	g.mu.Lock()
	g.fail = nil
	g.mu.Unlock()
	mustPublishDurable(t, f, storetest.Chain("healed", 4))
}

func TestCase_C67_RetiredPagesNeverComeBack(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("index lost ", lost), func(t *testing.T) {
			o := onDisk()
			o.Disk.FS = memfs.New()
			f := storetest.New(t, o)
			chain := storetest.Chain("c67", 6)
			mustPublishDurable(t, f, chain)
			n := f.Namespace
			n.State.Life = core.Retired
			f.Store.SetNamespace(n)
			if err := f.Stop(); err != nil {
				t.Fatal(err)
			}
			if lost {
				loseIndex(t, o.Disk.FS)
			}
			f.Namespace.State.Epoch = 2
			if err := f.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantPages(t, f, chain, whole, allAbsent(6))
			mustPublishDurable(t, f, chain)
			f.Restart(t)
			wantPages(t, f, chain, whole, nil)
		})
	}
}

func allAbsent(n int) map[int]reason.Reason {
	m := map[int]reason.Reason{}
	for i := range n {
		m[i] = reason.Absent
	}
	return m
}

// loseIndex removes the index and leaves the segments.
func loseIndex(t *testing.T, fs vfs.FS) {
	t.Helper()
	names, err := fs.List("pages")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin("pages", name)
		if info, err := fs.Stat(path); err == nil && info.IsDir() && strings.Contains(name, "index") {
			if err := fs.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no index among %v", names)
}

func TestCase_C69_TheIndexIsLost(t *testing.T) {
	o := onDisk()
	o.Disk.FS, o.Disk.CapacityBytes = memfs.New(), 32<<20
	f := storetest.New(t, o)
	r := seeded(t)
	want := map[int]int{} // pages kept of each chain
	for i := range 30 {
		mustPublishDurable(t, f, storetest.Chain(fmt.Sprint("c69", i), 8))
		want[i] = 8
	}
	for i := range 30 {
		if cut := r.IntN(9); cut < 8 {
			chain := storetest.Chain(fmt.Sprint("c69", i), 8)
			if _, why, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(chain[32*cut:])}); err != nil || why != reason.None {
				t.Fatal(why, err)
			}
			want[i] = cut
		}
	}
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	loseIndex(t, o.Disk.FS)
	if err := f.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, n := range want {
		chain := storetest.Chain(fmt.Sprint("c69", i), 8)
		if _, lead := exists(t, f, chain, whole); lead != n {
			t.Errorf("chain %d: %d pages after the index was lost, want %d", i, lead, n)
		}
		bits, _ := exists(t, f, chain, whole)
		for j := n; j < 8; j++ {
			if bits[j] {
				t.Errorf("chain %d: page %d was deleted and came back", i, j)
			}
		}
		if n > 0 {
			wantPages(t, f, chain[:32*n], whole, nil)
		}
	}
}

func TestCase_C66_AnEndedWaiverHidesWhatARestartBroughtBack(t *testing.T) {
	f := storetest.New(t, onDisk())
	old := store.Caller{Principal: f.Caller.Principal, Provenance: f.Store.Provenance([]byte("engine=old"))}
	chain := storetest.Chain("c66", 6)
	canonical := f.Canonical
	f.Canonical = []byte("engine=old")
	if _, err := f.PublishDurable(t.Context(), old, chain[:32*3], whole, 0); err != nil {
		t.Fatal(err)
	}
	f.Canonical = canonical
	mustPublishDurable(t, f, chain) // pages 3 to 5 stand on the old engine's
	f.Restart(t)
	wantPages(t, f, chain, whole, nil)
	n := f.Namespace
	n.Accepts = func(p []byte) bool { return string(p) == string(canonical) }
	f.Store.SetNamespace(n)
	hidden := map[int]reason.Reason{}
	for i := range 6 {
		hidden[i] = reason.Provenance
	}
	wantPages(t, f, chain, whole, hidden)
}

func TestADeleteThatTheDiskCannotTakeIsNotAnswered(t *testing.T) {
	o := onDisk()
	o.Disk.Wrap = func(d tier.Durable) tier.Durable { return brokenBarrier{d} }
	f := storetest.New(t, o)
	chain := storetest.Chain("undeletable", 2)
	mustPublish(t, f, chain, whole)
	for range 2 {
		_, why, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(chain)})
		if err != nil || why != reason.Busy {
			t.Errorf("delete: %v %v, want busy", why, err)
		}
	}
	wantPages(t, f, chain, whole, allAbsent(2))
}

type brokenBarrier struct{ tier.Durable }

func (brokenBarrier) Barrier(done func(error)) { go done(syscall.EIO) }

// seeded is a generator whose seed is printed, or given by -seed.
func seeded(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 1))
}

func TestManyReadersOfATinyHost(t *testing.T) {
	o := onDisk()
	o.CapacityBytes = 8 << 20
	f := storetest.New(t, o)
	for i := range 40 {
		mustPublishDurable(t, f, storetest.Chain(fmt.Sprint("many", i), 4))
	}
	var wg sync.WaitGroup
	var busy, served atomic.Int64
	for w := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 5))
			for range 60 {
				chain := storetest.Chain(fmt.Sprint("many", r.IntN(40)), 4)
				rs, payloads, err := f.Fetch(context.Background(), f.Caller, chain, whole, core.LeaseID{})
				if err != nil {
					t.Error(err)
					return
				}
				for i, res := range rs {
					switch {
					case res.Outcome == core.OK && !bytes.Equal(payloads[i], f.Payload(chain[32*i:], f.Geometry.Full(), 0)):
						t.Errorf("page %d: wrong bytes", i)
					case res.Outcome == core.OK:
						served.Add(1)
					case res.Reason == reason.Busy:
						busy.Add(1)
					default:
						t.Errorf("page %d: %v", i, res.Reason)
					}
				}
			}
		})
	}
	wg.Wait()
	if served.Load() < 6*60*4/2 {
		t.Errorf("%d pages served, %d busy", served.Load(), busy.Load())
	}
}
