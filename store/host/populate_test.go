package host

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quire-kv/quire/store/tier"
)

func isFull(err error) bool { return errors.Is(err, tier.ErrFull) }

// gate makes the populator stop at each run until it is let go.
type gate struct {
	fakeMemory
	reached chan *mapping
	letGo   chan struct{}
}

func newGate() *gate {
	g := &gate{reached: make(chan *mapping, 1), letGo: make(chan struct{})}
	first := true
	g.onPop = func(m *mapping) error {
		if first { // New populates its first slab itself
			first = false
			return nil
		}
		select {
		case g.reached <- m:
		default: // the test has seen the first
		}
		<-g.letGo
		return nil
	}
	return g
}

// TestAllocDoesNotWaitForPopulating allocates, frees and compacts while the populator stands still.
func TestAllocDoesNotWaitForPopulating(t *testing.T) {
	g := newGate()
	d := newTier(t, Options{CapacityBytes: 64 << 20, memory: g})
	var all []tier.Region
	r := alloc(t, d, sized(3<<20))
	busy := <-g.reached // the slab of r
	for {
		x, err := d.Alloc(sized(50_000), tier.Owner{})
		if err != nil {
			break
		}
		all = append(all, x)
	}
	if u := d.Usage(); u.Live < u.Capacity*3/4 {
		t.Errorf("full at %+v", u)
	}
	d.Free(r)
	d.Compact(nil) // the slab turns blank, while it is being populated
	for _, x := range all {
		d.Free(x)
	}
	alloc(t, d, sized(40<<20)) // takes all memory but the busy mapping
	if !g.isMapped(busy) {
		t.Errorf("a mapping was unmapped while it was being populated")
	}
	close(g.letGo)
	closeTier(t, d)
	if g.held() != 0 {
		t.Errorf("%d bytes are mapped after close", g.held())
	}
}

// TestDoomedWhilePopulating: private memory given up while it is being populated is unmapped right after.
func TestDoomedWhilePopulating(t *testing.T) {
	g := newGate()
	d := newTier(t, Options{CapacityBytes: 64 << 20, memory: g})
	c := tier.Class{Bytes: 3 << 20, Epoch: 1}
	c.Namespace[0] = 1
	r := alloc(t, d, c)
	busy := <-g.reached
	held := d.Usage()
	d.Free(r)
	if slab, _ := d.Compact(nil); slab != r.Handle {
		t.Fatalf("compact names slab %d, want the empty %d", slab, r.Handle)
	}
	if !g.isMapped(busy) {
		t.Fatal("unmapped while being populated")
	}
	if u := d.Usage(); u.Slack < 3<<20 {
		t.Errorf("usage %+v forgets what is still mapped (%+v)", u, held)
	}
	close(g.letGo)
	closeTier(t, d)
	if g.held() != 0 {
		t.Errorf("%d bytes are mapped after close", g.held())
	}
}

func (f *fakeMemory) isMapped(m *mapping) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mapped[m]
}

// TestPreparesAhead: a class that runs out finds its next slab mapped and populated.
func TestPreparesAhead(t *testing.T) {
	populated := make(chan int64, 64)
	m := &fakeMemory{onPop: func(m *mapping) error { populated <- m.bytes; return nil }}
	d := newTier(t, Options{CapacityBytes: 1 << 30, memory: m})
	defer closeTier(t, d)
	<-populated // the first slab
	alloc(t, d, sized(1<<20))
	if n := <-populated; n != 4<<20 {
		t.Fatalf("prepared %d bytes, want 4 MiB", n)
	}
	<-populated // its second half
	alloc(t, d, sized(1<<20))
	maps := m.count()
	alloc(t, d, sized(1<<20))
	if got := m.count(); got != maps {
		t.Errorf("the third region, in the second slab, needed a new mapping")
	}
}

func (f *fakeMemory) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.maps
}

func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		capacity int64
		memory   *fakeMemory
		want     []string
	}{
		"huge pages":    {1 << 30, &fakeMemory{huge: true, hintsAt: "hint"}, nil},
		"small pages":   {1 << 30, &fakeMemory{hintsAt: "write advise to it"}, []string{"0% of memory is in huge pages", "write advise to it"}},
		"nothing to do": {1 << 30, &fakeMemory{}, nil},
		"small tier":    {64 << 20, &fakeMemory{hintsAt: "hint"}, nil},
		"refused":       {1 << 30, &fakeMemory{onPop: func(*mapping) error { return errNoMemory }}, []string{"could not be prepared", errNoMemory.Error()}},
	} {
		d := newTier(t, Options{CapacityBytes: c.capacity, memory: c.memory})
		got := d.Warnings()
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(w string) bool { return strings.Contains(w, want) }) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		if len(c.want) == 0 && len(got) > 0 {
			t.Errorf("%s: %q, want none", name, got)
		}
		if share := d.Usage().HugePages; (share == 1) != c.memory.huge {
			t.Errorf("%s: share of huge pages is %v", name, share)
		}
		closeTier(t, d)
	}
}

// TestReservedHugePages: sizes are rounded up to whole huge pages, unless much would be lost.
func TestReservedHugePages(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 4 << 30, memory: &fakeMemory{reserves: true}})
	defer closeTier(t, d)
	for _, c := range []int64{tier.Align, 1 << 20, 5_246_976, 20_975_616, 65<<20 + tier.Align} {
		due := max(c, d.slabBytes/c*c)
		size := d.sizeWithin(1<<40, sized(c), due/c)
		if size%hugePageBytes != 0 || size < due || size >= due+hugePageBytes || size%c > size/maxRecutWaste {
			t.Errorf("slots of %d bytes: slab of %d, due were %d", c, size, due)
		}
	}
	if size := d.sizeWithin(1<<40, sized(2_101_248), 1); size != 2_101_248 {
		t.Errorf("half of a slab of %d bytes is lost", size)
	}
}
