package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
)

// TestCase_C52_AForkShowsInOneCommand: two halves of a fleet under one model name whose pages never meet. One command
// shows both, who has hits and who writes, and the factor between them; it names what 'ns diff' names.
func TestCase_C52_AForkShowsInOneCommand(t *testing.T) {
	example, _, _ := (&shell{}).raw(t, "quire ns example smollm2-135m")
	for name, edit := range map[string][2]string{
		"dtype":   {"bits: 16, dtype: bfloat16", "bits: 8, dtype: float8_e4m3"},
		"rope":    {"table: sha256:d79b", "table: sha256:0000"},
		"engine":  {"engine_version: 0.32.0", "engine_version: 0.33.0"},
		"backend": {"attention_backend: flashinfer-0.6.1", "attention_backend: triton"},
	} {
		t.Run(name, func(t *testing.T) {
			s := served(t, nil)
			changed := strings.ReplaceAll(example, edit[0], edit[1])
			if changed == example {
				t.Fatalf("%q is not in the example", edit[0])
			}
			for file, text := range map[string]string{"old.yaml": example, "new.yaml": changed} {
				if err := os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.run(t, "quire ns open $DIR/old.yaml")
			s.run(t, "quire ns open $DIR/new.yaml")
			s.run(t, "quire page put $1 @prompt --fill --root")
			s.run(t, "quire page exists $1 @prompt")
			s.run(t, "quire page exists $2 @prompt")
			engineReports(t, s, example, "gpu-old:1", 90, 100)
			engineReports(t, s, changed, "gpu-new:1", 0, 40)

			var tree struct {
				Models []treeModel `json:"models"`
				Forks  []forkView  `json:"forks"`
			}
			decode(t, s, "quire ns list -o json", &tree)
			if len(tree.Models) != 1 || len(tree.Models[0].Revisions) != 1 || len(tree.Models[0].Revisions[0].Namespaces) != 2 {
				t.Fatalf("the tree is not one model with two siblings: %+v", tree)
			}
			var diff struct {
				Differences []differenceView `json:"differences"`
			}
			decode(t, s, "quire ns diff $1 $2 -o json", &diff)
			if len(diff.Differences) == 0 {
				t.Fatal("no difference")
			}
			for _, leaf := range tree.Models[0].Revisions[0].Namespaces {
				var paths []string
				for _, f := range leaf.DiffersIn {
					paths = append(paths, f.Path)
				}
				for _, d := range diff.Differences {
					if !slices.Contains(paths, d.Path) {
						t.Errorf("the tree does not name %s, only %v", d.Path, paths)
					}
				}
				if len(paths) != len(diff.Differences) {
					t.Errorf("the tree names %v, the diff %v", paths, diff.Differences)
				}
				old := leaf.ID == s.ids[0]
				if len(leaf.Instances) != 1 || (leaf.Instances[0].Instance == "gpu-old:1") != old || leaf.Instances[0].Engine != "vllm" {
					t.Errorf("old %v: instances %+v", old, leaf.Instances)
				}
				if old && (leaf.Hits != 1 || leaf.Pages != 1) || !old && (leaf.Hits != 0 || leaf.Misses != 1) {
					t.Errorf("old %v: %d pages, %d hits, %d misses", old, leaf.Pages, leaf.Hits, leaf.Misses)
				}
			}

			// The engines that the fork divides are named, with the factor, both values, and the hit rate of each.
			if len(tree.Forks) != 1 {
				t.Fatalf("%d forks", len(tree.Forks))
			}
			fork := tree.Forks[0]
			if fork.A.Namespace != s.ids[0] || fork.B.Namespace != s.ids[1] || !slices.Equal(fork.Differences, diff.Differences) {
				t.Errorf("the fork says %+v, the diff %v", fork, diff.Differences)
			}
			text, _, _ := s.raw(t, "quire ns list")
			for _, want := range []string{"gpu-old:1", "gpu-new:1", "90.0 %", "0.0 %", "fork:"} {
				if !strings.Contains(text, want) {
					t.Errorf("the list does not show %q:\n%s", want, text)
				}
			}
			for _, d := range diff.Differences {
				row := regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(d.Path) + ` +` + regexp.QuoteMeta(shortDigest(d.A)) + ` +` + regexp.QuoteMeta(shortDigest(d.B)) + ` `)
				if !row.MatchString(text) {
					t.Errorf("the list does not show %s with both values:\n%s", d.Path, text)
				}
			}
		})
	}
}

// engineReports opens a session as an engine would and reports from it until the test ends.
func engineReports(t *testing.T, s *shell, spec, instance string, hits, keys uint64) {
	t.Helper()
	parsed, err := namespace.Parse([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(t.Context(), client.Options{Address: strings.TrimPrefix(s.env[0], "QUIRE_SERVER="), Instance: instance})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	session, err := c.Open(t.Context(), parsed)
	if err != nil {
		t.Fatal(err)
	}
	again, err := session.Report(t.Context(), client.Report{
		Engine: "not shown", Adapter: "test 1", Counters: &quirev1.EngineCounters{Lookups: 1, LookupKeys: keys, HitKeys: hits},
		Breaker: quirev1.BreakerState_BREAKER_STATE_CLOSED,
	})
	if err != nil || again <= 0 {
		t.Fatalf("report: again after %v, %v", again, err)
	}
}

func decode(t *testing.T, s *shell, line string, into any) {
	t.Helper()
	out, errOut, _ := s.raw(t, line)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("%s: %v\n%s%s", line, err, out, errOut)
	}
}

// TestCase_C54_TheReadmesTourIsATest types what the README says, in order, against a server of its own. A comment that
// promises an exit code or a refusal is held to it; every other command succeeds.
func TestCase_C54_TheReadmesTourIsATest(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tour, ok := strings.Cut(string(readme), "## A two-minute tour")
	if !ok {
		t.Fatal("the README has no tour")
	}
	tour, _, _ = strings.Cut(tour, "\n## ")
	s := served(t, nil)
	typed := 0
	for _, block := range fenced.FindAllStringSubmatch(tour, -1) {
		for _, line := range strings.Split(strings.TrimSpace(block[1]), "\n") {
			command, comment, _ := strings.Cut(line, " #")
			command = strings.TrimSpace(command)
			if strings.HasPrefix(command, "go build ") || strings.HasPrefix(command, "quire serve ") {
				continue // the server is this process
			}
			typed++
			if got, want := s.typed(t, command), promised(comment); got != want {
				t.Errorf("%s: exit %d, the README promises %d", command, got, want)
			}
		}
	}
	if typed < 10 {
		t.Errorf("only %d commands in the tour", typed)
	}
}

// promised is the exit code that a comment tells of.
func promised(comment string) int {
	switch {
	case strings.Contains(comment, "exits 3"):
		return exitNotFound
	case strings.Contains(comment, "why"): // of a page that is not there
		return exitNotFound
	case strings.Contains(comment, "exits 4"), strings.Contains(comment, "refused"):
		return exitMismatch
	}
	return exitOK
}

// typed runs a line as a terminal would: quire in this process, with its output in a file where the line says so.
func (s *shell) typed(t *testing.T, line string) int {
	t.Helper()
	if !strings.HasPrefix(line, "quire ") {
		cmd := exec.Command("sh", "-c", line)
		cmd.Dir = s.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return 0
	}
	command, file, redirected := strings.Cut(line, " > ")
	var words []string
	for _, w := range strings.Fields(command) {
		switch {
		case w == "A" || w == "B":
			w = s.ids[w[0]-'A']
		case strings.HasSuffix(w, ".yaml"):
			w = filepath.Join(s.dir, w)
		}
		words = append(words, w)
	}
	out, errOut, code := s.raw(t, strings.Join(words, " "))
	s.steady(out) // learns ids in order of first sight
	if redirected {
		if err := os.WriteFile(filepath.Join(s.dir, file), []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		s.ids = nil // what a spec holds are digests, no ids
	}
	t.Logf("%s\n%s%s", line, out, errOut)
	return code
}
