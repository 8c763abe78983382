package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func retire(t testing.TB, r *namespace.Registry, id page.NamespaceID) {
	t.Helper()
	must[*namespace.Namespace](t)(r.SetState(context.Background(), operator, id, namespace.Draining))
	must[*namespace.Namespace](t)(r.SetState(context.Background(), operator, id, namespace.Retired))
}

func TestLifecycleMovesOneWay(t *testing.T) {
	ctx := context.Background()
	const (
		a, d, x = namespace.Active, namespace.Draining, namespace.Retired
	)
	for _, c := range []struct {
		path []namespace.State
		to   namespace.State
		want error
	}{
		{nil, a, nil}, {nil, d, nil}, {nil, x, reason.InvalidSpec}, {nil, 0, reason.InvalidSpec}, {nil, 9, reason.InvalidSpec},
		{[]namespace.State{d}, a, reason.InvalidSpec}, {[]namespace.State{d}, d, nil}, {[]namespace.State{d}, x, nil},
		{[]namespace.State{d, x}, a, reason.Retired}, {[]namespace.State{d, x}, d, reason.Retired}, {[]namespace.State{d, x}, x, nil},
	} {
		r, _ := newRegistry(t)
		id := open(t, r, engine, example(t, "llama-3-8b")).Namespace.ID
		for _, s := range c.path {
			must[*namespace.Namespace](t)(r.SetState(ctx, operator, id, s))
		}
		n, err := r.SetState(ctx, operator, id, c.to)
		if !errors.Is(err, c.want) || err == nil && n.State != c.to {
			t.Errorf("%v then %v: %v, want %v", c.path, c.to, err, c.want)
		}
	}
}

// TestCase_C67_RetireThenReopen: same id, the next epoch, and nothing that the earlier life had allowed.
func TestCase_C67_RetireThenReopen(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	s := example(t, "llama-3-8b")
	id := open(t, r, engine, s).Namespace.ID
	last := page.Epoch(1)
	for range 3 {
		must[*namespace.Namespace](t)(r.Grant(ctx, operator, id, namespace.Grant{Tenant: "other", Right: namespace.RightRead}))
		must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, waiver(clock, "0.32.0", "0.32.1")))
		purged := must[*namespace.Namespace](t)(r.Purge(ctx, operator, id))
		if purged.Epoch <= last || purged.State != namespace.Active || len(purged.Grants) == 0 {
			t.Errorf("purged: epoch %d after %d, %+v", purged.Epoch, last, purged)
		}
		retire(t, r, id)
		if _, err := r.Purge(ctx, operator, id); !errors.Is(err, reason.Retired) {
			t.Errorf("purge of a retired one: %v", err)
		}
		o := open(t, r, engine, s)
		n := o.Namespace
		if n.ID != id || !o.Created || n.Epoch <= purged.Epoch || n.State != namespace.Active {
			t.Errorf("reopened: epoch %d after %d, created %v, %v", n.Epoch, purged.Epoch, o.Created, n.State)
		}
		if len(n.Grants) > 0 || len(n.Waivers) > 0 {
			t.Error("grants or waivers of the earlier life are back")
		}
		last = n.Epoch
	}
}

// TestCase_C8_TwoRolloutsSideBySide: purging or retiring one leaves the other as it is.
func TestCase_C8_TwoRolloutsSideBySide(t *testing.T) {
	ctx := context.Background()
	r, _ := newRegistry(t)
	base := example(t, "llama-3-8b")
	blue := open(t, r, engine, base).Namespace
	green := open(t, r, engine, with(t, base, func(s *namespace.Spec) { s.Model.Weights = namespace.DigestOf([]byte("green")) })).Namespace
	must[*namespace.Namespace](t)(r.Purge(ctx, operator, blue.ID))
	retire(t, r, blue.ID)
	n, why := r.Access(engine, green.ID, namespace.RightPublish)
	if why != reason.None || n.Epoch != green.Epoch || n.State != namespace.Active || n.Revision != green.Revision {
		t.Errorf("green changed with blue: %v %+v", why, n)
	}
	if got := r.List(engine, "", false); len(got) != 1 || got[0].ID != green.ID {
		t.Errorf("list without the retired: %d", len(got))
	}
	if got := r.List(engine, "", true); len(got) != 2 {
		t.Errorf("list with the retired: %d", len(got))
	}
}

// TestEnginesEndOnlyWhatNobodyElseUses: an engine may purge or retire its tenant's idle, unshared namespaces.
func TestEnginesEndOnlyWhatNobodyElseUses(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	id := open(t, r, engine, example(t, "llama-3-8b")).Namespace.ID
	if _, err := r.Purge(ctx, engine, id); !errors.Is(err, reason.Unauthorized) {
		t.Errorf("purge while in use: %v", err)
	}
	clock.advance(2 * time.Hour)
	must[*namespace.Namespace](t)(r.Grant(ctx, operator, id, namespace.Grant{Tenant: "other", Right: namespace.RightRead}))
	if _, err := r.SetState(ctx, engine, id, namespace.Draining); !errors.Is(err, reason.Unauthorized) {
		t.Errorf("drain while granted: %v", err)
	}
	if _, err := r.Purge(ctx, stranger, id); !errors.Is(err, reason.Unauthorized) {
		t.Errorf("purge by the granted tenant: %v", err)
	}
	must[*namespace.Namespace](t)(r.RevokeGrant(ctx, operator, id, "other"))
	if _, err := r.Purge(ctx, reader, id); !errors.Is(err, reason.Unauthorized) {
		t.Errorf("purge by a reader: %v", err)
	}
	must[*namespace.Namespace](t)(r.Purge(ctx, engine, id))
	for what, err := range map[string]error{
		"grant":  second(r.Grant(ctx, engine, id, namespace.Grant{Tenant: "other", Right: namespace.RightRead})),
		"policy": second(r.SetPolicy(ctx, engine, id, namespace.Policy{QuotaBytes: 1})),
		"token":  r.PutToken(ctx, engine, namespace.TokenRecord{}),
	} {
		if !errors.Is(err, reason.Unauthorized) {
			t.Errorf("%s by an engine: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestUseIsWrittenSparingly(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	n := open(t, r, engine, example(t, "llama-3-8b")).Namespace
	use := func() *namespace.Namespace {
		if err := r.Used(ctx, []page.NamespaceID{n.ID, {9}}); err != nil {
			t.Fatal(err)
		}
		got, _ := r.Access(engine, n.ID, namespace.RightRead)
		return got
	}
	clock.advance(4 * time.Minute)
	if got := use(); got.Revision != n.Revision {
		t.Error("use was written twice in five minutes")
	}
	clock.advance(time.Minute)
	if got := use(); !got.LastUse.Equal(clock.now()) {
		t.Errorf("last use %v", got.LastUse)
	}
	retire(t, r, n.ID)
	before, _ := r.Access(engine, n.ID, namespace.RightRead)
	clock.advance(time.Hour)
	if got := use(); got.Revision != before.Revision {
		t.Error("a retired namespace is used")
	}
}

func TestPolicyAndGrantForm(t *testing.T) {
	ctx := context.Background()
	r, _ := newRegistry(t)
	id := open(t, r, engine, example(t, "llama-3-8b")).Namespace.ID
	want := namespace.Policy{DefaultExpiry: time.Hour, QuotaBytes: 1 << 40, Durable: true}
	if n := must[*namespace.Namespace](t)(r.SetPolicy(ctx, operator, id, want)); n.Policy != want {
		t.Errorf("policy %+v", n.Policy)
	}
	_, err := r.SetPolicy(ctx, operator, id, namespace.Policy{DefaultExpiry: -1})
	refusedAt(t, err, "default_expiry", "negative")
	for path, g := range map[string]namespace.Grant{
		"tenant": {Tenant: "", Right: namespace.RightRead}, "tenant ": {Tenant: "acme", Right: namespace.RightRead},
		"tenant  ": {Tenant: "a/b", Right: namespace.RightRead}, "right": {Tenant: "other"}, "right ": {Tenant: "other", Right: namespace.RightManage},
	} {
		_, err := r.Grant(ctx, operator, id, g)
		refusedAt(t, err, strings.TrimSpace(path), "")
	}
	if _, err := r.RevokeGrant(ctx, operator, id, "nobody"); !errors.Is(err, reason.NotFound) {
		t.Errorf("revoke of nothing: %v", err)
	}
}

func TestTokens(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	put := func(name string, h byte, expiry time.Time) error {
		return r.PutToken(ctx, operator, namespace.TokenRecord{Name: name, Hash: [32]byte{h}, By: engine, Created: clock.now(), Expiry: expiry})
	}
	if err := put("b", 2, clock.now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := put("a", 1, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := put("a", 3, time.Time{}); !errors.Is(err, reason.InvalidSpec) {
		t.Errorf("a taken name: %v", err)
	}
	if err := put("c", 2, time.Time{}); !errors.Is(err, reason.InvalidSpec) {
		t.Errorf("a taken secret: %v", err)
	}
	if err := put("a", 1, time.Time{}); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if got, err := r.Tokens(operator); err != nil || len(got) != 2 || got[0].Name != "a" || got[1].By != engine {
		t.Errorf("tokens %+v, %v", got, err)
	}
	find := func(h byte) string { got, ok := r.TokenByHash([32]byte{h}); return fmt.Sprint(got.Name, ok) }
	if find(1) != "atrue" || find(2) != "btrue" || find(3) != "false" {
		t.Error("tokens are not found by hash")
	}
	clock.advance(time.Hour)
	if find(1) != "atrue" || find(2) != "false" {
		t.Error("an expired token lives")
	}
	if err := r.RevokeToken(ctx, operator, "a"); err != nil || find(1) != "false" {
		t.Errorf("revoked: %v, %s", err, find(1))
	}
	if err := r.RevokeToken(ctx, operator, "a"); !errors.Is(err, reason.NotFound) {
		t.Errorf("revoked twice: %v", err)
	}
}

func TestAccessAllocatesNothing(t *testing.T) {
	r, _ := newRegistry(t)
	o := open(t, r, engine, example(t, "llama-3-8b"))
	if n := testing.AllocsPerRun(100, func() {
		r.Access(engine, o.Namespace.ID, namespace.RightPublish)
		r.Access(stranger, o.Namespace.ID, namespace.RightRead)
		r.Provenance(o.Namespace.ID, o.Provenance)
		r.TokenByHash([32]byte{1})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestWatchSeesEveryNamespaceThenChanges in order of revisions, and ends with its context, its error or the registry.
func TestWatchSeesEveryNamespaceThenChanges(t *testing.T) {
	r, _ := newRegistry(t)
	first := open(t, r, engine, example(t, "llama-3-8b")).Namespace
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan *namespace.Namespace)
	ended := make(chan error, 1)
	go func() {
		ended <- r.Watch(ctx, func(n *namespace.Namespace) error { seen <- n; return nil })
	}()
	if n := <-seen; n.ID != first.ID {
		t.Errorf("first %v", n.ID)
	}
	second := open(t, r, engine, example(t, "llama-3-70b")).Namespace
	if n := <-seen; n.ID != second.ID {
		t.Errorf("second %v", n.ID)
	}
	retire(t, r, first.ID)
	for n := range seen { // the two steps of retiring may be given as one
		if n.ID != first.ID {
			t.Errorf("a change of %v", n.ID)
		}
		if n.State == namespace.Retired {
			break
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	stop := errors.New("stop")
	if err := r.Watch(context.Background(), func(*namespace.Namespace) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("ended with %v", err)
	}
	go func() { ended <- r.Watch(context.Background(), func(*namespace.Namespace) error { return nil }) }()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, namespace.ErrClosed) {
		t.Errorf("ended with %v", err)
	}
	if _, err := r.Open(context.Background(), engine, "", example(t, "llama-3-8b")); !errors.Is(err, namespace.ErrClosed) {
		t.Errorf("open after close: %v", err)
	}
}
