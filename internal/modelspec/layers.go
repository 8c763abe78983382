package modelspec

import (
	"fmt"
	"strings"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/page"
)

// Kinds of layers beside namespace.KindFull, KindWindow and KindRecurrent.
const kindChunked = "chunked"

// layerTypes are the names of layer types in configurations.
var layerTypes = map[string]string{
	"full_attention": namespace.KindFull, "attention": namespace.KindFull, "global": namespace.KindFull, "global_attention": namespace.KindFull,
	"sliding_attention": namespace.KindWindow, "sliding_window": namespace.KindWindow, "local": namespace.KindWindow, "local_attention": namespace.KindWindow,
	"chunked_attention": kindChunked,
	"linear_attention":  namespace.KindRecurrent, "mamba": namespace.KindRecurrent, "mamba2": namespace.KindRecurrent, "conv": namespace.KindRecurrent,
	"recurrent": namespace.KindRecurrent, "linear": namespace.KindRecurrent,
}

// windowEvery says in which models every n-th layer is full where the configuration does not.
var windowEvery = map[string]int{"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}

// layer is one layer: tokens are those of its window or chunk.
type layer struct {
	kind   string
	tokens int
}

func (c config) layers() ([]layer, error) {
	size, err := c.shape()
	if err != nil {
		return nil, err
	}
	window, err := c.whole("sliding_window")
	if used, ok := c["use_sliding_window"].(bool); ok && !used {
		window, err = 0, nil
	}
	if err != nil {
		return nil, err
	}
	chunk, err := c.whole("attention_chunk_size")
	if err != nil {
		return nil, err
	}
	stated, _ := c["layer_types"].([]any)
	if len(stated) == 0 {
		stated, _ = c["layers_block_type"].([]any)
	}
	if len(stated) > 0 {
		return statedLayers(stated[:min(len(stated), size.layers)], window, chunk)
	}
	return c.patternLayers(size.layers, window, chunk)
}

func statedLayers(names []any, window, chunk int) ([]layer, error) {
	var out []layer
	for _, n := range names {
		name, _ := n.(string)
		l := layer{kind: layerTypes[name]}
		switch l.kind {
		case "":
			return nil, fmt.Errorf("layer type %.60v of the model is not known", n)
		case namespace.KindWindow:
			if l.tokens = window; window == 0 {
				l.kind = namespace.KindFull
			}
		case kindChunked:
			l.tokens = chunk
		}
		out = append(out, l)
	}
	return out, nil
}

// patternLayers are those of models that state a period, or nothing.
func (c config) patternLayers(layers, window, chunk int) ([]layer, error) {
	every, err := c.whole("sliding_window_pattern")
	if err != nil {
		return nil, err
	}
	if every == 0 {
		every = windowEvery[c.text("model_type")]
	}
	first, err := c.whole("max_window_layers")
	if err != nil {
		return nil, err
	}
	interval, err := c.whole("full_attention_interval")
	if err != nil {
		return nil, err
	}
	if interval == 0 {
		interval = 4
	}
	noRope, _ := c["no_rope_layers"].([]any)
	out := make([]layer, layers)
	for i := range out {
		full := false // whether this layer is the full one of its period
		other := layer{namespace.KindWindow, window}
		switch {
		case truth(c["linear_key_head_dim"]):
			full, other = (i+1)%interval == 0, layer{namespace.KindRecurrent, 0}
		case chunk > 0 && len(noRope) == layers:
			full, other = !truth(noRope[i]), layer{kindChunked, chunk}
		case chunk > 0:
			full, other = (i+1)%4 == 0, layer{kindChunked, chunk}
		case window == 0:
			full = true
		case every > 0:
			full = (i+1)%every == 0
		case strings.HasPrefix(c.text("model_type"), "qwen"):
			full = i < first
		}
		if out[i] = other; full {
			out[i] = layer{namespace.KindFull, 0}
		}
	}
	return out, nil
}

// attention is the mask of a model.
func (c config) attention() (namespace.Attention, error) {
	a := namespace.Attention{Mask: "causal", MM: "none"}
	if err := c.refuseNonCausal(); err != nil {
		return a, err
	}
	layers, err := c.layers()
	if err != nil {
		return a, err
	}
	if c.text("model_type") == "gpt_oss" { // a learned logit in each head
		a.Sinks = 1
	}
	windows := 0
	for _, l := range layers {
		switch {
		case l.kind == namespace.KindWindow:
			windows++
		case l.kind == kindChunked && (l.tokens == 0 || a.Chunk != 0 && int(a.Chunk) != l.tokens):
			return a, fmt.Errorf("attention_chunk_size of the model is missing or has several values")
		case l.kind == kindChunked:
			a.Mask, a.Chunk = kindChunked, uint32(l.tokens)
		}
	}
	if windows > 0 && windows == len(layers) {
		a.Mask = "sliding"
	}
	return a, nil
}

// groups are those that the configuration alone implies: layers of one window are a group.
func (c config) groups(pageTokens uint32, dtype string, bits uint8) ([]namespace.Group, error) {
	size, err := c.shape()
	if err != nil {
		return nil, err
	}
	component := func(name string, width int) namespace.Component {
		return namespace.Component{Name: name, Width: uint32(width), Bits: bits, DType: dtype, Scale: "none"}
	}
	if size.latent > 0 {
		return []namespace.Group{{
			Kind: namespace.KindMLA, Layers: namespace.LayerRange(0, uint16(size.layers)), PageTokens: pageTokens, Heads: 1, Grade: page.Elements,
			Components: []namespace.Component{component("latent", size.latent), component("rope", size.ropeDim)},
		}}, nil
	}
	layers, err := c.layers()
	if err != nil {
		return nil, err
	}
	var out []namespace.Group
	at := map[layer]int{}
	for i, l := range layers {
		if l.kind == namespace.KindRecurrent {
			return nil, fmt.Errorf("the model has recurrent layers, whose state config.json does not describe")
		}
		if l.kind == kindChunked {
			l = layer{namespace.KindFull, 0}
		}
		j, ok := at[l]
		if !ok {
			j = len(out)
			at[l] = j
			out = append(out, namespace.Group{
				Kind: l.kind, Window: uint32(l.tokens), PageTokens: pageTokens, Heads: uint16(min(size.kvHeads, 1<<16-1)), Grade: page.Elements,
				Components: []namespace.Component{component("k", size.headDim), component("v", size.headDim)},
			})
		}
		out[j].Layers = append(out[j].Layers, uint16(i))
	}
	return out, nil
}
