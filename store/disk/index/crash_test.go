package index

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// history is batches by whose number a state of the index is known: batch i sets the next sequence number to i, applies
// segment i%5, adds entries, deletes some of before, and now and then a segment.
type history struct {
	batches []func(b *Batch)
	states  []state // after so many batches
}

type place struct {
	segment uint64
	offset  int64
}

type state struct {
	entries map[place]Entry
	applied map[uint64]int64
}

func (s *state) clone() state {
	c := state{map[place]Entry{}, map[uint64]int64{}}
	for k, v := range s.entries {
		c.entries[k] = v
	}
	for k, v := range s.applied {
		c.applied[k] = v
	}
	return c
}

func newHistory(r *rand.Rand, batches, perBatch int) *history {
	g := newGenerator(r, 3)
	g.perSeg = 100 * (64 << 10)
	h := &history{states: []state{{map[place]Entry{}, map[uint64]int64{}}}}
	for i := 1; i <= batches; i++ {
		now := h.states[i-1].clone()
		var puts []Entry
		for range perBatch {
			var e Entry
			g.next(&e)
			puts = append(puts, e)
		}
		last := puts[perBatch-1]
		var deletes []place
		for p := range now.entries {
			if r.IntN(4) == 0 {
				deletes = append(deletes, p)
			}
		}
		var segment uint64
		if i%4 == 0 && last.Segment > 3 {
			segment = last.Segment - 3
		}
		h.batches = append(h.batches, func(b *Batch) {
			for j := range puts {
				b.Put(&puts[j])
			}
			for _, p := range deletes {
				b.Delete(p.segment, p.offset)
			}
			b.Applied(last.Segment, last.Offset+last.Bytes)
			if segment != 0 {
				b.DeleteSegment(segment)
			}
			b.NextSeq(uint64(i))
		})
		for _, e := range puts {
			now.entries[place{e.Segment, e.Offset}] = e
		}
		for _, p := range deletes {
			delete(now.entries, p)
		}
		now.applied[last.Segment] = last.Offset + last.Bytes
		if segment != 0 {
			delete(now.applied, segment)
			for p := range now.entries {
				if p.segment == segment {
					delete(now.entries, p)
				}
			}
		}
		h.states = append(h.states, now)
	}
	return h
}

// run applies all of h, and flushes where the number of the batch says so.
func (h *history) run(x *Index, applied func(n int)) error {
	b := x.NewBatch()
	for i, fill := range h.batches {
		fill(b)
		if err := x.Apply(b); err != nil {
			return err
		}
		applied(i + 1)
		if i%5 == 4 {
			if err := x.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// whole checks that the index holds what one of h's batches left, and says which.
func (h *history) whole(t testing.TB, x *Index) (batch int, err error) {
	t.Helper()
	s, err := x.State()
	if err != nil {
		return 0, err
	}
	got, err := collect(x)
	if err != nil {
		return 0, err
	}
	if s.NextSeq > uint64(len(h.batches)) {
		t.Fatalf("next sequence number %d", s.NextSeq)
	}
	want := h.states[s.NextSeq]
	if len(got) != len(want.entries) {
		t.Errorf("%d entries after batch %d, want %d", len(got), s.NextSeq, len(want.entries))
	}
	for _, e := range got {
		if w, ok := want.entries[place{e.Segment, e.Offset}]; !ok || w != e {
			t.Errorf("after batch %d: %+v, want %+v", s.NextSeq, e, w)
		}
	}
	if !slices.IsSortedFunc(got, func(a, b Entry) int { return placeOrder(&a, &b) }) {
		t.Errorf("after batch %d: entries are not in order", s.NextSeq)
	}
	if len(s.Applied) != len(want.applied) {
		t.Errorf("after batch %d: applied %v, want %v", s.NextSeq, s.Applied, want.applied)
	}
	for segment, offset := range s.Applied {
		if want.applied[segment] != offset {
			t.Errorf("after batch %d: segment %d is applied up to %d, want %d", s.NextSeq, segment, offset, want.applied[segment])
		}
	}
	return int(s.NextSeq), nil
}

func placeOrder(a, b *Entry) int {
	if a.Segment != b.Segment {
		return int(int64(a.Segment) - int64(b.Segment))
	}
	return int(a.Offset - b.Offset)
}

func isWrite(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

// TestCrashAtEveryOperation takes a crash image before each change of the file system, with none, some or all of what was
// not synced: reopened, it holds what some batch left, and at least what was flushed.
func TestCrashAtEveryOperation(t *testing.T) {
	r := newRand(t)
	h := newHistory(r, 12, 60)
	every := 1
	if testing.Short() {
		every = 7
	}
	for k, taken := 0, true; taken; k += every {
		taken = false
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex // guards all below: Pebble writes from several goroutines
		ops, flushed, opened, atImage, openAtImage := 0, 0, false, 0, false
		var images []*vfs.MemFS
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if !isWrite(op) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if ops++; ops == k+1 {
				atImage, openAtImage = flushed, opened
				for _, percent := range []int{0, 50, 100} {
					images = append(images, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r}))
				}
			}
			return nil
		}))
		x := openAt(t, fs, MinBytes)
		mu.Lock()
		opened = true
		mu.Unlock()
		if err := h.run(x, func(n int) {
			mu.Lock()
			defer mu.Unlock()
			if n%5 == 1 {
				flushed = n - 1 // the flush after it has returned
			}
		}); err != nil {
			t.Fatal(err)
		}
		closeIndex(t, x)
		for i, image := range images {
			taken = true
			after, err := Open(Options{FS: image, Dir: dir, MaxBytes: MinBytes})
			if errors.Is(err, ErrCorrupt) && !openAtImage {
				continue // a crash in the first Open leaves what is thrown away
			}
			if err != nil {
				t.Fatalf("crash at %d, image %d: %v", k, i, err)
			}
			if n, err := h.whole(t, after); err != nil || n < atImage {
				t.Errorf("crash at %d, image %d: batch %d, flushed %d: %v", k, i, n, atImage, err)
			}
			b := after.NewBatch()
			b.NextSeq(1)
			apply(t, after, b)
			closeIndex(t, after)
		}
		if !taken && k < 50 {
			t.Errorf("only %d operations: the images are not taken where the history writes", k)
		}
	}
}

// inChild runs a test in a process of its own: where its disk failed, Pebble leaves goroutines behind.
func inChild(t *testing.T) (parent bool) {
	if os.Getenv(failingDisk) != "" {
		return false
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), failingDisk+"=1")
	child.Args = append(child.Args, "-test.v", fmt.Sprint("-test.short=", testing.Short()), fmt.Sprint("-seed=", *seed))
	out, err := child.CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s", out)
	return true
}

// TestDiskFailsAtEveryOperation makes every change of the file system fail from the k-th on: changes are refused from then
// on, Close returns, and a restart finds what some batch left.
func TestDiskFailsAtEveryOperation(t *testing.T) {
	if inChild(t) {
		return
	}
	r := newRand(t)
	h := newHistory(r, 12, 60)
	for k, failed := int32(0), true; failed; k++ {
		failed = false
		mem := vfs.NewCrashableMem()
		var ops atomic.Int32
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if isWrite(op) && ops.Add(1) > k {
				return errorfs.ErrInjected
			}
			return nil
		}))
		x, err := Open(Options{FS: fs, Dir: dir, MaxBytes: MinBytes})
		opened := err == nil
		if opened {
			err = h.run(x, func(int) {})
			if err != nil {
				b := x.NewBatch()
				b.NextSeq(1)
				if err := x.Apply(b); !errors.Is(err, ErrBroken) {
					t.Errorf("failure at %d: a later change: %v", k, err)
				}
				if err := x.Flush(); !errors.Is(err, ErrBroken) {
					t.Errorf("failure at %d: a later flush: %v", k, err)
				}
				if _, err := collect(x); !errors.Is(err, ErrBroken) || errors.Is(err, ErrCorrupt) {
					t.Errorf("failure at %d: a later scan: %v", k, err)
				}
			}
			if closed := x.Close(); err == nil {
				err = closed
			}
		}
		if failed = err != nil; failed && (errors.Is(err, ErrCorrupt) || !errors.Is(err, errorfs.ErrInjected)) {
			t.Errorf("failure at %d: %v", k, err)
		}
		image := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: r}) // a restart
		after, err := Open(Options{FS: image, Dir: dir, MaxBytes: MinBytes})
		if errors.Is(err, ErrCorrupt) && !opened {
			continue
		}
		if err != nil {
			t.Fatalf("failure at %d: %v", k, err)
		}
		if n, err := h.whole(t, after); err != nil || !failed && n != len(h.batches) {
			t.Errorf("failure at %d: after batch %d: %v", k, n, err)
		}
		closeIndex(t, after)
	}
}
