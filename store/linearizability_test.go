package store_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quire-kv/quire/internal/invariant"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

const linClients, linKeys = 64, 12

var seed = flag.Uint64("seed", 0, "of the linearizability test; 0: from the clock")

// What one client did with one key. Published bytes differ by value, so a read tells which publication it saw.
type linOp struct {
	kind  string // publish, fetch, delete, retire
	key   int
	value uint64 // publish: what was written
	epoch page.Epoch
}

type linOut struct {
	ok    bool   // publish: committed; fetch: served
	value uint64 // fetch: what was read
}

const retired = ^uint64(0)

// One key's state: absent, or present with the bytes of one publication. The store may evict at any time, so a
// fetch or a publish that finds nothing is always legal; a fetch that finds something must find what is stored.
var pageModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, op := range history {
			in := op.Input.(linOp)
			k := fmt.Sprint(in.epoch, "/", in.key)
			by[k] = append(by[k], op)
		}
		var out [][]porcupine.Operation
		for _, ops := range by {
			out = append(out, ops)
		}
		return out
	},
	Init: func() []any { return []any{uint64(0)} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(uint64), input.(linOp), output.(linOut)
		switch {
		case in.kind == "retire":
			return []any{retired}
		case s == retired && out.ok:
			return nil // served or committed after the retirement was answered
		case s == retired:
			return []any{retired}
		case in.kind == "publish" && out.ok: // was absent, or was evicted: only then is it granted
			return []any{in.value}
		case in.kind == "publish":
			return []any{s, uint64(0)}
		case in.kind == "fetch" && out.ok && s != out.value:
			return nil // not what is stored
		case in.kind == "fetch" && out.ok:
			return []any{s}
		case in.kind == "fetch":
			return []any{uint64(0), s} // a miss: evicted, or hidden while it was being written
		case in.kind == "delete":
			return []any{uint64(0)}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a == b },
}

func TestLinearizability(t *testing.T) {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", s)
	perClient := 60
	if testing.Short() || invariant.Enabled { // the race detector is on: a tenth of the speed
		perClient = 20
	}
	f := storetest.New(t, storetest.Options{CapacityBytes: 8 << 20, Geometry: core.Geometry{
		Heads: 4, Layers: 2, CellBytes: 64 << 10, Tokens: 16, Grade: page.Elements,
	}}) // room for a dozen pages: eviction goes on all the time
	l := &linTest{f: f, start: time.Now()}
	var wg sync.WaitGroup
	for c := range linClients {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(s, uint64(c)))
			for range perClient {
				l.act(c, r, r.IntN(linKeys))
			}
		})
	}
	wg.Go(func() { l.retireSometimes(s) })
	wg.Wait()
	switch res := porcupine.CheckOperationsTimeout(pageModel.ToModel(), l.history, time.Minute); res {
	case porcupine.Ok:
	case porcupine.Unknown:
		t.Logf("the checker ran out of time on %d operations", len(l.history))
	default:
		t.Fatalf("not linearizable: %v (seed %d, %d operations)", res, s, len(l.history))
	}
	if l.served.Load() == 0 || l.committed.Load() == 0 || f.Store.Status().Totals.Evicted == 0 {
		t.Errorf("%d served, %d committed, %d evicted: the test shows nothing", l.served.Load(), l.committed.Load(), f.Store.Status().Totals.Evicted)
	}
}

type linTest struct {
	f                 *storetest.Fixture
	start             time.Time
	values            atomic.Uint64
	epoch             atomic.Uint64 // added to the first
	served, committed atomic.Int64
	mu                sync.Mutex // guards history
	history           []porcupine.Operation
}

func (l *linTest) view() *storetest.Fixture {
	e := page.Epoch(1 + l.epoch.Load())
	f := l.f.WithGroup(l.f.Group, l.f.Geometry)
	f.Namespace.State.Epoch = e
	return f
}

func (l *linTest) act(client int, r *rand.Rand, key int) {
	f := l.view()
	hash := storetest.Chain(fmt.Sprint("key", key), 1)
	in := linOp{key: key, epoch: f.Namespace.State.Epoch}
	var out linOut
	call := time.Since(l.start)
	switch p := r.IntN(10); {
	case p < 4:
		in.kind, in.value = "publish", l.values.Add(1)
		rs, err := f.Publish(context.Background(), f.Caller, hash, whole, in.value)
		out.ok = err == nil && rs[0].Outcome == core.Committed
		if out.ok {
			l.committed.Add(1)
		}
	case p < 9:
		in.kind = "fetch"
		rs, payloads, err := f.Fetch(context.Background(), f.Caller, hash, whole, core.LeaseID{})
		if out.ok = err == nil && rs[0].Outcome == core.OK; out.ok {
			out.value = l.valueOf(f, hash, payloads[0])
			l.served.Add(1)
		}
	default:
		in.kind = "delete"
		_, why, err := f.Store.Delete(context.Background(), f.Caller, []core.Run{f.Run(hash)})
		if err != nil || why != reason.None {
			return // retired meanwhile: nothing was done
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history = append(l.history, porcupine.Operation{
		ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(time.Since(l.start)),
	})
}

// valueOf finds which publication wrote these bytes: 0 for none, which is a wrong byte.
func (l *linTest) valueOf(f *storetest.Fixture, hash, payload []byte) uint64 {
	want := make([]byte, 8)
	for v := l.values.Load(); v > 0; v-- {
		f.Fill(want, hash, page.View{H1: 1, L1: 1}, v)
		if string(want) == string(payload[:8]) {
			if string(f.Payload(hash, f.Geometry.Full(), v)) == string(payload) {
				return v
			}
		}
	}
	return 0
}

// retireSometimes ends the epoch and begins the next: nothing of the old one may be served from then on.
func (l *linTest) retireSometimes(s uint64) {
	r := rand.New(rand.NewPCG(s, 1<<40))
	for range 5 {
		for range 20 + r.IntN(40) {
			f := l.view()
			_, _ = f.Publish(context.Background(), f.Caller, storetest.Chain(fmt.Sprint("noise", r.IntN(9)), 1), whole, 0)
		}
		old := l.f.Namespace
		old.State.Epoch, old.State.Life = page.Epoch(1+l.epoch.Load()), core.Retired
		next := l.f.Namespace
		next.State.Epoch = old.State.Epoch + 1
		l.f.Store.SetNamespace(next)
		l.epoch.Add(1)
		call := int64(time.Since(l.start))
		l.f.Store.SetNamespace(store.Namespace{State: old.State})
		l.mu.Lock()
		for key := range linKeys {
			l.history = append(l.history, porcupine.Operation{
				ClientId: linClients, Input: linOp{kind: "retire", key: key, epoch: old.State.Epoch}, Output: linOut{},
				Call: call, Return: int64(time.Since(l.start)),
			})
		}
		l.mu.Unlock()
	}
}
