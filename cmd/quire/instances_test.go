package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// reporting is a namespace of the example with changes to its spec, and who reports from it.
func reporting(t *testing.T, id byte, tenant string, edit [2]string, instances ...*quirev1.Instance) *quirev1.Namespace {
	t.Helper()
	text, ok := namespace.ExampleSpec("smollm2-135m")
	if !ok {
		t.Fatal("no example")
	}
	changed := strings.ReplaceAll(string(text), edit[0], edit[1])
	spec, err := namespace.Parse([]byte(changed))
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := spec.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return &quirev1.Namespace{
		Id: bytes.Repeat([]byte{id}, 32), Epoch: 1, Tenant: tenant, State: quirev1.NamespaceState_NAMESPACE_STATE_ACTIVE, Spec: string(canonical), Instances: instances,
	}
}

func engine(name string, hits, keys uint64, change ...func(*quirev1.Instance)) *quirev1.Instance {
	i := &quirev1.Instance{
		Instance: name, Engine: "vllm", EngineVersion: "0.32.0", Adapter: "quire_kv.vllm 1", SessionAge: durationpb.New(200 * time.Minute),
		ReportAge: durationpb.New(7 * time.Second), Breaker: quirev1.BreakerState_BREAKER_STATE_CLOSED,
		Counters: &quirev1.EngineCounters{Lookups: 5, LookupKeys: keys, HitKeys: hits, LoadedBytes: hits << 20, SavedBytes: 1 << 20},
	}
	for _, c := range change {
		c(i)
	}
	return i
}

func shown(t *testing.T, most int, all ...*quirev1.Namespace) string {
	t.Helper()
	var b bytes.Buffer
	if err := (&app{world: world{out: &b, now: longAfter}}).printTree(all, most); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Those that one should look at come first: open breakers, then low hit rates; at last who looked up nothing.
func TestInstancesWorstFirst(t *testing.T) {
	text := shown(t, 0, reporting(t, 1, "a", [2]string{},
		engine("idle", 0, 0), engine("good", 99, 100), engine("poor", 1, 100),
		engine("cut-off", 99, 100, func(i *quirev1.Instance) {
			i.Breaker = quirev1.BreakerState_BREAKER_STATE_OPEN
			i.Counters.Failures = []*quirev1.FailureCount{
				{Reason: quirev1.Reason_REASON_CORRUPT, Count: 3}, {Reason: quirev1.Reason_REASON_BUSY, Count: 1200}, {Reason: quirev1.Reason_REASON_UNKNOWN, Count: 1},
			}
		}),
		engine("torn", 12, 10), // its counters were read while they moved
	))
	at := -1
	for _, want := range []string{"cut-off ", "poor ", "good ", "torn ", "idle "} {
		next := strings.Index(text, "\n"+want)
		if next <= at {
			t.Errorf("%q is missing or not in its place:\n%s", want, text)
		}
		at = next
	}
	for _, want := range []string{"1,204: busy 1,200, corrupt 3, and 1 more", "open", "100.0 %", "3h20m", "7s ago", "vllm 0.32.0", "99 MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not shown:\n%s", want, text)
		}
	}
	if strings.Contains(text, "fork:") {
		t.Errorf("instances of one namespace are called a fork:\n%s", text)
	}
}

func TestInstancesAreBounded(t *testing.T) {
	var all []*quirev1.Instance
	for i := range maxShownInstances + 5 {
		all = append(all, engine(fmt.Sprintf("gpu-%02d", i), uint64(i), 100))
	}
	ns := reporting(t, 1, "a", [2]string{}, all...)
	text := shown(t, maxShownInstances, ns)
	if got := strings.Count(text, "\ngpu-"); got != maxShownInstances || !strings.Contains(text, "and 5 more instances; --instances shows all") {
		t.Errorf("%d rows:\n%s", got, text)
	}
	if got := strings.Count(shown(t, 0, ns), "\ngpu-"); got != len(all) {
		t.Errorf("%d rows of %d with --instances", got, len(all))
	}
	if text := shown(t, maxShownInstances, reporting(t, 1, "a", [2]string{})); strings.Contains(text, "INSTANCE") {
		t.Errorf("nobody reports, and the list says:\n%s", text)
	}
}

// A fork is two namespaces in use by one tenant; what the other tenant uses, or nobody, is none.
func TestForks(t *testing.T) {
	fp8 := [2]string{"bits: 16, dtype: bfloat16", "bits: 8, dtype: float8_e4m3"}
	version := [2]string{"engine_version: 0.32.0", "engine_version: 0.33.0"}
	text := shown(t, 0,
		reporting(t, 1, "a", [2]string{}, engine("old-1", 80, 100), engine("old-2", 100, 100), engine("old-3", 90, 100)),
		reporting(t, 2, "a", version, engine("new", 1, 50)),
		reporting(t, 3, "a", fp8),
		reporting(t, 4, "b", fp8, engine("other-tenant", 0, 9)),
	)
	if strings.Count(text, "fork:") != 1 {
		t.Fatalf("want one fork:\n%s", text)
	}
	_, fork, _ := strings.Cut(text, "fork:")
	want := `fork: engines of HuggingFaceTB/SmolLM2-135M use two namespaces at once, and none of one's pages is a hit in the other
  NAMESPACE     KEYS HIT  KEYS  INSTANCES
  010101010101    90.0 %   300  old-1, old-2 and 1 more
  020202020202     2.0 %    50  new
  FACTOR                     010101010101  020202020202  CLASS
  provenance.engine_version  0.32.0        0.33.0        provenance
`
	if got := "fork:" + fork; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}

	// Many forks: each is with the namespace that has most hits, and a screen is not flooded.
	var all []*quirev1.Namespace
	for i := range maxShownForks + 3 {
		edit := [2]string{"engine_version: 0.32.0", fmt.Sprintf("engine_version: 0.32.%d", i+1)}
		all = append(all, reporting(t, byte(16+i), "a", edit, engine(fmt.Sprint("e", i), uint64(i), 100)))
	}
	text = shown(t, 0, all...)
	if got := strings.Count(text, "fork:"); got != maxShownForks || !strings.Contains(text, "and 2 more forks; -o json has all") {
		t.Errorf("%d forks shown:\n%s", got, text)
	}
	if got := strings.Count(text, "\n  161616161616 "); got != maxShownForks {
		t.Errorf("the one with most hits is a side of %d forks:\n%s", got, text)
	}
}

func TestSpanText(t *testing.T) {
	for seconds, want := range map[float64]string{0: "0s", 0.9: "0s", 59.9: "59s", 61: "1m1s", 7260: "2h1m", 90000: "1d1h"} {
		if got := spanText(seconds); got != want {
			t.Errorf("%v s: %s, want %s", seconds, got, want)
		}
	}
}
