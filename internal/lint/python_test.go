package lint

import (
	"regexp"
	"strings"
	"testing"
)

// pythonTest is a test function of the Python package.
var pythonTest = regexp.MustCompile(`(?m)^(?:async )?def (test_\w+)\(`)

// pythonFiles are the Python sources of the module.
func pythonFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	walk(t, func(path string) {
		if strings.HasSuffix(path, ".py") && strings.HasPrefix(path, "python/") {
			all = append(all, path)
		}
	})
	if len(all) == 0 {
		t.Fatal("no Python files found")
	}
	return all
}

func TestPythonFilesStaySmallAndSayWhatTheyAreFor(t *testing.T) {
	for _, path := range pythonFiles(t) {
		text := read(t, path)
		if n := strings.Count(text, "\n"); n > maxFileLines {
			t.Errorf("%s has %d lines, %d are the most: split it by concept", path, n, maxFileLines)
		}
		first := strings.TrimSpace(text)
		if strings.HasPrefix(first, "#!") {
			_, first, _ = strings.Cut(first, "\n")
			first = strings.TrimSpace(first)
		}
		if !strings.HasPrefix(first, `"""`) {
			t.Errorf("%s does not begin with a docstring that says what it is for", path)
		}
	}
}

var pythonCase = regexp.MustCompile(`^test_case_c\d+_[a-z]`)

func TestPythonFieldCasesAreNamedAlike(t *testing.T) {
	for _, path := range pythonFiles(t) {
		for _, m := range pythonTest.FindAllStringSubmatch(read(t, path), -1) {
			if strings.HasPrefix(m[1], "test_case") && !pythonCase.MatchString(m[1]) {
				t.Errorf("%s: %s is not of the form test_case_c17_what_it_shows", path, m[1])
			}
		}
	}
}

// pythonTime is the clock that people set. Only when a page was made is told by it: int(time.time()).
var pythonTime = regexp.MustCompile(`(?:[^(]|[^t]\()\btime\.time\(\)`)

func TestPythonWaitsByTheMonotonicClock(t *testing.T) {
	for _, path := range pythonFiles(t) {
		if strings.HasPrefix(path, "python/quire_kv/") && pythonTime.MatchString(read(t, path)) {
			t.Errorf("%s: time.time() jumps; deadlines are of time.monotonic()", path)
		}
	}
}
