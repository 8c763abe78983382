package bench

import (
	"fmt"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/page"
)

// The shape of a benchmark's pages: cells are what is left of the page's bytes.
const (
	benchHeads  = 8
	benchLayers = 8
	benchTokens = 16
)

// specOf is an identity whose pages have so many bytes, a multiple of pageUnit.
func specOf(pageBytes int) *namespace.Spec {
	width := uint32(pageBytes / pageUnit)
	return &namespace.Spec{
		Model: namespace.Model{
			ID:      fmt.Sprintf("bench/pages-of-%d-bytes", pageBytes),
			Weights: namespace.DigestOf([]byte("bench weights")), Config: namespace.DigestOf([]byte("bench config")),
		},
		Rope:      namespace.Rope{Regime: "fixed", Table: namespace.DigestOf([]byte("bench rope"))},
		Attention: namespace.Attention{Mask: "causal", MM: "none"},
		Hash: namespace.HashRule{
			Algorithm: "sha256", Seed: namespace.DigestOf(nil), Unit: benchTokens, Bytes: hashBytes,
			Probe: namespace.ProbeDigest([][]byte{appendKey(nil, storedKeys, 0)}),
		},
		DependsOn: "prefix",
		Groups: []namespace.Group{{
			Kind: namespace.KindFull, Layers: namespace.LayerRange(0, benchLayers), PageTokens: benchTokens, Heads: benchHeads, Grade: page.Elements,
			Components: []namespace.Component{
				{Name: "k", Width: width, Bits: 16, DType: "bfloat16", Scale: "none"},
				{Name: "v", Width: width, Bits: 16, DType: "bfloat16", Scale: "none"},
			},
		}},
		Prov: namespace.Provenanced{
			Engine: "bench", Version: "1", Runner: "bench", Backend: "none", Kernel: "none", Arch: "none",
		},
	}
}
