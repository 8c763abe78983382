package replay

import (
	"math/bits"
	"testing"

	"github.com/quire-kv/quire/evict"
)

// span is one interval of the relaxed problem, for the plain search.
type span struct {
	from, to int
	cost     float64
}

// spansOf finds them page by page.
func spansOf(w *Workload, costs []float64) (out []span) {
	for p := range w.Pages() {
		last := -1
		for i := range w.Requests {
			for _, q := range w.Requests[i].Pages {
				if int(q) != p {
					continue
				}
				if last >= 0 {
					out = append(out, span{last, i, costs[p]})
				}
				last = i
			}
		}
	}
	return out
}

// bruteRelaxed tries every set of intervals.
func bruteRelaxed(spans []span, gaps, capacity int) float64 {
	use := make([]int, gaps)
	var try func(i int) float64
	try = func(i int) float64 {
		if i == len(spans) {
			return 0
		}
		best := try(i + 1)
		s, fits := spans[i], true
		for t := s.from; t < s.to; t++ {
			fits = fits && use[t] < capacity
		}
		if fits {
			for t := s.from; t < s.to; t++ {
				use[t]++
			}
			best = max(best, s.cost+try(i+1))
			for t := s.from; t < s.to; t++ {
				use[t]--
			}
		}
		return best
	}
	return try(0)
}

// bruteStrict is the most that any policy can save that keeps prefixes whole: over all sets of pages that may be held
// after each request. A set is of pages held before or used by the request, with every parent, within the capacity.
func bruteStrict(w *Workload, costs []float64, capacity int) float64 {
	best := map[uint32]float64{0: 0}
	for i := range w.Requests {
		next := map[uint32]float64{}
		path := uint32(0)
		for _, p := range w.Requests[i].Pages {
			path |= 1 << p
		}
		for held, saved := range best {
			for _, p := range w.Requests[i].Pages {
				if held>>p&1 == 0 {
					break
				}
				saved += costs[p]
			}
			all := held | path
			for keep := all; ; keep = (keep - 1) & all {
				if bits.OnesCount32(keep) <= capacity && whole(w, keep) {
					if v, ok := next[keep]; !ok || saved > v {
						next[keep] = saved
					}
				}
				if keep == 0 {
					break
				}
			}
		}
		best = next
	}
	most := 0.
	for _, v := range best {
		most = max(most, v)
	}
	return most
}

func whole(w *Workload, set uint32) bool {
	for p, parent := range w.Parents {
		if set>>p&1 == 1 && parent >= 0 && set>>parent&1 == 0 {
			return false
		}
	}
	return true
}

// slack is what sums of float64 may be off.
const slack = 1 + 1e-9

// TestBoundsAgainstBruteForce: on small random instances, what LRU and the feasible schedule save is no more than the best
// that keeps prefixes whole; that no more than the best of the relaxed problem; that no more than every certified bound;
// and that no more than the content bound. Where all pages cost the same, the feasible schedule is the best of all.
func TestBoundsAgainstBruteForce(t *testing.T) {
	r := random(t)
	tight, between, best := 0, 0, 0
	for instance := range 1000 {
		var w *Workload
		for w == nil || w.Pages() > 11 || len(spansOf(w, make([]float64, w.Pages()))) > 13 {
			w = smallWorkload(t, r, 3+r.IntN(6), 3, 2)
		}
		equal := instance%4 == 0
		costs := make([]float64, w.Pages())
		for p := range costs {
			if costs[p] = 1; !equal {
				costs[p] = float64(1 + r.IntN(50))
			}
		}
		capacity := 1 + r.IntN(5)
		lru, err := Replay(w, costs, evict.NewLRU(Slots(capacity, w)), capacity, Options{})
		if err != nil {
			t.Fatal(err)
		}
		feasible := FeasibleBelady(w, costs, capacity).Saved
		strict := bruteStrict(w, costs, capacity)
		relaxed := bruteRelaxed(spansOf(w, costs), len(w.Requests), capacity)
		for _, rounds := range []int{1, 2, 7, 300} {
			b := UpperBound(w, costs, capacity, rounds)
			if lru.Saved > strict || feasible > strict || strict > relaxed || relaxed > b.Upper*slack || b.Upper > b.Content {
				t.Fatalf("instance %d, capacity %d, %d rounds: lru %v, feasible %v, strict %v, relaxed %v, upper %v, content %v\n%+v\ncosts %v",
					instance, capacity, rounds, lru.Saved, feasible, strict, relaxed, b.Upper, b.Content, w, costs)
			}
			if rounds == 300 && b.Upper <= relaxed*1.01 {
				tight++
			}
		}
		if reuse := w.Reuse(costs); reuse.Saved != UpperBound(w, costs, capacity, 1).Content {
			t.Fatalf("instance %d: the content bound is not what a cache without end saves, %v", instance, reuse.Saved)
		}
		if equal && feasible != strict {
			t.Fatalf("instance %d, capacity %d: all pages cost 1, feasible %v, strict %v\n%+v", instance, capacity, feasible, strict, w)
		}
		if lru.Saved < strict {
			between++
		}
		if strict < relaxed {
			best++
		}
	}
	t.Logf("of 1000: upper within 1 %% of relaxed in %d, LRU below the best in %d, order of prefixes costs something in %d", tight, between, best)
	if tight < 900 || between == 0 {
		t.Errorf("upper was within 1 %% of the relaxed optimum in %d of 1000, LRU below the best in %d", tight, between)
	}
}

// TestEveryPriceIsABound: U at any prices is at least the optimum, and equals its plain sum.
func TestEveryPriceIsABound(t *testing.T) {
	r := random(t)
	for range 300 {
		var w *Workload
		for w == nil || len(spansOf(w, make([]float64, w.Pages()))) > 12 {
			w = smallWorkload(t, r, 6, 3, 2)
		}
		costs := make([]float64, w.Pages())
		for p := range costs {
			costs[p] = r.Float64() * 10
		}
		capacity := 1 + r.IntN(3)
		d := newDual(w, costs, capacity)
		for t := range d.prices {
			d.prices[t] = r.ExpFloat64() * float64(r.IntN(2))
		}
		got, want := d.evaluate(), plainDual(spansOf(w, costs), d.prices, capacity)
		if got < want/slack || got > want*slack {
			t.Fatalf("U is %v, by plain sums %v", got, want)
		}
		if optimum := bruteRelaxed(spansOf(w, costs), len(w.Requests), capacity); optimum > got*slack {
			t.Fatalf("U is %v, below the optimum %v at prices %v", got, optimum, d.prices)
		}
	}
}

func plainDual(spans []span, prices []float64, capacity int) (u float64) {
	for _, p := range prices {
		u += float64(capacity) * p
	}
	for _, s := range spans {
		left := s.cost
		for t := s.from; t < s.to; t++ {
			left -= prices[t]
		}
		u += max(0, left)
	}
	return u
}

// TestMoreRoundsAreNoWorse, and equal arguments give equal bounds.
func TestMoreRoundsAreNoWorse(t *testing.T) {
	w, costs := conversation(t)
	last := Bound{Upper: 1e300}
	for _, rounds := range []int{1, 10, 100, 300, 1000} {
		b := UpperBound(w, costs, w.Pages()/200, rounds)
		if b.Upper > last.Upper || b.Rounds > rounds {
			t.Errorf("%d rounds: %v, with fewer %v", rounds, b, last)
		}
		if again := UpperBound(w, costs, w.Pages()/200, rounds); again != b {
			t.Errorf("%d rounds: %v, then %v", rounds, b, again)
		}
		last = b
	}
	if b := UpperBound(w, costs, w.Pages()/200, 0); b != UpperBound(w, costs, w.Pages()/200, DefaultRounds) || b.Upper > 1.01*last.Upper {
		t.Errorf("default rounds: %v, after 1000: %v", b, last)
	}
}

func TestBoundsAtTheEdges(t *testing.T) {
	w, costs := conversation(t)
	if b := UpperBound(w, costs, w.Pages(), 0); b.Upper != b.Content || b.Content == 0 {
		t.Errorf("room for all: %+v", b)
	}
	if b := UpperBound(w, costs, 0, 0); b.Upper > 1e-6*b.Content {
		t.Errorf("no room at all: %+v", b)
	}
	empty := workloadOf(t)
	if b := UpperBound(empty, nil, 3, 0); b != (Bound{}) {
		t.Errorf("no request at all: %+v", b)
	}
	once := workloadOf(t, []uint64{1, 2, 3})
	if b := UpperBound(once, []float64{1, 1, 1}, 3, 0); b != (Bound{}) {
		t.Errorf("nothing is used again: %+v", b)
	}
}

// shapes of the tests.
var llama70B = evict.Shape{Params: 70.6e9, Layers: 80, Heads: 64, Width: 128}

// conversation is the excerpt of the conversation trace, with costs of a 70B model.
func conversation(t testing.TB) (*Workload, []float64) {
	t.Helper()
	w, err := Load("conversation", ConversationSlice(), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w, w.Costs(llama70B)
}
