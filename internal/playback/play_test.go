package playback_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/internal/playback"
	"github.com/quire-kv/quire/store/core"
)

const kib, mib = 1 << 10, 1 << 20

// named are the policies that the store runs by.
var named = []struct {
	name string
	make func() evict.Policy
}{
	{"lru", func() evict.Policy { return evict.NewLRU(0) }},
	{"vbr", func() evict.Policy { return evict.NewVBR(0, seed) }},
}

// TestReplayPredictsTheLiveStore: what a store saves under a trace that is played over gRPC is within 3 % of what the
// replay says for the same policy and as many pages as the store held. All pages of a namespace are in one shard, so the
// number of shards makes no difference: the prediction is that of one.
func TestReplayPredictsTheLiveStore(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one request after the other")
	}
	w := excerpt(t)
	for _, p := range named {
		for _, o := range []setting{
			{tierBytes: 8 * mib, pageBytes: 16 * kib, shards: 1}, // 2 % of the pages
			{tierBytes: 8 * mib, pageBytes: 16 * kib},
			{tierBytes: 14 * mib, pageBytes: 4 * kib}, // 10 %
			{tierBytes: 28 * mib, pageBytes: 4 * kib}, // 21 %
		} {
			o.policy = p.make
			t.Run(fmt.Sprintf("%s, %d MiB of pages of %d KiB, %d shards", p.name, o.tierBytes/mib, o.pageBytes/kib, o.shards), func(t *testing.T) {
				near(t, newWorld(t, w, o), &o, 0.03)
			})
		}
	}
}

// near plays, predicts and compares.
func near(t *testing.T, x *world, o *setting, tolerance float64) {
	t.Helper()
	r, held := x.play(t, playback.Options{})
	got, err := playback.Predict(x.workload, x.costs, &r, x.node(o, held), replay.Options{PageBytes: o.slotBytes()})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d pages: live %d hits, %.4g FLOPs saved; predicted %d, %.4g: %.2f %%",
		held, x.workload.Pages(), r.Hits, r.Saved, got.Hits, got.Saved, 100*r.Saved/got.Saved)
	if most := uint64(o.tierBytes) / o.slotBytes(); uint64(held) > most || uint64(held) < most*9/10 || got.Evicted == 0 {
		t.Errorf("the store held %d pages, there is room for %d", held, most)
	}
	if math.Abs(r.Saved/got.Saved-1) > tolerance {
		t.Errorf("live saves %.2f %% of what is predicted", 100*r.Saved/got.Saved)
	}
	if r.Hits+r.Written+r.Present+r.NotWorth+r.NoRoom != x.workload.Accesses() || r.Lost != 0 {
		t.Errorf("%d accesses: %+v", x.workload.Accesses(), r)
	}
	if orphans := x.store.Status().Totals.Orphaned; orphans != [core.NumOrphanCauses]uint64{} {
		t.Errorf("orphans: %v", orphans)
	}
}

// TestReplayDecidesAsTheStoreDoes: with the seed of a store, a replay serves, takes, evicts and refuses exactly the same,
// whether bytes are fetched or not, whether room or records end first, with a small sample too, and in several shards.
func TestReplayDecidesAsTheStoreDoes(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one request after the other")
	}
	whole := excerpt(t)
	three := spread(whole, 3)
	small := func() evict.Policy {
		v := evict.NewVBR(0, seed)
		v.WatchWithin(evict.VBRLeastSampleBytes)
		return v
	}
	for name, c := range map[string]struct {
		w *replay.Workload
		o setting
		p playback.Options
	}{
		"lru":                   {whole, setting{tierBytes: 8 * mib, policy: named[0].make}, playback.Options{}},
		"vbr":                   {whole, setting{tierBytes: 12 * mib, policy: named[1].make}, playback.Options{}},
		"lru, fetched":          {whole, setting{tierBytes: 8 * mib, policy: named[0].make}, playback.Options{Fetch: true}},
		"vbr, fetched":          {whole, setting{tierBytes: 8 * mib, policy: named[1].make}, playback.Options{Fetch: true}},
		"vbr, a small sample":   {whole, setting{tierBytes: 8 * mib, policy: small}, playback.Options{}},
		"lru, few records":      {whole, setting{tierBytes: 64 * mib, records: 1500, policy: named[0].make}, playback.Options{}},
		"vbr, few records":      {whole, setting{tierBytes: 64 * mib, records: 1500, policy: small}, playback.Options{}},
		"lru, three namespaces": {three, setting{tierBytes: 8 * mib, policy: named[0].make}, playback.Options{}},
		"vbr, three namespaces": {three, setting{tierBytes: 8 * mib, policy: named[1].make}, playback.Options{}},
		"vbr, untold":           {whole, setting{tierBytes: 8 * mib, policy: named[1].make}, playback.Options{Untold: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.pageBytes = 4 * kib
			x := newWorld(t, c.w, c.o)
			r, held := x.play(t, c.p)
			want, err := playback.Predict(c.w, x.costs, &r, x.node(&c.o, held), replay.Options{PageBytes: c.o.slotBytes(), Tag: tag})
			if err != nil {
				t.Fatal(err)
			}
			evicted := int(x.store.Status().Totals.Evicted)
			if r.Hits != want.Hits || r.Written != want.Written || evicted != want.Evicted || r.NotWorth+r.NoRoom != want.Refused ||
				math.Abs(r.Saved/want.Saved-1) > 1e-9 || evicted == 0 {
				t.Errorf("live %d hits, %v saved, %d written, %d evicted, %d refused; replay: %+v",
					r.Hits, r.Saved, r.Written, evicted, r.NotWorth+r.NoRoom, want)
			}
			if c.o.records > 0 && held > c.o.records {
				t.Errorf("%d pages in %d records", held, c.o.records)
			}
			tells := 0
			for _, step := range r.Steps {
				if step.Phase == replay.Tell {
					tells++
				}
			}
			if (tells == 0) != c.p.Untold {
				t.Errorf("%d answers were told of", tells)
			}
			if name == "vbr" && r.Unleased == 0 {
				t.Error("no prefix was longer than a lease may hold: that is not tried")
			}
		})
	}
}

// TestReplayTakesRequestsThatOverlap: several at a time, of several namespaces, are accounted for to the page. How near the
// replay comes depends on how they meet: on a clock that stands still it knows no more than the order of their answers.
func TestReplayTakesRequestsThatOverlap(t *testing.T) {
	w := spread(excerpt(t), 3)
	if testing.Short() {
		w.Requests = w.Requests[:200]
	}
	for _, p := range named {
		t.Run(p.name, func(t *testing.T) {
			o := setting{tierBytes: 14 * mib, pageBytes: 4 * kib, policy: p.make}
			x := newWorld(t, w, o)
			var now, met atomic.Int64
			r, held := x.play(t, playback.Options{InFlight: 6, Compute: func(context.Context, float64) error {
				if now.Add(1) > 1 {
					met.Add(1)
				}
				runtime.Gosched()
				now.Add(-1)
				return nil
			}})
			if met.Load() == 0 {
				t.Error("no two requests overlapped")
			}
			got, err := playback.Predict(w, x.costs, &r, x.node(&o, held), replay.Options{PageBytes: o.slotBytes(), Tag: tag})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("live %d hits, %.4g FLOPs saved; predicted %d, %.4g: %.2f %%", r.Hits, r.Saved, got.Hits, got.Saved, 100*r.Saved/got.Saved)
			if got.Hits == 0 || got.Orphans != 0 || len(r.Steps) < 2*len(w.Requests) || r.Hits+r.Written+r.Present+r.NotWorth+r.NoRoom != w.Accesses() {
				t.Errorf("%d accesses: live %d hits, %d written, %d steps; predicted %+v", w.Accesses(), r.Hits, r.Written, len(r.Steps), got)
			}
		})
	}
}

// TestReplayPredictsAWholeTrace: likewise of all 12,031 requests of the conversation trace, where it lies beside the project.
func TestReplayPredictsAWholeTrace(t *testing.T) {
	path := filepath.Join("..", "..", "..", "shared", "traces", "mooncake_conversation_trace.jsonl")
	if testing.Short() {
		t.Skip("a long play")
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs the trace beside the project (evict/replay/testdata/README.md says where it is from): %v", err)
	}
	w, err := replay.LoadFile(path, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range named {
		t.Run(p.name, func(t *testing.T) {
			o := setting{tierBytes: 80 * mib, pageBytes: 4 * kib, policy: p.make} // 6 % of the pages
			near(t, newWorld(t, w, o), &o, 0.03)
		})
	}
}

// TestSpecCostsAsItsModel: the small pages of a play cost what the model's do, window layers and recurrent ones too.
func TestSpecCostsAsItsModel(t *testing.T) {
	for _, name := range []string{"llama-3-70b", "deepseek-v3-mla", "gemma-3-12b", "qwen3-next-80b"} {
		m := model(t, name)
		want, ok := cost.ShapeOf(m)
		s, err := playback.Spec(m, "trace", "run", 512, 4*kib)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, _ := cost.ShapeOf(s); !ok || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: shape %+v, want %+v", name, got, want)
		}
		if _, err := playback.Spec(m, "trace", "run", 512, 4*kib+1); err == nil {
			t.Errorf("%s: a page of 4097 bytes", name)
		}
	}
}
