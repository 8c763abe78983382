package namespace

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/quire-kv/quire/store/page"
)

// Canonical encoding of a spec, version 1, big-endian; docs/formats/spec.md mirrors it.
//
//	 0  1 version (1)
//	 1  2 factors
//	then per factor, ascending by path, none that says nothing:
//	 .  1 class (1 semantic, 2 representation, 3 provenance)
//	 .  2 n, path bytes    .  n path
//	 .  2 m, value bytes   .  m value, text
const (
	canonicalVersion  = 1
	maxCanonicalBytes = 1 << 20 // as much as a spec's text
)

// ErrCanonical is what malformed canonical bytes answer.
var ErrCanonical = errors.New("namespace: malformed canonical spec")

// Canonical is what the id is made of: every factor but the recorded ones.
func (s *Spec) Canonical() []byte {
	return encodeFactors(s.Factors(), Semantic, Provenance)
}

// ID is the namespace id of s for a tenant, before waivers: Registry.Open may find that of an anchor.
func (s *Spec) ID(tenant string) page.NamespaceID { return ID(tenant, s.Canonical()) }

// ID is SHA-256(format version, tenant, canonical spec).
func ID(tenant string, canonical []byte) page.NamespaceID {
	h := sha256.New()
	h.Write([]byte{'q', 'n', 's', canonicalVersion, byte(len(tenant) >> 8), byte(len(tenant))})
	h.Write([]byte(tenant))
	h.Write(canonical)
	return page.NamespaceID(h.Sum(nil))
}

// encodeFactors encodes the factors of classes first to last.
func encodeFactors(factors []Factor, first, last Class) []byte {
	b := []byte{canonicalVersion, 0, 0}
	n := 0
	for _, f := range factors {
		if f.zero || f.Class < first || f.Class > last {
			continue
		}
		b = append(b, byte(f.Class))
		b = appendText(appendText(b, f.Path), f.Value)
		n++
	}
	binary.BigEndian.PutUint16(b[1:], uint16(n))
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

// DecodeCanonical reads a canonical encoding back to its factors. It accepts exactly what Canonical can give in form:
// ascending unique paths, known classes, nothing after the last. Errors are ErrCanonical.
func DecodeCanonical(b []byte) ([]Factor, error) {
	if len(b) < 3 || len(b) > maxCanonicalBytes || b[0] != canonicalVersion {
		return nil, fmt.Errorf("%w: %d bytes, want version %d", ErrCanonical, len(b), canonicalVersion)
	}
	n, rest := int(binary.BigEndian.Uint16(b[1:])), b[3:]
	var out []Factor // grows with what is really there, not with n
	for i := range n {
		var f Factor
		var ok bool
		if len(rest) == 0 {
			return nil, fmt.Errorf("%w: %d of %d factors", ErrCanonical, i, n)
		}
		f.Class, rest = Class(rest[0]), rest[1:]
		if f.Path, rest, ok = cutText(rest); ok {
			f.Value, rest, ok = cutText(rest)
		}
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: factor %d is cut short", ErrCanonical, i)
		case f.Class < Semantic || f.Class > Provenance:
			return nil, fmt.Errorf("%w: factor %d has class %d", ErrCanonical, i, f.Class)
		case i > 0 && out[i-1].Path >= f.Path:
			return nil, fmt.Errorf("%w: path %d is not above the one before", ErrCanonical, i)
		}
		out = append(out, f)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last factor", ErrCanonical, len(rest))
	}
	return out, nil
}

func cutText(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 2 {
		return "", nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if len(b) < 2+n {
		return "", nil, false
	}
	return string(b[2 : 2+n]), b[2+n:], true
}
