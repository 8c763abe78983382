// Package clienttest is the conformance suite that every transport of store/client passes: what an engine may rely
// on, shown through the client against a real store.
package clienttest

import (
	"context"
	"testing"
	"time"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// Pair is one server and the way to it. The server lives as long as the test that it was made for.
type Pair struct {
	// Dial connects as the one engine principal of tenant; Address and credentials of o are filled in. Closed with
	// the test.
	Dial func(t testing.TB, tenant string, o client.Options) *client.Client
	// Advance moves the server's clock.
	Advance func(d time.Duration)
	// Damage flips one bit in the stored payload of extent x of a page.
	Damage func(t testing.TB, k *page.Key, x int)
	// Held counts what the server holds for clients: read leases, publications, sessions.
	Held func() (leases, publications, sessions int)
	// Extents is how many extents of a page are stored.
	Extents func(k *page.Key) int
}

// Run runs the suite; newPair makes a server for each of its tests.
func Run(t *testing.T, newPair func(t testing.TB) *Pair) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"PublishThenFetch", publishThenFetch},
		{"Batches", batches},
		{"Layouts", layouts},
		{"Case_C2_OtherWeights", otherWeights},
		{"Case_C10_ManyWriters", manyWriters},
		{"Case_C12_PausedWriter", pausedWriter},
		{"Case_C17_LeaseExpired", leaseExpired},
		{"Case_C19_C55_Corrupt", corrupt},
		{"Case_C21_LeasesReturn", leasesReturn},
		{"Case_C23_DeleteAndPublishAgain", deleteAndPublishAgain},
		{"Case_C40_EveryShape", everyShape},
		{"Case_C41_C63_Holes", holes},
		{"Case_C46_Fence", fence},
		{"Case_C53_C68_Tenants", tenants},
		{"Case_C56_SameKeyOtherBytes", sameKeyOtherBytes},
		{"Case_C57_BufferSize", bufferSize},
		{"Case_C62_Invalidate", invalidate},
		{"Case_C64_NoLateBytes", noLateBytes},
		{"ParentMissing", parentMissing},
		{"Workers", workers},
		{"Reports", reports},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newWorld(t, newPair(t))) })
	}
}

const guard = 30 * time.Second // of what must happen; never waited for when it does

// world is a pair with one session of the suite's model.
type world struct {
	*Pair
	t *testing.T
	c *client.Client
	s *client.Session
}

func newWorld(t *testing.T, p *Pair) *world {
	w := &world{Pair: p, t: t}
	w.c = p.Dial(t, "acme", client.Options{})
	w.s = w.open(w.c, "v1")
	return w
}

func (w *world) open(c *client.Client, weights string) *client.Session {
	w.t.Helper()
	s, err := c.Open(w.ctx(), Spec(w.t, weights))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), guard)
	w.t.Cleanup(cancel)
	return ctx
}
