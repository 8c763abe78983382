package store_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

func TestCase_C19_FlippedBitInHostMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for trial := range 40 {
		f := storetest.New(t, storetest.Options{})
		chain := storetest.Chain("flip", 6)
		mustPublish(t, f, chain, whole)
		region := f.RegionOf(t, chain[32*3:32*4], 0)
		header, err := page.HeaderBytes(region[page.HeadBytes:])
		if err != nil {
			t.Fatal(err)
		}
		at := page.HeadBytes + r.IntN(header)
		if trial%2 == 1 {
			at = page.PayloadOffset(header) + r.IntN(len(region)-page.PayloadOffset(header))
		}
		region[at] ^= 1 << r.IntN(8)
		wantPages(t, f, chain, whole, map[int]reason.Reason{3: reason.Corrupt})
		if got := f.Store.Status().CorruptFound; got != 1 {
			t.Fatalf("%d corrupt extents counted, want 1", got)
		}
		wantPages(t, f, chain, whole, map[int]reason.Reason{3: reason.Absent})
	}
}

func TestCase_C55_CorruptIsGoneAndCanBePublishedAgain(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	chain := storetest.Chain("poison", 6)
	mustPublish(t, f, chain, whole)
	for round := range 3 {
		region := f.RegionOf(t, chain[32*3:32*4], 0)
		region[len(region)-1-round] ^= 0x10
		wantPages(t, f, chain, whole, map[int]reason.Reason{3: reason.Corrupt})
		if bits, lead := exists(t, f, chain, whole); bits[3] || lead != 3 {
			t.Fatalf("a corrupt page still exists (leading %d)", lead)
		}
		rs, err := f.Publish(t.Context(), f.Caller, chain, whole, 0)
		if err != nil || rs[3].Outcome != core.Committed {
			t.Fatalf("a fresh publish of a corrupt page: %+v %v", rs, err)
		}
		wantPages(t, f, chain, whole, nil)
	}
}

func TestCase_C7_GroupsNeverAnswerForEachOther(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	recurrent := page.GroupID{2}
	n := f.Namespace
	geo := f.Geometry
	geo.Parents = core.ParentNone
	n.State.Groups = map[page.GroupID]core.Geometry{f.Group: f.Geometry, recurrent: geo}
	f.Store.SetNamespace(n)
	g := f.WithGroup(recurrent, geo) // equal sizes, equal hashes: only the group differs
	chain := storetest.Chain("hybrid", 4)
	mustPublish(t, f, chain, whole)
	if _, lead := exists(t, g, chain, whole); lead != 0 {
		t.Error("a page of the attention group exists for the recurrent group")
	}
	absent := map[int]reason.Reason{0: reason.Absent, 1: reason.Absent, 2: reason.Absent, 3: reason.Absent}
	wantPages(t, g, chain, whole, absent)
	rs, err := g.Publish(t.Context(), f.Caller, chain[:32], whole, 9)
	if err != nil || rs[0].Outcome != core.Committed {
		t.Fatal(rs, err)
	}
	wantPages(t, f, chain, whole, nil)
}

func TestCase_C40_EveryShapeReadsEveryShape(t *testing.T) {
	geo := core.Geometry{Heads: 8, Layers: 4, CellBytes: 2 << 10, Tokens: 16, Grade: page.Elements}
	shapes := []struct{ tp, pp int }{{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 2}, {2, 2}, {4, 2}, {8, 2}}
	for _, w := range shapes {
		f := storetest.New(t, storetest.Options{Geometry: geo})
		chain := storetest.Chain("shape", 3)
		for _, v := range views(geo, w.tp, w.pp) {
			mustPublish(t, f, chain, v)
		}
		for _, r := range shapes {
			for _, v := range views(geo, r.tp, r.pp) {
				wantPages(t, f, chain, v, nil)
				if _, lead := exists(t, f, chain, v); lead != 3 {
					t.Errorf("tp %d pp %d wrote, %v does not exist", w.tp, w.pp, v)
				}
			}
			for _, v := range views(geo, r.tp, r.pp) { // every other shape finds nothing left to write
				rs, err := f.Publish(t.Context(), f.Caller, chain, v, 0)
				if err != nil || rs[0].Outcome != core.Present {
					t.Errorf("tp %d pp %d wrote, %v is granted again", w.tp, w.pp, v)
				}
			}
		}
		if u := f.Store.Usage(f.Namespace.State.ID, 1); int(u.Extents) != 3*w.tp*w.pp {
			t.Errorf("tp %d pp %d: %d extents", w.tp, w.pp, u.Extents)
		}
	}
}

func views(g core.Geometry, tp, pp int) []page.View {
	var out []page.View
	h, l := g.Heads/uint16(tp), g.Layers/uint16(pp)
	for i := range uint16(tp) {
		for j := range uint16(pp) {
			out = append(out, page.View{H0: i * h, H1: i*h + h, L0: j * l, L1: j*l + l})
		}
	}
	return out
}

func TestCase_C41_FiveOfEightRanks(t *testing.T) {
	geo := core.Geometry{Heads: 8, Layers: 4, CellBytes: 2 << 10, Tokens: 16, Grade: page.Elements}
	f := storetest.New(t, storetest.Options{Geometry: geo})
	chain := storetest.Chain("ranks", 2)
	for _, v := range views(geo, 8, 1)[:5] {
		mustPublish(t, f, chain, v)
	}
	for _, tp := range []int{1, 2, 4, 8} { // page scope: one answer for every rank
		if _, lead := exists(t, f, chain, whole); lead != 0 {
			t.Errorf("tp %d: an incomplete page exists", tp)
		}
	}
	wantPages(t, f, chain, whole, map[int]reason.Reason{0: reason.Incomplete, 1: reason.Incomplete})
	for _, v := range views(geo, 4, 1) {
		mustPublish(t, f, chain, v)
	}
	for _, tp := range []int{1, 2, 4, 8} {
		for _, v := range views(geo, tp, 1) {
			wantPages(t, f, chain, v, nil)
		}
	}
	bytes := 2 * uint64(page.PayloadBytes(geo.Full(), geo.CellBytes))
	if u := f.Store.Usage(f.Namespace.State.ID, 1); u.Bytes > bytes+8*2*2*8192 {
		t.Errorf("%d bytes stored for %d of payload: the overlap is stored twice", u.Bytes, bytes)
	}
}

func TestCase_C17_LeaseEndsUnderASlowReader(t *testing.T) {
	m := clock.NewManual(time.Unix(1_800_000_000, 0))
	f := storetest.New(t, storetest.Options{Clock: m, CapacityBytes: 16 << 20})
	chain := storetest.Chain("slow", 4)
	mustPublish(t, f, chain, whole)
	l, why, err := f.Store.Lookup(t.Context(), f.Caller, []core.Run{f.Run(chain)}, whole, 50*time.Millisecond, evict.Hint{})
	if err != nil || why != reason.None || l.Covered[0] != 4 {
		t.Fatal(l, why, err)
	}
	rd, why, err := f.Store.Read(t.Context(), f.Caller, store.ReadRequest{Run: f.Run(chain), Lease: l.Lease})
	if err != nil || why != reason.None {
		t.Fatal(why, err)
	}
	m.Advance(time.Second)
	for i := range 300 { // everything evictable goes, twice over
		mustPublish(t, f, storetest.Chain(string(rune('a'+i)), 1), whole)
	}
	for i := range 4 { // what the open read pinned is still exactly itself
		var h page.Header
		if err := page.DecodeHeader(&h, rd.Header(i, 0)); err != nil || string(h.Key.Hash.Bytes()) != string(chain[32*i:32*i+32]) {
			t.Fatal("another page's bytes", err)
		}
		if _, why := rd.Chunks(i, 0, 1<<20, nil); why != reason.None {
			t.Fatal(why)
		}
	}
	rd.Close()
	rs, _, err := f.Fetch(t.Context(), f.Caller, chain, whole, l.Lease)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if r.Outcome != core.Miss || r.Reason != reason.LeaseExpired {
			t.Errorf("page %d under an expired lease: %v %v", i, r.Outcome, r.Reason)
		}
	}
}

func TestCase_C18_LeaseIsRenewedWhileItStreams(t *testing.T) {
	m := clock.NewManual(time.Unix(1_800_000_000, 0))
	f := storetest.New(t, storetest.Options{Clock: m})
	chain := storetest.Chain("long", 30)
	mustPublish(t, f, chain, whole)
	l, _, err := f.Store.Lookup(t.Context(), f.Caller, []core.Run{f.Run(chain)}, whole, 100*time.Millisecond, evict.Hint{})
	if err != nil {
		t.Fatal(err)
	}
	rd, why, err := f.Store.Read(t.Context(), f.Caller, store.ReadRequest{Run: f.Run(chain), Lease: l.Lease})
	if err != nil || why != reason.None {
		t.Fatal(why, err)
	}
	for i := range 30 { // 30 x 60 ms is far longer than the lease
		m.Advance(60 * time.Millisecond)
		if _, why := rd.Chunks(i, 0, 1<<20, nil); why != reason.None {
			t.Fatal(why)
		}
		if why := rd.Trailer(i); why != reason.None {
			t.Fatal(why)
		}
	}
	rd.Close()
	if n := f.Store.Status().Totals.ReadLeases; n != 1 {
		t.Errorf("%d leases, want the one that was renewed", n)
	}
	m.Advance(time.Second)
	if n := f.Store.Status().Totals.ReadLeases; n != 0 {
		t.Errorf("%d leases after nothing renewed it", n)
	}
}

func TestCase_C76_ResumeStaysOnItsExtents(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	chain := storetest.Chain("resume", 1)
	mustPublish(t, f, chain, whole)
	rd, _, err := f.Store.Read(t.Context(), f.Caller, store.ReadRequest{Run: f.Run(chain)})
	if err != nil {
		t.Fatal(err)
	}
	first := rd.Page(0).Stored
	rd.Close()
	if _, _, err := f.Store.Delete(t.Context(), f.Caller, []core.Run{f.Run(chain)}); err != nil {
		t.Fatal(err)
	}
	if rs, err := f.Publish(t.Context(), f.Caller, chain, whole, 5); err != nil || rs[0].Outcome != core.Committed {
		t.Fatal(rs, err)
	}
	rd, _, err = f.Store.Read(t.Context(), f.Caller, store.ReadRequest{Run: f.Run(chain), Resume: map[int][]page.ExtentID{0: first}})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	if p := rd.Page(0); p.Outcome != core.Miss {
		t.Errorf("a resumed fetch was given another writer's bytes: %+v", p)
	}
}
