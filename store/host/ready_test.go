package host

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// private is a class of a namespace of its own.
func private(n int64) tier.Class {
	c := tier.Class{Bytes: n, Epoch: 1}
	c.Namespace[0] = 1
	return c
}

// settleReady waits until the populator has made ready what it will.
func settleReady(t *testing.T, d *Driver) {
	t.Helper()
	for range 1_000_000 {
		d.mu.Lock()
		done := !d.refill && len(d.cold) == 0
		d.mu.Unlock()
		if done {
			return
		}
		runtime.Gosched()
	}
	t.Fatal("the populator goes on")
}

// TestReadyMemoryServesNamespaces: slabs of a namespace come out of ready memory, cut to size; what was theirs is not
// used again, and fresh memory takes its place.
func TestReadyMemoryServesNamespaces(t *testing.T) {
	m := &fakeMemory{huge: true}
	d := newTier(t, Options{CapacityBytes: 1 << 30, ReadyBytes: 256 << 20, memory: m})
	defer closeTier(t, d)
	settleReady(t, d)
	maps := m.count()
	var all []tier.Region
	for range 60 {
		all = append(all, alloc(t, d, private(1<<20+tier.Align)))
	}
	if got := m.count(); got != maps {
		t.Errorf("60 regions needed %d new mappings", got-maps)
	}
	if err := d.settledRecount(); err != nil {
		t.Error(err)
	}
	u := d.Usage()
	if u.HugePages < 0.9 || u.Live != 60*(1<<20+tier.Align) {
		t.Errorf("%+v", u)
	}
	for _, r := range all {
		d.Free(r)
	}
	d.Invalidate(private(1).Namespace, 1)
	settleReady(t, d)
	if err := d.settledRecount(); err != nil {
		t.Error(err)
	}
	if ready := d.Usage(); ready.Live != 0 || ready.Slack < 256<<20 || m.held() != ready.Slack {
		t.Errorf("%+v with %d mapped", ready, m.held())
	}
}

// TestReadyMemoryGivesWay: all of the capacity can be allocated, in one class or another, whatever is ready.
func TestReadyMemoryGivesWay(t *testing.T) {
	for _, c := range []tier.Class{private(1 << 20), sized(1 << 20)} {
		m := &fakeMemory{}
		d := newTier(t, Options{CapacityBytes: 64 << 20, ReadyBytes: 1 << 40, memory: m})
		settleReady(t, d)
		n := 0
		for {
			if _, err := d.Alloc(c, tier.Owner{}); isFull(err) {
				settleReady(t, d)
				if _, err := d.Alloc(c, tier.Owner{}); isFull(err) {
					break
				}
			}
			n++
		}
		if n < 60 {
			t.Errorf("%d of 64 MiB were given", n)
		}
		if u := d.Usage(); u.Live+u.Slack+u.Metadata > u.Capacity || m.peak > u.Capacity {
			t.Errorf("over the bound: %+v, at most %d were mapped", u, m.peak)
		}
		closeTier(t, d)
		if m.held() != 0 {
			t.Errorf("%d bytes are mapped after close", m.held())
		}
	}
}

// TestReadyMemoryThatCannotBeCut: the slab is made of fresh memory, and nothing is lost.
func TestReadyMemoryThatCannotBeCut(t *testing.T) {
	m := &fakeMemory{trimErr: errors.New("not split")}
	d := newTier(t, Options{CapacityBytes: 256 << 20, ReadyBytes: 32 << 20, memory: m})
	settleReady(t, d)
	alloc(t, d, private(1<<20))
	settleReady(t, d)
	if err := d.settledRecount(); err != nil {
		t.Error(err)
	}
	closeTier(t, d)
	if m.held() != 0 {
		t.Errorf("%d bytes are mapped after close", m.held())
	}
}

// TestReadyMemoryUnderLoad allocates and frees from many sides while memory is made ready and given up.
func TestReadyMemoryUnderLoad(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20, ReadyBytes: 16 << 20})
	var g errgroup.Group
	for i := range byte(4) {
		g.Go(func() error {
			c := private(100_000 * int64(i+1))
			c.Namespace[1] = i
			for e := range page.Epoch(100) {
				c.Epoch = e
				var mine []tier.Region
				for range 20 {
					if r, err := d.Alloc(c, tier.Owner{}); err == nil {
						r.Memory[0], r.Memory[len(r.Memory)-1] = i+1, i+1
						mine = append(mine, r)
					}
				}
				for _, r := range mine {
					if r.Memory[0] != i+1 || r.Memory[len(r.Memory)-1] != i+1 {
						return errors.New("bytes of others")
					}
					d.Free(r)
				}
				d.Invalidate(c.Namespace, e)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	settleReady(t, d)
	if err := d.settledRecount(); err != nil {
		t.Error(err)
	}
	closeTier(t, d)
}
