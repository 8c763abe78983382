package replay

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quire-kv/quire/evict"
)

// each runs f with every policy that can be replayed.
func each(t *testing.T, f func(t *testing.T, p Named)) {
	for _, p := range Policies() {
		t.Run(p.Name, func(t *testing.T) { f(t, p) })
	}
}

func run(t *testing.T, w *Workload, costs []float64, p Named, capacity int, seed uint64) Result {
	t.Helper()
	r, err := Replay(w, costs, p.New(capacity, w, seed), capacity, Options{})
	if err != nil {
		t.Fatalf("%s, capacity %d: %v", p.Name, capacity, err)
	}
	return r
}

// TestReplayByHand: LRU with room for three pages. Block ids: a is [1 2], b is [1 3], c is [4].
func TestReplayByHand(t *testing.T) {
	w := workloadOf(t,
		[]uint64{1, 2},       // takes 1 and 1-2
		[]uint64{1, 3},       // hits 1, takes 1-3
		[]uint64{4},          // full: evicts 1-2, takes 4
		[]uint64{1, 2},       // hits 1, evicts 1-3, takes 1-2
		[]uint64{1, 3},       // hits 1, evicts 4, takes 1-3
		[]uint64{1, 2, 5, 6}, // hits 1 and 1-2, evicts 1-3 for 5; 6 finds nothing that may go
	)
	costs := []float64{1, 10, 100, 1000, 7, 9} // 1, 1-2, 1-3, 4, 1-2-5, 1-2-5-6
	got, err := Replay(w, costs, evict.NewLRU(Slots(3, w)), 3, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got.Decision = 0
	want := Result{Capacity: 3, Hits: 5, Saved: 14, Written: 7, Evicted: 4, Refused: 1, WrittenTo: [evict.NumTiers]int{evict.Host: 7}, HeldIn: [evict.NumTiers]int{evict.Host: 3}}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestWithRoomForAllEveryPolicyServesWhatCameBefore.
func TestWithRoomForAllEveryPolicyServesWhatCameBefore(t *testing.T) {
	w, costs := conversation(t)
	reuse := w.Reuse(costs)
	each(t, func(t *testing.T, p Named) {
		r := run(t, w, costs, p, w.Pages(), 1)
		if r.Hits != reuse.Hits || r.Saved != reuse.Saved || r.Written != w.Pages() || r.Evicted+r.Refused+r.Orphans != 0 {
			t.Errorf("%+v, want %+v", r, reuse)
		}
	})
}

// TestEveryPolicyKeepsTheRules: never over the capacity, never an orphan, never above the bounds; all pages accounted for.
func TestEveryPolicyKeepsTheRules(t *testing.T) {
	w, costs := conversation(t)
	capacities := []int{0, 1, 7, 85, 850, 3400}
	upper, most := map[int]float64{}, map[int]int{}
	for _, c := range capacities {
		upper[c], most[c] = UpperBound(w, costs, c, 50).Upper, FeasibleBelady(w, costs, c).Hits
	}
	each(t, func(t *testing.T, p Named) {
		for _, capacity := range capacities {
			r := run(t, w, costs, p, capacity, 1)
			held := r.Written - r.Evicted
			if held < 0 || held > capacity || r.Orphans != 0 || r.Hits+r.Written+r.Refused != w.Accesses() {
				t.Errorf("capacity %d: %+v", capacity, r)
			}
			if r.Saved > upper[capacity]*slack || r.Hits > most[capacity] {
				t.Errorf("capacity %d: %+v, no policy can save more than %v or serve more than %d", capacity, r, upper[capacity], most[capacity])
			}
		}
	})
}

// TestNoPolicyBeatsTheBestSchedule on small random instances.
func TestNoPolicyBeatsTheBestSchedule(t *testing.T) {
	r := random(t)
	for range 60 {
		var w *Workload
		for w == nil || w.Pages() > 11 {
			w = smallWorkload(t, r, 8, 3, 2)
		}
		costs := make([]float64, w.Pages())
		for p := range costs {
			costs[p] = float64(1 + r.IntN(50))
		}
		capacity := 1 + r.IntN(5)
		best := bruteStrict(w, costs, capacity)
		for _, p := range Policies() {
			if got := run(t, w, costs, p, capacity, 1); got.Saved > best {
				t.Fatalf("%s, capacity %d: saved %v, the best schedule %v\n%+v", p.Name, capacity, got.Saved, best, w)
			}
		}
	}
}

// TestEqualInputsGiveEqualDecisions: the hash of all decisions is the same for the same seed, another for another where
// the policy draws, and tells policies apart.
func TestEqualInputsGiveEqualDecisions(t *testing.T) {
	w, costs := conversation(t)
	seen := map[uint64]bool{}
	each(t, func(t *testing.T, p Named) {
		a, b, other := run(t, w, costs, p, 3400, 1), run(t, w, costs, p, 3400, 1), run(t, w, costs, p, 3400, 2)
		if a != b {
			t.Errorf("once %+v, then %+v", a, b)
		}
		if draws := slices.Contains([]string{"vbr", "lhd", "costage", "marconi"}, p.Name); draws != (other.Decision != a.Decision) {
			t.Errorf("with another seed %+v, before %+v; draws: %v", other, a, draws)
		}
		if seen[a.Decision] {
			t.Error("decides as another does")
		}
		seen[a.Decision] = true
	})
}

// TestCase_C31_CostAwarePoliciesDiffer: a long cold chain, then many short fresh ones, again and again. LRU throws the deep,
// dear pages out; policies that weigh the cost keep them, and their counters show it.
func TestCase_C31_CostAwarePoliciesDiffer(t *testing.T) {
	var paths [][]uint64
	for round := range uint64(20) {
		deep := make([]uint64, 40)
		for i := range deep {
			deep[i] = uint64(i)
		}
		paths = append(paths, deep)
		for k := range uint64(60) {
			paths = append(paths, []uint64{1000 + 60*round + k})
		}
	}
	w := workloadOf(t, paths...)
	costs := make([]float64, w.Pages())
	for p, d := range w.Depths {
		costs[p] = float64(1 + d)
	}
	results := map[string]Result{}
	for _, p := range Policies() {
		results[p.Name] = run(t, w, costs, p, 60, 1)
	}
	lru := results["lru"]
	for _, name := range []string{"vbr", "gdsf", "costage"} {
		r := results[name]
		if r.Decision == lru.Decision || r.Hits <= lru.Hits || r.Saved < 10*lru.Saved || r.Evicted >= lru.Evicted {
			t.Errorf("%s: %+v, LRU: %+v", name, r, lru)
		}
	}
}

// TestScansPassBy: policies made against scans keep a hot set that LRU loses.
func TestScansPassBy(t *testing.T) {
	var paths [][]uint64
	next := uint64(1000)
	for range 40 {
		for hot := range uint64(20) {
			paths = append(paths, []uint64{hot}, []uint64{hot}, []uint64{hot})
		}
		for range 100 {
			paths = append(paths, []uint64{next})
			next++
		}
	}
	w := workloadOf(t, paths...)
	costs := make([]float64, w.Pages())
	for p := range costs {
		costs[p] = 1
	}
	share := func(name string) float64 {
		for _, p := range Policies() {
			if p.Name == name {
				return float64(run(t, w, costs, p, 60, 1).Hits) / float64(w.Reuse(costs).Hits)
			}
		}
		t.Fatalf("no policy %s", name)
		return 0
	}
	if lru := share("lru"); lru > 0.7 {
		t.Errorf("LRU serves %.2f: the trace does not show it", lru)
	}
	for _, name := range []string{"vbr", "s3fifo", "sieve", "arc", "wtinylfu", "lfu"} {
		if got := share(name); got < 0.9 {
			t.Errorf("%s serves %.2f of what came before", name, got)
		}
	}
}

// picky is LRU that scores the first pages of a request low, and victims in between.
type picky struct {
	*evict.LRU
	passed [][]evict.Attrs
	sizes  []uint64
	worth  map[uint32]evict.Score // by depth
	roots  int                    // pages that were scored as if they had no parent
}

func (p *picky) Worth(now float64, r evict.Ref, t evict.Tier, a evict.Attrs) evict.Score {
	if a.Parent == 0 {
		p.roots++
	}
	return p.worth[a.Depth]
}
func (p *picky) Pass(_ float64, run []evict.Attrs)           { p.passed = append(p.passed, slices.Clone(run)) }
func (p *picky) Resize(_ evict.Tier, _ uint64, pages uint64) { p.sizes = append(p.sizes, pages) }

// TestARunIsJudgedByItsBestPage: a cheap parent is taken for its dear child's sake; a run with nothing dear is passed.
func TestARunIsJudgedByItsBestPage(t *testing.T) {
	w := workloadOf(t, []uint64{1, 2, 3}, []uint64{4, 5}, []uint64{6, 7, 8}, []uint64{6, 9})
	p := &picky{LRU: evict.NewLRU(9), worth: map[uint32]evict.Score{0: -5, 1: -4, 2: 50}}
	r, err := Replay(w, make([]float64, w.Pages()), p, 4, Options{})
	if err != nil {
		t.Fatal(err)
	}
	// 1-3 fill free room; 4 takes the last place; 5 is worth -4 and finds victims from 0 on: passed. 6, 7 and 8 are
	// worth 50: taken. 9 is worth -4 again.
	if r.Written != 7 || r.Refused != 2 || len(p.passed) != 2 {
		t.Fatalf("%+v, passed %v", r, p.passed)
	}
	for i, a := range p.passed {
		if len(a) != 1 || a[0].Parent == 0 || a[0].Depth != 1 {
			t.Errorf("passed %d: %+v, want one page of depth 1 with its parent", i, a)
		}
	}
	if p.roots != 3 {
		t.Errorf("%d pages were scored as roots, want those of the first three requests", p.roots)
	}
	if !slices.Equal(p.sizes, []uint64{3, 4, 4}) {
		t.Errorf("told of sizes %v, want 3 and 4, and that again with the first eviction", p.sizes)
	}
}

// TestARunIsPassedFromItsParentOn: of what is passed, the first names its parent, the others the page before.
func TestARunIsPassedFromItsParentOn(t *testing.T) {
	w := workloadOf(t, []uint64{1, 2}, []uint64{1, 3, 4, 5})
	p := &picky{LRU: evict.NewLRU(9), worth: map[uint32]evict.Score{}}
	for d := range uint32(9) {
		p.worth[d] = -1
	}
	if _, err := Replay(w, make([]float64, w.Pages()), p, 3, Options{}); err != nil {
		t.Fatal(err)
	}
	if len(p.passed) != 1 || len(p.passed[0]) != 2 {
		t.Fatalf("passed %v", p.passed)
	}
	if a := p.passed[0]; a[0].Parent == 0 || a[1].Parent != 0 || a[0].Depth != 2 || a[1].Depth != 3 {
		t.Errorf("passed %+v", a)
	}
}

// wrong is a policy that chooses what may not go.
type wrong struct {
	*evict.LRU
	victim evict.Ref
}

func (x *wrong) Victims(_ float64, _ evict.Tier, _ uint64, _ *evict.Shares, dst []evict.Victim) []evict.Victim {
	return append(dst, evict.Victim{Ref: x.victim})
}

func TestAWrongPolicyIsFoundOut(t *testing.T) {
	w := workloadOf(t, []uint64{1, 2}, []uint64{3})
	for victim, want := range map[evict.Ref]string{1: "request 1: policy chose page 0, which is not evictable from the host tier", 3: "which is empty", 0: "which is empty"} {
		_, err := Replay(w, make([]float64, 3), &wrong{evict.NewLRU(9), victim}, 2, Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("victim %d: %v, want %q", victim, err, want)
		}
	}
}

func TestReplayStops(t *testing.T) {
	w, costs := conversation(t)
	enough, asked := errors.New("enough"), 0
	_, err := Replay(w, costs, evict.NewLRU(Slots(10, w)), 10, Options{Stop: func() error {
		if asked++; asked == 2 {
			return enough
		}
		return nil
	}})
	if !errors.Is(err, enough) || asked != 2 {
		t.Errorf("%v after %d questions", err, asked)
	}
}

// listener is LRU that notes what it is told of answers.
type listener struct {
	evict.Policy
	heard []string
}

func (l *listener) Insert(now float64, r evict.Ref, a evict.Attrs) {
	if a.Hint.Answer > 0 {
		l.heard = append(l.heard, fmt.Sprintf("%.2f: %d after %d tokens", now, r, a.Hint.Answer))
	}
	l.Policy.Insert(now, r, a)
}

// TestAnswersAreToldWhenTheyHaveEnded, of the pages that are there then, in the order of their ends; never at once, and not at all
// where that is asked for.
func TestAnswersAreToldWhenTheyHaveEnded(t *testing.T) {
	w := workloadOf(t, []uint64{1, 2}, []uint64{3}, []uint64{1, 4}, []uint64{5}, []uint64{6})
	for i, tokens := range []int32{100, 10, 20, 0, 9} { // 3 s, 0.3 s, 0.6 s; none; after the last request
		w.Requests[i].Output = tokens
	}
	steps := []Step{{0, LookUp, 7}, {0, Begin, 7}, {0, Commit, 7}, {0, Tell, 8}, {0, End, 9}}
	for name, c := range map[string]struct {
		capacity int
		o        Options
		want     []string
	}{
		"room for all":    {9, Options{}, []string{"1.30: 3 after 10 tokens", "2.60: 1 after 20 tokens", "2.60: 4 after 20 tokens", "3.00: 1 after 100 tokens", "3.00: 2 after 100 tokens"}},
		"room for two":    {2, Options{}, []string{"1.30: 3 after 10 tokens", "2.60: 1 after 20 tokens", "2.60: 2 after 20 tokens", "3.00: 1 after 100 tokens"}},
		"untold":          {9, Options{Untold: true}, nil},
		"where it says":   {9, Options{Steps: steps}, []string{"8.00: 1 after 100 tokens", "8.00: 2 after 100 tokens"}},
		"nothing is said": {9, Options{Steps: steps[:3]}, nil},
	} {
		l := &listener{Policy: evict.NewLRU(Slots(c.capacity, w))}
		got, err := Replay(w, []float64{1, 1, 1, 1, 1, 1}, l, c.capacity, c.o)
		if err != nil || !slices.Equal(l.heard, c.want) {
			t.Errorf("%s: heard %q (%v), want %q; %+v", name, l.heard, err, c.want, got)
		}
	}
}

// TestAnswersMatterToTheStoresOwnPolicyAlone.
func TestAnswersMatterToTheStoresOwnPolicyAlone(t *testing.T) {
	w, costs := conversation(t)
	each(t, func(t *testing.T, p Named) {
		told := run(t, w, costs, p, 850, 1)
		untold, err := Replay(w, costs, p.New(850, w, 1), 850, Options{Untold: true})
		if err != nil || (told == untold) != (p.Name != "vbr") {
			t.Errorf("told %+v, untold %+v (%v)", told, untold, err)
		}
	})
}
