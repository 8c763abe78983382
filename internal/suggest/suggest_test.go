package suggest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	known := []string{"grpc_listen", "admin_listen", "memory", "metadata", "list", "show"}
	for _, c := range []struct{ word, want string }{
		{"grcp_listen", "grpc_listen"}, {"memroy", "memory"}, {"lsit", "list"}, {"shwo", "show"}, {"lists", "list"},
		{"colour", ""}, {"", ""}, {"x", ""}, {strings.Repeat("a", 1000), ""},
	} {
		got, ok := Nearest(c.word, known)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("Nearest(%q) = %q, %v; want %q", c.word, got, ok, c.want)
		}
	}
}

func TestEditsIsSymmetricAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-d]{0,12}`)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := edits(a, b)
		if d != edits(b, a) || d > max(len(a), len(b)) || (d == 0) != (a == b) {
			t.Fatalf("edits(%q, %q) = %d, reversed %d", a, b, d, edits(b, a))
		}
	})
}
