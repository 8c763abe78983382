package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

func paths(d []namespace.Difference) (out []string) {
	for _, x := range d {
		out = append(out, x.Path)
	}
	return out
}

func setDType(dtype string, bits uint8) func(*namespace.Spec) {
	return func(s *namespace.Spec) {
		for i := range s.Groups[0].Components {
			s.Groups[0].Components[i].DType, s.Groups[0].Components[i].Bits = dtype, bits
		}
	}
}

// TestCase_C1_TwelveIdentities: three dtypes (two of one width), two weight revisions, two tenants.
func TestCase_C1_TwelveIdentities(t *testing.T) {
	r, _ := newRegistry(t)
	base := example(t, "llama-3-8b")
	type variant struct {
		dtype   string
		bits    uint8
		weights string
		by      namespace.Principal
	}
	var variants []variant
	for _, dtype := range []string{"bfloat16", "float16", "float8_e4m3fn"} {
		for _, weights := range []string{"revision 1", "revision 2"} {
			for _, by := range []namespace.Principal{engine, stranger} {
				bits := uint8(16)
				if dtype == "float8_e4m3fn" {
					bits = 8
				}
				variants = append(variants, variant{dtype, bits, weights, by})
			}
		}
	}
	opened := map[page.NamespaceID]variant{}
	for _, v := range variants {
		s := with(t, base, func(s *namespace.Spec) {
			setDType(v.dtype, v.bits)(s)
			s.Model.Weights = namespace.DigestOf([]byte(v.weights))
		})
		o := open(t, r, v.by, s)
		if _, had := opened[o.Namespace.ID]; had || !o.Created {
			t.Fatalf("%+v is not an identity of its own", v)
		}
		opened[o.Namespace.ID] = v
		for _, sibling := range o.Siblings {
			w := opened[sibling.Namespace.ID]
			if w.by != v.by {
				t.Errorf("%+v was shown the sibling of another tenant", v)
			}
			var want []string
			for _, c := range []string{"k", "v"} {
				if w.bits != v.bits {
					want = append(want, "groups[full:0].components["+c+"].bits")
				}
				if w.dtype != v.dtype {
					want = append(want, "groups[full:0].components["+c+"].dtype")
				}
			}
			if w.weights != v.weights {
				want = append(want, "model.weights")
			}
			if got := paths(sibling.Diff); !slices.Equal(got, want) {
				t.Errorf("diff names %v, want %v", got, want)
			}
		}
		if len(o.Siblings) > 1 && len(o.Siblings[0].Diff) > len(o.Siblings[1].Diff) && o.Siblings[0].Diff[0].Class == o.Siblings[1].Diff[0].Class {
			t.Errorf("siblings are not nearest first")
		}
	}
	if len(opened) != 12 {
		t.Fatalf("%d identities, want 12", len(opened))
	}
	for id, v := range opened { // and no cross access between tenants
		for _, by := range []namespace.Principal{engine, stranger} {
			_, why := r.Access(by, id, namespace.RightRead)
			if want := map[bool]reason.Reason{true: reason.None, false: reason.Absent}[by == v.by]; why != want {
				t.Errorf("%s reads one of %s: %v", by.Tenant, v.by.Tenant, why)
			}
		}
	}
}

// TestNearestSiblings: one semantic difference is farther than two of representation.
func TestNearestSiblings(t *testing.T) {
	r, _ := newRegistry(t)
	base := example(t, "llama-3-8b")
	weights := with(t, base, func(s *namespace.Spec) { s.Model.Weights = namespace.DigestOf([]byte("other")) })
	version := with(t, base, func(s *namespace.Spec) { s.Prov.Version = "0.33.0" })
	a, b, c := open(t, r, engine, weights), open(t, r, engine, with(t, base, setDType("float16", 16))), open(t, r, engine, version)
	var got []page.NamespaceID
	for _, s := range open(t, r, engine, base).Siblings {
		got = append(got, s.Namespace.ID)
	}
	if want := []page.NamespaceID{c.Namespace.ID, b.Namespace.ID, a.Namespace.ID}; !slices.Equal(got, want) {
		t.Errorf("siblings %v, want provenance, representation, semantic: %v", got, want)
	}
}

// differs opens two specs and says what tells them apart.
func differs(t *testing.T, a, b *namespace.Spec) []string {
	t.Helper()
	r, _ := newRegistry(t)
	x, y := open(t, r, engine, a), open(t, r, engine, b)
	if x.Namespace.ID == y.Namespace.ID {
		t.Error("one namespace for two identities")
		return nil
	}
	return paths(y.Siblings[0].Diff)
}

// TestCase_C2_SameNameOtherWeights: a new namespace; the old one is untouched and can be retired on its own.
func TestCase_C2_SameNameOtherWeights(t *testing.T) {
	base := example(t, "llama-3-8b")
	updated := with(t, base, func(s *namespace.Spec) { s.Model.Weights = namespace.DigestOf([]byte("updated in place")) })
	if got := differs(t, base, updated); !slices.Equal(got, []string{"model.weights"}) {
		t.Errorf("diff %v", got)
	}
}

// TestCase_C3_RopeScalingAndLength: other scaling is another namespace; another maximum length is where the regime
// depends on it, and cannot be said where it does not.
func TestCase_C3_RopeScalingAndLength(t *testing.T) {
	base := example(t, "llama-3-8b")
	scaled := with(t, base, func(s *namespace.Spec) { s.Rope.Table = namespace.DigestOf([]byte("factor 8")) })
	if got := differs(t, base, scaled); !slices.Equal(got, []string{"rope.table"}) {
		t.Errorf("scaling: diff %v", got)
	}
	length := func(n uint64) *namespace.Spec {
		return with(t, base, func(s *namespace.Spec) { s.Rope.Regime, s.Rope.MaxTokens = "longrope_long", n })
	}
	if got := differs(t, length(32768), length(131072)); !slices.Equal(got, []string{"rope.max_tokens"}) {
		t.Errorf("length: diff %v", got)
	}
	if got := differs(t, base, length(32768)); !slices.Contains(got, "rope.regime") {
		t.Errorf("regime: diff %v", got)
	}
}

// TestCase_C4_AdaptersAndSalt: what varies per request is the scope in the key; the rule that puts adapters and salt
// into the hash is identity here, and the model id is not a way around the weights.
func TestCase_C4_AdaptersAndSalt(t *testing.T) {
	base := example(t, "llama-3-8b")
	rule := with(t, base, func(s *namespace.Spec) { s.Hash.ExtraKeys = 2 })
	if got := paths(namespace.Diff(base, rule)); !slices.Equal(got, []string{"hash.extra_keys"}) || base.ID("acme") == rule.ID("acme") {
		t.Errorf("another extra-keys rule: diff %v", got)
	}
	merged := with(t, base, func(s *namespace.Spec) { s.Model.Weights = namespace.DigestOf([]byte("with adapter merged")) })
	if base.Model.ID != merged.Model.ID || base.ID("acme") == merged.ID("acme") {
		t.Error("a merged adapter under the same name is the same namespace")
	}
}

// TestCase_C6_HashContract: seed, algorithm, unit or probe differ: refused loudly at open.
func TestCase_C6_HashContract(t *testing.T) {
	for _, c := range []struct {
		path   string
		change func(*namespace.Spec)
	}{
		{"hash.seed", func(s *namespace.Spec) { s.Hash.Seed = namespace.DigestOf([]byte("other")) }},
		{"hash.algorithm", func(s *namespace.Spec) { s.Hash.Algorithm = "sglang_sha256" }},
		{"hash.probe", func(s *namespace.Spec) { s.Hash.Probe = namespace.DigestOf([]byte("other")) }},
		{"groups[full:0].page_tokens", func(s *namespace.Spec) { s.Groups[0].PageTokens = 64 }},
	} {
		r, _ := newRegistry(t)
		base := example(t, "llama-3-8b")
		first := open(t, r, engine, base)
		_, err := r.Open(context.Background(), engine, "", with(t, base, c.change))
		var refusal *namespace.Refusal
		if !errors.As(err, &refusal) || !errors.Is(err, reason.HashContractFork) || refusal.Path != c.path {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if len(refusal.Siblings) != 1 || refusal.Siblings[0].Namespace.ID != first.Namespace.ID || !slices.Contains(paths(refusal.Diff), c.path) {
			t.Errorf("%s: the sibling is not named: %+v", c.path, refusal)
		}
	}
}

// TestCase_C72_OtherSeedIsLoud: provenance is ignored, a fork needs an operator, and nothing else is in the way.
func TestCase_C72_OtherSeedIsLoud(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	base := example(t, "llama-3-8b")
	seed := func(n int) *namespace.Spec {
		return with(t, base, func(s *namespace.Spec) {
			s.Hash.Seed, s.Prov.Version = namespace.DigestOf(fmt.Append(nil, n)), fmt.Sprintf("0.33.%d", n)
		})
	}
	refused := func(s *namespace.Spec) bool {
		_, err := r.Open(ctx, engine, "", s)
		_, _, _, would := r.Negotiate(engine, "", s)
		if errors.Is(err, reason.HashContractFork) != (would != nil && would.Reason == reason.HashContractFork) {
			t.Errorf("open says %v, negotiate %v", err, would)
		}
		if err != nil && !errors.Is(err, reason.HashContractFork) {
			t.Error(err)
		}
		return err != nil
	}
	first := open(t, r, engine, base)
	if !refused(seed(1)) {
		t.Error("another seed, beside one in use, was let in")
	}
	other := with(t, seed(1), func(s *namespace.Spec) { s.Prov.Engine = "sglang" })
	if refused(other) {
		t.Error("another engine has another hash rule by nature")
	}
	if refused(with(t, seed(1), func(s *namespace.Spec) { s.Model.Weights = namespace.DigestOf([]byte("w")) })) {
		t.Error("other weights are no fork")
	}
	if _, err := r.Open(ctx, operator, "third", seed(1)); err != nil {
		t.Errorf("another tenant is no sibling: %v", err)
	}
	if _, err := r.AllowFork(ctx, engine, first.Namespace.ID); !errors.Is(err, reason.Unauthorized) {
		t.Errorf("an engine allowed its own fork: %v", err)
	}
	clock.advance(61 * 60 * 1e9)
	if refused(seed(2)) {
		t.Error("nobody used the sibling for an hour")
	}
	if !refused(base) {
		t.Error("the earlier contract came back beside the later one in use")
	}
	if _, err := r.AllowFork(ctx, operator, first.Namespace.ID); err != nil {
		t.Fatal(err)
	}
	if refused(base) || refused(seed(2)) {
		t.Error("an operator allowed the fork, from either side")
	}
	if !refused(seed(3)) {
		t.Error("a third contract beside the second was not allowed by anybody")
	}
}

// TestCase_C68_TwoTenants: identical specs share nothing; with a grant they do.
func TestCase_C68_TwoTenants(t *testing.T) {
	ctx := context.Background()
	r, _ := newRegistry(t)
	s := example(t, "llama-3-8b")
	mine, theirs := open(t, r, engine, s), open(t, r, stranger, s)
	if mine.Namespace.ID == theirs.Namespace.ID || len(theirs.Siblings) > 0 {
		t.Fatal("two tenants share a namespace, or see it")
	}
	id := mine.Namespace.ID
	may := func(by namespace.Principal, right namespace.Right) reason.Reason {
		n, why := r.Access(by, id, right)
		if (n != nil) != (why == reason.None) {
			t.Errorf("namespace and %v", why)
		}
		return why
	}
	if got := may(stranger, namespace.RightRead); got != reason.Absent {
		t.Errorf("before: %v", got)
	}
	must[*namespace.Namespace](t)(r.Grant(ctx, operator, id, namespace.Grant{Tenant: "other", Right: namespace.RightRead}))
	if a, b := may(stranger, namespace.RightRead), may(stranger, namespace.RightPublish); a != reason.None || b != reason.Unauthorized {
		t.Errorf("read grant: read %v, publish %v", a, b)
	}
	must[*namespace.Namespace](t)(r.Grant(ctx, operator, id, namespace.Grant{Tenant: "other", Right: namespace.RightPublish}))
	if a, b := may(stranger, namespace.RightPublish), may(stranger, namespace.RightManage); a != reason.None || b != reason.Unauthorized {
		t.Errorf("publish grant: publish %v, manage %v", a, b)
	}
	eyes := namespace.Principal{Name: "eyes", Tenant: "other", Role: namespace.RoleReadOnly}
	if a, b := may(eyes, namespace.RightRead), may(eyes, namespace.RightPublish); a != reason.None || b != reason.Unauthorized {
		t.Errorf("read-only under a publish grant: read %v, publish %v", a, b)
	}
	if got := r.List(stranger, "", false); len(got) != 2 {
		t.Errorf("with a grant the other tenant lists %d, want 2", len(got))
	}
	must[*namespace.Namespace](t)(r.RevokeGrant(ctx, operator, id, "other"))
	if got := may(stranger, namespace.RightRead); got != reason.Absent {
		t.Errorf("after: %v", got)
	}
}

// TestCase_C75_WeakNamesAreNotGranted is the registry's half.
func TestCase_C75_WeakNamesAreNotGranted(t *testing.T) {
	r, _ := newRegistry(t)
	s := with(t, example(t, "gemma-3-12b"), func(s *namespace.Spec) { s.Attention.MM, s.WeakNames = "caller_id", true })
	o := open(t, r, engine, s)
	_, err := r.Grant(context.Background(), operator, o.Namespace.ID, namespace.Grant{Tenant: "other", Right: namespace.RightRead})
	if !errors.Is(err, reason.WeakNames) {
		t.Errorf("grant of weak names: %v", err)
	}
	if _, why := r.Access(stranger, o.Namespace.ID, namespace.RightRead); why != reason.Absent {
		t.Errorf("a stranger reads weak names: %v", why)
	}
}

// TestCase_C53_StrangersLearnNothing: every call about a namespace of another tenant answers exactly as for one that
// does not exist.
func TestCase_C53_StrangersLearnNothing(t *testing.T) {
	ctx := context.Background()
	r, _ := newRegistry(t)
	real := open(t, r, engine, example(t, "llama-3-8b")).Namespace.ID
	nobody := namespace.Principal{Name: "nobody"}
	for _, by := range []namespace.Principal{stranger, nobody, {Name: "eyes", Tenant: "other", Role: namespace.RoleReadOnly}, {Role: 9, Tenant: "acme"}} {
		answers := func(id page.NamespaceID) (out []string) {
			add := func(_ *namespace.Namespace, err error) { out = append(out, fmt.Sprint(err)) }
			n, why := r.Access(by, id, namespace.RightRead)
			out = append(out, fmt.Sprint(n, why))
			add(r.Waive(ctx, by, id, namespace.Waiver{Factor: "engine_version", Values: []string{"a", "b"}}))
			add(r.RevokeWaiver(ctx, by, id, "x"))
			add(r.Grant(ctx, by, id, namespace.Grant{Tenant: by.Tenant, Right: namespace.RightRead}))
			add(r.RevokeGrant(ctx, by, id, by.Tenant))
			add(r.SetPolicy(ctx, by, id, namespace.Policy{}))
			add(r.SetState(ctx, by, id, namespace.Draining))
			add(r.Purge(ctx, by, id))
			_, err := r.AllowFork(ctx, by, id)
			return append(out, fmt.Sprint(err))
		}
		got, want := answers(real), answers(page.NamespaceID{1})
		if !slices.Equal(got, want) {
			t.Errorf("%+v learns by asking:\n real    %q\n nothing %q", by, got, want)
		}
		if len(r.List(by, "acme", true)) > 0 || len(r.List(by, "", true)) > 0 {
			t.Errorf("%+v lists it", by)
		}
		if _, err := r.Open(ctx, by, "acme", example(t, "llama-3-8b")); !errors.Is(err, reason.Unauthorized) {
			t.Errorf("%+v opens for acme: %v", by, err)
		}
		if _, err := r.Tokens(by); !errors.Is(err, reason.Unauthorized) {
			t.Errorf("%+v lists tokens: %v", by, err)
		}
	}
}
