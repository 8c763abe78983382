package namespace

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quire-kv/quire/store/page"
)

// Validate judges a spec that was built in Go as Parse judges text. Errors are *Refusal.
func (s *Spec) Validate() error {
	if r := s.validate(); r != nil {
		return r
	}
	return nil
}

func (s *Spec) validate() *Refusal {
	return firstRefusal(
		s.checkTexts, s.checkModel, s.checkRope, s.checkAttention, s.checkHash, s.checkDependsOn,
		s.checkGroups, s.checkProvenance, s.checkRecorded, s.checkShape,
	)
}

func firstRefusal(checks ...func() *Refusal) *Refusal {
	for _, check := range checks {
		if r := check(); r != nil {
			return r
		}
	}
	return nil
}

// checkTexts holds every text of the spec to what fits in a line of a table, a header and a provenance.
func (s *Spec) checkTexts() *Refusal {
	for _, m := range []struct {
		path    string
		entries map[string]string
	}{{"attention.backends", s.Attention.Backends}, {"provenance.options", s.Prov.Options}} {
		if len(m.entries) > maxMapEntries {
			return invalid(m.path, "%d entries, at most %d", len(m.entries), maxMapEntries)
		}
		for _, k := range slices.Sorted(maps.Keys(m.entries)) {
			if !isWord(k) {
				return invalid(join(m.path, printable(k)), "write a key of 1 to 64 of a-z, A-Z, 0-9, _, - and .")
			}
			if m.entries[k] == "" {
				return invalid(join(m.path, k), "no value: write one, or leave the key out")
			}
		}
	}
	for _, f := range s.Factors() {
		if f.Class != Representation && !isPlain(f.Value) { // those of groups are checked with better paths
			return invalid(f.Path, "write at most %d bytes of printable UTF-8 in one line", maxTextBytes)
		}
	}
	return nil
}

func isPlain(s string) bool {
	return len(s) <= maxTextBytes && utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// isWord holds names that are parts of paths, keys and tenants.
func isWord(s string) bool {
	return len(s) > 0 && len(s) <= 64 && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
	}) < 0
}

func (s *Spec) checkModel() *Refusal {
	m := &s.Model
	switch {
	case m.ID == "" || isAuto(m.ID):
		return invalid("model.id", "%s: write the model's name, for example meta-llama/Llama-3.1-8B", missing(m.ID))
	case m.Weights == Digest{}:
		return invalid("model.weights", "missing: write the sha256 digest of the weights as they run (quantised, merged, overridden)")
	case m.Config == Digest{}:
		return invalid("model.config", "missing: write the sha256 digest of the resolved configuration")
	}
	return nil
}

func missing(s string) string {
	if s == "" {
		return "missing"
	}
	return fmt.Sprintf("%q is not a resolved value", s)
}

// oneOf refuses all but the known words; others name words that are refused for a reason of their own.
func oneOf(path, value string, known []string, others map[string]string) *Refusal {
	if slices.Contains(known, value) {
		return nil
	}
	if why, ok := others[value]; ok {
		return invalid(path, "%q: %s", value, why)
	}
	return invalid(path, "%s: write %s", quoteOrMissing(value), orList(known))
}

func quoteOrMissing(s string) string {
	if s == "" {
		return "missing"
	}
	return fmt.Sprintf("%q is not known", s)
}

func orList(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

const (
	byRequest   = "the values of a page would depend on the batch or the current length, which its hash does not cover: "
	maxContext  = 1 << 30 // tokens
	maxChunk    = maxContext
	ropeNone    = "none"
	ropeFixed   = "fixed"
	maskChunked = "chunked"
)

func (s *Spec) checkRope() *Refusal {
	r := &s.Rope
	refused := oneOf("rope.regime", r.Regime, []string{ropeFixed, "longrope_short", "longrope_long", "dynamic_fixed", ropeNone}, map[string]string{
		"longrope":    byRequest + "write longrope_short or longrope_long and pin the engine to it",
		"dynamic":     byRequest + "write dynamic_fixed with max_tokens and pin the engine to it",
		"dynamic_ntk": byRequest + "write dynamic_fixed with max_tokens and pin the engine to it",
		"per_batch":   byRequest + "pin the engine to one regime",
		"per_request": byRequest + "pin the engine to one regime",
		"by_length":   byRequest + "pin the engine to one regime",
		"yarn":        "a rule that does not depend on length: write fixed, with the digest of the scaled table",
		"linear":      "a rule that does not depend on length: write fixed, with the digest of the scaled table",
	})
	switch {
	case refused != nil:
		return refused
	case r.Regime == ropeNone && r.Table != Digest{}:
		return invalid("rope.table", "the regime is none: leave the table out")
	case r.Regime != ropeNone && r.Table == Digest{}:
		return invalid("rope.table", "missing: write the sha256 digest of the effective table, or of the rule that makes it")
	case (r.Regime == ropeNone || r.Regime == ropeFixed) && r.MaxTokens != 0:
		return invalid("rope.max_tokens", "regime %s does not depend on it: leave it out, so that another maximum length is not another namespace", r.Regime)
	case r.Regime != ropeNone && r.Regime != ropeFixed && (r.MaxTokens == 0 || r.MaxTokens > maxContext):
		return invalid("rope.max_tokens", "regime %s depends on it: write 1 to %d tokens", r.Regime, maxContext)
	}
	return nil
}

func (s *Spec) checkAttention() *Refusal {
	a := &s.Attention
	r := oneOf("attention.mask", a.Mask, []string{"causal", "sliding", maskChunked}, map[string]string{
		"bidirectional": "the values of a page would depend on later tokens, which its hash does not cover",
		"prefix_lm":     "the values of a page would depend on later tokens, which its hash does not cover",
	})
	if r == nil {
		r = oneOf("attention.multimodal", a.MM, []string{"none", "content_digest", "caller_id"}, nil)
	}
	switch {
	case r != nil:
		return r
	case a.Mask == maskChunked && (a.Chunk == 0 || a.Chunk > maxChunk):
		return invalid("attention.chunk", "the mask is chunked: write 1 to %d tokens", maxChunk)
	case a.Mask != maskChunked && a.Chunk != 0:
		return invalid("attention.chunk", "the mask is %s: leave it out", a.Mask)
	case a.Sinks > 1<<16:
		return invalid("attention.sinks", "%d: write 0 to 65536", a.Sinks)
	case a.MM == "caller_id" && !s.WeakNames:
		return invalid("attention.multimodal", "names that callers choose can stand for two images: write content_digest, or weak_names: true and share with nobody")
	}
	for k, v := range a.Backends {
		if isAuto(v) {
			return invalid("attention.backends."+k, "%q is not a resolved value: write the backend that runs", v)
		}
	}
	return nil
}

func (s *Spec) checkDependsOn() *Refusal {
	return oneOf("depends_on", s.DependsOn, []string{"prefix", "prompt_boundary"}, map[string]string{
		"next_token":    "a page whose values depend on the token after it is not what its hash names: give the draft group depends_on next_token with hash.eagle, or leave the group out",
		"batch":         "a page that depends on the batch is not what its hash names: make the engine batch invariant",
		"total_length":  "a page that depends on the total length is not what its hash names: pin the regime",
		"encoder_state": "a page that depends on an encoder is not what its hash names: such layers are not cached",
	})
}

func (s *Spec) checkProvenance() *Refusal {
	p := &s.Prov
	for _, f := range []struct{ path, value, example string }{
		{"engine", p.Engine, "vllm"},
		{"engine_version", p.Version, "0.32.1"},
		{"runner", p.Runner, "v1"},
		{"attention_backend", p.Backend, "flashinfer-0.6.1"},
		{"kernel_build", p.Kernel, "the wheel's digest or git revision"},
		{"device_arch", p.Arch, "sm_90a"},
	} {
		if f.value == "" || isAuto(f.value) {
			return invalid("provenance."+f.path, "%s: write what runs (for example %s)", missing(f.value), f.example)
		}
	}
	if n := len(s.CanonicalProvenance()); n > page.MaxProvenance {
		return invalid("provenance", "its canonical form has %d bytes, at most %d fit in a page's header: shorten the values or give a digest of the options", n, page.MaxProvenance)
	}
	return nil
}

func (s *Spec) checkRecorded() *Refusal {
	r := &s.Record
	switch {
	case s.Strict && (r.Reduction == "" || isAuto(r.Reduction)):
		return invalid(reductionPath, "%s, and the spec is strict: write the shape of the sums (for example tp8-ring), or fixed(n)", missing(r.Reduction))
	case r.WriterTP > 1<<16:
		return invalid("recorded.writer_tp", "%d: write 1 to 65536", r.WriterTP)
	case r.WriterPP > 1<<16:
		return invalid("recorded.writer_pp", "%d: write 1 to 65536", r.WriterPP)
	}
	return nil
}

// checkShape bounds what the cost model multiplies: an absurd shape would make its pages worth more than all others.
func (s *Spec) checkShape() *Refusal {
	x := &s.Shape
	switch {
	case x.Params > 1e14:
		return invalid("shape.params", "%d: write at most 10^14", x.Params)
	case x.Layers > MaxLayers:
		return invalid("shape.layers", "%d: write at most %d", x.Layers, MaxLayers)
	case x.Heads > maxHeads:
		return invalid("shape.heads", "%d: write at most %d", x.Heads, maxHeads)
	case x.Width > 1<<16:
		return invalid("shape.width", "%d: write at most 65536", x.Width)
	}
	return nil
}
