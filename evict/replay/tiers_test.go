package replay

import (
	"testing"

	"github.com/quire-kv/quire/evict"
)

// bothPolicies are those of the store, which know all tiers.
func bothPolicies(seed uint64) map[string]func() evict.Policy {
	return map[string]func() evict.Policy{
		"lru": func() evict.Policy { return evict.NewLRU(0) },
		"vbr": func() evict.Policy { return evict.NewVBR(0, seed) },
	}
}

// eachSmall tries the store's policies on many small workloads.
func eachSmall(t *testing.T, try func(w *Workload, costs []float64, name string, policy func() evict.Policy)) {
	t.Helper()
	r := random(t)
	for range 200 {
		w := smallWorkload(t, r, 80, 6, 3)
		costs := w.Costs(llama70B)
		for name, policy := range bothPolicies(r.Uint64()) {
			try(w, costs, name, policy)
		}
	}
}

// TestTwoTiers: whatever is asked, no tier holds more than it has room for, what is on disk is a prefix, nothing is left
// without its parent, and a disk with room for all serves all that came before.
func TestTwoTiers(t *testing.T) {
	eachSmall(t, func(w *Workload, costs []float64, name string, policy func() evict.Policy) {
		for _, disk := range []int{1, 3, 7, w.Pages()} {
			for _, fetch := range []bool{false, true} {
				n := Node{Policies: []evict.Policy{policy()}, Host: 3, Disk: disk}
				got, err := ReplayNode(w, costs, n, Options{Fetch: fetch})
				if err != nil {
					t.Fatalf("%s, disk of %d: %v", name, disk, err)
				}
				brought := got.WrittenTo[evict.Host] - got.Written
				if got.Orphans != 0 || got.HeldIn[evict.Host] > 3 || got.HeldIn[evict.Disk] > disk || brought < 0 || !fetch && brought != 0 {
					t.Fatalf("%s, disk of %d: %+v", name, disk, got)
				}
				if name == "lru" && disk == w.Pages() && got.Hits+got.Written+got.Refused+got.Present != w.Accesses() {
					t.Fatalf("disk of %d: %d accesses, %+v", disk, w.Accesses(), got)
				}
			}
		}
	})
}

// TestTwoTiersByHand: memory for two pages, disk for four, least recently used first.
func TestTwoTiersByHand(t *testing.T) {
	w := workloadOf(t, []uint64{1}, []uint64{2}, []uint64{3}, []uint64{1}, []uint64{4}, []uint64{5}, []uint64{2})
	costs := make([]float64, w.Pages())
	for p := range costs {
		costs[p] = 10
	}
	loading := evict.Loading{BytesPerSecond: defaultPageBytes, FLOPSPerSecond: 4} // of a page: 4 FLOPs
	for fetch, want := range map[bool]Result{
		// 1 is on disk alone when it comes again; 5 erases 2, the oldest on disk, of which there is no other copy.
		false: {Hits: 1, FromDisk: 1, Saved: 6, Written: 6, Evicted: 2, WrittenTo: [evict.NumTiers]int{evict.Host: 6, evict.Disk: 6}},
		// And it is brought back into memory, in place of 2.
		true: {Hits: 1, FromDisk: 1, Saved: 6, Written: 6, Evicted: 2, WrittenTo: [evict.NumTiers]int{evict.Host: 7, evict.Disk: 6}},
	} {
		n := Node{Policies: []evict.Policy{evict.NewLRU(0)}, Host: 2, Disk: 4}
		got, err := ReplayNode(w, costs, n, Options{Fetch: fetch, Loading: loading})
		want.Capacity, want.HeldIn, want.Decision = 6, [evict.NumTiers]int{evict.Host: 2, evict.Disk: 4}, got.Decision
		if err != nil || got != want {
			t.Errorf("fetch %v: %v\n got %+v\nwant %+v", fetch, err, got, want)
		}
	}
}

// TestCopiesAreJudged: what is worth less than the next victim is not written to disk, and read from there does not stay in
// memory.
func TestCopiesAreJudged(t *testing.T) {
	for _, c := range []struct {
		dear          uint64 // the request whose page costs more
		times         float64
		n             Node
		requests      [][]uint64
		host, disk    int // copies made
		hits, evicted int
	}{
		{1, 1000, Node{Host: 2, Disk: 1}, [][]uint64{{1}, {2}}, 2, 1, 0, 0},
		{2, 1000, Node{Host: 2, Disk: 1}, [][]uint64{{1}, {2}}, 2, 2, 0, 0},
		{1, 1000, Node{Host: 1, Disk: 2}, [][]uint64{{1}, {2}}, 1, 1, 0, 0},
		{1, 2, Node{Host: 1, Disk: 2}, [][]uint64{{1}, {2}, {1}}, 3, 2, 1, 0},
		{2, 1000, Node{Host: 1, Disk: 2}, [][]uint64{{1}, {2}, {1}, {2}}, 3, 2, 2, 0},
	} {
		w := workloadOf(t, c.requests...)
		costs := []float64{1e12, 1e12}
		costs[c.dear-1] *= c.times
		c.n.Policies = []evict.Policy{evict.NewVBR(0, 1)}
		got, err := ReplayNode(w, costs, c.n, Options{Fetch: true})
		if err != nil || got.WrittenTo[evict.Host] != c.host || got.WrittenTo[evict.Disk] != c.disk || got.Hits != c.hits || got.Evicted != c.evicted {
			t.Errorf("%+v: %v, %+v", c, err, got)
		}
	}
}

// TestRecordsAreABound: there are never more pages than records, and for a record goes what is worth least, whatever it is
// worth: nothing is refused.
func TestRecordsAreABound(t *testing.T) {
	eachSmall(t, func(w *Workload, costs []float64, name string, policy func() evict.Policy) {
		for _, n := range []Node{{Host: w.Pages(), Pages: 8}, {Host: w.Pages(), Disk: w.Pages(), Copies: 13}, {Host: 4, Disk: 9, Pages: 8, Copies: 16}} {
			n.Policies = []evict.Policy{policy()}
			got, err := ReplayNode(w, costs, n, Options{Fetch: true})
			held := got.HeldIn[evict.Host] + got.HeldIn[evict.Disk]
			if err != nil || got.Orphans != 0 || n.Disk == 0 && held > n.Pages || n.Copies > 0 && got.HeldIn[evict.Host] > n.Copies {
				t.Fatalf("%s, %+v: %v, %+v", name, n, err, got)
			}
			if n.Host == w.Pages() && got.Refused != 0 {
				t.Fatalf("%s, %+v: refused %d", name, n, got.Refused)
			}
		}
	})
}

// TestStepsInTheirOrder: requests one after the other are what they are without steps, and of two that overlap the later
// publication finds what the earlier one left, or is about to.
func TestStepsInTheirOrder(t *testing.T) {
	w := smallWorkload(t, random(t), 200, 6, 3)
	costs := w.Costs(llama70B)
	var steps []Step
	for i := range w.Requests {
		for phase := LookUp; phase <= End; phase++ {
			steps = append(steps, Step{i, phase, w.Requests[i].Seconds})
		}
	}
	run := func(w *Workload, o Options) Result {
		t.Helper()
		got, err := ReplayNode(w, w.Costs(llama70B), Node{Policies: []evict.Policy{evict.NewVBR(0, 1)}, Host: 9}, o)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want, err := Replay(w, costs, evict.NewVBR(0, 1), 9, Options{})
	if got := run(w, Options{Steps: steps}); err != nil || got != want {
		t.Errorf("%v: with steps %+v, without %+v", err, got, want)
	}
	two := workloadOf(t, []uint64{1, 2}, []uint64{1, 2, 3})
	for name, steps := range map[string][]Step{
		"the first is there": {{0, LookUp, 0}, {1, LookUp, 0.1}, {0, Begin, 0.4}, {0, Commit, 0.5}, {0, End, 0.5}, {1, Begin, 0.6}, {1, Commit, 0.7}, {1, End, 0.7}},
		"is about to":        {{0, LookUp, 0}, {1, LookUp, 0.1}, {0, Begin, 0.4}, {1, Begin, 0.5}, {1, Commit, 0.6}, {1, End, 0.6}, {0, Commit, 0.7}, {0, End, 0.7}},
	} {
		if got := run(two, Options{Steps: steps}); got.Hits != 0 || got.Written != 3 || got.Present != 2 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestNamespacesShareTheRoom: each namespace has the policy of its shard, and what goes is worth least of all shards.
func TestNamespacesShareTheRoom(t *testing.T) {
	w := workloadOf(t, []uint64{1}, []uint64{2}, []uint64{3}, []uint64{1}, []uint64{4}, []uint64{1}, []uint64{2})
	w.Spaces = []int32{0, 1, 0, 1} // of pages 1, 2, 3, 4
	n := Node{Policies: []evict.Policy{evict.NewLRU(0), evict.NewLRU(0)}, ShardOf: func(space int32) int { return int(space) }, Host: 3}
	got, err := ReplayNode(w, w.Costs(llama70B), n, Options{})
	one, err1 := Replay(w, w.Costs(llama70B), evict.NewLRU(0), 3, Options{})
	if err != nil || err1 != nil || got != one || got.Hits != 2 {
		t.Errorf("two shards %+v (%v), one %+v (%v)", got, err, one, err1)
	}
}
