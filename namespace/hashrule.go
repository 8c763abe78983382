package namespace

import (
	"crypto/sha256"

	"github.com/quire-kv/quire/store/page"
)

// hashAlgorithms are the engines' rules that Quire knows, with the bytes of a full hash; 0: not cryptographic.
var hashAlgorithms = map[string]uint8{
	"sha256_cbor": 32, "sglang_sha256": 32, "sha256": 32, "sha512": 64, "blake3": 32,
	"xxhash": 0, "xxhash_cbor": 0, "xxh3_64": 0, "xxh3_128": 0, "builtin": 0, "murmur3": 0, "siphash": 0, "fnv": 0, "crc32": 0,
}

// minHashBytes is 128 bits: below it two prompts can be made to collide.
const minHashBytes = 16

const maxPageTokens = 1 << 16

func (s *Spec) checkHash() *Refusal {
	h := &s.Hash
	full, known := hashAlgorithms[h.Algorithm]
	switch {
	case h.Algorithm == "" || isAuto(h.Algorithm):
		return invalid("hash.algorithm", "%s: write the engine's rule, for example sha256_cbor or sglang_sha256", missing(h.Algorithm))
	case (!known || full == 0) && !s.WeakNames:
		return invalid("hash.algorithm", "%.64q is not known to be cryptographic: write sha256_cbor or sglang_sha256, or weak_names: true and share with nobody", h.Algorithm)
	case h.Bytes < minHashBytes && !s.WeakNames:
		return invalid("hash.bytes", "%d: hashes under %d bytes can be made to collide: write 16 to 64, or weak_names: true and share with nobody", h.Bytes, minHashBytes)
	case h.Bytes < 8 || h.Bytes > page.MaxHashBytes:
		return invalid("hash.bytes", "%d: write what %s gives, 8 to %d", h.Bytes, h.Algorithm, page.MaxHashBytes)
	case full != 0 && h.Bytes > full:
		return invalid("hash.bytes", "%d: %s gives %d", h.Bytes, h.Algorithm, full)
	case h.Unit == 0 || h.Unit > maxPageTokens:
		return invalid("hash.unit", "%d: write 1 to %d tokens", h.Unit, maxPageTokens)
	case h.ExtraKeys > 1<<16:
		return invalid("hash.extra_keys", "%d: write the version of the rule, at most 65536", h.ExtraKeys)
	case h.Seed == Digest{}:
		return invalid("hash.seed", "missing: write the sha256 digest of the root seed (of no bytes where the engine has none)")
	case h.Probe == Digest{}:
		return invalid("hash.probe", "missing: hash the probe chain with the engine and write the sha256 digest of its hashes")
	}
	return nil
}

// HashBytes is how long the page hashes in keys are: those of weak contracts under 16 bytes are padded with zeros.
func (s *Spec) HashBytes() int { return max(int(s.Hash.Bytes), page.MinHashBytes) }

// probeLinks is enough for a root, a link on a root and a link on a link.
const probeLinks = 3

// ProbeTokens is the chain that the opener's engine hashes, without adapter, salt or media: three links of unit tokens,
// token i being (i*7919 + 13) mod 32000, which every vocabulary in use has.
func ProbeTokens(unit uint32) []uint32 {
	tokens := make([]uint32, probeLinks*min(unit, maxPageTokens))
	for i := range tokens {
		tokens[i] = uint32((uint64(i)*7919 + 13) % 32000)
	}
	return tokens
}

// ProbeDigest is hash.probe: SHA-256 of the chain's hashes, one after the other, as the engine gives them.
func ProbeDigest(hashes [][]byte) Digest {
	h := sha256.New()
	for _, b := range hashes {
		h.Write(b)
	}
	return Digest(h.Sum(nil))
}
