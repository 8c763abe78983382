//go:build linux

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/reason"
)

// The whole demo on a few requests: nothing wrong, hits in every shape, each refusal with its own reason.
func TestDemo(t *testing.T) {
	steps := 0
	r, err := Run(t.Context(), Options{Requests: 40, MemoryBytes: 192 << 20, Progress: func() { steps++ }})
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Problems(); len(p) > 0 {
		t.Error(strings.Join(p, "\n"))
	}
	if steps != 40 || r.Replay.Requests != 40 || r.Replay.PagesLookedUp == 0 {
		t.Errorf("%d steps, %+v", steps, r.Replay)
	}
	if r.Bytes.Verified == 0 || r.Bytes.Verified != r.Bytes.Fetched || r.Replay.PagesHit == 0 || r.Saved.PrefillSecond <= 0 {
		t.Errorf("nothing was hit and checked: %+v, %+v", r.Replay, r.Bytes)
	}
	if r.Store.EvictedPages == 0 {
		t.Error("no page was evicted: the memory is too large for this test to show anything")
	}
	for _, tp := range []string{"tp1", "tp2", "tp4"} {
		if r.Replay.PagesStoredByTP[tp] == 0 || r.Replay.PagesReadByTP[tp] == 0 {
			t.Errorf("%s: stored %v, read %v", tp, r.Replay.PagesStoredByTP, r.Replay.PagesReadByTP)
		}
	}
	checkRefusals(t, r)
	checkJSON(t, r)
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"wrong bytes     0\n", "payload scaled 1:640", "memcpy here", "stale_token", "hash_contract_fork"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
}

// A demo on the data of another starts warm: pages that this one never published are hits, every byte of them right.
func TestDemoOnKeptData(t *testing.T) {
	o := Options{Requests: 40, MemoryBytes: 192 << 20, DiskBytes: 1 << 30, DataDir: t.TempDir()}
	var runs []*Report
	for _, want := range []string{"started cold", "started warm"} {
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Problems(); len(p) > 0 {
			t.Error(strings.Join(p, "\n"))
		}
		checkRefusals(t, r)
		var text bytes.Buffer
		if err := r.Write(&text); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%v, the report does not say %q:\n%s", err, want, text.String())
		}
		runs = append(runs, r)
	}
	cold, warm := runs[0], runs[1]
	if cold.Store.PagesAtStart != 0 || cold.Replay.PagesHitEarlier != 0 || warm.Store.PagesAtStart == 0 || warm.Replay.PagesHitEarlier == 0 {
		t.Errorf("cold: %+v %+v; warm: %+v %+v", cold.Store, cold.Replay, warm.Store, warm.Replay)
	}
	if warm.Replay.PagesHit <= cold.Replay.PagesHit || warm.Bytes.Published >= cold.Bytes.Published {
		t.Errorf("the warm run hit %d pages and published %d bytes, the cold one %d and %d",
			warm.Replay.PagesHit, warm.Bytes.Published, cold.Replay.PagesHit, cold.Bytes.Published)
	}
}

func checkRefusals(t *testing.T, r *Report) {
	t.Helper()
	want := map[string]reason.Reason{
		"other_dtype": reason.Absent, "other_weights": reason.Absent, "other_rope": reason.Absent, "other_adapter": reason.Absent,
		"other_tenant": reason.Absent, "other_tenant_by_id": reason.Absent, "other_hash_seed": reason.HashContractFork,
		"revoked_waiver": reason.Provenance, "truncated_upload": reason.Truncated, "stale_token": reason.StaleToken,
		"expired_lease": reason.LeaseExpired, "flipped_bit": reason.Corrupt,
	}
	for _, x := range r.Refusals {
		if x.Reason != want[x.Name].String() || x.Answer == answerHit {
			t.Errorf("%s: %s, %s; want %v", x.Name, x.Answer, x.Reason, want[x.Name])
		}
		delete(want, x.Name)
	}
	if len(want) > 0 {
		t.Errorf("never tried: %v", want)
	}
}

func checkJSON(t *testing.T, r *Report) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Bytes    struct{ Wrong *int }
		Replay   map[string]any
		Refusals []struct{ Name, Reason string }
	}
	if err := json.Unmarshal(b, &back); err != nil || back.Bytes.Wrong == nil || *back.Bytes.Wrong != 0 || len(back.Refusals) != len(r.Refusals) {
		t.Errorf("%v: %s", err, b)
	}
}

// A report in which something is not as promised says what.
func TestProblems(t *testing.T) {
	r := &Report{Bytes: Bytes{Wrong: 3}, Store: Store{MemoryBytes: 1, HeldBytes: 2}, Replay: Replay{LeasedMisses: map[string]uint64{"absent": 1}}, Refusals: []Refusal{{Name: "other_rope", Answer: answerHit}}}
	all := strings.Join(r.Problems(), "\n")
	for _, want := range []string{"3 wrong bytes", "holds 2 bytes", "leased pages were not served: absent", "other_rope"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not told: %s", want, all)
		}
	}
}

// A trace of another file is read as it goes, and a wrong line is named.
func TestTraceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	line := `{"timestamp":0,"input_length":1100,"output_length":1,"hash_ids":[1,2,3]}`
	if err := os.WriteFile(path, []byte(line+"\n"+line+"\n{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = Run(t.Context(), Options{Trace: f, TraceName: path})
	var wrong *replay.LineError
	if !errors.As(err, &wrong) || wrong.Line != 3 {
		t.Errorf("%v, want an error of line 3", err)
	}
}

// A demo that is interrupted ends, with all that it started.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Run(ctx, Options{MemoryBytes: minMemoryBytes, Progress: cancel})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{Requests: -1}, {MemoryBytes: 1}, {FLOPS: -1}} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}
