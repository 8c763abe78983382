package modelspec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quire-kv/quire/namespace"
)

// Facts is what a checkpoint says of itself.
type Facts struct {
	Model   string // its name
	Weights string // "sha256:...": the digest of the weights as they are
	Params  uint64
	Config  string // the text of config.json
}

// ErrNoConfig is what a checkpoint without config.json answers.
var ErrNoConfig = errors.New("the checkpoint has no config.json")

// Part is the part of a spec that a checkpoint makes: model, rope, attention, groups and shape. The engine's part, hash
// and provenance, is missing.
type Part struct {
	Spec      namespace.Spec
	Unclassed []string // keys of config.json that an adapter states as provenance
}

// PartOf is what the spec would be for an engine that runs the checkpoint as it is, computing and storing KV in bfloat16
// with pages of so many tokens.
func PartOf(f Facts, pageTokens uint32) (*Part, error) {
	if f.Config == "" {
		return nil, ErrNoConfig
	}
	c, err := parseConfig(f.Config)
	if err != nil {
		return nil, err
	}
	p := &Part{Unclassed: c.unclassed()}
	s := &p.Spec
	s.Model.ID, s.DependsOn = f.Model, "prefix"
	if s.Model.Weights, err = namespace.ParseDigest(f.Weights); err != nil {
		return nil, err
	}
	const dtype, bits = "bfloat16", 16
	if s.Model.Config, err = c.digest(dtype); err != nil {
		return nil, err
	}
	if s.Rope, err = c.rope(); err != nil {
		return nil, err
	}
	if s.Attention, err = c.attention(); err != nil {
		return nil, err
	}
	if s.Groups, err = c.groups(pageTokens, dtype, bits); err != nil {
		return nil, err
	}
	size, err := c.shape()
	if err != nil {
		return nil, err
	}
	s.Shape = namespace.Shape{Params: f.Params, Layers: uint32(size.layers), Heads: uint32(size.heads), Width: uint32(size.width)}
	return p, nil
}

// YAML is the part as text for people. With hash and provenance added it is a spec.
func (p *Part) YAML() string {
	var b strings.Builder
	s := &p.Spec
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("model:\n  id: %q\n  weights: %s\n  config: %s", s.Model.ID, s.Model.Weights, s.Model.Config)
	line("rope:\n  regime: %s", s.Rope.Regime)
	if s.Rope.Table != (namespace.Digest{}) {
		line("  table: %s", s.Rope.Table)
	}
	line("attention:\n  mask: %s", s.Attention.Mask)
	if s.Attention.Chunk > 0 {
		line("  chunk: %d", s.Attention.Chunk)
	}
	if s.Attention.Sinks > 0 {
		line("  sinks: %d", s.Attention.Sinks)
	}
	line("  multimodal: %s\ndepends_on: %s\ngroups:", s.Attention.MM, s.DependsOn)
	for i := range s.Groups {
		g := &s.Groups[i]
		line("  - kind: %s", g.Kind)
		if g.Window > 0 {
			line("    window: %d", g.Window)
		}
		line("    layers: %q\n    page_tokens: %d\n    kv_heads: %d\n    grade: elements\n    components:", g.Layers.String(), g.PageTokens, g.Heads)
		for _, c := range g.Components {
			line("      - {name: %s, width: %d, bits: %d, dtype: %s, scale: %s}", c.Name, c.Width, c.Bits, c.DType, c.Scale)
		}
	}
	line("shape:\n  params: %d\n  layers: %d\n  heads: %d\n  width: %d", s.Shape.Params, s.Shape.Layers, s.Shape.Heads, s.Shape.Width)
	return b.String()
}
