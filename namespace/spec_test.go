package namespace_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/quire-kv/quire/namespace"
)

// example parses a ready-made spec.
func example(t testing.TB, name string) *namespace.Spec {
	t.Helper()
	s, err := namespace.ParseExample(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// with is a changed copy.
func with(t testing.TB, s *namespace.Spec, change func(*namespace.Spec)) *namespace.Spec {
	t.Helper()
	c := copySpec(t, s)
	change(c)
	return c
}

func copySpec(t testing.TB, s *namespace.Spec) *namespace.Spec {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c := new(namespace.Spec)
	if err := json.Unmarshal(text, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestExamplesHaveTheRightNumbers(t *testing.T) {
	tokenBytes := map[string]uint64{
		"llama-3-8b": 131_072, "llama-3-70b": 327_680, "deepseek-v3-mla": 70_272, "smollm2-135m": 23_040,
		"gemma-3-12b":    48 * 8 * 256 * 2 * 2,
		"qwen3-next-80b": 12 * 2 * 256 * 2 * 2,
	}
	for _, e := range namespace.Examples() {
		if got := example(t, e.Name).TokenBytes(); got != tokenBytes[e.Name] {
			t.Errorf("%s: %d bytes a token, want %d", e.Name, got, tokenBytes[e.Name])
		}
		delete(tokenBytes, e.Name)
	}
	if len(tokenBytes) > 0 {
		t.Errorf("missing examples: %v", tokenBytes)
	}
}

func TestArithmetic(t *testing.T) {
	s := example(t, "llama-3-70b")
	if got := s.TokenBytes() * 8192; got != 5<<29 {
		t.Errorf("8,192 tokens of 70B have %d bytes, want 2.5 GiB", got)
	}
	if got := float64(example(t, "deepseek-v3-mla").TokenBytes()*8192) / (1 << 20); got != 549 {
		t.Errorf("8,192 tokens of DeepSeek-V3 have %g MiB, want 549", got)
	}
	for _, g := range example(t, "qwen3-next-80b").GroupInfos() {
		if g.Kind == namespace.KindRecurrent && (g.CellBytes != 524288*4+24576*2 || g.Parents != namespace.ParentNone) {
			t.Errorf("a recurrent cell has %d bytes, parents %d", g.CellBytes, g.Parents)
		}
	}
}

// TestTextFormsAreOne: YAML, its JSON and the JSON of that are one spec with one id.
func TestTextFormsAreOne(t *testing.T) {
	for _, e := range namespace.Examples() {
		s := example(t, e.Name)
		text, err := json.MarshalIndent(s, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		again, err := namespace.Parse(text)
		if err != nil {
			t.Fatalf("%s as JSON: %v", e.Name, err)
		}
		if !reflect.DeepEqual(s, again) || s.ID("t") != again.ID("t") {
			t.Errorf("%s: JSON is another spec", e.Name)
		}
		factors, err := namespace.DecodeCanonical(s.Canonical())
		if err != nil || len(factors) == 0 {
			t.Errorf("%s: canonical: %v", e.Name, err)
		}
	}
}

// TestIDsNeverMove pins ids: a change of the walk, the text forms or the encoding would orphan every stored page.
func TestIDsNeverMove(t *testing.T) {
	s := example(t, "llama-3-8b")
	if got := s.ID("acme").String(); got != "19dacb202f9695ae2b4a883103d372c42694588e365bb30bfeb4f6b5b932d8a5" {
		t.Errorf("namespace id %s", got)
	}
	if got := s.Groups[0].ID().String(); got != "3514a965ee07ca267dabb0dba81208d241ad70d457ce683aa06da07de4803953" {
		t.Errorf("group id %s", got)
	}
}

func TestGroupOrderIsNotIdentity(t *testing.T) {
	s := example(t, "gemma-3-12b")
	swapped := with(t, s, func(s *namespace.Spec) { s.Groups[0], s.Groups[1] = s.Groups[1], s.Groups[0] })
	if !bytes.Equal(s.Canonical(), swapped.Canonical()) || !reflect.DeepEqual(s.GroupInfos(), swapped.GroupInfos()) {
		t.Error("the order of groups changed the identity")
	}
	parts := with(t, s, func(s *namespace.Spec) {
		c := s.Groups[0].Components
		c[0], c[1] = c[1], c[0]
	})
	if bytes.Equal(s.Canonical(), parts.Canonical()) {
		t.Error("the order of components, which is that of bytes, did not change the identity")
	}
}
