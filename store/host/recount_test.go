package host

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/store/tier"
)

// recount holds every counter against what it counts.
func (d *Driver) recount() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var live, held, slots, slabs, empty int64
	free, owed, of := map[*class]int{}, map[*class]int{}, map[*class]int{}
	for _, s := range *d.table.Load() {
		if s == nil {
			continue
		}
		slabs++
		of[s.class]++
		slots += int64(len(s.slots))
		held += s.mapping.bytes
		n := 0
		for i := range s.slots {
			if _, bytes, ok := s.at(int64(i) * s.classBytes); ok {
				live += bytes
				n++
			}
		}
		switch {
		case n != s.live:
			return fmt.Errorf("slab %d: %d live, counted %d", s.handle, s.live, n)
		case s.mapping.bytes-int64(len(s.slots))*s.classBytes > s.mapping.bytes/maxRecutWaste:
			return fmt.Errorf("slab %d: %d slots of %d in %d bytes", s.handle, len(s.slots), s.classBytes, s.mapping.bytes)
		case (s.emptyAt >= 0) != (n == 0 && !s.emptying):
			return fmt.Errorf("slab %d with %d live (emptying: %v) is at %d of the empty ones", s.handle, n, s.emptying, s.emptyAt)
		case (s.next != nil) != (s.freeSlots() > 0 && !s.emptying):
			return fmt.Errorf("slab %d with %d free slots (emptying: %v) is open: %v", s.handle, s.freeSlots(), s.emptying, s.next != nil)
		}
		if s.emptyAt >= 0 {
			empty++
		}
		if s.emptying {
			owed[s.class] += s.live
		} else {
			free[s.class] += s.freeSlots()
		}
	}
	for _, cl := range d.classes {
		if cl.free != free[cl] || cl.owed != owed[cl] || cl.slabs != of[cl] || cl.newest.class != cl {
			return fmt.Errorf("class %d: %d free, %d owed, %d slabs; counted %d, %d, %d", cl.key.Bytes, cl.free, cl.owed, cl.slabs, free[cl], owed[cl], of[cl])
		}
	}
	for _, m := range slices.Concat(d.blank, d.ready) {
		slabs++
		held += m.bytes
	}
	if d.live != live || d.held != held || d.slots != slots || d.slabs != slabs || int64(len(d.empty)) != empty || len(d.classes) != len(of) {
		return fmt.Errorf("live %d, held %d, slots %d, slabs %d, empty %d, classes %d; counted %d, %d, %d, %d, %d, %d",
			d.live, d.held, d.slots, d.slabs, len(d.empty), len(d.classes), live, held, slots, slabs, empty, len(of))
	}
	if d.room() < 0 {
		return fmt.Errorf("%d bytes over the bound", -d.room())
	}
	return nil
}

// settledRecount gives the populator time to end what it is unmapping or mapping, which is in no list meanwhile.
func (d *Driver) settledRecount() (err error) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		if err = d.recount(); err == nil {
			return nil
		}
	}
	return err
}

// TestRecount runs random calls on tiers of many sizes and recounts after each.
func TestRecount(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		capacity := rapid.Int64Range(MinCapacityBytes, 200<<20).Draw(rt, "capacity")
		ready := rapid.SampledFrom([]int64{0, capacity / 16, capacity}).Draw(rt, "ready")
		d := newTier(t, Options{CapacityBytes: capacity, ReadyBytes: ready, memory: &fakeMemory{}})
		defer closeTier(t, d)
		var all []tier.Region
		var emptying []uint32
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if err := d.settledRecount(); err != nil {
					rt.Fatal(err)
				}
			},
			"fill": func(rt *rapid.T) {
				c := tier.Class{Bytes: rapid.SampledFrom([]int64{4_096, 70_000, 1 << 20, 1_300_000, 5 << 20}).Draw(rt, "bytes")}
				c.Namespace[0] = rapid.Byte().Draw(rt, "namespace") / 200
				for range rapid.IntRange(1, 300).Draw(rt, "n") {
					r, err := d.Alloc(c, tier.Owner{})
					if err != nil {
						break
					}
					all = append(all, r)
				}
			},
			"thin": func(rt *rapid.T) {
				n := rapid.IntRange(1, 6).Draw(rt, "keep one in")
				kept := all[:0]
				for i, r := range all {
					if n > 1 && i%n == 0 {
						kept = append(kept, r)
					} else {
						d.Free(r)
					}
				}
				all = kept
			},
			"compact": func(*rapid.T) {
				if slab, live := d.Compact(nil); len(live) > 0 {
					emptying = append(emptying, slab)
				}
			},
			"keep": func(*rapid.T) {
				for _, s := range emptying {
					d.Keep(s)
				}
				emptying = nil
			},
		})
	})
}

// TestHandlesRest: the handle of a slab that is gone names no other slab for a while.
func TestHandlesRest(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: MinCapacityBytes, memory: &fakeMemory{}})
	defer closeTier(t, d)
	last := map[uint32]int{}
	for i := range 4 * restedHandles {
		r := alloc(t, d, sized(1<<20))
		if before, ok := last[r.Handle]; ok && i-before <= restedHandles {
			t.Fatalf("handle %d is used again after %d slabs", r.Handle, i-before)
		}
		last[r.Handle] = i
		d.Free(r)
		d.Compact(nil)
	}
	if len(*d.table.Load()) > restedHandles+2 {
		t.Errorf("the table has grown to %d entries", len(*d.table.Load()))
	}
}

// TestMixedSlabsMixEpochs: without a namespace the epoch means nothing.
func TestMixedSlabsMixEpochs(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: MinCapacityBytes, memory: &fakeMemory{}})
	defer closeTier(t, d)
	a, b := alloc(t, d, tier.Class{Epoch: 1, Bytes: 9_000}), alloc(t, d, tier.Class{Epoch: 2, Bytes: 9_000})
	if a.Handle != b.Handle {
		t.Errorf("two epochs have slabs %d and %d", a.Handle, b.Handle)
	}
}
