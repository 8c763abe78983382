package tiertest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// tb is what a rig needs of testing.TB and rapid.T alike.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

// rig drives a tier and checks at every call what holds at every moment. Not safe for concurrent use; rigs of one
// tier are.
type rig struct {
	t         tb
	d         tier.Driver
	transient bool
	log       bool // a durable tier
}

func newRig(t *testing.T, h Harness) *rig {
	t.Helper()
	d := h.New(t, h.CapacityBytes)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &rig{t: t, d: d, transient: h.Transient, log: h.Reopen != nil}
}

// held is a live region with what the rig knows of it.
type held struct {
	tier.Region
	class tier.Class
	owner tier.Owner
	seed  uint64
}

// mixed is a class that any namespace may share.
func mixed(bytes int64) tier.Class { return tier.Class{Bytes: bytes} }

// private is a class of a namespace of its own.
func private(namespace byte, epoch page.Epoch, bytes int64) tier.Class {
	return tier.Class{Namespace: page.NamespaceID{namespace}, Epoch: epoch, Bytes: bytes}
}

// try allocates and stamps a region. A region that breaks the contract ends the test.
func (r *rig) try(c tier.Class, seed uint64) (held, error) {
	r.t.Helper()
	o := ownerOf(seed)
	if r.log {
		c.Bytes = max(c.Bytes, leastRegion)
	}
	reg, err := r.d.Alloc(c, o)
	for i := 0; r.transient && errors.Is(err, tier.ErrFull) && i < maxTransient; i++ {
		reg, err = r.d.Alloc(c, o)
	}
	if r.log && errors.Is(err, tier.ErrFull) { // emptied segments may not have been removed yet
		r.barrier()
		reg, err = r.d.Alloc(c, o)
	}
	r.usage()
	if err != nil {
		if reg.Handle != 0 || reg.Memory != nil {
			r.t.Fatalf("alloc of %d bytes answers %v and a region %+v", c.Bytes, err, reg)
		}
		return held{}, err
	}
	switch {
	case reg.Handle == 0 || reg.Offset < 0 || reg.Offset%tier.Align != 0:
		r.t.Fatalf("alloc of %d bytes: region at %d+%d is not aligned", c.Bytes, reg.Handle, reg.Offset)
	case reg.Bytes != c.Bytes:
		r.t.Fatalf("alloc of %d bytes: region of %d", c.Bytes, reg.Bytes)
	case reg.Memory != nil && (int64(len(reg.Memory)) != c.Bytes || cap(reg.Memory) != len(reg.Memory)):
		r.t.Fatalf("alloc of %d bytes: memory has length %d and capacity %d", c.Bytes, len(reg.Memory), cap(reg.Memory))
	}
	h := held{Region: reg, class: c, owner: o, seed: seed}
	r.stamp(h)
	return h, nil
}

// must allocates or ends the test.
func (r *rig) must(c tier.Class, seed uint64) held {
	r.t.Helper()
	h, err := r.try(c, seed)
	if err != nil {
		r.t.Fatalf("alloc of %d bytes: %v (usage %+v)", c.Bytes, err, r.d.Usage())
	}
	return h
}

// free checks the contents a last time and gives the region back.
func (r *rig) free(h held) {
	r.t.Helper()
	r.check(h)
	r.d.Free(h.Region)
	if _, ok := r.d.Lookup(h.Handle, h.Offset); ok {
		r.t.Fatalf("region %d+%d is found after it was freed", h.Handle, h.Offset)
	}
	r.usage()
}

// usage asks for usage and checks the bound.
func (r *rig) usage() tier.Usage {
	r.t.Helper()
	u := r.d.Usage()
	if u.Live < 0 || u.Slack < 0 || u.Metadata < 0 || u.Live+u.Slack+u.Metadata > u.Capacity {
		r.t.Fatalf("usage %+v: %d held", u, u.Live+u.Slack+u.Metadata)
	}
	if u.HugePages < 0 || u.HugePages > 1 {
		r.t.Fatalf("usage: %v of memory in huge pages", u.HugePages)
	}
	return u
}

// stamp writes what tells this region from every other: its seed and place at the start of each 4 KiB, and at its end.
func (r *rig) stamp(h held) {
	r.t.Helper()
	if h.Memory != nil {
		mark(h, h.Memory)
		return
	}
	if err := r.transfer(r.writing(h)); err != nil {
		r.t.Fatalf("write region %d+%d: %v", h.Handle, h.Offset, err)
	}
}

// writing is the op that stamps h.
func (r *rig) writing(h held) tier.Op {
	if r.log {
		return tier.Op{Region: h.Region, Memory: image(h), Write: true, Note: noteOf(h)}
	}
	b := make([]byte, h.Bytes)
	mark(h, b)
	return tier.Op{Region: h.Region, Memory: b, Write: true}
}

// mark writes the stamps of h into b.
func mark(h held, b []byte) {
	stamps(h, func(at, value uint64) { binary.LittleEndian.PutUint64(b[at:], value) }, func(at int) { b[at] = byte(h.seed) })
}

// check looks a region up and compares its stamps.
func (r *rig) check(h held) {
	r.t.Helper()
	reg, ok := r.d.Lookup(h.Handle, h.Offset)
	if !ok || reg.Bytes != h.Bytes || reg.Handle != h.Handle || reg.Offset != h.Offset {
		r.t.Fatalf("lookup of %d+%d (%d bytes): %+v, %v", h.Handle, h.Offset, h.Bytes, reg, ok)
	}
	b := reg.Memory
	if b == nil {
		b = make([]byte, h.Bytes)
		if err := r.transfer(tier.Op{Region: h.Region, Memory: b}); err != nil {
			r.t.Fatalf("read region %d+%d: %v", h.Handle, h.Offset, err)
		}
	}
	if r.log {
		if want := image(h); !bytes.Equal(b, want) {
			r.t.Fatalf("region %d+%d of %d bytes reads back other bytes", h.Handle, h.Offset, h.Bytes)
		}
		return
	}
	stamps(h, func(at, want uint64) {
		if got := binary.LittleEndian.Uint64(b[at:]); got != want {
			r.t.Fatalf("region %d+%d of %d bytes: %#x at %d, want %#x", h.Handle, h.Offset, h.Bytes, got, at, want)
		}
	}, func(at int) {
		if b[at] != byte(h.seed) {
			r.t.Fatalf("region %d+%d of %d bytes: its last byte changed", h.Handle, h.Offset, h.Bytes)
		}
	})
}

func stamps(h held, word func(at, value uint64), last func(at int)) {
	for at := int64(0); at+8 < h.Bytes; at += tier.Align {
		word(uint64(at), h.seed*0x9E3779B97F4A7C15+uint64(at))
	}
	last(int(h.Bytes - 1))
}

// transfer carries out one op and waits for it.
func (r *rig) transfer(op tier.Op) error {
	done := make(chan error, 1)
	op.Done = func(err error) { done <- err }
	r.d.Submit([]tier.Op{op})
	return <-done
}

// fill allocates until there is no room, at least once.
func (r *rig) fill(c tier.Class, seed uint64) []held {
	r.t.Helper()
	all := []held{r.must(c, seed)}
	for {
		h, err := r.try(c, seed+uint64(len(all)))
		if errors.Is(err, tier.ErrFull) {
			return all
		}
		if err != nil {
			r.t.Fatalf("fill: %v", err)
		}
		all = append(all, h)
	}
}

// places indexes live regions by place.
type place struct {
	handle uint32
	offset int64
}

func placeOf(r tier.Region) place { return place{r.Handle, r.Offset} }

// empty asks for a slab to be emptied and moves what lives there, as the store does. moved maps old places to new
// regions; done is false when no slab could be emptied.
func (r *rig) empty(live map[place]held) (done bool) {
	r.t.Helper()
	slab, residents := r.d.Compact(nil)
	r.usage()
	if slab == 0 {
		return false
	}
	r.checkResidents(slab, residents, live)
	for _, x := range residents {
		old := live[placeOf(x.Region)]
		h, err := r.try(old.class, old.seed)
		if err != nil {
			r.d.Keep(slab)
			return false
		}
		if h.Handle == slab {
			r.t.Fatalf("slab %d is being emptied and is allocated from", slab)
		}
		r.free(old)
		delete(live, placeOf(old.Region))
		live[placeOf(h.Region)] = h
	}
	return true
}

// checkResidents holds Compact's answer against what is known to live in the slab.
func (r *rig) checkResidents(slab uint32, residents []tier.Resident, live map[place]held) {
	r.t.Helper()
	want := 0
	for p := range live {
		if p.handle == slab {
			want++
		}
	}
	if len(residents) != want {
		r.t.Fatalf("compact names %d residents of slab %d, want %d", len(residents), slab, want)
	}
	for _, x := range residents {
		h, ok := live[placeOf(x.Region)]
		if !ok || x.Owner != h.owner || x.Region.Bytes != h.Bytes {
			r.t.Fatalf("compact names %+v; what lives there is %+v (%v)", x, h.Region, ok)
		}
	}
}

func sortPlaces(p []place) {
	slices.SortFunc(p, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.handle, b.handle), cmp.Compare(a.offset, b.offset))
	})
}
