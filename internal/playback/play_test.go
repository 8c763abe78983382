package playback_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
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
	{"vbr", func() evict.Policy { return evict.NewVBR(0, 1) }},
}

// TestReplayPredictsTheLiveStore: what a store saves under a trace that is played over gRPC is within 3 % of what the
// replay says for the same policy and as many pages as the store held. All pages of a namespace are in one shard, so the
// number of shards makes no difference: the prediction is that of one.
func TestReplayPredictsTheLiveStore(t *testing.T) {
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
	got, err := playback.Predict(x.workload, x.costs, &r, o.policy(), held, replay.Options{PageBytes: o.slotBytes()})
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
	if r.Hits+r.Written+r.NotWorth+r.NoRoom != x.workload.Accesses() || r.Lost != 0 {
		t.Errorf("%d accesses: %+v", x.workload.Accesses(), r)
	}
	if orphans := x.store.Status().Totals.Orphaned; orphans != [core.NumOrphanCauses]uint64{} {
		t.Errorf("orphans: %v", orphans)
	}
}

// knowing lets a policy know pages by the tags that a replay gives them, which are numbered as pages are first offered.
// The store's are keyed.
type knowing struct {
	evict.Policy
	tags map[uint64]uint64
}

func (k *knowing) of(a evict.Attrs) evict.Attrs {
	n, ok := k.tags[a.KeyTag]
	if !ok {
		n = uint64(len(k.tags))
		k.tags[a.KeyTag] = n
	}
	a.KeyTag = replay.KeyTag(int32(n))
	return a
}

func (k *knowing) Insert(now float64, r evict.Ref, a evict.Attrs) { k.Policy.Insert(now, r, k.of(a)) }

func (k *knowing) Worth(now float64, r evict.Ref, t evict.Tier, a evict.Attrs) evict.Score {
	return k.Policy.Worth(now, r, t, k.of(a))
}

func (k *knowing) Pass(now float64, run []evict.Attrs) {
	for i := range run {
		run[i] = k.of(run[i])
	}
	k.Policy.Pass(now, run)
}

// TestReplayDecidesAsTheStoreDoes: a policy that knows pages by the same tags serves, takes and refuses exactly the same
// in a replay and in a store, whether bytes are fetched or not: each use is one, and nothing else tells them apart.
func TestReplayDecidesAsTheStoreDoes(t *testing.T) {
	w := excerpt(t)
	for _, p := range named {
		for _, fetch := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, fetch %v", p.name, fetch), func(t *testing.T) {
				o := setting{tierBytes: 8 * mib, pageBytes: 4 * kib}
				o.policy = func() evict.Policy { return &knowing{p.make(), map[uint64]uint64{}} }
				x := newWorld(t, w, o)
				r, held := x.play(t, playback.Options{Fetch: fetch})
				want, err := playback.Predict(w, x.costs, &r, p.make(), held, replay.Options{PageBytes: o.slotBytes()})
				if err != nil {
					t.Fatal(err)
				}
				evicted := int(x.store.Status().Totals.Evicted)
				if r.Hits != want.Hits || r.Saved != want.Saved || r.Written != want.Written || evicted != want.Evicted || r.NotWorth+r.NoRoom != want.Refused {
					t.Errorf("live %d hits, %v saved, %d written, %d evicted, %d refused; replay: %+v",
						r.Hits, r.Saved, r.Written, evicted, r.NotWorth+r.NoRoom, want)
				}
				if p.name == "vbr" && r.Unleased == 0 {
					t.Error("no prefix was longer than a lease may hold: that is not tried")
				}
			})
		}
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
