package tiertest

import (
	"errors"
	"math"
	"testing"

	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/store/tier"
)

func testAllocFreeLookup(t *testing.T, h Harness) {
	r := newRig(t, h)
	a, b := r.must(mixed(10_000), 1), r.must(mixed(10_000), 2)
	if placeOf(a.Region) == placeOf(b.Region) {
		t.Fatalf("two regions at %+v", placeOf(a.Region))
	}
	for _, p := range []place{{0, 0}, {a.Handle, a.Offset + 1}, {a.Handle, -tier.Align}, {a.Handle, math.MaxInt64}, {math.MaxUint32, 0}} {
		if reg, ok := r.d.Lookup(p.handle, p.offset); ok && p != placeOf(b.Region) {
			t.Errorf("lookup of %+v finds %+v", p, reg)
		}
	}
	r.check(a)
	r.free(a)
	r.check(b)
	r.free(b)
}

func testAlignment(t *testing.T, h Harness) {
	r := newRig(t, h)
	for i, n := range []int64{1, 7, 8, 4095, 4096, 4097, 12_288, 100_000, 1 << 20, 1<<20 + 1} {
		r.must(mixed(n), uint64(i)) // the rig checks
	}
}

func testStableUntilFree(t *testing.T, h Harness) {
	r := newRig(t, h)
	var keep, churn []held
	for i := range uint64(40) {
		keep = append(keep, r.must(mixed(int64(1+i%8*9_001)), i))
	}
	for i := range uint64(400) {
		churn = append(churn, r.must(mixed(int64(1+i%8*9_001)), 1_000+i))
		if len(churn) > 8 {
			r.free(churn[0])
			churn = churn[1:]
		}
	}
	for _, k := range keep {
		reg, _ := r.d.Lookup(k.Handle, k.Offset)
		if k.Memory != nil && &reg.Memory[0] != &k.Memory[0] {
			t.Fatalf("region %d+%d moved", k.Handle, k.Offset)
		}
		r.check(k)
	}
}

func testRefusals(t *testing.T, h Harness) {
	r := newRig(t, h)
	before := r.usage()
	for _, n := range []int64{h.CapacityBytes, h.CapacityBytes + 1, math.MaxInt64} {
		if _, err := r.d.Alloc(mixed(n), tier.Owner{}); !errors.Is(err, tier.ErrTooLarge) {
			t.Errorf("alloc of %d bytes in a tier of %d: %v, want ErrTooLarge", n, h.CapacityBytes, err)
		}
	}
	for _, n := range []int64{0, -1, math.MinInt64} {
		if _, err := r.d.Alloc(mixed(n), tier.Owner{}); err == nil {
			t.Errorf("alloc of %d bytes succeeds", n)
		}
	}
	if after := r.usage(); after.Live != before.Live {
		t.Errorf("refused allocations left %d bytes live", after.Live)
	}
}

// testMisuse frees what is not a region. Under invariants that panics; it never changes anything.
func testMisuse(t *testing.T, h Harness) {
	r := newRig(t, h)
	a, b := r.must(mixed(9_000), 1), r.must(mixed(9_000), 2)
	r.free(a)
	for _, bad := range []tier.Region{
		{}, a.Region, {Handle: b.Handle, Offset: b.Offset + 1, Bytes: 1}, {Handle: b.Handle, Offset: -1}, {Handle: math.MaxUint32},
	} {
		if !misuse(r.d, bad) {
			t.Errorf("free of %+v: panics or not against invariant.Enabled = %v", bad, invariant.Enabled)
		}
	}
	if u := r.usage(); u.Live != b.Bytes {
		t.Errorf("live is %d after frees of what is not a region, want %d", u.Live, b.Bytes)
	}
	c, d := r.must(mixed(9_000), 3), r.must(mixed(9_000), 4)
	if placeOf(c.Region) == placeOf(d.Region) {
		t.Errorf("a region freed twice was given out twice")
	}
	for _, x := range []held{b, c, d} {
		r.check(x)
	}
}

// misuse reports whether freeing r panicked as it must under invariants, and did not otherwise.
func misuse(d tier.Driver, r tier.Region) (asAgreed bool) {
	defer func() { asAgreed = (recover() != nil) == invariant.Enabled }()
	d.Free(r)
	return
}

func testUsageExact(t *testing.T, h Harness) {
	r := newRig(t, h)
	var want int64
	var all []held
	for i := range uint64(60) {
		x := r.must([]tier.Class{mixed(int64(1 + i%6*7_009)), private(byte(i%3+1), 1, 5_000)}[i%2], i)
		want += x.Bytes
		all = append(all, x)
		if u := r.usage(); u.Live != want || u.Capacity != h.CapacityBytes || !u.Writable {
			t.Fatalf("usage %+v, want live %d", u, want)
		}
	}
	for _, x := range all {
		r.free(x)
		want -= x.Bytes
		if u := r.usage(); u.Live != want {
			t.Fatalf("usage %+v, want live %d", u, want)
		}
	}
}

func testClosed(t *testing.T, h Harness) {
	r := newRig(t, h)
	a := r.must(mixed(5_000), 1)
	for range 2 {
		if err := r.d.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if _, err := r.d.Alloc(mixed(5_000), tier.Owner{}); !errors.Is(err, tier.ErrClosed) {
		t.Errorf("alloc after close: %v", err)
	}
	if _, ok := r.d.Lookup(a.Handle, a.Offset); ok {
		t.Errorf("a region is found after close")
	}
	r.d.Free(a.Region)
	if slab, residents := r.d.Compact(nil); slab != 0 || len(residents) > 0 {
		t.Errorf("compact after close names slab %d", slab)
	}
	r.d.Keep(a.Handle)
	if u := r.usage(); u.Live != 0 || u.Slack != 0 || u.Writable {
		t.Errorf("usage after close: %+v", u)
	}
}
