package namespace

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quire-kv/quire/store/page"
)

// The kinds of groups.
const (
	KindFull      = "full"
	KindWindow    = "window"
	KindMLA       = "mla"
	KindRecurrent = "recurrent"
	KindDraft     = "draft"
	KindIndexer   = "indexer"
)

// Bounds of a group: what no model in use comes near, and what still fits the page header.
const (
	maxHeads     = 4096
	maxWidth     = 1 << 24       // elements: a recurrent state of one head
	maxCellBytes = math.MaxInt32 // the header keeps 32 bits
)

var elementBits = []uint8{1, 2, 3, 4, 5, 6, 8, 16, 32, 64}

// dtypes are the resolved names with their bits; aliases are what to write instead of names that engines also use.
var (
	dtypes = map[string]uint8{
		"bfloat16": 16, "float16": 16, "float32": 32, "float64": 64, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4,
		"int16": 16, "uint16": 16, "int32": 32, "uint32": 32,
		"float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "float4_e2m1fn": 4,
		"float6_e2m3fn": 6, "float6_e3m2fn": 6,
	}
	dtypeAliases = map[string]string{
		"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "double": "float64",
		"fp8": "float8_e4m3fn or float8_e5m2", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
		"fp4": "float4_e2m1fn",
	}
)

func (s *Spec) checkGroups() *Refusal {
	if len(s.Groups) == 0 || len(s.Groups) > maxGroups {
		return invalid("groups", "%d groups: write 1 to %d", len(s.Groups), maxGroups)
	}
	owned := make(map[string]int) // "kind/layer" -> group
	for i := range s.Groups {
		g, at := &s.Groups[i], fmt.Sprintf("groups[%d]", i)
		r := firstRefusal(
			func() *Refusal { return g.checkRule(at, s) },
			func() *Refusal { return g.checkLayers(at) },
			func() *Refusal { return g.checkComponents(at) },
			func() *Refusal { return g.checkGrade(at) },
			func() *Refusal { return g.checkSize(at) },
		)
		if r != nil {
			return r
		}
		for _, l := range g.Layers {
			key := fmt.Sprintf("%s/%d", g.Kind, l)
			if j, ok := owned[key]; ok {
				return invalid(at+".layers", "layer %d is owned by groups[%d] already: list each layer once", l, j)
			}
			owned[key] = i
		}
	}
	return nil
}

func (g *Group) checkRule(at string, s *Spec) *Refusal {
	kinds := []string{KindFull, KindWindow, KindMLA, KindRecurrent, KindDraft, KindIndexer}
	if r := oneOf(at+".kind", g.Kind, kinds, nil); r != nil {
		return r
	}
	switch {
	case g.Kind == KindWindow && (g.Window == 0 || g.Window > maxContext):
		return invalid(at+".window", "%d: write 1 to %d tokens", g.Window, maxContext)
	case g.Kind != KindWindow && g.Window != 0:
		return invalid(at+".window", "kind is %s: leave it out", g.Kind)
	case g.PageTokens == 0 || g.PageTokens > maxPageTokens:
		return invalid(at+".page_tokens", "%d: write 1 to %d", g.PageTokens, maxPageTokens)
	case g.PageTokens%s.Hash.Unit != 0:
		return invalid(at+".page_tokens", "%d is not a multiple of hash.unit %d: a page is named by the hash of its last unit", g.PageTokens, s.Hash.Unit)
	case g.Heads == 0 || g.Heads > maxHeads:
		return invalid(at+".kv_heads", "%d: write 1 to %d", g.Heads, maxHeads)
	}
	return g.checkDependsOn(at, s.Hash.Eagle)
}

// checkDependsOn keeps draft heads honest: EAGLE's KV of a token stands on the token after it.
func (g *Group) checkDependsOn(at string, eagle bool) *Refusal {
	at += ".depends_on"
	switch {
	case g.Kind == KindDraft && g.DependsOn == "":
		return invalid(at, "missing: write prefix, or next_token for EAGLE heads (with hash.eagle)")
	case g.DependsOn == "" || g.DependsOn == "prefix":
		return nil
	case g.DependsOn != "next_token":
		return invalid(at, "%.64q: write prefix, or next_token where hash.eagle covers it", g.DependsOn)
	case g.Kind != KindDraft:
		return invalid(at, "next_token is for draft groups: leave it out")
	case !eagle:
		return invalid(at, "its values depend on the token after the page, which the hash does not cover: set hash.eagle where the engine's links do, or leave the group out")
	}
	return nil
}

func (g *Group) checkLayers(at string) *Refusal {
	at += ".layers"
	if len(g.Layers) == 0 || len(g.Layers) > MaxLayers {
		return invalid(at, "%d layers: write the indices of those that own KV, for example 0-31", len(g.Layers))
	}
	for i, l := range g.Layers {
		switch {
		case l >= MaxLayers:
			return invalid(at, "layer %d: write indices below %d", l, MaxLayers)
		case i > 0 && l == g.Layers[i-1]:
			return invalid(at, "layer %d is given twice: list each layer once", l)
		case i > 0 && l < g.Layers[i-1]:
			return invalid(at, "layer %d comes after %d: list them ascending", l, g.Layers[i-1])
		}
	}
	return nil
}

func (g *Group) checkComponents(at string) *Refusal {
	if len(g.Components) == 0 || len(g.Components) > maxComponents {
		return invalid(at+".components", "%d components: write 1 to %d (for example k and v)", len(g.Components), maxComponents)
	}
	for i := range g.Components {
		c, here := &g.Components[i], fmt.Sprintf("%s.components[%d]", at, i)
		if !isWord(c.Name) || isAuto(c.Name) {
			return invalid(here+".name", "%.64q: write a name such as k, v, latent, rope or state", c.Name)
		}
		if slices.ContainsFunc(g.Components[:i], func(o Component) bool { return o.Name == c.Name }) {
			return invalid(here+".name", "%q is given twice: name each component once", c.Name)
		}
		if r := c.check(here, g); r != nil {
			return r
		}
	}
	return nil
}

func (c *Component) check(at string, g *Group) *Refusal {
	bits, known := dtypes[c.DType]
	switch {
	case c.Width == 0 || c.Width > maxWidth:
		return invalid(at+".width", "%d: write 1 to %d elements", c.Width, maxWidth)
	case !slices.Contains(elementBits, c.Bits):
		return invalid(at+".bits", "%d: write the bits of one element: 1, 2, 3, 4, 5, 6, 8, 16, 32 or 64", c.Bits)
	case c.DType == "" || isAuto(c.DType):
		return invalid(at+".dtype", "%s: write the type that is stored, for example bfloat16", missing(c.DType))
	case dtypeAliases[c.DType] != "":
		return invalid(at+".dtype", "%q has several meanings or names: write %s", c.DType, dtypeAliases[c.DType])
	case !isWord(c.DType) || strings.ToLower(c.DType) != c.DType:
		return invalid(at+".dtype", "%.64q: write a lower-case type name, for example bfloat16", c.DType)
	case known && bits != c.Bits:
		return invalid(at+".bits", "%d: %s has %d bits", c.Bits, c.DType, bits)
	}
	return c.checkScale(at+".scale", g)
}

func (c *Component) checkScale(at string, g *Group) *Refusal {
	if digest, ok := strings.CutPrefix(c.Scale, "static:"); ok {
		if _, err := ParseDigest(digest); err != nil {
			return invalid(at, "%v", err)
		}
		return nil
	}
	if !slices.Contains([]string{"none", "inline", "side"}, c.Scale) {
		return invalid(at, "%.64q: write none, static:sha256:<64 hex digits>, inline or side", c.Scale)
	}
	side := func(o Component) bool { return o.Name == "scale" || o.Name == c.Name+"_scale" }
	if c.Scale == "side" && !slices.ContainsFunc(g.Components, side) {
		return invalid(at, "its scales are a component of the same group: add one named %s_scale, or write none, static or inline", c.Name)
	}
	return nil
}

func (g *Group) checkGrade(at string) *Refusal {
	switch {
	case g.Grade < page.Elements || g.Grade > page.Whole:
		return invalid(at+".grade", "missing: write elements, cell or whole")
	case g.Kind == KindRecurrent && g.Grade != page.Whole:
		return invalid(at+".grade", "a recurrent state cannot be cut: write whole")
	case g.Grade == page.Elements && g.Packing != "":
		return invalid(at+".packing", "elements have no packing of their own: leave it out, or write grade cell or whole")
	case g.Grade != page.Elements && (!isWord(g.Packing) || isAuto(g.Packing)):
		return invalid(at+".packing", "%.64q: write the id of the order inside (for example vllm_cpu_k_transposed_b128)", g.Packing)
	}
	for i := range g.Components {
		c := &g.Components[i]
		if g.Grade == page.Elements && (c.Bits%8 != 0 || c.Scale == "inline") {
			return invalid(at+".grade", "component %s has %d-bit elements and scale %s: elements are whole bytes without inline scales: write cell or whole", c.Name, c.Bits, c.Scale)
		}
	}
	return nil
}

func (g *Group) checkSize(at string) *Refusal {
	var bits uint64
	for _, c := range g.Components {
		bits += uint64(c.Width) * uint64(c.Bits)
	}
	if g.Kind != KindRecurrent {
		bits *= uint64(g.PageTokens)
	}
	cell := bits / 8
	switch {
	case bits%8 != 0:
		return invalid(at+".components", "a cell has %d bits, which is not whole bytes: pad the widths", bits)
	case cell > maxCellBytes:
		return invalid(at+".components", "a cell has %d bytes, at most %d: check widths and page_tokens", cell, maxCellBytes)
	}
	pieces := uint64(g.Heads) * uint64(page.PiecesOf(len(g.Layers), int(cell)).PerHead)
	if pieces > page.MaxPieces {
		return invalid(at+".page_tokens", "a page has %d pieces, at most %d (1 GiB of full ones): write fewer tokens a page", pieces, page.MaxPieces)
	}
	return nil
}
