package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/namespace/memregistry"
	"github.com/quire-kv/quire/reason"
)

func version(t testing.TB, s *namespace.Spec, v string) *namespace.Spec {
	return with(t, s, func(s *namespace.Spec) { s.Prov.Version = v })
}

// waiver of engine versions, for a day.
func waiver(clock *wallClock, values ...string) namespace.Waiver {
	return namespace.Waiver{Factor: "engine_version", Values: values, Reason: "bit-equal on our suite", Expiry: clock.now().Add(24 * time.Hour)}
}

// TestCase_C9_WaiversJoinWhatTheyName: exactly the values named, one factor, never classes 1 and 2.
func TestCase_C9_WaiversJoinWhatTheyName(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	base := example(t, "llama-3-8b") // 0.32.0
	anchor := open(t, r, engine, base)
	id := anchor.Namespace.ID
	n := must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, waiver(clock, "0.32.0", "0.32.1")))
	if w := n.Waivers[0]; w.Anchor != "0.32.0" || w.ID == "" || w.Author != "op" {
		t.Errorf("waiver %+v", w)
	}
	joined := open(t, r, engine, version(t, base, "0.32.1"))
	if joined.Namespace.ID != id || joined.Created {
		t.Error("a waived version opened a namespace of its own")
	}
	if joined.Provenance == anchor.Provenance || !strings.Contains(string(joined.Canonical), "engine_version=0.32.1\n") {
		t.Error("the true provenance was lost")
	}
	for _, v := range []string{"0.32.2", "0.33.0"} {
		if open(t, r, engine, version(t, base, v)).Namespace.ID == id {
			t.Errorf("%s was joined although nobody named it", v)
		}
	}
	both := with(t, version(t, base, "0.32.1"), func(s *namespace.Spec) { s.Prov.Arch = "sm_80" })
	if open(t, r, engine, both).Namespace.ID == id {
		t.Error("a waiver for one factor joined another")
	}
	dtype := with(t, version(t, base, "0.32.1"), setDType("float16", 16))
	if open(t, r, engine, dtype).Namespace.ID == id {
		t.Error("a waiver joined two element types")
	}
	for _, factor := range []string{
		"dtype", "groups[full:0].components[k].dtype", "bits", "model.weights", "weights", "rope.table", "hash.seed", "page_tokens",
		"grade", "depends_on", "mask", "strict", "recorded.reduction", "host", "", "engineversion", "*",
	} {
		w := waiver(clock, "0.32.0", "x")
		w.Factor = factor
		if _, err := r.Waive(ctx, operator, id, w); !errors.Is(err, reason.InvalidSpec) {
			t.Errorf("waiver of %q: %v", factor, err)
		}
	}
	if _, err := r.Waive(ctx, engine, id, waiver(clock, "0.32.0", "0.40.0")); !errors.Is(err, reason.Unauthorized) {
		t.Errorf("an engine waived: %v", err)
	}
}

func TestWaiverForm(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	base := example(t, "llama-3-8b")
	id := open(t, r, engine, base).Namespace.ID
	must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, waiver(clock, "0.32.0", "0.32.1")))
	for path, change := range map[string]func(*namespace.Waiver){
		"reason":   func(w *namespace.Waiver) { w.Reason = "" },
		"author":   func(w *namespace.Waiver) { w.Author = "two\nlines" },
		"expiry":   func(w *namespace.Waiver) { w.Expiry = time.Time{} },
		"expiry ":  func(w *namespace.Waiver) { w.Expiry = clock.now() },
		"expiry  ": func(w *namespace.Waiver) { w.Expiry = clock.now().Add(367 * 24 * time.Hour) },
		"values":   func(w *namespace.Waiver) { w.Values = w.Values[:1] },
		"values 1": func(w *namespace.Waiver) { w.Values = nil },
		"values 2": func(w *namespace.Waiver) { w.Values = []string{"0.33.0", "0.32.0"} },           // not the anchor
		"values 3": func(w *namespace.Waiver) { w.Values = []string{"0.32.0", "0.33.0", "0.33.0"} }, // twice
		"values 4": func(w *namespace.Waiver) { w.Values = []string{"0.32.0", "0.32.1"} },           // overlaps
		"values 5": func(w *namespace.Waiver) { w.Values = []string{"0.32.1", "0.34.0"} },           // chains
		"values 6": func(w *namespace.Waiver) { w.Values = []string{"0.32.0", "auto"} },
		"values 7": func(w *namespace.Waiver) { w.Values = []string{"0.32.0", ""} },
	} {
		w := waiver(clock, "0.32.0", "0.33.0")
		change(&w)
		_, err := r.Waive(ctx, operator, id, w)
		refusedAt(t, err, strings.TrimRight(path, " 1234567"), "")
	}
	more := must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, waiver(clock, "0.32.0", "0.35.0")))
	if len(more.Waivers) != 2 {
		t.Errorf("%d waivers: sharing the anchor is no overlap", len(more.Waivers))
	}
	option := waiver(clock, "", "on")
	option.Factor = "provenance.options.prefetch"
	must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, option))
	set := with(t, base, func(s *namespace.Spec) { s.Prov.Options = map[string]string{"prefetch": "on"} })
	if open(t, r, engine, set).Namespace.ID != id {
		t.Error("an option that the anchor lacks was waived, yet is a namespace of its own")
	}
	flag := waiver(clock, "false", "true")
	flag.Factor = "batch_invariant"
	must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, flag))
	if open(t, r, engine, with(t, base, func(s *namespace.Spec) { s.Prov.BatchInvariant = true })).Namespace.ID != id {
		t.Error("batch_invariant was waived, yet is a namespace of its own")
	}
}

// TestWaiversNeverGiveTwoAnswers: two namespaces whose waivers would both take one provenance.
func TestWaiversNeverGiveTwoAnswers(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	base := example(t, "llama-3-8b")
	one := open(t, r, engine, version(t, base, "1")).Namespace.ID
	two := open(t, r, engine, version(t, base, "2")).Namespace.ID
	must[*namespace.Namespace](t)(r.Waive(ctx, operator, one, waiver(clock, "1", "2", "3")))
	for _, values := range [][]string{{"2", "1"}, {"2", "3"}, {"2", "9"}} {
		_, err := r.Waive(ctx, operator, two, waiver(clock, values...))
		refusedAt(t, err, "values", one.String())
	}
	if open(t, r, engine, version(t, base, "2")).Namespace.ID != one {
		t.Error("what an operator said after the fact has no effect")
	}
	clock.advance(25 * time.Hour)
	if open(t, r, engine, version(t, base, "2")).Namespace.ID != two {
		t.Error("an expired waiver still joins")
	}
	must[*namespace.Namespace](t)(r.Waive(ctx, operator, two, waiver(clock, "2", "3")))
	if open(t, r, engine, version(t, base, "3")).Namespace.ID != two {
		t.Error("the anchor of the later waiver is not opened")
	}
}

// TestCase_C66_WaiverEnds: pages that came in through it are not accepted from then on, the anchor's stay.
func TestCase_C66_WaiverEnds(t *testing.T) {
	ctx := context.Background()
	r, clock := newRegistry(t)
	base := example(t, "llama-3-8b")
	anchor := open(t, r, engine, base)
	id := anchor.Namespace.ID
	first := must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, waiver(clock, "0.32.0", "0.32.1")))
	waived := open(t, r, engine, version(t, base, "0.32.1"))
	if c, ok := r.Provenance(id, waived.Provenance); !ok || string(c) != string(waived.Canonical) {
		t.Error("the waived opener's provenance is not registered")
	}
	accepts := func(want ...bool) {
		t.Helper()
		n, _ := r.Access(engine, id, namespace.RightRead)
		now := clock.now()
		if got := []bool{n.Accepts(anchor.Canonical, now), n.Accepts(waived.Canonical, now)}; !slices.Equal(got, want) {
			t.Errorf("anchor and waived: %v, want %v", got, want)
		}
	}
	accepts(true, true)
	if got := first.NextExpiry(clock.now()); !got.Equal(clock.now().Add(24 * time.Hour)) {
		t.Errorf("next expiry %v", got)
	}
	clock.advance(24*time.Hour - 1)
	accepts(true, true)
	clock.advance(1)
	accepts(true, false)
	if n, _ := r.Access(engine, id, namespace.RightRead); n.ID != id || !n.NextExpiry(clock.now()).IsZero() {
		t.Error("the id moved, or an ended waiver still expires")
	}
	again := must[*namespace.Namespace](t)(r.Waive(ctx, operator, id, waiver(clock, "0.32.0", "0.32.1")))
	accepts(true, true)
	must[*namespace.Namespace](t)(r.RevokeWaiver(ctx, operator, id, again.Waivers[0].ID))
	accepts(true, false)
	if n, _ := r.Access(engine, id, namespace.RightRead); n.Accepts(waived.Canonical, clock.now().Add(-time.Hour)) {
		t.Error("a node whose clock is behind still accepts what was revoked")
	}
	if _, err := r.RevokeWaiver(ctx, operator, id, "nothing"); !errors.Is(err, reason.NotFound) {
		t.Errorf("revoke of nothing: %v", err)
	}
}

func TestAcceptsUnderStrict(t *testing.T) {
	r, clock := newRegistry(t)
	strict := with(t, example(t, "llama-3-8b"), func(s *namespace.Spec) { s.Strict, s.Record.Reduction = true, "fixed(8)" })
	n := open(t, r, engine, strict).Namespace
	other := with(t, strict, func(s *namespace.Spec) { s.Record.Reduction = "tp8" })
	if !n.Accepts(strict.CanonicalProvenance(), clock.now()) || n.Accepts(other.CanonicalProvenance(), clock.now()) {
		t.Error("strict: the shape of the sums is not compared")
	}
	if open(t, r, engine, other).Namespace.ID == n.ID {
		t.Error("strict: another shape of the sums is the same namespace")
	}
	plain := open(t, r, engine, example(t, "llama-3-8b")).Namespace
	shapes := with(t, example(t, "llama-3-8b"), func(s *namespace.Spec) { s.Record.Reduction, s.Record.WriterTP = "tp8", 8 })
	if !plain.Accepts(shapes.CanonicalProvenance(), clock.now()) {
		t.Error("plain: recorded factors are compared")
	}
	for _, bad := range []string{"", "x", "engine=vllm", "\n", "a=b\na=b\n", "b=1\na=1\n", "recorded.a=1\nengine=x\n", strings.Repeat("a", 2000)} {
		if plain.Accepts([]byte(bad), clock.now()) {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestAcceptsIsDumbAccepts compares with the definition written out, over random waivers and provenances.
func TestAcceptsIsDumbAccepts(t *testing.T) {
	base := example(t, "llama-3-8b")
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	clone := func() *namespace.Spec { return copySpec(t, base) }
	rapid.Check(t, func(t *rapid.T) {
		value := func(name string) string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, name) }
		own, given := clone(), clone()
		own.Prov.Version, own.Prov.Kernel = value("version"), value("kernel")
		given.Prov.Version, given.Prov.Kernel = value("version"), value("kernel")
		n := &namespace.Namespace{Spec: own}
		for range rapid.IntRange(0, 3).Draw(t, "waivers") {
			factor := rapid.SampledFrom([]string{"engine_version", "kernel_build"}).Draw(t, "factor")
			anchor := map[string]string{"engine_version": own.Prov.Version, "kernel_build": own.Prov.Kernel}[factor]
			n.Waivers = append(n.Waivers, namespace.Waiver{Factor: factor, Anchor: anchor, Values: []string{anchor, value("joined")},
				Expiry: now.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "expiry")) * time.Hour)})
		}
		joined := func(factor, own, given string) bool {
			ok := own == given
			for _, w := range n.Waivers {
				ok = ok || w.Factor == factor && w.Expiry.After(now) && slices.Contains(w.Values, given)
			}
			return ok
		}
		want := joined("engine_version", own.Prov.Version, given.Prov.Version) && joined("kernel_build", own.Prov.Kernel, given.Prov.Kernel)
		if got := n.Accepts(given.CanonicalProvenance(), now); got != want {
			t.Fatalf("accepts %v, want %v: %v", got, want, n.Waivers)
		}
	})
}

func TestProvenanceBound(t *testing.T) {
	const limit = 16
	ctx := context.Background()
	r, err := namespace.NewRegistry(ctx, memregistry.New(), namespace.Options{MaxProvenances: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	base := example(t, "llama-3-8b")
	shape := func(tp int) *namespace.Spec {
		return with(t, base, func(s *namespace.Spec) { s.Record.WriterTP = uint32(tp) })
	}
	for tp := range limit {
		open(t, r, engine, shape(tp+1))
	}
	if _, err := r.Open(ctx, engine, "", shape(limit+1)); !errors.Is(err, reason.LimitExceeded) {
		t.Errorf("one provenance too many: %v", err)
	}
	open(t, r, engine, shape(7)) // those that are known still open
	hosts := with(t, base, func(s *namespace.Spec) { s.Record.WriterTP, s.Record.Host = 7, "pod-4711" })
	open(t, r, engine, hosts) // and a new pod is no new provenance
	long := with(t, base, func(s *namespace.Spec) {
		s.Prov.Options = map[string]string{}
		for i := range 8 {
			s.Prov.Options[fmt.Sprint("o", i)] = strings.Repeat("x", 200)
		}
	})
	_, err = r.Open(ctx, engine, "", long)
	refusedAt(t, err, "provenance", "at most 1024")
}
