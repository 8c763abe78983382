package replay

import (
	"flag"
	"math/rand/v2"
	"testing"
)

var seedFlag = flag.Uint64("seed", 0, "seed of randomised tests; 0 draws one")

// random is a source for one test, whose seed is printed.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d; run again with -seed=%d", seed, seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// workloadOf makes a workload of paths of block ids, a second apart.
func workloadOf(t *testing.T, paths ...[]uint64) *Workload {
	t.Helper()
	b, err := newBuilder("test", BlockTokens, BlockTokens)
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range paths {
		if err := b.add(Access{Seconds: float64(i), Input: int32(len(path) * BlockTokens)}, path); err != nil {
			t.Fatal(err)
		}
	}
	return b.w
}

// smallWorkload is a few requests on a small tree.
func smallWorkload(t *testing.T, r *rand.Rand, requests, deepest, branches int) *Workload {
	paths := make([][]uint64, requests)
	for i := range paths {
		for range 1 + r.IntN(deepest) {
			paths[i] = append(paths[i], uint64(r.IntN(branches)))
		}
	}
	return workloadOf(t, paths...)
}
