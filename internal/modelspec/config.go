// Package modelspec reads a model's config.json as identity: the digest of what changes values, position encoding,
// masks, layers and sizes, and the part of a spec that they make. It mirrors python/quire_kv, which does the same with
// the configuration of a running engine; a running engine fills in defaults and overrides, and has the last word.
package modelspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/quire-kv/quire/namespace"
)

// config is the configuration of the language model, decoded with UseNumber.
type config map[string]any

// nestedText are the names under which models of several media keep their language model.
var nestedText = []string{"text_config", "llm_config", "language_config", "thinker_config"}

// around is where what a nested configuration covers up stays, since an engine may read it there.
const around = "quire.around"

// parseConfig reads config.json and lays a nested language model over what stands around it.
func parseConfig(text string) (config, error) {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var outer map[string]any
	if err := d.Decode(&outer); err != nil {
		return nil, fmt.Errorf("config.json is no JSON object: %w", err)
	}
	return flatten(outer, 0)
}

func flatten(outer map[string]any, depth int) (config, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("config.json is nested deeper than %d", maxDepth)
	}
	for _, name := range nestedText {
		inner, ok := outer[name].(map[string]any)
		if !ok || len(inner) == 0 {
			continue
		}
		merged := maps.Clone(outer)
		delete(merged, name)
		covered := map[string]any{}
		for k, v := range inner {
			if before, has := merged[k]; has && !reflect.DeepEqual(before, v) {
				covered[k] = before
			}
			merged[k] = v
		}
		if len(covered) > 0 {
			merged[around] = covered
		}
		for _, k := range []string{"architectures", "quantization_config"} { // those of the whole model
			if !saysNothing(outer[k]) {
				merged[k] = outer[k]
			}
		}
		return flatten(merged, depth+1)
	}
	return outer, nil
}

// digest is that of all that changes values, with the compute dtype as resolved. A key that is absent is not the same as
// one that is null or false: the default may be another.
func (c config) digest(dtype string) (namespace.Digest, error) {
	kept := map[string]any{}
	for k, v := range c {
		if semantic[k] {
			kept[k] = strip(v)
		}
	}
	size, err := c.shape()
	if err != nil {
		return namespace.Digest{}, err
	}
	kept["num_key_value_heads"], kept["head_dim"], kept["compute_dtype"] = size.kvHeads, size.headDim, dtype
	if size.latent > 0 { // neither is used then, and libraries fill in different ones
		delete(kept, "num_key_value_heads")
		delete(kept, "head_dim")
	}
	return digestOf(kept, "quire-config-v1")
}

// unclassed are the keys that a running engine's adapter will state as provenance, sorted.
func (c config) unclassed() []string {
	var out []string
	for k := range c {
		if !semantic[k] && !ignored[k] && !positional[k] {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// strip drops keys of nested values that never count.
func strip(value any) any {
	switch v := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, item := range v {
			if !ignored[k] || k == "torch_dtype" || k == "dtype" { // a part's own counts, the whole model's is the engine's
				out[k] = strip(item)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = strip(v[i])
		}
		return out
	}
	return value
}

// whole is a number of c, 0 where there is none.
func (c config) whole(key string) (int, error) {
	switch v := c[key].(type) {
	case nil, bool:
		return 0, nil
	case json.Number:
		if n, err := strconv.ParseUint(v.String(), 10, 31); err == nil {
			return int(n), nil
		}
	}
	return 0, fmt.Errorf("%s of config.json is %.60v, which is no whole number", key, c[key])
}

// firstWhole is the first of the keys that has a number above 0.
func (c config) firstWhole(keys ...string) (int, error) {
	for _, k := range keys {
		if n, err := c.whole(k); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}

func (c config) number(key string) float64 {
	n, _ := c[key].(json.Number)
	f, _ := n.Float64() // 0 for what is no number
	return f
}

func (c config) text(key string) string {
	s, _ := c[key].(string)
	return s
}

// truth is Python's idea of a true value.
func truth(v any) bool {
	if n, ok := v.(json.Number); ok {
		f, _ := n.Float64()
		return f != 0
	}
	return !saysNothing(v)
}

// shape is the sizes of the whole model, before any tensor parallelism.
type shape struct {
	layers, heads, width int // of queries, for the cost model: the mean of what a head's keys and its values have
	kvHeads, headDim     int
	latent, ropeDim      int // of multi-head latent attention
}

func (c config) shape() (shape, error) {
	var s shape
	var hidden, nope, values int
	for _, f := range []struct {
		to   *int
		keys []string
	}{
		{&s.layers, []string{"num_hidden_layers", "n_layer"}}, {&s.heads, []string{"num_attention_heads", "n_head"}},
		{&hidden, []string{"hidden_size", "n_embd"}}, {&s.headDim, []string{"head_dim"}}, {&s.kvHeads, []string{"num_key_value_heads"}},
		{&s.latent, []string{"kv_lora_rank"}}, {&s.ropeDim, []string{"qk_rope_head_dim"}}, {&nope, []string{"qk_nope_head_dim"}},
		{&values, []string{"v_head_dim"}},
	} {
		n, err := c.firstWhole(f.keys...)
		if err != nil {
			return s, err
		}
		*f.to = n
	}
	switch {
	case s.layers == 0 || s.heads == 0 || hidden == 0 && s.headDim == 0:
		return s, fmt.Errorf("config.json lacks num_hidden_layers, num_attention_heads or hidden_size")
	case s.layers > namespace.MaxLayers:
		return s, fmt.Errorf("config.json has %d layers, at most %d are taken", s.layers, namespace.MaxLayers)
	}
	if s.headDim == 0 {
		s.headDim = hidden / s.heads
	}
	if s.kvHeads == 0 {
		if s.kvHeads = s.heads; truth(c["multi_query"]) {
			s.kvHeads = 1
		}
	}
	s.width = s.headDim
	if s.latent == 0 {
		s.ropeDim = 0
	} else if nope+s.ropeDim > 0 {
		s.width = nope + s.ropeDim
	}
	if values > 0 {
		s.width = (s.width + values) / 2
	}
	return s, nil
}

// refuseNonCausal refuses models whose pages depend on more than their prefix.
func (c config) refuseNonCausal() error {
	if truth(c["is_encoder_decoder"]) || truth(c["add_cross_attention"]) || truth(c["cross_attention_layers"]) {
		return fmt.Errorf("this is an encoder-decoder model: its pages depend on an encoder's state, which no page hash covers")
	}
	if v, ok := c["is_causal"].(bool); ok && !v {
		return fmt.Errorf("is_causal of the model is false: its pages depend on later tokens")
	}
	if v := c["use_bidirectional_attention"]; truth(v) && v != "vision" { // inside an image only: the image's own digest covers it
		return fmt.Errorf("use_bidirectional_attention of the model is %v: its pages depend on later tokens", v)
	}
	names, _ := c["architectures"].([]any)
	if one := c.text("architectures"); one != "" {
		names = []any{one}
	}
	for _, n := range names {
		name, _ := n.(string)
		starts := func(p string) bool { return strings.HasPrefix(name, p) }
		if strings.Contains(name, "MaskedLM") || strings.Contains(name, "EncoderModel") ||
			slices.ContainsFunc([]string{"Bert", "Roberta", "XLMRoberta", "ModernBert", "T5", "Bart", "Whisper"}, starts) {
			return fmt.Errorf("%s is not a causal language model: its pages depend on later tokens", name)
		}
	}
	return nil
}
