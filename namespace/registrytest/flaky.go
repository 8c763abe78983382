package registrytest

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/quire-kv/quire/namespace"
)

// Flaky is b whose writes end, half of the time, in ErrOutcomeUnknown: after they were applied or before, as seed says.
func Flaky(b namespace.Backend, seed uint64) namespace.Backend {
	return &flaky{Backend: b, rng: rand.New(rand.NewPCG(seed, 0))}
}

type flaky struct {
	namespace.Backend
	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

func (f *flaky) draw() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(4)
}

// Write is Backend.Write.
func (f *flaky) Write(ctx context.Context, at namespace.Revision, read [][]byte, puts []namespace.Record) (namespace.Revision, error) {
	outcome := f.draw()
	if outcome == 0 {
		return 0, namespace.ErrOutcomeUnknown
	}
	revision, err := f.Backend.Write(ctx, at, read, puts)
	if outcome == 1 && err == nil {
		return 0, namespace.ErrOutcomeUnknown
	}
	return revision, err
}
