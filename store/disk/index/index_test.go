package index

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/page"
)

func TestMain(m *testing.M) {
	if os.Getenv(failingDisk) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// failingDisk marks the process that tests of a failing disk run in: Pebble leaves goroutines behind on a disk that
// failed, and there nobody counts them.
const failingDisk = "QUIRE_TEST_FAILING_DISK"

var seed = flag.Uint64("seed", 0, "seed of randomised tests; 0 draws one")

func newRand(t testing.TB) *rand.Rand {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 1))
}

const dir = "/data/pages/index"

func openAt(t testing.TB, fs vfs.FS, maxBytes int64) *Index {
	t.Helper()
	x, err := Open(Options{FS: fs, Dir: dir, MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func closeIndex(t testing.TB, x *Index) {
	t.Helper()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

func apply(t testing.TB, x *Index, b *Batch) {
	t.Helper()
	if err := x.Apply(b); err != nil {
		t.Fatal(err)
	}
}

func fill(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// generator makes entries as a store writes them: chains of a few families, one place after the other.
type generator struct {
	r        *rand.Rand
	families []page.Family
	writer   [16]byte
	seq      uint64
	parent   page.Hash
	segment  uint64
	offset   int64
	perSeg   int64 // bytes of a segment
}

func newGenerator(r *rand.Rand, families int) *generator {
	g := &generator{r: r, segment: 1, offset: 4096, perSeg: 64 << 20}
	fill(r, g.writer[:])
	for range families {
		var f page.Family
		fill(r, f.Namespace[:])
		fill(r, f.Group[:])
		f.Epoch = page.Epoch(r.Uint64N(100))
		g.families = append(g.families, f)
	}
	return g
}

func (g *generator) next(e *Entry) {
	const regionBytes = 64<<10 + 4096
	if g.offset+regionBytes > g.perSeg {
		g.segment, g.offset = g.segment+1, 4096
	}
	g.seq++
	*e = Entry{Segment: g.segment, Offset: g.offset, Bytes: regionBytes, Seq: g.seq, Parent: g.parent}
	g.offset += regionBytes
	var hash [32]byte
	fill(g.r, hash[:])
	e.Key.Hash, _ = page.MakeHash(hash[:])
	e.Key.Family = g.families[g.r.IntN(len(g.families))]
	e.Extent.Writer, e.Extent.Seq = g.writer, g.seq
	fill(g.r, e.Extent.Digest[:])
	e.View = page.View{H1: 8, L1: 32}
	e.DeclaredFLOPs = float64(g.seq) * 1e9
	if g.r.IntN(8) == 0 {
		e.Lineage = "lineage-a"
	}
	g.parent = e.Key.Hash
}

// collect is all entries of an index.
func collect(x *Index) (all []Entry, err error) {
	err = x.Scan(context.Background(), func(es []Entry) error {
		all = append(all, es...)
		return nil
	})
	return all, err
}

func TestOnTheRealFileSystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages", "index")
	o := Options{Dir: path, MaxBytes: MinBytes}
	x, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	h := newHistory(newRand(t), 10, 60)
	if err := h.run(x, func(int) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(o); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("a second owner: %v", err)
	}
	closeIndex(t, x)
	if x, err = Open(o); err != nil {
		t.Fatal(err)
	}
	if n, err := h.whole(t, x); err != nil || n != 10 {
		t.Errorf("after reopening: batch %d: %v", n, err)
	}
	closeIndex(t, x)
	var blocks int64
	files, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		blocks += blocksOf(info.Size())
	}
	if got := x.DiskBytes(); got != blocks*blockBytes {
		t.Errorf("files of %d bytes, counted %d", blocks*blockBytes, got)
	}
	if err := Destroy(vfs.Default, path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Destroy: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	mem := vfs.NewMem()
	o := Options{FS: mem, Dir: dir, MaxBytes: MinBytes, ReadOnly: true}
	if _, err := Open(o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	h := newHistory(newRand(t), 10, 60)
	x := openAt(t, mem, MinBytes)
	if err := h.run(x, func(int) {}); err != nil {
		t.Fatal(err)
	}
	closeIndex(t, x)
	before, err := mem.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	if x, err = Open(o); err != nil {
		t.Fatal(err)
	}
	if n, err := h.whole(t, x); err != nil || n != 10 {
		t.Errorf("batch %d: %v", n, err)
	}
	b := x.NewBatch()
	b.NextSeq(1)
	if err := x.Apply(b); !errors.Is(err, ErrBroken) {
		t.Errorf("a change: %v", err)
	}
	closeIndex(t, x)
	after, err := mem.List(dir)
	slices.Sort(before)
	slices.Sort(after)
	if err != nil || !slices.Equal(before, after) || x.Written() != 0 {
		t.Errorf("files were %v, are %v, %d bytes written: %v", before, after, x.Written(), err)
	}
}

func TestState(t *testing.T) {
	mem := vfs.NewMem()
	x := openAt(t, mem, MinBytes)
	b := x.NewBatch()
	b.Applied(5, 4096)
	b.Applied(math.MaxUint64, 8192)
	b.Applied(6, 4096)
	b.DeleteSegment(6)
	b.NextSeq(math.MaxUint64)
	apply(t, x, b)
	want := State{Applied: map[uint64]int64{5: 4096, math.MaxUint64: 8192}, NextSeq: math.MaxUint64}
	for range 2 {
		if got, err := x.State(); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("state %+v, want %+v: %v", got, want, err)
		}
		closeIndex(t, x)
		x = openAt(t, mem, MinBytes)
	}
	b = x.NewBatch()
	b.DeleteSegment(math.MaxUint64)
	apply(t, x, b)
	if got, err := x.State(); err != nil || len(got.Applied) != 1 || got.NextSeq != want.NextSeq {
		t.Errorf("state %+v: %v", got, err)
	}
	closeIndex(t, x)
	closeIndex(t, x)
}

func TestAnotherVersionIsCorrupt(t *testing.T) {
	mem := vfs.NewMem()
	x := openAt(t, mem, MinBytes)
	if err := x.db.Set(formatKey(), []byte("quire disk index 2"), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	closeIndex(t, x)
	if _, err := Open(Options{FS: mem, Dir: dir}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("open: %v", err)
	}
}

func TestWhatDoesNotDecodeIsCorrupt(t *testing.T) {
	for what, c := range map[string]struct{ key, value []byte }{
		"short key":          {appendSegment(nil, 1), nil},
		"kind":               {append(appendSegment(nil, 1), 9), nil},
		"applied":            {appendAppliedKey(nil, 1), []byte{0x80}},
		"dictionary's key":   {append(appendSegment(nil, 1), kindFamily), nil},
		"hole in dictionary": {appendIDKey(nil, 1, kindLineage, 2), []byte("x")},
		"family":             {appendIDKey(nil, 1, kindFamily, 1), []byte("short")},
		"entry":              {appendEntryKey(nil, 1, 0), []byte("x")},
		"entry's key":        {append(appendEntryKey(nil, 1, 0), 0), []byte("x")},
		"no family":          {appendEntryKey(nil, 1, 0), sample().appendValue(nil, 1, 0)},
	} {
		x := openAt(t, vfs.NewMem(), MinBytes)
		if err := x.db.Set(c.key, c.value, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := collect(x); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		closeIndex(t, x)
	}
	for what, key := range map[string][]byte{"next sequence number": {prefixNextSeq}, "applied": appendAppliedKey(nil, 1)} {
		x := openAt(t, vfs.NewMem(), MinBytes)
		if err := x.db.Set(key, []byte{0x80}, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		if _, err := x.State(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
		closeIndex(t, x)
	}
	x := openAt(t, vfs.NewMem(), MinBytes)
	defer closeIndex(t, x)
	if err := x.db.Set([]byte{prefixNextSeq + 1, 7}, []byte{1}, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if _, err := x.State(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a key of no kind: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	x := openAt(t, vfs.NewMem(), MinBytes)
	defer closeIndex(t, x)
	b := x.NewBatch()
	for what, spoil := range map[string]func(*Entry){
		"offset": func(e *Entry) { e.Offset = -1 }, "bytes": func(e *Entry) { e.Bytes = -1 },
		"hash": func(e *Entry) { e.Key.Hash = page.Hash{} }, "lineage": func(e *Entry) { e.Lineage = strings.Repeat("x", MaxLineageBytes+1) },
	} {
		e := *sample()
		b.Put(&e)
		spoil(&e)
		b.Put(&e)
		if err := x.Apply(b); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", what, err)
		}
	}
	x.maxBytes = 1 // as if there were more entries than MaxEntries
	b.Put(sample())
	if err := x.Apply(b); !errors.Is(err, ErrFull) {
		t.Errorf("full: %v", err)
	}
	b.Delete(1, 4096)
	apply(t, x, b) // deletes are taken
	if got, err := collect(x); err != nil || len(got) != 0 {
		t.Errorf("%d entries: %v", len(got), err)
	}
}

func TestScanEnds(t *testing.T) {
	x := openAt(t, vfs.NewMem(), 0)
	defer closeIndex(t, x)
	g, b := newGenerator(newRand(t), 3), x.NewBatch()
	for range 10 * scanEntries {
		var e Entry
		g.next(&e)
		b.Put(&e)
	}
	apply(t, x, b)
	mine, calls := errors.New("mine"), 0
	err := x.Scan(context.Background(), func([]Entry) error {
		if calls++; calls == 3 {
			return mine
		}
		return nil
	})
	if !errors.Is(err, mine) || calls != 3 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = x.Scan(ctx, func([]Entry) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestSpaceOfSegmentsComesBack deletes all segments of a small index: its files shrink without anything being written.
func TestSpaceOfSegmentsComesBack(t *testing.T) {
	x := openAt(t, vfs.NewMem(), 0)
	defer closeIndex(t, x)
	empty := x.DiskBytes()
	g, b := newGenerator(newRand(t), 3), x.NewBatch()
	for range 10_000 {
		var e Entry
		g.next(&e)
		b.Put(&e)
	}
	apply(t, x, b)
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	full := x.DiskBytes()
	for segment := range g.segment + 1 {
		b.DeleteSegment(segment)
	}
	apply(t, x, b)
	for flushes := 0; x.DiskBytes() > empty+(full-empty)/10; flushes++ {
		if err := x.Flush(); err != nil || flushes == 1000 {
			t.Fatalf("files of %d bytes, %d when full: %v", x.DiskBytes(), full, err)
		}
	}
}

// TestModel makes random changes in few and many segments, reopens at random, and compares with a map.
func TestModel(t *testing.T) {
	r := newRand(t)
	mem := vfs.NewMem()
	x := openAt(t, mem, MinBytes)
	g := newGenerator(r, 20)
	model := map[place]Entry{}
	b := x.NewBatch()
	for step := range 400 {
		for range r.IntN(40) {
			segment, offset := r.Uint64N(12), int64(r.IntN(50))<<12
			switch r.IntN(12) {
			case 0:
				b.DeleteSegment(segment)
				maps.DeleteFunc(model, func(p place, _ Entry) bool { return p.segment == segment })
			case 1, 2, 3:
				b.Delete(segment, offset)
				delete(model, place{segment, offset})
			default:
				var e Entry
				g.next(&e)
				e.Segment, e.Offset, e.Expiry, e.ParentUnknown = segment, offset, clock.Wall(r.Uint32N(2)), r.IntN(2) == 0
				e.Lineage = strings.Repeat("l", r.IntN(5))
				b.Put(&e)
				model[place{segment, offset}] = e
			}
		}
		apply(t, x, b)
		if r.IntN(10) == 0 {
			closeIndex(t, x)
			x = openAt(t, mem, MinBytes)
			b = x.NewBatch()
		}
		if len(x.dicts) > keptDictionaries {
			t.Errorf("step %d: %d dictionaries in memory", step, len(x.dicts))
		}
		got, err := collect(x)
		if err != nil || len(got) != len(model) {
			t.Fatalf("step %d: %d entries, want %d: %v", step, len(got), len(model), err)
		}
		for _, e := range got {
			if w := model[place{e.Segment, e.Offset}]; w != e {
				t.Fatalf("step %d: %+v, want %+v", step, e, w)
			}
		}
	}
	closeIndex(t, x)
}
