package modelspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/quire-kv/quire/namespace"
)

var (
	fixedRules     = []string{"default", "linear", "llama3", "yarn", "deepseek_yarn", "mrope", "proportional", "ntk", "deepseek_llama_scaling"}
	needsOriginal  = []string{"llama3", "yarn", "deepseek_yarn", "longrope"}
	ropeSynonyms   = map[string]string{"su": "longrope", "mrope": "default"} // mrope is the default table with positions of several axes
	noRopeModels   = []string{"gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "mpt", "xglm", "mamba", "mamba2", "falcon_mamba"}
	ropeStructural = []string{"type", "rope_type", "rope_theta", "partial_rotary_factor", "rope_dim"}
)

// rope is the position encoding. The digest is of the rule with every parameter, not of the computed table: it is the
// same on every machine, and which code turns it into numbers is provenance.
func (c config) rope() (namespace.Rope, error) {
	if c.hasNoRope() {
		return namespace.Rope{Regime: "none"}, nil
	}
	rule, err := c.ropeRule()
	if err != nil {
		return namespace.Rope{}, err
	}
	parts := []any{rule}
	if _, one := rule["type"]; !one {
		parts = slices.Collect(maps.Values(rule))
	}
	for _, p := range parts {
		kind := p.(map[string]any)["type"].(string)
		switch {
		case slices.Contains(fixedRules, kind):
		case kind == "longrope" || kind == "dynamic":
			return namespace.Rope{}, fmt.Errorf("rope type %s depends on the engine's maximum length: the running engine states its regime", kind)
		default:
			return namespace.Rope{}, fmt.Errorf("rope type %.40q is not known, so it cannot be said what its positions depend on", kind)
		}
	}
	table, err := digestOf(rule, "quire-rope-v1")
	return namespace.Rope{Table: table, Regime: "fixed"}, err
}

func (c config) hasNoRope() bool {
	for _, k := range []string{"rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "rotary_dim", "rotary_emb_base"} {
		if truth(c[k]) {
			return false
		}
	}
	none := []string{"absolute", "learned_absolute", "alibi", "nope", "none"}
	return truth(c["alibi"]) || slices.Contains(none, c.text("position_embedding_type")) || slices.Contains(noRopeModels, c.text("model_type"))
}

// ropeRule is the rule with all its parameters: one, or one for each type of layer.
func (c config) ropeRule() (map[string]any, error) {
	stated := c["rope_parameters"]
	if !truth(stated) {
		stated = c["rope_scaling"]
	}
	given, ok := stated.(map[string]any)
	if truth(stated) && !ok {
		return nil, fmt.Errorf("rope_scaling of the model is a %T, which is not understood", stated)
	}
	common, byLayers := map[string]any{}, map[string]any{}
	for k, v := range given {
		if _, nested := v.(map[string]any); nested {
			byLayers[k] = v
		} else {
			common[k] = v
		}
	}
	for k, v := range byLayers {
		part := maps.Clone(common)
		maps.Copy(part, v.(map[string]any))
		byLayers[k] = c.onePart(part, c["rope_theta"])
	}
	if len(byLayers) > 0 {
		return byLayers, nil
	}
	if local := c["rope_local_base_freq"]; truth(local) { // the older form of two tables: scaling is for the global one
		return map[string]any{"full_attention": c.onePart(given, c["rope_theta"]), "sliding_attention": c.onePart(nil, local)}, nil
	}
	return c.onePart(given, c["rope_theta"]), nil
}

func (c config) onePart(given map[string]any, theta any) map[string]any {
	rule := map[string]any{}
	for k, v := range given {
		if !slices.Contains(ropeStructural, k) {
			rule[k] = v
		}
	}
	kind := firstTrue(given["rope_type"], given["type"], "default")
	name := fmt.Sprint(kind)
	if s, ok := ropeSynonyms[name]; ok {
		name = s
	}
	rule["type"] = name
	share := firstTrue(given["partial_rotary_factor"], c["partial_rotary_factor"], c["rotary_pct"], nil)
	for name, v := range map[string]any{"theta": firstTrue(given["rope_theta"], theta, c["rotary_emb_base"], nil), "share": share} {
		if v != nil { // what is not stated is the code's own default, which only the engine knows
			rule[name] = v
		}
	}
	rule["dim"] = c.rotated(given, share)
	longest := firstTrue(c["max_position_embeddings"], json.Number("0"))
	if _, has := rule["original_max_position_embeddings"]; !has && slices.Contains(needsOriginal, name) {
		rule["original_max_position_embeddings"] = firstTrue(c["original_max_position_embeddings"], longest)
	}
	if _, has := rule["factor"]; name == "longrope" || name == "dynamic" || name == "yarn" && !has {
		rule["max_position_embeddings"] = longest // these scale by it
	}
	return rule
}

func firstTrue(values ...any) any {
	for _, v := range values[:len(values)-1] {
		if truth(v) {
			return v
		}
	}
	return values[len(values)-1]
}

// rotated is how many elements of a head are rotated.
func (c config) rotated(given map[string]any, share any) int {
	for _, f := range []struct {
		from config
		key  string
	}{{given, "rope_dim"}, {c, "rotary_dim"}, {c, "qk_rope_head_dim"}} {
		if truth(f.from[f.key]) {
			return int(f.from.number(f.key))
		}
	}
	heads := max(int(firstNumber(c, "num_attention_heads", "n_head")), 1)
	width := int(c.number("head_dim"))
	if width == 0 {
		width = int(firstNumber(c, "hidden_size", "n_embd")) / heads
	}
	if share != nil {
		return int(float64(width) * config{"share": share}.number("share"))
	}
	return width
}

func firstNumber(c config, keys ...string) float64 {
	for _, k := range keys {
		if f := c.number(k); f != 0 {
			return f
		}
	}
	return 0
}
