package host

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/shm"
	"github.com/quire-kv/quire/store/tier"
)

// reader is a client's half: what it can do with the descriptors of a slab.
type reader struct {
	data []byte
	shm.Generations
}

func classOf(id byte, e page.Epoch, bytes int64) tier.Class {
	return tier.Class{Namespace: page.NamespaceID{id}, Epoch: e, Bytes: bytes}
}

// readerOf maps what Export hands out.
func readerOf(t *testing.T, d *Driver, r tier.Region) *reader {
	t.Helper()
	at, ok := d.Locate(r.Memory)
	if !ok {
		t.Fatal("not shared")
	}
	s, err := d.Export(at.Handle)
	if err != nil {
		t.Fatal(err)
	}
	out := &reader{data: mapReadOnly(t, s.Data)}
	if out.Generations, err = shm.OpenGenerations(mapReadOnly(t, s.Generations), len(out.data)); err != nil {
		t.Fatal(err)
	}
	if n := out.Number(); n != s.Number || s.Number != at.Number {
		t.Errorf("slab %d says that it is %d", s.Number, n)
	}
	return out
}

func mapReadOnly(t *testing.T, fd int) []byte {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode&0o777 != readable {
		t.Errorf("mode %o", st.Mode&0o777)
	}
	if got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || got != seals {
		t.Errorf("seals %#x, %v", got, err)
	}
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EACCES) {
		t.Errorf("mapped for writing: %v", err)
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("truncated")
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

func (r *reader) valid(s Shared) bool {
	return r.Valid(uint64(s.Offset), s.SlotGeneration, s.SlabGeneration)
}

// TestExport: a client reads a region through its own mapping, and notices that the slot has another life.
func TestExport(t *testing.T) {
	const bytes = 300_000
	d := newTier(t, Options{CapacityBytes: 64 << 20})
	defer closeTier(t, d)
	c := classOf(1, 1, bytes)
	regions := []tier.Region{alloc(t, d, c), alloc(t, d, c), alloc(t, d, c)}
	for i, r := range regions {
		for k := range r.Memory {
			r.Memory[k] = byte(i + 1)
		}
	}
	rd := readerOf(t, d, regions[0])
	var at [3]Shared
	for i, r := range regions {
		var ok bool
		if at[i], ok = d.Locate(r.Memory[5000:6000]); !ok || at[i].Offset != r.Offset+5000 {
			t.Fatalf("%+v, %v; region at %d", at[i], ok, r.Offset)
		}
		if got := rd.data[at[i].Offset]; got != byte(i+1) || !rd.valid(at[i]) {
			t.Errorf("region %d: byte %d, valid %v", i, got, rd.valid(at[i]))
		}
	}
	d.Free(regions[1])
	if !rd.valid(at[0]) || rd.valid(at[1]) || !rd.valid(at[2]) {
		t.Error("the wrong slots are outdated")
	}
	again := alloc(t, d, c)
	if again.Offset != regions[1].Offset {
		t.Fatalf("slot %d, want the one that was freed", again.Offset)
	}
	now, ok := d.Locate(again.Memory)
	if !ok || rd.valid(at[1]) || !rd.valid(now) {
		t.Errorf("a new life of the slot: %+v, %v", now, ok)
	}
}

// TestInvalidate: all slabs of the epoch, no others, and names that come later are good.
func TestInvalidate(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20})
	defer closeTier(t, d)
	mine, next, other := alloc(t, d, classOf(1, 1, 100_000)), alloc(t, d, classOf(1, 2, 100_000)), alloc(t, d, classOf(2, 1, 100_000))
	readers := map[*reader]tier.Region{readerOf(t, d, mine): mine, readerOf(t, d, next): next, readerOf(t, d, other): other}
	before := map[*reader]Shared{}
	for r, reg := range readers {
		before[r], _ = d.Locate(reg.Memory)
	}
	d.Invalidate(page.NamespaceID{1}, 1)
	for r, reg := range readers {
		if want := reg.Handle != mine.Handle; r.valid(before[r]) != want {
			t.Errorf("slab %d valid: %v", reg.Handle, !want)
		}
		if now, _ := d.Locate(reg.Memory); !r.valid(now) {
			t.Errorf("slab %d: a new name is outdated", reg.Handle)
		}
	}
}

// TestSharedMemoryReturns: an epoch that is over gives back what becomes empty, at once, although a client has it
// mapped; nobody else ever gets it.
func TestSharedMemoryReturns(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20})
	defer closeTier(t, d)
	c := classOf(1, 1, 1<<20)
	empty, full := alloc(t, d, c), alloc(t, d, classOf(1, 1, 2<<20))
	for i := range empty.Memory {
		empty.Memory[i] = 0xEE
	}
	at, _ := d.Locate(empty.Memory)
	rd := readerOf(t, d, empty)
	rest := readerOf(t, d, full)
	before := d.Usage()
	d.Free(empty)
	if u := d.Usage(); u.Live+u.Slack != before.Live+before.Slack {
		t.Error("an empty slab of a living epoch went")
	}
	d.Invalidate(c.Namespace, c.Epoch)
	eventually(t, "the end of the empty slab", func() bool {
		u := d.Usage()
		return rd.Gone() && u.Live+u.Slack < before.Live+before.Slack
	})
	if b := rd.data[at.Offset+100]; b != 0 {
		t.Errorf("byte %x is left", b)
	}
	if rest.Gone() {
		t.Error("a slab in use went")
	}
	d.Free(full)
	eventually(t, "the end of the last slab", rest.Gone)
	if _, err := d.Export(at.Handle); !errors.Is(err, ErrNotShared) {
		t.Errorf("export of a slab that is gone: %v", err)
	}
}

// TestMixedSlabsAreNotShared: nor what is not the tier's at all.
func TestMixedSlabsAreNotShared(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20})
	defer closeTier(t, d)
	r := alloc(t, d, sized(1<<20))
	alloc(t, d, classOf(1, 1, 1<<20))
	for _, mem := range [][]byte{r.Memory, make([]byte, 10), nil} {
		if at, ok := d.Locate(mem); ok {
			t.Errorf("%+v", at)
		}
	}
	if _, err := d.Export(r.Handle); !errors.Is(err, ErrNotShared) {
		t.Error(err)
	}
}

// TestSharingFails: without /proc, say, the slab serves all the same, and the operator is told.
func TestSharingFails(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20, memory: &fakeMemory{}})
	defer closeTier(t, d)
	r := alloc(t, d, classOf(1, 1, 1<<20))
	if _, ok := d.Locate(r.Memory); ok {
		t.Error("shared")
	}
	if w := d.Warnings(); len(w) != 1 {
		t.Errorf("%q", w)
	}
	d.Invalidate(page.NamespaceID{1}, 1)
	d.Free(r)
}

// TestSharingIsAccounted: memory that generations take is within the bound, and comes back.
func TestSharingIsAccounted(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: MinCapacityBytes})
	defer closeTier(t, d)
	var all []tier.Region
	for i := byte(1); ; i++ {
		r, err := d.Alloc(classOf(i, 1, tier.Align), tier.Owner{})
		if errors.Is(err, tier.ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		if u := d.Usage(); u.Live+u.Slack+u.Metadata > u.Capacity {
			t.Fatalf("%+v", u)
		}
	}
	var held int64
	for _, s := range *d.table.Load() {
		if s != nil && s.mapping.export != nil {
			held += generationBytes(int64(len(s.slots)))
		}
	}
	if len(all) == 0 || held == 0 || d.sharing < held {
		t.Errorf("%d regions, %d bytes of generations, %d accounted", len(all), held, d.sharing)
	}
	for i, r := range all {
		d.Free(r)
		d.Invalidate(page.NamespaceID{byte(i + 1)}, 1)
	}
	eventually(t, "the end of their account", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.sharing == 0
	})
}

// eventually waits for a slab that is being populated: it goes as soon as that step is done.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// TestReadersNoticeReuse: a reader that copies while slots are freed and filled again never takes another life's
// bytes for those it was told of.
func TestReadersNoticeReuse(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20})
	defer closeTier(t, d)
	const bytes = 64 << 10
	c := classOf(1, 1, bytes)
	first := alloc(t, d, c)
	rd := readerOf(t, d, first)
	type told struct {
		at   Shared
		fill byte
	}
	var now atomic.Pointer[told]
	tell := func(r tier.Region, fill byte) {
		for i := range r.Memory {
			r.Memory[i] = fill
		}
		at, _ := d.Locate(r.Memory)
		now.Store(&told{at, fill})
	}
	tell(first, 0)
	done, result := make(chan struct{}), make(chan error, 1)
	go func() {
		var good, stale int
		buf := make([]byte, bytes)
		for {
			select {
			case <-done:
				t.Logf("%d good, %d noticed", good, stale)
				result <- nil
				return
			default:
			}
			k := now.Load()
			copy(buf, rd.data[k.at.Offset:][:bytes])
			if !rd.valid(k.at) {
				stale++
				continue
			}
			good++
			for i, b := range buf {
				if b != k.fill {
					result <- fmt.Errorf("byte %d is %d, told was %d", i, b, k.fill)
					return
				}
			}
		}
	}()
	r := first
	for i := range 4_000 {
		d.Free(r)
		r = alloc(t, d, c)
		tell(r, byte(i))
	}
	close(done)
	if err := <-result; err != nil {
		t.Error(err)
	}
}
