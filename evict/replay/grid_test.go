package replay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/quire-kv/quire/evict"
)

// realTrace loads a real trace that lies beside the project, where it does.
func realTrace(t *testing.T, name string) *Workload {
	t.Helper()
	path := filepath.Join("..", "..", "..", "shared", "traces", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs %s beside the project (testdata/README.md says where it is from): %v", name, err)
	}
	w, err := LoadFile(path, LoadOptions{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func percent(w *Workload, p float64) int { return int(float64(w.Pages()) * p / 100) }

// TestTheTableOfTheConversationTrace: what docs/eviction.md says of the trace, of LRU and of the store's policy.
func TestTheTableOfTheConversationTrace(t *testing.T) {
	w := realTrace(t, "mooncake_conversation_trace.jsonl")
	costs := w.Costs(llama70B)
	for _, row := range []struct{ percent, lru, vbr float64 }{{0.6, 19.1, 38}, {1.8, 20, 42.5}, {5.9, 57.6, 62}, {17.6, 89.3, 91.5}} {
		capacity := percent(w, row.percent)
		upper := UpperBound(w, costs, capacity, 0).Upper
		lru, err := Replay(w, costs, evict.NewLRU(Slots(capacity, w)), capacity, Options{})
		if err != nil {
			t.Fatal(err)
		}
		vbr, err := Replay(w, costs, evict.NewVBR(Slots(capacity, w), 1), capacity, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := 100 * lru.Saved / upper; got < row.lru-0.1 || got > row.lru+0.1 {
			t.Errorf("%v %%: LRU saves %.2f %% of the bound, not %v", row.percent, got, row.lru)
		}
		if got := 100 * vbr.Saved / upper; got < row.vbr {
			t.Errorf("%v %%: VBR saves %.2f %% of the bound, under %v", row.percent, got, row.vbr)
		}
	}
}

// TestNeverFarBelowTheBestClassic: at each cell of a fixed grid, VBR saves at least 98 % of what the best of the classic
// policies there saves, and 99 % of what LRU does. docs/eviction.md has the grid for other models and traces too.
func TestNeverFarBelowTheBestClassic(t *testing.T) {
	for _, name := range []string{"mooncake_conversation_trace.jsonl", "mooncake_synthetic_trace.jsonl"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := realTrace(t, name)
			costs := w.Costs(llama70B)
			for _, p := range []float64{0.5, 1, 2, 5, 10, 20, 50} {
				saved := map[string]float64{}
				best := ""
				for _, policy := range Policies() {
					saved[policy.Name] = run(t, w, costs, policy, percent(w, p), 1).Saved
					if policy.Name != "vbr" && saved[policy.Name] > saved[best] {
						best = policy.Name
					}
				}
				t.Logf("%4v %%: %.1f %% of %s, %.1f %% of lru", p, 100*saved["vbr"]/saved[best], best, 100*saved["vbr"]/saved["lru"])
				if saved["vbr"] < 0.98*saved[best] || saved["vbr"] < 0.99*saved["lru"] {
					t.Errorf("%v %%: %.4g, %s saves %.4g, lru %.4g", p, saved["vbr"], best, saved[best], saved["lru"])
				}
			}
		})
	}
}
