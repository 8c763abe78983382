package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const excerpt = "../../evict/replay/testdata/mooncake_conversation_800.jsonl"

// TestReplay holds the output of replay and trace. Rewrite with: go test ./cmd/quire -run TestReplay$ -rewrite
func TestReplay(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	s.script(t, "testdata/replay")
}

func replayJSON(t *testing.T, line string) (r replayReport) {
	t.Helper()
	s := &shell{dir: t.TempDir()}
	out, errOut, code := s.raw(t, line)
	if code != exitOK || errOut != "" {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReplayOfEveryPolicy: each is between nothing and the bound, nothing is an orphan, and figures fit each other.
func TestReplayOfEveryPolicy(t *testing.T) {
	r := replayJSON(t, "quire replay "+excerpt+" --capacity 1%,20% --model 8b,70b,mla --rounds 20 -o json")
	if len(r.Traces) != 1 || len(r.Traces[0].Models) != 3 || r.Traces[0].Pages != 17019 {
		t.Fatalf("%+v", r)
	}
	for _, m := range r.Traces[0].Models {
		for _, c := range m.Capacities {
			if len(c.Policies) != len(policyNames()) || c.Upper > m.Content || c.Belady.OfUpper > 1.000001 {
				t.Errorf("%s, %d pages: %d policies, upper %v, content %v", m.Name, c.Pages, len(c.Policies), c.Upper, m.Content)
			}
			for i, p := range c.Policies {
				if p.Policy != policyNames()[i] || p.OfUpper <= 0 || p.OfUpper > 1 || p.OfContent > p.OfUpper || p.Orphans != 0 ||
					p.SavedSeconds*r.FLOPsPerSecond/p.Saved < 0.999 || p.WrittenBytes != uint64(p.Written)*m.PageBytes || len(p.Decisions) != 16 {
					t.Errorf("%s, %d pages: %+v", m.Name, c.Pages, p)
				}
			}
		}
	}
	if a, b := r.Traces[0].Models[0], r.Traces[0].Models[1]; a.PageBytes != 64<<20 || b.PageBytes != 160<<20 || b.Content <= a.Content {
		t.Errorf("8b: pages of %d, content %v; 70b: pages of %d, content %v", a.PageBytes, a.Content, b.PageBytes, b.Content)
	}
}

// TestReplayIsTheSameOnAnyNumberOfWorkers, and another seed shows in the decisions of policies that draw.
func TestReplayIsTheSameOnAnyNumberOfWorkers(t *testing.T) {
	line := "quire replay " + excerpt + " --capacity 20% --rounds 5 -o json"
	one := replayJSON(t, line+" --workers 1")
	for _, more := range []string{" --workers 4", " --workers 1"} {
		if two := replayJSON(t, line+more); fmt.Sprint(one) != fmt.Sprint(two) {
			t.Errorf("with%s: %v, before %v", more, two, one)
		}
	}
	other := replayJSON(t, line+" --seed 2")
	same := 0
	for i, p := range one.Traces[0].Models[0].Capacities[0].Policies {
		if p.Decisions == other.Traces[0].Models[0].Capacities[0].Policies[i].Decisions {
			same++
		}
	}
	if all := len(policyNames()); same == all || same == 0 {
		t.Errorf("another seed changes the decisions of %d of %d policies", all-same, all)
	}
}

// TestTracesThatHaveNothing are refused by what is wrong with them, not shown as tables of zeros.
func TestTracesThatHaveNothing(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	for text, want := range map[string]string{
		"": "no request in it", "not json": "trace line 1: no JSON object",
		`{"timestamp":1,"input_length":5}`:                          "no request has as many as 512 tokens",
		`{"timestamp":1,"input_length":512,"hash_ids":"x"}`:         "trace line 1: hash_ids is a JSON string",
		`{"timestamp":1,"input_length":1024,"hash_ids":[1]}`:        "trace line 1: 1 hash_ids for 1024 tokens",
		`{"timestamp":1,"input_length":512,"hash_ids":[1]}` + "\n[": "trace line 2",
	} {
		if err := os.WriteFile(filepath.Join(s.dir, "bad.jsonl"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"replay", "trace show", "trace play"} {
			if out, errOut, code := s.raw(t, "quire "+command+" $DIR/bad.jsonl"); code != exitFailure || out != "" || !strings.Contains(errOut, want) {
				t.Errorf("%s of %q: exit %d: %s%s", command, text, code, out, errOut)
			}
		}
	}
}

// TestReplayWithADisk: a table and JSON say what each tier was written, and who knows one tier alone is refused.
func TestReplayWithADisk(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	out, errOut, code := s.raw(t, "quire replay "+excerpt+" --capacity 2% --disk 30% --tier-rate 3GB --rounds 2 -o json")
	var r replayReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK {
		t.Fatalf("exit %d: %s %v", code, errOut, err)
	}
	m := r.Traces[0].Models[0]
	cell := m.Capacities[0]
	for _, p := range cell.Policies {
		if p.DiskHits == 0 || p.DiskHits > p.Hits || p.DiskBytes < uint64(p.Written)*m.PageBytes || p.WrittenBytes <= uint64(p.Written)*m.PageBytes ||
			p.Orphans != 0 || p.OfUpper > 1 {
			t.Errorf("%+v", p)
		}
	}
	if len(cell.Policies) != 2 || cell.Disk != 5106 {
		t.Errorf("%+v", cell)
	}
	if out, _, _ := s.raw(t, "quire replay "+excerpt+" --capacity 2% --disk 30% --rounds 2"); !strings.Contains(out, "to disk") {
		t.Errorf("the table: %s", out)
	}
	if _, errOut, code := s.raw(t, "quire replay "+excerpt+" --disk 30% --policy arc"); code != exitUsage || !strings.Contains(errOut, "vbr or lru") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}

// TestReplayPlots one panel for each model, with a line for each policy.
func TestReplayPlots(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	if _, errOut, code := s.raw(t, "quire replay "+excerpt+" --capacity 1%,5% --policy lru,arc --model 8b,mla --rounds 2 --plot $DIR/plot.svg"); code != exitOK {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	image, err := os.ReadFile(filepath.Join(s.dir, "plot.svg"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(image)
	for part, want := range map[string]int{"<svg": 1, ">belady<": 2, ">lru<": 2, ">arc<": 2, "costs of 8b": 1, "costs of mla": 1, ">100<": 2} {
		if got := strings.Count(text, part); got != want {
			t.Errorf("%q is there %d times, want %d", part, got, want)
		}
	}
	if strings.Contains(text, ">fifo<") {
		t.Error("a policy is drawn that was not asked for")
	}
}

// TestTraceGenerate: the file reads back as a trace, the same for the same seed.
func TestTraceGenerate(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	for _, name := range []string{"a", "b"} {
		if _, errOut, code := s.raw(t, "quire trace generate "+excerpt+" --requests 900 --seed 5 --out $DIR/"+name+".jsonl"); code != exitOK {
			t.Fatalf("exit %d: %s", code, errOut)
		}
	}
	a, errA := os.ReadFile(filepath.Join(s.dir, "a.jsonl"))
	b, errB := os.ReadFile(filepath.Join(s.dir, "b.jsonl"))
	if errA != nil || errB != nil || string(a) != string(b) || strings.Count(string(a), "\n") != 900 {
		t.Errorf("%v, %v: %d and %d bytes, %d lines", errA, errB, len(a), len(b), strings.Count(string(a), "\n"))
	}
	out, errOut, code := s.raw(t, "quire trace show $DIR/a.jsonl -o json")
	var stats []namedStats
	if err := json.Unmarshal([]byte(out), &stats); err != nil || code != exitOK {
		t.Fatalf("exit %d: %s %v", code, errOut, err)
	}
	if len(stats) != 1 || stats[0].Name != "a" || stats[0].Requests != 900 || stats[0].Pages == 0 {
		t.Errorf("%+v", stats)
	}
}
