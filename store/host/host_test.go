package host

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
	"github.com/quire-kv/quire/store/tier/tiertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTier(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeTier(t testing.TB, d *Driver) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func alloc(t testing.TB, d *Driver, c tier.Class) tier.Region {
	t.Helper()
	r, err := d.Alloc(c, tier.Owner{})
	if err != nil {
		t.Fatalf("alloc of %d bytes: %v (usage %+v)", c.Bytes, err, d.Usage())
	}
	return r
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]Options{"default": {}, "small pages": {SmallPages: true, Workers: 1}} {
		t.Run(name, func(t *testing.T) {
			tiertest.Run(t, tiertest.Harness{New: func(t testing.TB, capacity int64) tier.Driver {
				o.CapacityBytes = capacity
				return newTier(t, o)
			}})
		})
	}
}

// TestConformanceWithFaults: every third mapping is refused, and Alloc fails at random.
func TestConformanceWithFaults(t *testing.T) {
	tiertest.Run(t, tiertest.Harness{Transient: true, New: func(t testing.TB, capacity int64) tier.Driver {
		m := &fakeMemory{mapErr: func(n int) error {
			if n%3 == 2 {
				return errNoMemory
			}
			return nil
		}}
		t.Cleanup(func() {
			if m.held() != 0 {
				t.Errorf("%d bytes are mapped after close", m.held())
			}
		})
		return tiertest.Inject(newTier(t, Options{CapacityBytes: capacity, memory: m}), func(c tiertest.Call, n int) error {
			if c == tiertest.CallAlloc && n%7 == 0 {
				return tier.ErrFull
			}
			return nil
		})
	}})
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"CapacityBytes is 0, must be at least":       {},
		"CapacityBytes is 8388607, must be at least": {CapacityBytes: MinCapacityBytes - 1},
		"Workers is -1": {CapacityBytes: MinCapacityBytes, Workers: -1},
		"Workers is 65": {CapacityBytes: MinCapacityBytes, Workers: maxWorkers + 1},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	for capacity, want := range map[int64]int64{8 << 20: 256 << 10, 1 << 30: 16 << 20, 3 << 30: 32 << 20, 4 << 30: 64 << 20, 1 << 40: 64 << 20} {
		if got := largestSlab(capacity); got != want {
			t.Errorf("largest slab of %d bytes: %d, want %d", capacity, got, want)
		}
	}
}

// TestSlabsDouble: the slabs of a class grow from 2 MiB to the largest, large extents have slabs of their own.
func TestSlabsDouble(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 1 << 30, memory: &fakeMemory{}})
	defer closeTier(t, d)
	var sizes []int64 // of slabs as they come
	for last := uint32(0); len(sizes) < 12; {
		if r := alloc(t, d, sized(1<<20)); r.Handle != last {
			last = r.Handle
			sizes = append(sizes, d.slab(last).mapping.bytes)
		}
	}
	// One prepared a moment too late serves later, at half the size that is due.
	for i, n := range sizes {
		if due := int64(firstSlabBytes) << min(i, 3); n > due || n < due/2 && i < 3 || n < 8<<20 && i > 4 {
			t.Errorf("slab %d has %d bytes: %v", i, n, sizes)
		}
	}
	if sizes[0] != firstSlabBytes || slices.Max(sizes) != 16<<20 {
		t.Errorf("slabs of %v", sizes)
	}
	a, b := alloc(t, d, sized(20<<20)), alloc(t, d, sized(20<<20))
	if a.Handle == b.Handle || len(d.slab(a.Handle).slots) != 1 {
		t.Errorf("large extents share slab %d", a.Handle)
	}
}

// TestNothingPassesTheBound holds what is really mapped against the capacity.
func TestNothingPassesTheBound(t *testing.T) {
	m := &fakeMemory{}
	d := newTier(t, Options{CapacityBytes: 32 << 20, memory: m})
	var all []tier.Region
	for i := range int64(5_000) {
		r, err := d.Alloc(sized(1+i*7_919%400_000), tier.Owner{})
		if err != nil {
			d.Free(all[0])
			all = all[1:]
			continue
		}
		all = append(all, r)
	}
	if m.peak > d.o.CapacityBytes || m.peak < d.o.CapacityBytes*3/4 {
		t.Errorf("%d bytes were mapped of %d", m.peak, d.o.CapacityBytes)
	}
	u := d.Usage()
	if m.held() != u.Live+u.Slack {
		t.Errorf("%d bytes are mapped, usage is %+v", m.held(), u)
	}
	closeTier(t, d)
	if m.held() != 0 {
		t.Errorf("%d bytes are mapped after close", m.held())
	}
}

// TestPrivateMemoryIsNotPassedOn: what a namespace with slabs of its own gives up is unmapped, not cut again.
func TestPrivateMemoryIsNotPassedOn(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: MinCapacityBytes})
	defer closeTier(t, d)
	own := tier.Class{Namespace: page.NamespaceID{1}, Epoch: 1, Bytes: 1 << 20}
	var all []tier.Region
	for {
		r, err := d.Alloc(own, tier.Owner{})
		if err != nil {
			break
		}
		r.Memory[0] = 0x77
		all = append(all, r)
	}
	for _, r := range all {
		d.Free(r)
	}
	for range 6 {
		if r := alloc(t, d, sized(1<<20)); r.Memory[0] != 0 {
			t.Fatalf("a mixed slab shows byte %#x of a namespace", r.Memory[0])
		}
	}
}

// TestMappingRefused: memory that the system refuses is like memory that is full; the rest serves on.
func TestMappingRefused(t *testing.T) {
	refuse := false
	m := &fakeMemory{}
	m.mapErr = func(int) error {
		if refuse {
			return errNoMemory
		}
		return nil
	}
	d := newTier(t, Options{CapacityBytes: 64 << 20, memory: m})
	defer closeTier(t, d)
	r := alloc(t, d, sized(5<<20))
	m.mu.Lock()
	refuse = true
	m.mu.Unlock()
	before := d.Usage()
	_, err := d.Alloc(sized(5<<20), tier.Owner{})
	if !isFull(err) || !strings.Contains(err.Error(), errNoMemory.Error()) {
		t.Errorf("refused mapping: %v", err)
	}
	if after := d.Usage(); after != before || !after.Writable {
		t.Errorf("usage %+v, was %+v", after, before)
	}
	d.Free(r)
	alloc(t, d, sized(5<<20))
}

// TestNewWithoutMemory: a machine that refuses the first slab is told at once.
func TestNewWithoutMemory(t *testing.T) {
	m := &fakeMemory{mapErr: func(int) error { return errNoMemory }}
	if _, err := New(Options{CapacityBytes: MinCapacityBytes, memory: m}); err == nil || !strings.Contains(err.Error(), "first memory") {
		t.Errorf("new: %v", err)
	}
}

// TestNoAllocationInSteadyState: neither Alloc, nor Lookup, nor Free makes garbage.
func TestNoAllocationInSteadyState(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20, memory: &fakeMemory{}})
	defer closeTier(t, d)
	c := sized(100_000)
	keep := alloc(t, d, c)
	if n := testing.AllocsPerRun(1_000, func() {
		r, err := d.Alloc(c, tier.Owner{})
		if err != nil {
			t.Fatal(err)
		}
		d.Lookup(r.Handle, r.Offset)
		d.Free(r)
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	d.Free(keep)
}
