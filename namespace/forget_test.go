package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// TestForgetting: beyond its bound a tenant's oldest retired namespace goes, and no epoch of it is ever used again.
func TestForgetting(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	r, err := namespace.NewRegistry(context.Background(), memregistry.New(), namespace.Options{MaxNamespaces: 3, Now: func() time.Time { now = now.Add(time.Second); return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	op := namespace.Principal{Tenant: "acme", Role: namespace.RoleOperator}
	text, _ := namespace.ExampleSpec("smollm2-135m")
	openNo := func(i int) (namespace.Opened, error) {
		s, err := namespace.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Model.Weights = namespace.DigestOf(fmt.Append(nil, i))
		return r.Open(context.Background(), op, "", s)
	}
	end := func(id page.NamespaceID) {
		for _, s := range []namespace.State{namespace.Draining, namespace.Retired} {
			if _, err := r.SetState(context.Background(), op, id, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	used := map[page.NamespaceID]page.Epoch{}
	for i := range 3 {
		o, err := openNo(i)
		if err != nil {
			t.Fatal(err)
		}
		used[o.Namespace.ID] = o.Namespace.Epoch
	}
	if _, err := openNo(3); !errors.Is(err, reason.LimitExceeded) {
		t.Errorf("a fourth, with none retired: %v", err)
	}
	for round := range 12 { // each opens what is not there, over and over
		var oldest *namespace.Namespace
		for _, n := range r.List(op, "", false) {
			if oldest == nil || n.Created.Before(oldest.Created) {
				oldest = n
			}
		}
		end(oldest.ID)
		o, err := openNo(round % 5)
		if err != nil {
			t.Fatal(err)
		}
		if o.Created && o.Namespace.Epoch <= used[o.Namespace.ID] {
			t.Errorf("round %d: epoch %d was used", round, o.Namespace.Epoch)
		}
		used[o.Namespace.ID] = o.Namespace.Epoch
		if n := len(r.List(op, "", true)); n > 3 {
			t.Errorf("%d namespaces are kept", n)
		}
		if _, ok := r.Provenance(o.Namespace.ID, o.Provenance); !ok {
			t.Error("the opener's provenance is not known")
		}
	}
}
