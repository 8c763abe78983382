package disk

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/store/tier"
)

// bytesOn is what the files of a directory take, subdirectories included.
func bytesOn(t *testing.T, fs vfs.FS, dir string) (n int64) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		info, err := fs.Stat(fs.PathJoin(dir, name))
		if err != nil {
			continue // removed meanwhile
		}
		if info.IsDir() {
			n += bytesOn(t, fs, fs.PathJoin(dir, name))
		} else {
			n += info.Size()
		}
	}
	return n
}

// TestCase_C25_TenTimesTheCapacity publishes ten times the capacity into a full tier, with cleaning. The files, as the
// file system counts them, never pass the bound, and what is left is whole.
func TestCase_C25_TenTimesTheCapacity(t *testing.T) {
	fs := memfs.New()
	o := worldOptions(fs)
	o.SegmentBytes = 256 << 10
	w := newWorld(t, newRand(t))
	w.d = openDriver(t, o)
	defer w.d.Close()
	var published, most int64
	cleaned := 0
	times := int64(10)
	if invariant.Enabled { // it is slow then
		times = 2
	}
	for published < times*o.CapacityBytes {
		before := len(w.things)
		w.publish(40)
		for _, id := range w.order[before:] {
			published += int64(w.things[id].bytes)
		}
		if len(w.things)-before < 40 { // full: clean while it helps, then let go of something
			if w.clean() {
				cleaned++
			} else {
				for _, x := range w.some(4) {
					w.free(x)
				}
			}
			w.barrier()
			w.compactOrder()
		}
		n := bytesOn(t, fs, "data")
		most = max(most, n)
		u := w.d.Usage()
		if held := u.Live + u.Slack + u.Metadata; n > o.CapacityBytes || held > u.Capacity {
			t.Fatalf("files take %d bytes, usage %+v holds %d", n, u, held)
		}
		w.d.mu.Lock()
		reserved := w.d.sizes.reserved(w.d.regions, int64(len(w.d.retired)))
		w.d.mu.Unlock()
		if u.Metadata > reserved {
			t.Fatalf("journal and index take %d bytes, %d are kept for them", u.Metadata, reserved)
		}
	}
	w.readAll("in the end")
	t.Logf("%d bytes of %d at most, %d segments cleaned, %+v", most, o.CapacityBytes, cleaned, w.d.Stats())
	if cleaned == 0 || most < o.CapacityBytes*3/4 {
		t.Errorf("%d segments were cleaned, %d bytes used at most", cleaned, most)
	}
}

// compactOrder forgets what ended for good.
func (w *world) compactOrder() {
	kept := w.order[:0]
	for _, id := range w.order {
		if x := w.things[id]; x.ended {
			delete(w.things, id)
		} else {
			kept = append(kept, id)
		}
	}
	w.order = kept
}

// TestCase_C28_UndeletableFile: segments that cannot be removed count until they are gone, and the tier serves on.
func TestCase_C28_UndeletableFile(t *testing.T) {
	var stuck atomic.Bool
	manual := clock.NewManual(time.Unix(1, 0))
	o := worldOptions(errorfs.Wrap(memfs.New(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if stuck.Load() && op.Kind == errorfs.OpRemove && strings.HasSuffix(op.Path, ".seg") {
			return syscall.EPERM
		}
		return nil
	})))
	o.Clock = manual
	w := newWorld(t, newRand(t))
	w.d = openDriver(t, o)
	defer w.d.Close()
	stuck.Store(true)
	w.publish(60)
	held := w.d.Usage()
	for _, x := range w.some(1) {
		w.free(x)
	}
	w.barrier()
	u := w.d.Usage()
	if u.Live != 0 || u.Slack < held.Live || !u.Writable || !strings.Contains(u.Trouble, "cannot be removed") {
		t.Errorf("usage %+v, was %+v", u, held)
	}
	w.publish(5) // it serves on
	w.readAll("beside undeletable files")
	stuck.Store(false)
	manual.Advance(lastProbe)
	w.barrier()
	if u := w.d.Usage(); u.Trouble != "" || u.Slack > held.Live/2 {
		t.Errorf("usage %+v after the files could be removed", u)
	}
}

// TestCase_C28_FailingReads: a read that fails is one answer; what can be read, and writes, go on.
func TestCase_C28_FailingReads(t *testing.T) {
	var failing atomic.Bool
	w := newWorld(t, newRand(t))
	w.d = openDriver(t, worldOptions(errorfs.Wrap(memfs.New(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".seg") {
			return syscall.EIO
		}
		return nil
	}))))
	defer w.d.Close()
	w.publish(10)
	failing.Store(true)
	x := w.things[1]
	if err := transfer(w.d, tier.Op{Region: x.copies[0], Memory: make([]byte, x.bytes)}); !errors.Is(err, syscall.EIO) {
		t.Errorf("read: %v", err)
	}
	w.publish(5)
	failing.Store(false)
	w.readAll("after the fault")
}

// TestProbeBacksOff: a tier in trouble is tried at growing intervals, and takes writes when a try succeeds.
func TestProbeBacksOff(t *testing.T) {
	var failing atomic.Bool
	var tries atomic.Int32
	manual := clock.NewManual(time.Unix(1, 0))
	o := worldOptions(errorfs.Wrap(memfs.New(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !failing.Load() || op.Kind != errorfs.OpFileWriteAt {
			return nil
		}
		if strings.HasSuffix(op.Path, probeName) {
			tries.Add(1)
		}
		return syscall.EROFS
	})))
	o.Clock = manual
	w := newWorld(t, newRand(t))
	w.faults = true
	w.d = openDriver(t, o)
	defer w.d.Close()
	failing.Store(true)
	w.publish(1)
	if u := w.d.Usage(); u.Writable || !strings.Contains(u.Trouble, "read-only") {
		t.Fatalf("usage %+v", u)
	}
	if _, err := w.d.Alloc(tier.Class{Bytes: 9_000}, tier.Owner{}); !errors.Is(err, tier.ErrDegraded) {
		t.Errorf("alloc: %v", err)
	}
	for range 600 { // ten minutes
		manual.Advance(time.Second)
		w.barrier()
	}
	if n := tries.Load(); n < 12 || n > 16 { // after 1, 2, 4 ... 60, 60 s
		t.Errorf("%d tries in ten minutes", n)
	}
	failing.Store(false)
	manual.Advance(lastProbe)
	w.barrier()
	w.faults = false
	w.publish(3)
	w.readAll("after the trouble")
}

// TestOptions refuses what cannot work.
func TestOptions(t *testing.T) {
	fs := memfs.New()
	for want, o := range map[string]Options{
		"Dir is empty":       {FS: fs, CapacityBytes: MinCapacityBytes},
		"CapacityBytes is 1": {FS: fs, Dir: "d", CapacityBytes: 1},
		"SegmentBytes is 1":  {FS: fs, Dir: "d", CapacityBytes: MinCapacityBytes, SegmentBytes: 1},
		"SegmentBytes is 16": {FS: fs, Dir: "d", CapacityBytes: MinCapacityBytes, SegmentBytes: 16 << 20},
		"Readers is -1":      {FS: fs, Dir: "d", CapacityBytes: MinCapacityBytes, Readers: -1},
	} {
		if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestMisalignedMemory writes from memory that is not aligned: on a disk it goes through scratch memory.
func TestMisalignedMemory(t *testing.T) {
	d := openDriver(t, Options{Dir: t.TempDir(), CapacityBytes: 64 << 20})
	defer d.Close()
	for _, size := range []int{5_000, 70_001, 3<<20 + 17} {
		want := extent(t, size, 7)
		for shift := range 2 {
			mem := append(make([]byte, shift), want...)[shift:]
			r, err := d.Alloc(tier.Class{Bytes: int64(size)}, tier.Owner{})
			if err != nil {
				t.Fatal(err)
			}
			if err := transfer(d, tier.Op{Region: r, Memory: mem, Write: true, Note: &tier.Note{}}); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, size)
			if err := transfer(d, tier.Op{Region: r, Memory: got}); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes shifted by %d: %v", size, shift, err)
			}
		}
	}
}
