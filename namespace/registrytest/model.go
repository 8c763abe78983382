package registrytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/namespace"
)

// isAMap compares a backend with a map and a revision a key, over random writes on random reads.
func isAMap(t *testing.T, b Backend) {
	type cell struct {
		value   string
		present bool
		changed namespace.Revision
	}
	cells := map[string]*cell{} // deleted ones too
	var newest namespace.Revision
	key := rapid.SampledFrom([]string{"a", "ab", "abc", "b", "ba", "c"})
	prefix := rapid.SampledFrom([]string{"", "a", "ab", "b", "c", "d"})
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 10).Draw(t, "writes") {
			at := newest - namespace.Revision(rapid.IntRange(0, int(min(newest, 3))).Draw(t, "age"))
			read := rapid.SliceOfN(prefix, 0, 2).Draw(t, "read")
			var puts []namespace.Record
			for _, k := range rapid.SliceOfNDistinct(key, 0, 3, rapid.ID[string]).Draw(t, "puts") {
				r := put(k, rapid.StringN(0, 3, -1).Draw(t, "value"))
				if rapid.Bool().Draw(t, "delete") {
					r.Value = nil
				}
				puts = append(puts, r)
			}
			conflict := false
			for k, c := range cells {
				conflict = conflict || c.changed > at && slices.ContainsFunc(read, func(p string) bool { return strings.HasPrefix(k, p) })
			}
			var prefixes [][]byte
			for _, p := range read {
				prefixes = append(prefixes, []byte(p))
			}
			got, err := b.Write(background(), at, prefixes, puts)
			if conflict != errors.Is(err, namespace.ErrConflict) || !conflict && err != nil {
				t.Fatalf("write: %v, want a conflict %v", err, conflict)
			}
			if !conflict && len(puts) > 0 {
				newest++
				for _, p := range puts {
					cells[string(p.Key)] = &cell{string(p.Value), p.Value != nil, newest}
				}
			}
			if !conflict && got != newest {
				t.Fatalf("revision %d, want %d", got, newest)
			}
			p := prefix.Draw(t, "look")
			var want []string
			for k, c := range cells {
				if c.present && strings.HasPrefix(k, p) {
					want = append(want, fmt.Sprintf("%s=%s@%d", k, c.value, c.changed))
				}
			}
			slices.SortFunc(want, func(a, b string) int { return strings.Compare(before(a), before(b)) })
			have, at, err := b.Read(background(), []byte(p))
			if err != nil || at != newest || !slices.Equal(texts(have), want) {
				t.Fatalf("read %q: %q at %d, %v, want %q at %d", p, texts(have), at, err, want, newest)
			}
		}
	})
}

func before(s string) string {
	key, _, _ := strings.Cut(s, "=")
	return key
}

func texts(records []namespace.Record) (out []string) {
	for _, r := range records {
		out = append(out, fmt.Sprintf("%s=%s@%d", r.Key, r.Value, r.Revision))
	}
	return out
}
