package store_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

// TestMetamorphic runs one list of operations on stores that differ only in room, tiers, shards and restarts. Whatever a page is read as
// is what was written of it, and a store with less room serves nothing that one with room for everything does not:
// only evictions may differ.
func TestMetamorphic(t *testing.T) {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	roomy := metamorph(t, s, storetest.Options{CapacityBytes: 256 << 20, Shards: 4}, false)
	if again := metamorph(t, s, storetest.Options{CapacityBytes: 256 << 20, Shards: 1}, false); len(again) != len(roomy) {
		t.Fatalf("%d fetches with one shard, %d with four", len(again), len(roomy))
	} else {
		for i := range again {
			if again[i] != roomy[i] {
				t.Errorf("fetch %d: %b with one shard, %b with four", i, again[i], roomy[i])
			}
		}
	}
	for _, v := range []struct {
		name     string
		o        storetest.Options
		restarts bool
		all      bool // nothing may be lost
	}{
		{"little room", storetest.Options{CapacityBytes: 8 << 20, Shards: 2}, false, false},
		{"room for all on disk", storetest.Options{CapacityBytes: 64 << 20, Shards: 2, Disk: &storetest.Disk{}}, false, true},
		{"little room above much disk", storetest.Options{CapacityBytes: 8 << 20, Shards: 3, Disk: &storetest.Disk{}}, false, false},
		{"little room everywhere", storetest.Options{CapacityBytes: 8 << 20, Shards: 1, Disk: &storetest.Disk{CapacityBytes: 20 << 20}}, false, false},
		{"restarts", storetest.Options{CapacityBytes: 32 << 20, Shards: 2, Disk: &storetest.Disk{}}, true, false},
		{"restarts with little room", storetest.Options{CapacityBytes: 8 << 20, Shards: 4, Disk: &storetest.Disk{CapacityBytes: 20 << 20}}, true, false},
	} {
		t.Run(v.name, func(t *testing.T) {
			got := metamorph(t, s, v.o, v.restarts)
			served, lost := 0, 0
			for i := range got {
				if got[i]&^roomy[i] != 0 {
					t.Errorf("fetch %d: %b, with room for everything %b", i, got[i], roomy[i])
				}
				if got[i] != 0 {
					served++
				}
				if got[i] != roomy[i] {
					lost++
				}
			}
			t.Logf("%d of %d fetches served something, %d lost something", served, len(got), lost)
			if served == 0 || v.all && lost != 0 {
				t.Errorf("%d fetches served, %d lost something", served, lost)
			}
		})
	}
}

// metamorph answers, for each fetch of the list, one bit for each page that was served.
func metamorph(t *testing.T, s uint64, o storetest.Options, restarts bool) (served []uint32) {
	m := clock.NewManual(time.Unix(1_800_000_000, 0))
	o.Clock = m
	f := storetest.New(t, o)
	r, when := rand.New(rand.NewPCG(s, 7)), rand.New(rand.NewPCG(s, 8))
	operations := 600
	if testing.Short() {
		operations = 200
	}
	for range operations {
		if restarts && when.IntN(60) == 0 {
			f.Restart(t)
		}
		chain := storetest.Chain(fmt.Sprint("meta", r.IntN(40)), 12)
		hashes, v := chain[:32*(1+r.IntN(12))], whole
		if r.IntN(3) == 0 {
			h := uint16(r.IntN(4))
			v = page.View{H0: h, H1: h + 1 + uint16(r.IntN(int(4-h))), L1: 4}
		}
		switch p := r.IntN(20); {
		case p < 10:
			if _, err := f.Publish(t.Context(), f.Caller, hashes, v, 0); err != nil {
				t.Fatal(err)
			}
		case p < 18:
			served = append(served, fetchBits(t, f, hashes, v))
		case p < 19:
			at := 32 * r.IntN(len(hashes)/32)
			if _, why, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(hashes[at : at+32])}); err != nil || why != reason.None {
				t.Fatal(why, err)
			}
		default:
			m.Advance(time.Duration(r.IntN(5000)) * time.Millisecond)
		}
	}
	return served
}

func fetchBits(t *testing.T, f *storetest.Fixture, hashes []byte, v page.View) (bits uint32) {
	t.Helper()
	rs, payloads, err := f.Fetch(t.Context(), f.Caller, hashes, v, core.LeaseID{})
	if err != nil {
		t.Fatal(err)
	}
	if v.Empty() {
		v = f.Geometry.Full()
	}
	for i, r := range rs {
		if r.Outcome != core.OK {
			continue
		}
		bits |= 1 << i
		if string(payloads[i]) != string(f.Payload(hashes[32*i:], v, 0)) {
			t.Errorf("page %d: wrong bytes", i)
		}
	}
	return bits
}
