package tiertest

import (
	"errors"
	"sync"

	"github.com/quire-kv/quire/store/tier"
)

// Call is a kind of call that can be made to fail.
type Call uint8

// The calls.
const (
	CallAlloc Call = iota // fails with the error
	CallWrite             // half of the bytes are written, then Done answers the error
	CallRead              // half of the bytes are read, then Done answers the error
	numCalls
)

// Plan decides the fate of the nth call (from 1) of a kind: nil lets it through. Called under a lock, in order.
type Plan func(c Call, n int) error

// FailAt fails the kth call of a kind once.
func FailAt(c Call, k int, err error) Plan {
	return func(x Call, n int) error {
		if x == c && n == k {
			return err
		}
		return nil
	}
}

// FailFrom fails the kth call of a kind and all after it.
func FailFrom(c Call, k int, err error) Plan {
	return func(x Call, n int) error {
		if x == c && n >= k {
			return err
		}
		return nil
	}
}

// Faulty is a tier with injected faults; all that is not injected goes to the tier below. It implements tier.Driver
// and is safe for concurrent use.
type Faulty struct {
	tier.Driver

	mu       sync.Mutex // guards what follows
	plan     Plan
	calls    [numCalls]int
	degraded bool
}

var _ tier.Driver = (*Faulty)(nil)

// Inject wraps d. A nil plan injects nothing.
func Inject(d tier.Driver, p Plan) *Faulty { return &Faulty{Driver: d, plan: p} }

// SetPlan replaces the plan; counting goes on. nil heals the tier.
func (f *Faulty) SetPlan(p Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan, f.degraded = p, false
}

// Calls is how many calls of a kind were made.
func (f *Faulty) Calls(c Call) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[c]
}

func (f *Faulty) fate(c Call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[c]++
	if f.plan == nil {
		return nil
	}
	err := f.plan(c, f.calls[c])
	if c == CallAlloc {
		f.degraded = errors.Is(err, tier.ErrDegraded)
	}
	return err
}

// Alloc fails as planned.
func (f *Faulty) Alloc(c tier.Class, o tier.Owner) (tier.Region, error) {
	if err := f.fate(CallAlloc); err != nil {
		return tier.Region{}, err
	}
	return f.Driver.Alloc(c, o)
}

// Submit makes transfers fail as planned, each torn in the middle.
func (f *Faulty) Submit(ops []tier.Op) {
	out := make([]tier.Op, len(ops))
	for i, op := range ops {
		kind := CallRead
		if op.Write {
			kind = CallWrite
		}
		if err := f.fate(kind); err != nil {
			done := op.Done
			op.Memory = op.Memory[:len(op.Memory)/2]
			op.Done = func(error) { done(err) }
		}
		out[i] = op
	}
	f.Driver.Submit(out)
}

// Usage is not Writable after an Alloc answered ErrDegraded, until one is let through or the plan is replaced.
func (f *Faulty) Usage() tier.Usage {
	u := f.Driver.Usage()
	f.mu.Lock()
	defer f.mu.Unlock()
	u.Writable = u.Writable && !f.degraded
	return u
}
