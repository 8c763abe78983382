package lint

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// textOf is a file's text, "" for what is no text or no source: images, traces, module sums.
func textOf(t *testing.T, path string) string {
	t.Helper()
	if strings.Contains(path, "/testdata/") || slices.Contains([]string{".binpb", ".sum", ".gz", ".png"}, filepath.Ext(path)) {
		return ""
	}
	text := read(t, path)
	if !utf8.ValidString(text) {
		return ""
	}
	return text
}

// tests is the set of test, fuzz, benchmark and example functions of the module, and of the Python package's tests.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil {
				all[f.Name.Name] = true
			}
		}
	}
	for _, path := range pythonFiles(t) {
		for _, m := range pythonTest.FindAllStringSubmatch(read(t, path), -1) {
			all[m[1]] = true
		}
	}
	return all
}

// rowsOf are the rows of the first table under a heading, without head and rule.
func rowsOf(text, heading string) [][]string {
	_, after, ok := strings.Cut("\n"+text, "\n"+heading+"\n")
	if !ok {
		return nil
	}
	var rows [][]string
	started := false
	for _, line := range strings.Split(after, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "|"):
			started = true
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		case started:
			return rows[min(2, len(rows)):]
		case strings.HasPrefix(line, "#"):
			return nil
		}
	}
	return rows[min(2, len(rows)):]
}

var quoted = regexp.MustCompile("`([^`]+)`")

// names are the words of a cell in backquotes.
func names(cell string) []string {
	var out []string
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

var testName = regexp.MustCompile(`^((Test|Fuzz|Benchmark|Example)[A-Z_]\w*|test_\w+)(\*)?$`)

// shown checks that every name of a cell exists: a test (Test..., test_..., or a family Test...*), a make target or a command.
func shown(t *testing.T, where, cell string, known map[string]bool) {
	t.Helper()
	all := names(cell)
	if len(all) == 0 {
		t.Errorf("%s names neither a test nor a command", where)
	}
	for _, n := range all {
		family, wild := strings.CutSuffix(n, "*")
		switch {
		case testName.MatchString(n) && wild:
			if !slices.ContainsFunc(sorted(known), func(k string) bool { return strings.HasPrefix(k, family) }) {
				t.Errorf("%s names tests %s, and there are none", where, n)
			}
		case testName.MatchString(n):
			if !known[n] {
				t.Errorf("%s names test %s, which does not exist", where, n)
			}
		case strings.HasPrefix(n, "make "):
			if !strings.Contains(read(t, "Makefile"), "\n"+strings.Fields(n)[1]+":") {
				t.Errorf("%s names %q, which the Makefile does not have", where, n)
			}
		case strings.HasPrefix(n, "quire "): // held by TestDocumentsNameRealCommands in cmd/quire
		default:
			t.Errorf("%s: %q is neither a test, nor make, nor quire", where, n)
		}
	}
}

func sorted(set map[string]bool) []string {
	var all []string
	for k := range set {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// features is how many rows the table of features has.
const features = 40

func TestFeaturesNameWhatShowsThem(t *testing.T) {
	rows := rowsOf(read(t, "docs/features.md"), "# Features")
	known := tests(t)
	for i, row := range rows {
		if len(row) != 4 {
			t.Fatalf("row %d of the features has %d cells, want number, feature, state, shown by", i+1, len(row))
		}
		if row[0] != "F"+strconv.Itoa(i+1) {
			t.Errorf("row %d of the features is %s", i+1, row[0])
		}
		switch row[2] {
		case "works", "part":
			shown(t, row[0], row[3], known)
		case "later":
			if len(names(row[3])) > 0 {
				t.Errorf("%s is for later and names what shows it", row[0])
			}
		default:
			t.Errorf("%s is %q: works, part or later", row[0], row[2])
		}
	}
	if len(rows) != features {
		t.Errorf("%d features, want %d", len(rows), features)
	}
}

func TestTrackRecordNamesTests(t *testing.T) {
	rows := rowsOf(read(t, "docs/testing.md"), "## Track record")
	known := tests(t)
	for i, row := range rows {
		where := "track record row " + strconv.Itoa(i+1)
		if len(row) != 4 {
			t.Fatalf("%s has %d cells, want bug, found by, layer that should have found it, test that now does", where, len(row))
		}
		shown(t, where, row[3], known)
	}
}

func TestReadmeGivesTheTwoCommands(t *testing.T) {
	var block []string
	_, after, ok := strings.Cut(read(t, "README.md"), "```sh\n")
	if ok {
		text, _, _ := strings.Cut(after, "```")
		for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
			command, _, _ := strings.Cut(line, "#")
			block = append(block, strings.TrimSpace(command))
		}
	}
	if want := []string{"go run ./cmd/quire demo", "make test"}; !slices.Equal(block, want) {
		t.Errorf("the README's first commands are %q, want %q", block, want)
	}
	if !regexp.MustCompile(`(?m)^test:`).MatchString(read(t, "Makefile")) {
		t.Error("the Makefile has no target test")
	}
	if !regexp.MustCompile(`(?m)^make test$`).MatchString(read(t, ".ci/run")) {
		t.Error(".ci/run does not call make test")
	}
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

func TestDocumentsLinkToWhatExists(t *testing.T) {
	walk(t, func(path string) {
		if filepath.Ext(path) != ".md" {
			return
		}
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
		}
	})
}

func TestDependenciesAreWrittenDown(t *testing.T) {
	direct := regexp.MustCompile(`(?m)^\t(\S+) (v\S+)$`).FindAllStringSubmatch(read(t, "go.mod"), -1)
	if len(direct) == 0 {
		t.Fatal("go.mod requires nothing")
	}
	text := read(t, "docs/dependencies.md")
	for _, m := range direct {
		if !strings.Contains(text, "| `"+m[1]+"` | "+m[2]+" |") {
			t.Errorf("docs/dependencies.md has no row for %s %s", m[1], m[2])
		}
	}
}
