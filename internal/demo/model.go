package demo

import (
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/page"
)

// The model is Llama 3 70B as vLLM runs it, with the trace's 512 tokens a page. Its real pages are 160 MiB; the demo
// keeps the identity and the heads, and scales each page to 256 KiB:
//
//	          kv heads   layers   bytes of a cell      page
//	real         8         80     512 x 2 x 128 x 2    160 MiB
//	demo         8          8     512 x 2 x   2 x 2    256 KiB      1 : 640
const (
	modelHeads  = 8
	demoLayers  = 8
	demoWidth   = 2
	realLayers  = 80
	realWidth   = 128
	scale       = realLayers * realWidth / (demoLayers * demoWidth)
	hashSeed    = page.VLLMDefaultSeed
	hashBytes   = 32
	modelName   = "meta-llama/Meta-Llama-3-70B"
	engineBuild = "0.32.0"
)

// shape70B is Llama 3 70B for the cost of prefilling.
func shape70B() namespace.Shape {
	return namespace.Shape{Params: 70_553_706_496, Layers: realLayers, Heads: 64, Width: realWidth}
}

// newSpec is the identity that both engines open.
func newSpec() (*namespace.Spec, error) {
	s := &namespace.Spec{
		Model: namespace.Model{
			ID: modelName, Weights: digest("example weights"), Config: digest("example config"),
		},
		Rope:      namespace.Rope{Regime: "fixed", Table: digest("rope theta 500000")},
		Attention: namespace.Attention{Mask: "causal", MM: "none"},
		DependsOn: "prefix",
		Groups: []namespace.Group{{
			Kind: namespace.KindFull, Layers: namespace.LayerRange(0, demoLayers), PageTokens: replay.BlockTokens,
			Heads: modelHeads, Grade: page.Elements,
			Components: []namespace.Component{component("k", "bfloat16"), component("v", "bfloat16")},
		}},
		Prov: namespace.Provenanced{
			Engine: "vllm", Version: engineBuild, Runner: "v1", Backend: "flashinfer-0.6.1", Kernel: "example", Arch: "sm_90a",
		},
		Record: namespace.Recordings{Tokenizer: "example", WriterTP: 4, WriterPP: 1},
		Shape:  shape70B(),
	}
	return s, setHash(s, hashSeed)
}

func component(name, dtype string) namespace.Component {
	return namespace.Component{Name: name, Width: demoWidth, Bits: 16, DType: dtype, Scale: "none"}
}

func digest(text string) namespace.Digest { return namespace.DigestOf([]byte(text)) }

// setHash writes the hash contract of vLLM's sha256_cbor with a seed into s: probed, as an engine would.
func setHash(s *namespace.Spec, seed string) error {
	s.Hash = namespace.HashRule{
		Algorithm: page.SHA256CBOR.String(), Seed: digest(seed), ExtraKeys: 1, Unit: replay.BlockTokens, Bytes: hashBytes,
	}
	chain, err := newChain(seed)
	if err != nil {
		return err
	}
	probe := chain.Append(nil, namespace.ProbeTokens(replay.BlockTokens))
	var hashes [][]byte
	for at := 0; at < len(probe); at += hashBytes {
		hashes = append(hashes, probe[at:at+hashBytes])
	}
	s.Hash.Probe = namespace.ProbeDigest(hashes)
	return nil
}

func newChain(seed string) (*page.VLLMChain, error) {
	return page.NewVLLMChain(page.VLLMContract{Algorithm: page.SHA256CBOR, BlockTokens: replay.BlockTokens, Seed: seed})
}

// hasher turns block ids of a trace into page hashes, as the engine hashes its prompt. Not for concurrent use.
type hasher struct {
	chain  *page.VLLMChain
	tokens []uint32 // of one block
	hashes []byte
}

func newHasher() (*hasher, error) {
	chain, err := newChain(hashSeed)
	return &hasher{chain: chain, tokens: make([]uint32, replay.BlockTokens)}, err
}

// vocabulary of Llama 3.
const vocabulary = 128_256

// run is the packed hashes of the pages of a prompt, valid until the next call. Equal block ids are equal tokens.
func (h *hasher) run(r page.VLLMRequest, blocks []uint64) ([]byte, error) {
	if err := h.chain.Reset(r); err != nil {
		return nil, err
	}
	h.hashes = h.hashes[:0]
	for _, id := range blocks {
		x := id
		for i := range h.tokens {
			x = x*6364136223846793005 + 1442695040888963407
			h.tokens[i] = uint32(x>>33) % vocabulary
		}
		h.hashes = h.chain.Append(h.hashes, h.tokens)
	}
	return h.hashes, nil
}
