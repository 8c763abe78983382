package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/quire-kv/quire/namespace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell runs command lines as a golden script has them.
type shell struct {
	dir   string   // where files of the script are
	env   []string // QUIRE_... of every command
	ids   []string // 64 hex digits, in order of first sight: $1, $2... in commands, <id-1>... in output
	input string   // standard input of the next command
	admin string   // address of the server's /metrics
}

// run is a command's output as goldens keep it: standard output, then standard error, then the exit code if not 0.
func (s *shell) run(t *testing.T, line string) string {
	t.Helper()
	out, errOut, code := s.raw(t, line)
	if code == 0 {
		return s.steady(out + errOut)
	}
	return s.steady(fmt.Sprintf("%s%sexit %d\n", out, errOut, code))
}

// raw runs one command line.
func (s *shell) raw(t *testing.T, line string) (out, errOut string, code int) {
	t.Helper()
	args := s.words(t, line)
	if len(args) == 0 || args[0] != "quire" {
		t.Fatalf("%q does not begin with quire", line)
	}
	var o, e bytes.Buffer
	code = run(context.Background(), args[1:], world{in: strings.NewReader(s.input), out: &o, errOut: &e, env: s.env, now: longAfter})
	s.input = ""
	return o.String(), e.String(), code
}

// longAfter is so late that relative times are all equally wide.
func longAfter() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }

var word = regexp.MustCompile(`"[^"]*"|\S+`)

// words splits a line at blanks, keeps what is in double quotes together, and puts in $DIR and the ids seen.
func (s *shell) words(t *testing.T, line string) []string {
	var out []string
	for _, w := range word.FindAllString(line, -1) {
		w = strings.ReplaceAll(strings.Trim(w, `"`), "$DIR", s.dir)
		for i := len(s.ids); i > 0; i-- {
			w = strings.ReplaceAll(w, fmt.Sprintf("$%d", i), s.ids[i-1])
		}
		if strings.Contains(w, "$") {
			t.Fatalf("%q names nothing seen so far", w)
		}
		out = append(out, w)
	}
	return out
}

var fullID = regexp.MustCompile(`\b[0-9a-f]{64}\b`)

// unsteady is what differs from run to run or from machine to machine, and what stands for it.
var unsteady = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b[0-9a-f]{32}/\d+/[0-9a-f]{32}\b|\b[0-9a-f]{80}\b`), "<extent>"},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\dT[0-9:.]+Z`), "<time>"},
	{regexp.MustCompile(`\bqk_[A-Za-z0-9_-]{43}`), "<secret>"},
	{regexp.MustCompile(`\b127\.0\.0\.1:\d{5}\b`), "<server>"},
	{regexp.MustCompile(`\bup [0-9.]+(m?s)?`), "up <time>"},
	{regexp.MustCompile(`(?m)^waiver  [0-9a-f]{8}`), "waiver  <waiver>"},
	{regexp.MustCompile(`(?m)^(score|metadata|host|disk)(  +).*$`), "${1}${2}..."},
	{regexp.MustCompile(`(?m)^TIER +CAPACITY +LIVE +SLACK +METADATA +`), "TIER  CAPACITY  LIVE  SLACK  METADATA  "}, // as wide as what is kept ready by then
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
}

// steady replaces what differs from run to run, and names ids by their order.
func (s *shell) steady(text string) string {
	for _, u := range unsteady {
		text = u.re.ReplaceAllString(text, u.with)
	}
	for _, id := range fullID.FindAllString(text, -1) {
		if !slices.Contains(s.ids, id) {
			s.ids = append(s.ids, id)
		}
	}
	for i, id := range s.ids {
		text = strings.ReplaceAll(text, id, fmt.Sprintf("<id-%d>", i+1))
		text = strings.ReplaceAll(text, id[:shortID], fmt.Sprintf("<id-%d..>", i+1))
	}
	if s.dir != "" {
		text = strings.ReplaceAll(text, s.dir, "<dir>")
	}
	return text
}

// script carries out one file of testdata: "run" has command lines, "file NAME" makes a file in $DIR.
func (s *shell) script(t *testing.T, path string) {
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		switch d.Cmd {
		case "run":
			var b strings.Builder
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				b.WriteString(s.run(t, line))
			}
			return b.String()
		case "file":
			if err := os.WriteFile(filepath.Join(s.dir, d.CmdArgs[0].Key), []byte(d.Input+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return ""
		case "spec": // spec FILE EXAMPLE, then lines "old => new"
			example, ok := namespace.ExampleSpec(d.CmdArgs[1].Key)
			if !ok {
				t.Fatalf("%s: no example %s", d.Pos, d.CmdArgs[1].Key)
			}
			text := string(example)
			for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
				if before, after, ok := strings.Cut(line, " => "); ok {
					if !strings.Contains(text, before) {
						t.Fatalf("%s: %q is not in the example", d.Pos, before)
					}
					text = strings.ReplaceAll(text, before, after)
				}
			}
			if err := os.WriteFile(filepath.Join(s.dir, d.CmdArgs[0].Key), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return ""
		}
		t.Fatalf("%s: unknown directive %s", d.Pos, d.Cmd)
		return ""
	})
}

func TestUseAndErrors(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	s.script(t, "testdata/use")
}

// TestHelp holds the help of every command. Rewrite with: go test ./cmd/quire -run TestHelp -rewrite
func TestHelp(t *testing.T) {
	s := &shell{}
	datadriven.RunTest(t, "testdata/help", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "commands" {
			var all []string
			each((&app{}).rootCommand(), func(c *cobra.Command) { all = append(all, c.CommandPath()) })
			return strings.Join(all, "\n") + "\n"
		}
		return s.run(t, strings.TrimSpace(d.Input))
	})
}

func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		each(sub, f)
	}
}

func TestEveryCommandIsExplained(t *testing.T) {
	golden, err := os.ReadFile("testdata/help")
	if err != nil {
		t.Fatal(err)
	}
	each((&app{}).rootCommand(), func(c *cobra.Command) {
		if c.Hidden {
			return
		}
		if c.Example == "" || c.Short == "" {
			t.Errorf("%s has no example or no short help", c.CommandPath())
		}
		if first, _, _ := strings.Cut(c.Short, " "); c.HasParent() && strings.ToLower(first) == first {
			t.Errorf("%s: help begins with a capital verb, not %q", c.CommandPath(), first)
		}
		if !strings.Contains(string(golden), "\n"+c.CommandPath()+" --help\n") {
			t.Errorf("%s is not in testdata/help", c.CommandPath())
		}
	})
}

var (
	inline = regexp.MustCompile("`(quire [^`]+)`")
	fenced = regexp.MustCompile("(?s)```sh\n(.*?)```")
)

// TestDocumentsNameRealCommands: what the documents tell to type exists, with its flags.
func TestDocumentsNameRealCommands(t *testing.T) {
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, path := range append(documents, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, m[1])
		}
		for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
			lines = append(lines, strings.Split(m[1], "\n")...)
		}
		for _, line := range lines {
			line = strings.Replace(strings.TrimSpace(line), "go run ./cmd/quire ", "quire ", 1)
			if rest, ok := strings.CutPrefix(line, "quire "); ok {
				checked++
				checkCommand(t, path, rest)
			}
		}
	}
	if checked == 0 {
		t.Fatal("the documents name no command")
	}
}

func checkCommand(t *testing.T, path, line string) {
	line, _, _ = strings.Cut(line, " #")
	var args []string
	for _, w := range word.FindAllString(line, -1) {
		if w == "|" || w == ">" || w == "<" || w == "&" || w == "&&" {
			break
		}
		args = append(args, w)
	}
	cmd, rest, err := (&app{}).rootCommand().Find(args)
	if err != nil || cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		t.Errorf("%s: quire %s: no such command", path, line)
		return
	}
	for _, w := range rest {
		name, _, _ := strings.Cut(w, "=")
		long, ok := strings.CutPrefix(name, "--")
		if ok && long != "help" && cmd.Flags().Lookup(long) == nil && cmd.InheritedFlags().Lookup(long) == nil {
			t.Errorf("%s: quire %s: no flag %s", path, line, name)
		}
	}
}
