package registrytest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

var operator = namespace.Principal{Name: "op", Tenant: "acme", Role: namespace.RoleOperator}

// Kinds of operations on the one namespace of the check.
const (
	opOpen = iota
	opDrain
	opRetire
	opPurge
	opWaive // of value number arg
	opAccess
	numOps
)

type (
	input  struct{ op, arg int }
	output struct {
		reason  reason.Reason
		created bool
		space   space
	}
	// space is what the model knows of a namespace.
	space struct {
		epoch  page.Epoch // 0: never opened
		state  namespace.State
		waived int // bit per value
	}
)

// step is the registry's contract for one namespace, as a sequential program.
func step(s space, in input) (space, output) {
	refused := func(why reason.Reason) (space, output) { return s, output{reason: why} }
	switch {
	case in.op == opOpen && (s.epoch == 0 || s.state == namespace.Retired):
		s = space{epoch: s.epoch + 1, state: namespace.Active}
		return s, output{created: true, space: s}
	case in.op == opOpen:
	case s.epoch == 0 && in.op == opAccess:
		return refused(reason.Absent)
	case s.epoch == 0:
		return refused(reason.NotFound)
	case in.op == opAccess:
	case in.op == opDrain && s.state == namespace.Retired, in.op == opPurge && s.state == namespace.Retired, in.op == opWaive && s.state == namespace.Retired:
		return refused(reason.Retired)
	case in.op == opDrain:
		s.state = namespace.Draining
	case in.op == opRetire && s.state == namespace.Active:
		return refused(reason.InvalidSpec)
	case in.op == opRetire:
		s.state = namespace.Retired
	case in.op == opPurge && s.state == namespace.Draining:
		return refused(reason.Draining)
	case in.op == opPurge:
		s.epoch++
	case s.waived&(1<<in.arg) != 0:
		return refused(reason.InvalidSpec)
	default:
		s.waived |= 1 << in.arg
	}
	return s, output{space: s}
}

var model = porcupine.Model{
	Init: func() any { return space{} },
	Step: func(state, in, out any) (bool, any) {
		next, want := step(state.(space), in.(input))
		return want == out.(output), next
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// linearizable runs random operations of concurrent clients over registries that share b, and holds their history to
// the model. Access is asked where one registry is alone: others' changes reach its snapshot a moment later.
func linearizable(t *testing.T, b namespace.Backend, registries int) {
	const clients, each = 6, 25
	text, _ := namespace.ExampleSpec("smollm2-135m")
	spec, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var all []*namespace.Registry
	for range registries {
		r, err := namespace.NewRegistry(background(), b, namespace.Options{Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		all = append(all, r)
	}
	kinds := numOps
	if registries > 1 {
		kinds = opAccess
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	start := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			for range each {
				in := input{rng.IntN(kinds), rng.IntN(3)}
				op := porcupine.Operation{ClientId: client, Input: in, Call: time.Since(start).Nanoseconds()}
				out, err := perform(all[client%registries], spec, now, in)
				if err != nil {
					t.Errorf("%+v: %v", in, err)
					return
				}
				op.Output, op.Return = out, time.Since(start).Nanoseconds()
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(model, history, 30*time.Second); result != porcupine.Ok {
		t.Errorf("%s: %d operations are not linearizable", result, len(history))
		for _, op := range history {
			t.Logf("client %d: %v", op.ClientId, model.DescribeOperation(op.Input, op.Output))
		}
	}
}

// perform does one operation; err is anything but a refusal.
func perform(r *namespace.Registry, spec *namespace.Spec, now time.Time, in input) (output, error) {
	id := spec.ID(operator.Tenant)
	var n *namespace.Namespace
	var err error
	out := output{}
	switch in.op {
	case opOpen:
		var o namespace.Opened
		o, err = r.Open(background(), operator, "", spec)
		n, out.created = o.Namespace, o.Created
	case opDrain:
		n, err = r.SetState(background(), operator, id, namespace.Draining)
	case opRetire:
		n, err = r.SetState(background(), operator, id, namespace.Retired)
	case opPurge:
		n, err = r.Purge(background(), operator, id)
	case opWaive:
		n, err = r.Waive(background(), operator, id, namespace.Waiver{
			Factor: "engine_version", Values: []string{spec.Prov.Version, fmt.Sprint("v", in.arg)}, Reason: "test", Expiry: now.Add(time.Hour),
		})
	case opAccess:
		n, out.reason = r.Access(operator, id, namespace.RightRead)
	}
	var refusal *namespace.Refusal
	switch {
	case errors.As(err, &refusal):
		out.reason = refusal.Reason
	case err != nil:
		return out, err
	case n != nil:
		out.space = space{epoch: n.Epoch, state: n.State}
		for _, w := range n.Waivers {
			var v int
			if _, err := fmt.Sscanf(w.Values[1], "v%d", &v); err != nil {
				return out, err
			}
			out.space.waived |= 1 << v
		}
	}
	return out, nil
}

// registrySurvivesReopen: epochs go on, nothing retired comes back, tokens, grants, waivers and provenances stay.
func registrySurvivesReopen(t *testing.T, b Backend) {
	if b.Reopen == nil {
		t.Skip("stores nothing")
	}
	text, _ := namespace.ExampleSpec("llama-3-8b")
	spec, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	id := spec.ID(operator.Tenant)
	last := page.Epoch(0)
	for life := range 3 {
		r, err := namespace.NewRegistry(background(), b, namespace.Options{})
		if err != nil {
			t.Fatal(err)
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		opened, err := r.Open(background(), operator, "", spec)
		check(err)
		if !opened.Created || opened.Namespace.Epoch <= last || opened.Namespace.ID != id {
			t.Fatalf("life %d: epoch %d after %d, created %v", life, opened.Namespace.Epoch, last, opened.Created)
		}
		_, err = r.Grant(background(), operator, id, namespace.Grant{Tenant: "other", Right: namespace.RightRead})
		check(err)
		_, err = r.Waive(background(), operator, id, namespace.Waiver{Factor: "runner", Values: []string{"v1", "v2"}, Reason: "test", Expiry: time.Now().Add(time.Hour)})
		check(err)
		name := fmt.Sprint("token", life)
		check(r.PutToken(background(), operator, namespace.TokenRecord{Name: name, Hash: [32]byte{1, byte(life)}, By: operator}))
		tenant, err := r.SetTenant(background(), operator, name, namespace.TierBytes{Memory: 100}, func(q namespace.TenantQuota) namespace.TenantQuota {
			q.GuaranteeBytes = 7
			return q
		})
		check(err)
		before, _ := r.Access(operator, id, namespace.RightRead)
		b = b.Reopen(t)
		check(r.Close())
		r, err = namespace.NewRegistry(background(), b, namespace.Options{})
		check(err)
		after, _ := r.Access(operator, id, namespace.RightRead)
		if !reflect.DeepEqual(after, before) {
			t.Errorf("life %d: revision %d after reopening is not revision %d", life, after.Revision, before.Revision)
		}
		if c, ok := r.Provenance(id, opened.Provenance); !ok || string(c) != string(opened.Canonical) {
			t.Error("the provenance is gone")
		}
		if got := r.Tenants(); len(got) != life+1 || got[life] != tenant {
			t.Errorf("tenants %+v after reopening, want %+v as the last", got, tenant)
		}
		if got, ok := r.TokenByHash([32]byte{1, byte(life)}); !ok || got.Name != name {
			t.Error("the token is gone")
		}
		for _, s := range []namespace.State{namespace.Draining, namespace.Retired} {
			_, err = r.SetState(background(), operator, id, s)
			check(err)
		}
		last = after.Epoch
		b = b.Reopen(t)
		check(r.Close())
	}
}
