package namespace

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Digest is a SHA-256, "sha256:<64 hex digits>" in text. The zero value means that none is given.
type Digest [32]byte

const digestPrefix = "sha256:"

// DigestOf hashes b.
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// String is the text form; empty for the zero value.
func (d Digest) String() string {
	if d == (Digest{}) {
		return ""
	}
	return digestPrefix + hex.EncodeToString(d[:])
}

// ParseDigest reads the text form.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(digits) != hex.EncodedLen(len(d)) || strings.ToLower(digits) != digits {
		return d, fmt.Errorf("%.80q is not a digest: write %s and 64 lower-case hex digits", s, digestPrefix)
	}
	if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
		return Digest{}, fmt.Errorf("%.80q is not a digest: %w", s, err)
	}
	if d == (Digest{}) {
		return d, fmt.Errorf("a digest of zeros is not a digest: write that of the real bytes")
	}
	return d, nil
}
