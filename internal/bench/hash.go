package bench

import (
	"context"
	"time"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/page"
)

// The chain of a prompt of a million tokens at 16 tokens a page.
const (
	hashLinks      = 62_500
	hashLinkTokens = 16
)

// benchHash times the chains of both engines' rules over a prompt of a million tokens, one core.
func benchHash(ctx context.Context, o *Options) ([]Figure, error) {
	sglang, err := page.NewSGLangChain(hashLinkTokens, false)
	if err != nil {
		return nil, err
	}
	vllm, err := page.NewVLLMChain(page.VLLMContract{Algorithm: page.SHA256CBOR, BlockTokens: hashLinkTokens, Seed: page.VLLMDefaultSeed})
	if err != nil {
		return nil, err
	}
	tokens := namespace.ProbeTokens(hashLinkTokens)
	prompt := make([]uint32, hashLinks*hashLinkTokens)
	for i := range prompt {
		prompt[i] = (tokens[i%len(tokens)] + uint32(i)*2654435761) % 128_000
	}
	dst := make([]byte, 0, hashLinks*32)
	var s sheet
	err = o.rounds(ctx, func(measured bool) error {
		begun := time.Now()
		if err := sglang.Reset(nil); err != nil {
			return err
		}
		dst = sglang.Append(dst[:0], prompt)
		split := time.Now()
		if err := vllm.Reset(page.VLLMRequest{}); err != nil {
			return err
		}
		dst = vllm.Append(dst[:0], prompt)
		if end := time.Now(); measured {
			s.add("sglang_sha256", "ms", 1e3*split.Sub(begun).Seconds())
			s.add("vllm_sha256_cbor", "ms", 1e3*end.Sub(split).Seconds())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.figures(map[string]goal{"sglang_sha256": atMost(10), "vllm_sha256_cbor": atMost(10)}), nil
}
