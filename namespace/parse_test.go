package namespace_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
)

// edit replaces one line's text of an example.
func edit(t testing.TB, name, from, to string) []byte {
	t.Helper()
	text, _ := namespace.ExampleSpec(name)
	if !strings.Contains(string(text), from) {
		t.Fatalf("%s has no %q", name, from)
	}
	return []byte(strings.Replace(string(text), from, to, 1))
}

func refusedAt(t testing.TB, err error, path, says string) {
	t.Helper()
	var r *namespace.Refusal
	switch {
	case !errors.As(err, &r):
		t.Errorf("%s: %v, want a refusal", path, err)
	case r.Path != path || !strings.Contains(r.Text, says) || !errors.Is(err, reason.InvalidSpec):
		t.Errorf("refused at %q: %q, want %q: ...%s...", r.Path, r.Text, path, says)
	case strings.Contains(r.Error(), "\n"):
		t.Errorf("%q is more than one line", r.Error())
	}
}

func TestParseRefusesWithPathAndAdvice(t *testing.T) {
	const llama, mla, gemma, qwen = "llama-3-8b", "deepseek-v3-mla", "gemma-3-12b", "qwen3-next-80b"
	component := "{name: k, width: 128, bits: 16, dtype: bfloat16, scale: none}"
	for _, c := range []struct{ name, from, to, path, says string }{
		// what stands for "whatever the engine picks"
		{llama, "dtype: bfloat16", "dtype: auto", "groups[0].components[0].dtype", "not a resolved value"},
		{llama, "bits: 16", "bits: auto", "groups[0].components[0].bits", "not a resolved value"},
		{llama, "id: meta-llama/Meta-Llama-3-8B", "id: Default", "model.id", "not a resolved value"},
		{llama, "page_tokens: 16", "page_tokens: auto", "groups[0].page_tokens", "plain number"},
		{llama, "engine_version: 0.32.0", "engine_version: auto", "provenance.engine_version", "really uses"},
		{llama, "attention_backend: flashinfer-0.6.1", "attention_backend: AUTO", "provenance.attention_backend", "really uses"},
		{llama, "  multimodal: none", "  multimodal: none\n  backends: {layers: auto}", "attention.backends.layers", "backend that runs"},
		// missing
		{llama, "  weights: ", "  # weights: ", "model.weights", "sha256"},
		{llama, "  config: ", "  # config: ", "model.config", "resolved configuration"},
		{llama, "  table: ", "  # table: ", "rope.table", "effective table"},
		{llama, "  seed: ", "  # seed: ", "hash.seed", "root seed"},
		{llama, "  probe: ", "  # probe: ", "hash.probe", "probe chain"},
		{llama, "depends_on: prefix", "", "depends_on", "prefix or prompt_boundary"},
		{llama, "  device_arch: sm_90a", "", "provenance.device_arch", "sm_90a"},
		{llama, "grade: elements", "", "groups[0].grade", "elements, cell or whole"},
		{llama, "  engine: vllm", "  engine:", "provenance.engine", "no value"},
		// unknown and doubled keys
		{llama, "kv_heads: 8", "kv_head: 8", "groups[0].kv_head", `did you mean "kv_heads"`},
		{llama, "depends_on: prefix", "dependson: prefix", "dependson", `did you mean "depends_on"`},
		{llama, "regime: fixed", "regime: fixed\n  regime: fixed", "rope.regime", "given twice"},
		{llama, "  mask: causal", "  <<: {mask: causal}\n  mask: causal", "attention.<<", "unknown key"},
		// absurd numbers
		{llama, "page_tokens: 16", "page_tokens: 65552", "groups[0].page_tokens", "1 to 65536"},
		{llama, "page_tokens: 16", "page_tokens: 0", "groups[0].page_tokens", "1 to 65536"},
		{llama, "page_tokens: 16", "page_tokens: 24", "groups[0].page_tokens", "multiple of hash.unit"},
		{llama, "page_tokens: 16", "page_tokens: -16", "groups[0].page_tokens", "plain number"},
		{llama, "page_tokens: 16", "page_tokens: 1e3", "groups[0].page_tokens", "plain number"},
		{llama, "page_tokens: 16", "page_tokens: 99999999999999999999", "groups[0].page_tokens", "plain number"},
		{llama, "page_tokens: 16", `page_tokens: "16"`, "groups[0].page_tokens", "plain number"},
		{llama, "page_tokens: 16", "page_tokens: 0x10", "groups[0].page_tokens", "plain number"},
		{llama, "page_tokens: 16", "page_tokens: 65536", "groups[0].page_tokens", "pieces"},
		{llama, "kv_heads: 8", "kv_heads: 4097", "groups[0].kv_heads", "1 to 4096"},
		{llama, "kv_heads: 8", "kv_heads: 0", "groups[0].kv_heads", "1 to 4096"},
		{llama, "width: 128", "width: 0", "groups[0].components[0].width", "1 to"},
		{llama, "width: 128", "width: 99999999", "groups[0].components[0].width", "1 to"},
		{llama, "bits: 16", "bits: 7", "groups[0].components[0].bits", "1, 2, 3, 4, 5, 6, 8, 16, 32 or 64"},
		{llama, "bits: 16", "bits: 8", "groups[0].components[0].bits", "bfloat16 has 16 bits"},
		{llama, "layers: 0-31", "layers: 0-9999", "groups[0].layers", "not a layer"},
		{llama, "layers: 0-31", "layers: []", "groups[0].layers", "own KV"},
		{llama, "layers: 0-31", "layers: [0, 1, 1]", "groups[0].layers", "twice"},
		{llama, "layers: 0-31", "layers: 1,0", "groups[0].layers", "ascending"},
		{llama, "layers: 0-31", "layers: 31-0", "groups[0].layers", "backwards"},
		{llama, "groups:\n", "groups:\n  - {kind: full, layers: 31, page_tokens: 16, kv_heads: 1, grade: elements, components: [" + component + "]}\n", "groups[1].layers", "owned by groups[0]"},
		{llama, "unit: 16", "unit: 0", "hash.unit", "1 to 65536"},
		{llama, "params: 8030261248", "params: 999999999999999", "shape.params", "10^14"},
		// types
		{llama, "dtype: bfloat16", "dtype: bf16", "groups[0].components[0].dtype", "write bfloat16"},
		{llama, "dtype: bfloat16", "dtype: fp8", "groups[0].components[0].dtype", "float8_e4m3fn or float8_e5m2"},
		{llama, component, "{name: k, width: 127, bits: 4, dtype: int4, scale: none}", "groups[0].grade", "write cell or whole"},
		{llama, "scale: none", "scale: inline", "groups[0].grade", "inline"},
		{llama, "scale: none", "scale: static:md5:00", "groups[0].components[0].scale", "digest"},
		{llama, "scale: none", "scale: side", "groups[0].components[0].scale", "k_scale"},
		{llama, "scale: none", "scale: dynamic", "groups[0].components[0].scale", "none, static"},
		{llama, "name: v", "name: k", "groups[0].components[1].name", "twice"},
		{llama, "grade: elements", "grade: bytes", "groups[0].grade", "elements, cell or whole"},
		{llama, "grade: elements", "grade: cell", "groups[0].packing", "order inside"},
		{llama, "grade: elements", "grade: elements\n    packing: x", "groups[0].packing", "leave it out"},
		{qwen, "grade: whole", "grade: cell", "groups[1].grade", "cannot be cut"},
		{qwen, "packing: qwen3_next_gated_delta_v1", "packing: auto", "groups[1].packing", "really uses"},
		{gemma, "window: 1024", "window: 0", "groups[1].window", "1 to"},
		{mla, "kind: mla", "kind: mla\n    window: 3", "groups[0].window", "leave it out"},
		{mla, "kind: mla", "kind: latent", "groups[0].kind", "full, window"},
		{llama, "sha256:", "sha256:00", "model.weights", "64 lower-case hex"},
		{llama, "sha256:", "md5:", "model.weights", "64 lower-case hex"},
		{llama, "batch_invariant: false", "batch_invariant: yes", "provenance.batch_invariant", "true or false"},
		{llama, "  runner: v1", `  runner: "v1\n"`, "provenance.runner", "printable"},
		{llama, "  runner: v1", "  runner: " + strings.Repeat("v", 257), "provenance.runner", "at most 256 bytes"},
		{llama, "  runner: v1", "  runner: [v1]", "provenance.runner", "write what"},
		{llama, "  runner: v1", "  runner: v1\n  options: {\"a b\": x}", "provenance.options.a b", "a-z"},
		// rope that depends on the batch
		{llama, "regime: fixed", "regime: dynamic", "rope.regime", "dynamic_fixed"},
		{llama, "regime: fixed", "regime: longrope", "rope.regime", "longrope_short or longrope_long"},
		{llama, "regime: fixed", "regime: by_length", "rope.regime", "batch or the current length"},
		{llama, "regime: fixed", "regime: longrope_long", "rope.max_tokens", "depends on it"},
		{llama, "regime: fixed", "regime: fixed\n  max_tokens: 8192", "rope.max_tokens", "leave it out"},
		{llama, "mask: causal", "mask: bidirectional", "attention.mask", "later tokens"},
		{llama, "mask: causal", "mask: chunked", "attention.chunk", "tokens"},
		// anchors, documents, tags
		{llama, "  engine: vllm", "  engine: &a vllm", "provenance.engine", "anchors and aliases"},
		{llama, "  engine: vllm", "  engine: !!binary aGk=", "provenance.engine", "tag"},
		{llama, "depends_on: prefix", "depends_on: prefix\n---\na: b", "", "not one YAML"},
		{llama, "groups:", "groups: 3\nshape: {}\nx:", "groups", "write a list"},
	} {
		_, err := namespace.Parse(edit(t, c.name, c.from, c.to))
		refusedAt(t, err, c.path, c.says)
	}
}

func TestParseRefusesBombs(t *testing.T) {
	for name, text := range map[string]string{
		"large":     "a: " + strings.Repeat("x", namespace.MaxSpecBytes),
		"aliases":   "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nmodel: *c",
		"deep":      strings.Repeat("[", 1<<18),
		"deep json": `{"model":` + strings.Repeat(`{"a":`, 1<<16) + "1" + strings.Repeat("}", 1<<16) + "}",
		"wide":      "groups: [" + strings.Repeat("{},", 1<<17) + "]",
		"layers":    "groups: [{layers: [" + strings.Repeat("0-2047,", 4000) + "]}]",
		"nothing":   "",
		"null":      "null",
		"a number":  "7",
		"binary":    "\x00\x01\xff",
	} {
		if _, err := namespace.Parse([]byte(text)); !errors.Is(err, reason.InvalidSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWeakNames(t *testing.T) {
	weak := func(from, to string) []byte {
		return []byte(strings.Replace(string(edit(t, "llama-3-8b", from, to)), "depends_on: prefix", "depends_on: prefix\nweak_names: true", 1))
	}
	for _, c := range []struct{ from, to, path, says string }{
		{"algorithm: sha256_cbor", "algorithm: xxhash", "hash.algorithm", "weak_names"},
		{"algorithm: sha256_cbor", "algorithm: builtin", "hash.algorithm", "cryptographic"},
		{"algorithm: sha256_cbor", "algorithm: homemade", "hash.algorithm", "cryptographic"},
		{"bytes: 32", "bytes: 8", "hash.bytes", "collide"},
	} {
		_, err := namespace.Parse(edit(t, "llama-3-8b", c.from, c.to))
		refusedAt(t, err, c.path, c.says)
		s, err := namespace.Parse(weak(c.from, c.to))
		if err != nil {
			t.Errorf("weak names, %s: %v", c.to, err)
		} else if s.HashBytes() < 16 {
			t.Errorf("%s: keys of %d bytes", c.to, s.HashBytes())
		}
	}
	for _, bytes := range []string{"4", "33", "65"} {
		if _, err := namespace.Parse(weak("bytes: 32", "bytes: "+bytes)); err == nil {
			t.Errorf("%s bytes of sha256_cbor were taken", bytes)
		}
	}
}

// TestCase_C75_CallerChosenImageIDs: refused unless the spec says weak names (and then never granted: see the registry).
func TestCase_C75_CallerChosenImageIDs(t *testing.T) {
	text := edit(t, "gemma-3-12b", "multimodal: none", "multimodal: caller_id")
	_, err := namespace.Parse(text)
	refusedAt(t, err, "attention.multimodal", "weak_names")
	if _, err = namespace.Parse(append(text, "weak_names: true\n"...)); err != nil {
		t.Error(err)
	}
	if _, err = namespace.Parse(edit(t, "gemma-3-12b", "multimodal: none", "multimodal: content_digest")); err != nil {
		t.Error(err)
	}
}

// TestCase_C71_DraftGroups: KV that depends on the token after the page is refused unless the hash covers that token.
func TestCase_C71_DraftGroups(t *testing.T) {
	draft := func(rule string, eagle bool) error {
		group := "groups:\n  - {kind: draft, layers: 0, page_tokens: 16, kv_heads: 8, grade: elements" + rule +
			", components: [{name: k, width: 128, bits: 16, dtype: bfloat16, scale: none}]}\n"
		text := strings.Replace(string(edit(t, "llama-3-8b", "groups:\n", group)), "  unit: 16", fmt.Sprintf("  unit: 16\n  eagle: %v", eagle), 1)
		_, err := namespace.Parse([]byte(text))
		return err
	}
	const at = "groups[0].depends_on"
	refusedAt(t, draft("", false), at, "missing")
	refusedAt(t, draft("", true), at, "missing")
	refusedAt(t, draft(", depends_on: next_token", false), at, "hash.eagle")
	refusedAt(t, draft(", depends_on: batch", true), at, "prefix")
	for _, err := range []error{draft(", depends_on: prefix", false), draft(", depends_on: next_token", true)} {
		if err != nil {
			t.Error(err)
		}
	}
	_, err := namespace.Parse(edit(t, "llama-3-8b", "    kv_heads: 8", "    depends_on: next_token\n    kv_heads: 8"))
	refusedAt(t, err, at, "draft")
	for _, what := range []string{"next_token", "batch", "total_length", "encoder_state"} {
		_, err := namespace.Parse(edit(t, "llama-3-8b", "depends_on: prefix", "depends_on: "+what))
		refusedAt(t, err, "depends_on", what)
	}
}

// TestTokenSlicedRanksAreRefused: there is no key for them, and the answer says so.
func TestTokenSlicedRanksAreRefused(t *testing.T) {
	for _, key := range []string{"dcp", "token_slice", "attn_cp"} {
		_, err := namespace.Parse(edit(t, "llama-3-8b", "writer_tp: 1", key+": 2"))
		refusedAt(t, err, "recorded."+key, "token-sliced ranks")
	}
}
