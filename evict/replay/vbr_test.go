package replay

import (
	"math"
	"testing"

	"github.com/quire-kv/quire/evict"
)

func simulate(t *testing.T, w *Workload, costs []float64, capacity int) (Result, evict.Simulated) {
	t.Helper()
	v := evict.NewVBR(Slots(capacity, w), 1)
	r, err := Replay(w, costs, v, capacity, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r, v.Simulated()
}

// TestTheSampleSeesWhatHappens: with all pages in it, the sums of the sample are those of the replay, and the shadow of
// plain LRU saves what LRU saves.
func TestTheSampleSeesWhatHappens(t *testing.T) {
	w, costs := conversation(t)
	for _, capacity := range []int{300, 850, 3400} {
		r, s := simulate(t, w, costs, capacity)
		near := func(what string, got, want, tolerance float64) {
			if math.Abs(got-want) > tolerance*want {
				t.Errorf("capacity %d: %s %.4g, want %.4g", capacity, what, got, want)
			}
		}
		if s.Sampled != 1 {
			t.Fatalf("capacity %d: %v of the pages are sampled", capacity, s.Sampled)
		}
		near("saved", s.Saved, r.Saved, 1e-5)
		near("saved without an end", s.Content, w.Reuse(costs).Saved, 1e-5)
		near("of all uses", s.FLOPs, w.Reuse(costs).FLOPs, 1e-5)
		lru, err := Replay(w, costs, evict.NewLRU(Slots(capacity, w)), capacity, Options{})
		if err != nil {
			t.Fatal(err)
		}
		near("saved by LRU", s.Modes[0].Saved, lru.Saved, 0.1) // of 16 leaves that it draws, the shadow takes the oldest
	}
}

// TestAPartOfThePagesTellsOfAll: with one page in 8 sampled, the sums are right within a tenth, where no few pages have
// most of the uses.
func TestAPartOfThePagesTellsOfAll(t *testing.T) {
	r := random(t)
	var paths [][]uint64
	for range 20000 {
		path := make([]uint64, 1+r.IntN(6))
		for i := range path {
			path[i] = uint64(i)
		}
		path[0] = r.Uint64N(2000)
		paths = append(paths, path)
	}
	w := workloadOf(t, paths...)
	costs := w.Costs(evict.Shape{Params: 8e9})
	v := evict.NewVBR(Slots(3400, w), 1)
	got, err := Replay(w, costs, fixedSize{v}, 3400, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := v.Simulated()
	if s.Sampled != 1./8 {
		t.Fatalf("%v of the pages are sampled", s.Sampled)
	}
	for what, of := range map[string][2]float64{"saved": {s.Saved, got.Saved}, "all": {s.FLOPs, w.Reuse(costs).FLOPs}} {
		if math.Abs(of[0]/of[1]-1) > 0.1 {
			t.Errorf("%s: %.4g in the sample, %.4g", what, of[0], of[1])
		}
	}
}

// fixedSize tells the policy of a cache of a size of its own.
type fixedSize struct{ *evict.VBR }

func (f fixedSize) Resize(t evict.Tier, bytes, pages uint64) {
	f.VBR.Resize(t, 1<<17<<20, 1<<17)
}

// TestAShiftOfWorkloadIsFollowed: a hot set that fills the cache is replaced by another. Within 10 rounds over the new
// one (1,000 requests) nine in ten of its accesses hit, though the old one was used for a hundred rounds.
func TestAShiftOfWorkloadIsFollowed(t *testing.T) {
	const hot, before, after = 100, 100, 30
	var paths [][]uint64
	for round := range before + after {
		first := uint64(0)
		if round >= before {
			first = 1000
		}
		for k := range uint64(hot) {
			paths = append(paths, []uint64{first + k})
		}
	}
	w := workloadOf(t, paths...)
	costs := make([]float64, w.Pages())
	for p := range costs {
		costs[p] = 1
	}
	served := map[int]int{}
	v := evict.NewVBR(Slots(hot, w), 1)
	if _, err := Replay(w, costs, v, hot, Options{Served: func(request, pages int) { served[request/hot] += pages }}); err != nil {
		t.Fatal(err)
	}
	for _, round := range []int{before - 1, before + 10, before + after - 1} {
		if served[round] < hot*9/10 {
			t.Errorf("round %d: %d of %d are served", round, served[round], hot)
		}
	}
}

// TestNeverFarBelowLRU at any capacity. The trace is 267 seconds. A cache that holds half of its pages begins to evict after
// 114 of them, when nothing can have been learned of pages that wait longer, which half of those used again do: there it
// costs some, and nowhere else.
func TestNeverFarBelowLRU(t *testing.T) {
	w, costs := conversation(t)
	for capacity, least := range map[int]float64{85: 0.99, 170: 0.99, 425: 0.99, 850: 0.99, 1700: 0.99, 3400: 0.99, 8000: 0.92} {
		r, _ := simulate(t, w, costs, capacity)
		lru, err := Replay(w, costs, evict.NewLRU(Slots(capacity, w)), capacity, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Saved < least*lru.Saved {
			t.Errorf("capacity %d: saves %.4g, LRU %.4g", capacity, r.Saved, lru.Saved)
		}
	}
}
