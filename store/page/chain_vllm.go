package page

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// VLLMAlgorithm is one of vLLM's block hashes that can be computed outside of Python.
type VLLMAlgorithm uint8

// The algorithms, as vLLM's --prefix-caching-hash-algo names them.
const (
	SHA256CBOR VLLMAlgorithm = iota // sha256_cbor: 32 bytes
	XXHashCBOR                      // xxhash_cbor: 16 bytes, not cryptographic
)

// String is vLLM's name.
func (a VLLMAlgorithm) String() string {
	switch a {
	case SHA256CBOR:
		return "sha256_cbor"
	case XXHashCBOR:
		return "xxhash_cbor"
	}
	return fmt.Sprintf("VLLMAlgorithm(%d)", a)
}

// HashBytes is the length of a digest.
func (a VLLMAlgorithm) HashBytes() int {
	if a == XXHashCBOR {
		return 16
	}
	return sha256.Size
}

// append appends the digest of b.
func (a VLLMAlgorithm) append(dst, b []byte) []byte {
	if a == XXHashCBOR {
		sum := xxh3.Hash128(b).Bytes()
		return append(dst, sum[:]...)
	}
	sum := sha256.Sum256(b)
	return append(dst, sum[:]...)
}

// VLLMDefaultSeed is the seed of sha256_cbor when PYTHONHASHSEED is not set (vLLM since August 2026).
const VLLMDefaultSeed = "vllm-none-hash"

// NoneHash is the parent of first blocks: the digest of the seed, a text (PYTHONHASHSEED as it stands).
func (a VLLMAlgorithm) NoneHash(seed string) []byte {
	return a.append(nil, appendText(nil, seed))
}

// VLLMContract is the part of the rule that is fixed for a namespace.
type VLLMContract struct {
	Algorithm   VLLMAlgorithm
	BlockTokens int
	Seed        string // of NoneHash; a VLLMRequest's Parent overrides it
	Untagged    bool   // extra keys as before they had tags: a bare name, (id, offset), a bare salt, a bare digest
}

// VLLMImage is one multimodal item of a request.
type VLLMImage struct {
	ID             string // a content digest; names that callers choose need a weak_names spec
	Offset, Tokens int    // place of its placeholder tokens in the prompt
}

// VLLMLoRA is a request's adapter. The path is hashed too, so hosts share only when it is equal.
type VLLMLoRA struct{ Name, Path string }

// VLLMRequest is what varies per request.
type VLLMRequest struct {
	LoRA         *VLLMLoRA
	CacheSalt    string      // "" is none; enters block 0 only
	Images       []VLLMImage // ascending, not overlapping
	EmbedDigests [][32]byte  // per block from 0: SHA-256 of its embedding bytes; nil: none

	// To go on in the middle: the digest of block FirstBlock-1. Empty: from the root.
	Parent     []byte
	FirstBlock int
}

// VLLMChain hashes token blocks by vLLM's rule: the digest of the canonical CBOR of (parent, tokens, extra keys).
// Only complete blocks have one; tokens of an incomplete one wait for the next Append. Not for concurrent use.
//
//	83 | 58 20 parent | head of n, tokens | F6, or the array of extra keys
type VLLMChain struct {
	contract VLLMContract
	none     []byte
	req      VLLMRequest
	block    int  // of the tokens in buf
	tokens   int  // in buf
	image    int  // first that may overlap the block
	parentAt int  // of the digest in buf
	headEnd  int  // of the head of the tokens
	plain    bool // no block of the request has extra keys
	buf      []byte
	sha      hash.Hash // reused: a new one for each link costs a tenth of it
}

// NewVLLMChain makes a chain at the root of a plain request.
func NewVLLMChain(c VLLMContract) (*VLLMChain, error) {
	if err := checkPageTokens(c.BlockTokens); err != nil {
		return nil, err
	}
	if c.Algorithm > XXHashCBOR {
		return nil, fmt.Errorf("vllm chain of %v: %w", c.Algorithm, ErrUnsupported)
	}
	if !utf8.ValidString(c.Seed) {
		return nil, fmt.Errorf("vllm chain: seed is not UTF-8: %w", ErrInvalid)
	}
	n := c.Algorithm.HashBytes()
	v := &VLLMChain{contract: c, none: c.Algorithm.NoneHash(c.Seed), plain: true, sha: sha256.New()}
	v.buf = make([]byte, 0, 16+n+cborMaxUint32*c.BlockTokens+cborSlack+256)
	v.buf = appendHead(append(v.buf, cborArray|3), cborBytes, uint64(n))
	v.parentAt = len(v.buf)
	v.buf = appendHead(append(v.buf, v.none...), cborArray, uint64(c.BlockTokens))
	v.headEnd = len(v.buf)
	return v, nil
}

// Reset starts a request; its slices must not change until the next Reset. Images must ascend.
func (v *VLLMChain) Reset(r VLLMRequest) error {
	parent := v.none
	if len(r.Parent) != 0 {
		parent = r.Parent
	}
	if len(parent) != len(v.none) || r.FirstBlock < 0 || (len(r.Parent) == 0) != (r.FirstBlock == 0) {
		return fmt.Errorf("vllm chain from block %d behind a digest of %d bytes, want %d: %w", r.FirstBlock, len(r.Parent), len(v.none), ErrHashLen)
	}
	if err := r.check(); err != nil {
		return err
	}
	copy(v.buf[v.parentAt:], parent)
	v.buf = v.buf[:v.headEnd]
	v.req, v.block, v.tokens, v.image = r, r.FirstBlock, 0, 0
	v.plain = r.LoRA == nil && r.CacheSalt == "" && len(r.Images) == 0 && len(r.EmbedDigests) == 0
	return nil
}

func (r *VLLMRequest) check() error {
	if !utf8.ValidString(r.CacheSalt) || r.LoRA != nil && !(utf8.ValidString(r.LoRA.Name) && utf8.ValidString(r.LoRA.Path)) {
		return fmt.Errorf("vllm chain: an extra key is not UTF-8: %w", ErrInvalid)
	}
	end := 0
	for i, m := range r.Images {
		if m.Offset < end || m.Tokens < 0 || m.Tokens > 1<<40 || m.Offset > 1<<40 || !utf8.ValidString(m.ID) {
			return fmt.Errorf("vllm chain: image %d at %d is not UTF-8 or not behind the one before: %w", i, m.Offset, ErrInvalid)
		}
		end = m.Offset + m.Tokens
	}
	return nil
}

// Append takes tokens in any portions and appends the digest of each block that they complete to dst. No allocation
// if dst has room, save that the first long extra keys grow the chain's own buffer.
func (v *VLLMChain) Append(dst []byte, tokens []uint32) []byte {
	for len(tokens) > 0 {
		n := min(len(tokens), v.contract.BlockTokens-v.tokens)
		v.buf = appendTokens(v.buf, tokens[:n])
		v.tokens += n
		tokens = tokens[n:]
		if v.tokens == v.contract.BlockTokens {
			dst = v.link(dst)
		}
	}
	return dst
}

// link appends the digest of the block in buf and makes it the parent of the next.
func (v *VLLMChain) link(dst []byte) []byte {
	if v.plain {
		v.buf = append(v.buf, cborNull)
	} else {
		v.buf = v.appendExtra(v.buf)
	}
	if v.contract.Algorithm == SHA256CBOR {
		v.sha.Reset()
		v.sha.Write(v.buf)
		dst = v.sha.Sum(dst)
	} else {
		dst = v.contract.Algorithm.append(dst, v.buf)
	}
	copy(v.buf[v.parentAt:], dst[len(dst)-v.contract.Algorithm.HashBytes():])
	v.buf = v.buf[:v.headEnd]
	v.block, v.tokens = v.block+1, 0
	return dst
}

// appendExtra appends the extra keys of the current block in vLLM's order: adapter, images, salt, embeddings.
func (v *VLLMChain) appendExtra(b []byte) []byte {
	start := v.block * v.contract.BlockTokens
	end := start + v.contract.BlockTokens
	images := v.req.Images
	for v.image < len(images) && images[v.image].Offset+images[v.image].Tokens <= start {
		v.image++
	}
	last := v.image
	for last < len(images) && images[last].Offset < end {
		last++
	}
	salted := v.block == 0 && v.req.CacheSalt != ""
	embedded := v.block < len(v.req.EmbedDigests)
	n := last - v.image
	for _, there := range [...]bool{v.req.LoRA != nil, salted, embedded} {
		if there {
			n++
		}
	}
	if n == 0 {
		return append(b, cborNull)
	}
	b = appendHead(b, cborArray, uint64(n))
	if v.req.LoRA != nil {
		b = v.appendLoRA(b)
	}
	for _, m := range images[v.image:last] {
		b = v.appendImage(b, m.ID, m.Offset-start)
	}
	if salted {
		b = appendText(v.appendTag(b, "cache_salt"), v.req.CacheSalt)
	}
	if embedded {
		b = appendBytes(v.appendTag(b, "prompt_embeds"), v.req.EmbedDigests[v.block][:])
	}
	return b
}

func (v *VLLMChain) appendLoRA(b []byte) []byte {
	if v.contract.Untagged {
		return appendText(b, v.req.LoRA.Name)
	}
	b = appendText(append(b, cborArray|3), "lora")
	return appendText(appendText(b, v.req.LoRA.Name), v.req.LoRA.Path)
}

func (v *VLLMChain) appendImage(b []byte, id string, offset int) []byte {
	if v.contract.Untagged {
		b = append(b, cborArray|2)
	} else {
		b = appendText(append(b, cborArray|3), "mm")
	}
	return appendInt(appendText(b, id), int64(offset))
}

// appendTag opens a pair of tag and value, or nothing in the untagged form.
func (v *VLLMChain) appendTag(b []byte, tag string) []byte {
	if v.contract.Untagged {
		return b
	}
	return appendText(append(b, cborArray|2), tag)
}
