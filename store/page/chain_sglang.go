package page

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// SGLangChain hashes token pages by SGLang's rule: each page's digest is SHA-256 over the digest of the page before
// and its token ids, 4 bytes little-endian each. In bigram mode (EAGLE) element i is the pair of tokens i and i+1.
// Only complete pages have a digest; tokens of an incomplete one wait for the next Append. Not for concurrent use.
//
//	buf  | digest of the page before | t0 t1 t2 ... |     SHA-256 of all of it; without the first part at a root
//	      0                           32
type SGLangChain struct {
	buf    []byte // full: 32 + page
	fill   int    // bytes of buf in use
	from   int    // 32 at a root, 0 after it
	bigram bool
	last   uint32 // bigram: the token before
	begun  bool   // bigram: last is set
}

// NewSGLangChain makes a chain of pages of pageTokens tokens (pairs, in bigram mode), at its root without a seed.
func NewSGLangChain(pageTokens int, bigram bool) (*SGLangChain, error) {
	if err := checkPageTokens(pageTokens); err != nil {
		return nil, err
	}
	size := 4 * pageTokens
	if bigram {
		size *= 2
	}
	c := &SGLangChain{buf: make([]byte, sha256.Size+size), bigram: bigram}
	return c, c.Reset(nil)
}

// Reset starts again behind prior: the digest of the page before, an SGLangSeed, or nothing for a plain root. In
// bigram mode the first token appended belongs to the first pair; after a page that is its last token again.
func (c *SGLangChain) Reset(prior []byte) error {
	if len(prior) != 0 && len(prior) != sha256.Size {
		return fmt.Errorf("sglang chain behind a digest of %d bytes, want %d: %w", len(prior), sha256.Size, ErrHashLen)
	}
	c.from = sha256.Size - copy(c.buf, prior)
	c.fill, c.begun = sha256.Size, false
	return nil
}

// Append takes tokens in any portions and appends the 32-byte digest of each page that they complete to dst. No
// allocation if dst has room.
func (c *SGLangChain) Append(dst []byte, tokens []uint32) []byte {
	if c.bigram {
		return c.appendPairs(dst, tokens)
	}
	for len(tokens) > 0 {
		n := min(len(tokens), (len(c.buf)-c.fill)/4)
		b := c.buf[c.fill : c.fill+4*n]
		for i, t := range tokens[:n] {
			binary.LittleEndian.PutUint32(b[4*i:4*i+4], t)
		}
		c.fill += 4 * n
		tokens = tokens[n:]
		dst = c.link(dst)
	}
	return dst
}

func (c *SGLangChain) appendPairs(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		if c.begun {
			binary.LittleEndian.PutUint32(c.buf[c.fill:], c.last)
			binary.LittleEndian.PutUint32(c.buf[c.fill+4:], t)
			c.fill += 8
			dst = c.link(dst)
		}
		c.last, c.begun = t, true
	}
	return dst
}

// link appends the digest of the page in buf if it is full, and makes it the one before.
func (c *SGLangChain) link(dst []byte) []byte {
	if c.fill < len(c.buf) {
		return dst
	}
	sum := sha256.Sum256(c.buf[c.from:])
	copy(c.buf, sum[:])
	c.from, c.fill = 0, sha256.Size
	return append(dst, sum[:]...)
}

// sglangSeedDomain is SGLang's own tag.
const sglangSeedDomain = "sglang-cache-namespace-v1"

// SGLangSeed is what SGLang (0.5.23 and later) puts where the first page's predecessor would be, for a request with
// an extra key or a cache salt; nil is absent, which is not the same as empty. With both absent there is no seed:
// ok is false.
//
//	SHA-256( "sglang-cache-namespace-v1" | part(extraKey) | part(cacheSalt) )
//	part(absent) = 00     part(s) = 01 | u64 little-endian length | s
func SGLangSeed(extraKey, cacheSalt *string) (seed [32]byte, ok bool) {
	if extraKey == nil && cacheSalt == nil {
		return seed, false
	}
	b := append(make([]byte, 0, 128), sglangSeedDomain...)
	for _, s := range [2]*string{extraKey, cacheSalt} {
		if s == nil {
			b = append(b, 0)
			continue
		}
		b = binary.LittleEndian.AppendUint64(append(b, 1), uint64(len(*s)))
		b = append(b, *s...)
	}
	return sha256.Sum256(b), true
}
