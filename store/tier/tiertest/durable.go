package tiertest

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// barrier waits until what was freed and buried is durable.
func (r *rig) barrier() {
	r.t.Helper()
	d, ok := r.d.(tier.Durable)
	if !ok {
		return
	}
	done := make(chan error, 1)
	d.Barrier(func(err error) { done <- err })
	if err := <-done; err != nil {
		r.t.Fatalf("barrier: %v", err)
	}
}

// recovered opens what the tier of r left and takes over all of it, save what the test disowns.
func (r *rig) recovered(t *testing.T, h Harness, disown func(*tier.Recovered) bool) (*rig, map[page.Key]tier.Recovered) {
	t.Helper()
	d := h.Reopen(t, r.d)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	all := map[page.Key]tier.Recovered{}
	n := uint32(0)
	err := d.Recover(context.Background(), func(batch []tier.Recovered, owners []tier.Owner) error {
		if len(batch) != len(owners) {
			t.Fatalf("%d regions and %d owners", len(batch), len(owners))
		}
		for i, x := range batch {
			if _, ok := all[x.Key]; ok {
				t.Errorf("region of %v is told of twice", x.Key)
			}
			all[x.Key] = x
			if disown == nil || !disown(&batch[i]) {
				n++
				owners[i] = tier.Owner{Extent: n}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("recover: %v", err)
	}
	return &rig{t: t, d: d, log: true}, all
}

// expect holds what was recovered against what must have been, and reads it back.
func (r *rig) expect(t *testing.T, got map[page.Key]tier.Recovered, want []held) {
	t.Helper()
	var live int64
	for _, x := range want {
		w := told(x)
		g, ok := got[w.Key]
		if !ok {
			t.Errorf("region %d+%d, seed %d, is gone", x.Handle, x.Offset, x.seed)
			continue
		}
		live += x.Bytes
		place := g.Region
		w.Region, x.Region = place, place
		if !reflect.DeepEqual(g, w) {
			t.Errorf("recovered %+v, want %+v", g, w)
		}
		r.check(x)
	}
	if len(got) != len(want) {
		t.Errorf("%d regions recovered, want %d", len(got), len(want))
	}
	if u := r.usage(); u.Live != live || !u.Writable {
		t.Errorf("usage %+v after recovery, want live %d", u, live)
	}
}

func (r *rig) several(n uint64) (all []held) {
	for i := range n {
		c := []tier.Class{mixed(5_000), private(1, 1, 40_000), private(1, 2, 40_000), private(2, 1, 300_000)}[i%4]
		all = append(all, r.must(c, i+1))
	}
	return all
}

// testRecover: what was written is told of, also after another start and another write; what was not, is not.
func testRecover(t *testing.T, h Harness) {
	r := newRig(t, h)
	want := r.several(41)
	for range 3 { // reserved and never written
		if _, err := r.d.Alloc(mixed(9_000), tier.Owner{Extent: 99}); err != nil {
			t.Fatal(err)
		}
	}
	want = append(want, r.must(mixed(20_000), 77))
	for i := range 3 {
		var got map[page.Key]tier.Recovered
		r, got = r.recovered(t, h, nil)
		r.expect(t, got, want)
		want = append(want, r.must(mixed(30_000), 1_000+uint64(i)))
	}
}

// testRecoverOwners: regions are handed to their new owners, and what nobody wants never comes back.
func testRecoverOwners(t *testing.T, h Harness) {
	r := newRig(t, h)
	var kept []held
	all := r.several(40)
	for i, x := range all {
		if i%2 == 0 {
			kept = append(kept, x)
		}
	}
	r, got := r.recovered(t, h, func(x *tier.Recovered) bool { return x.Extent.Seq%2 == 0 })
	if len(got) != len(all) {
		t.Fatalf("%d regions recovered, want %d", len(got), len(all))
	}
	r.barrier()
	r, got = r.recovered(t, h, nil)
	r.expect(t, got, kept)
}

// testBuryAndRetire: nothing that ended before a Barrier comes back, however it ended.
func testBuryAndRetire(t *testing.T, h Harness) {
	r := newRig(t, h)
	var kept []held
	d := r.d.(tier.Durable)
	for i, x := range r.several(60) {
		switch {
		case x.class.Namespace == (page.NamespaceID{1}) && x.class.Epoch == 2:
			if i%3 == 0 {
				r.free(x)
			}
		case i%5 == 0:
			r.free(x)
		case i%5 == 1:
			d.Bury(x.Region)
			r.check(x)
		default:
			kept = append(kept, x)
		}
	}
	d.Retire(page.NamespaceID{1}, 2)
	r.barrier()
	for range 3 {
		var got map[page.Key]tier.Recovered
		r, got = r.recovered(t, h, nil)
		r.expect(t, got, kept)
		r.barrier()
	}
}

// testWriteOnce: a region is written whole, once, with a header and a note.
func testWriteOnce(t *testing.T, h Harness) {
	r := newRig(t, h)
	reg, err := r.d.Alloc(mixed(30_000), tier.Owner{Extent: 1})
	if err != nil {
		t.Fatal(err)
	}
	x := held{Region: reg, class: mixed(30_000), seed: 5}
	b, note := image(x), noteOf(x)
	broken := bytes.Clone(b)
	broken[page.HeadBytes+100]++
	if err := r.transfer(tier.Op{Region: reg, Memory: make([]byte, 10)}); err == nil {
		t.Error("a region that was never written can be read")
	}
	for name, op := range map[string]tier.Op{
		"a part": {Memory: b[:len(b)-1], Note: note}, "behind the beginning": {At: 1, Memory: b[1:], Note: note},
		"no note": {Memory: b}, "no header": {Memory: make([]byte, len(b)), Note: note}, "a broken header": {Memory: broken, Note: note},
	} {
		op.Region, op.Write = reg, true
		if err := r.transfer(op); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	write := tier.Op{Region: reg, Memory: b, Write: true, Note: note}
	if err := r.transfer(write); err != nil {
		t.Fatalf("write: %v", err)
	}
	if err := r.transfer(write); err == nil {
		t.Error("written twice")
	}
	r.check(x)
}

// testReadParts reads runs of a region; its first bytes are the tier's and read as zeros, whatever was in memory.
func testReadParts(t *testing.T, h Harness) {
	r := newRig(t, h)
	reg, err := r.d.Alloc(mixed(50_000), tier.Owner{Extent: 1})
	if err != nil {
		t.Fatal(err)
	}
	x := held{Region: reg, class: mixed(50_000), seed: 5}
	want := image(x)
	dirty := bytes.Clone(want)
	for i := range page.HeadBytes {
		dirty[i] = 0xAA
	}
	if err := r.transfer(tier.Op{Region: reg, Memory: dirty, Write: true, Note: noteOf(x)}); err != nil {
		t.Fatal(err)
	}
	for _, run := range [][2]int{{0, 50_000}, {0, 10}, {3, 7}, {3, 100}, {63, 2}, {64, 1000}, {4_095, 2}, {49_999, 1}, {50_000, 0}, {10_001, 30_003}} {
		got := bytes.Repeat([]byte{0x55}, run[1])
		if err := r.transfer(tier.Op{Region: reg, At: int64(run[0]), Memory: got}); err != nil {
			t.Fatalf("read %v: %v", run, err)
		}
		if !bytes.Equal(got, want[run[0]:run[0]+run[1]]) {
			t.Errorf("read %v: other bytes", run)
		}
	}
}

// testFullThenCompact: a full log takes more once most regions were freed and a slab was emptied.
func testFullThenCompact(t *testing.T, h Harness) {
	r := newRig(t, h)
	all := r.fill(mixed(60_000), 1)
	if u := r.usage(); u.Live < u.Capacity/2 {
		t.Fatalf("full at %d of %d bytes", u.Live, u.Capacity)
	}
	live := index(r.thin(all, 3))
	for i := range uint64(3) {
		for {
			x, err := r.try(mixed(60_000), 9_000+i)
			if err == nil {
				live[placeOf(x.Region)] = x
				break
			}
			if !errors.Is(err, tier.ErrFull) || !r.empty(live) {
				t.Fatalf("alloc: %v, and nothing can be emptied: %+v", err, r.usage())
			}
			r.barrier()
		}
	}
	for _, x := range live {
		r.check(x)
	}
}

// testKeepInLog gives up on emptying a slab half way: it can be picked again, and nothing is lost.
func testKeepInLog(t *testing.T, h Harness) {
	r := newRig(t, h)
	live := index(r.thin(r.fill(mixed(30_000), 1), 4))
	r.barrier()
	slab, residents := r.d.Compact(nil)
	if slab == 0 {
		t.Fatal("nothing can be emptied")
	}
	r.checkResidents(slab, residents, live)
	r.d.Keep(slab)
	r.d.Keep(slab) // twice is once
	r.d.Keep(1 << 30)
	rounds := 0
	for r.empty(live) {
		if rounds++; rounds > 1_000 {
			t.Fatal("slabs are emptied without end")
		}
	}
	for _, x := range live {
		r.check(x)
	}
}
