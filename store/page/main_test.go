package page

import (
	"flag"
	"math/rand/v2"
	"testing"
)

// -seed repeats a randomised run.
var seed = flag.Uint64("seed", 0, "seed of randomised tests; 0 draws one")

func newRand(t testing.TB) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d (repeat with -seed)", s)
	return rand.New(rand.NewPCG(s, 0))
}
