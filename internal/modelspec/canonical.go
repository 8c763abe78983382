package modelspec

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/quire-kv/quire/namespace"
)

// One byte form for plain JSON values, so that Go and Python make one digest of one configuration; see
// docs/formats/model-manifest.md. python/quire_kv/canonical.py is its twin.
//
//	n                 nothing             t, f              true, false
//	i<decimal>;       a whole number      d<16 hex>;        any other number: its IEEE 754 bits
//	s<bytes>:<UTF-8>  a string            l<items>:...      a list
//	m<entries>:...    a mapping, ascending by the bytes of its keys: key, value, key, value
const (
	maxDepth  = 32
	maxWhole  = 1 << 53 // a float below it that is whole is written as that number
	maxDigits = 4096    // of a number's text; a real one has 20
)

// Canonical is the byte form of what encoding/json decodes with UseNumber.
func Canonical(value any) ([]byte, error) { return appendValue(nil, value, 0) }

// digestOf is the digest of a domain's name, a newline and the canonical bytes.
func digestOf(value any, domain string) (namespace.Digest, error) {
	b, err := Canonical(value)
	if err != nil {
		return namespace.Digest{}, err
	}
	return sha256.Sum256(append([]byte(domain+"\n"), b...)), nil
}

func appendValue(b []byte, value any, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch v := value.(type) {
	case nil:
		return append(b, 'n'), nil
	case bool:
		if v {
			return append(b, 't'), nil
		}
		return append(b, 'f'), nil
	case int:
		return fmt.Appendf(b, "i%d;", v), nil
	case float64:
		return appendFloat(b, v), nil
	case json.Number:
		return appendNumber(b, v.String())
	case string:
		return fmt.Appendf(b, "s%d:%s", len(v), v), nil
	case []any:
		b = fmt.Appendf(b, "l%d:", len(v))
		for _, item := range v {
			var err error
			if b, err = appendValue(b, item, depth+1); err != nil {
				return nil, err
			}
		}
		return b, nil
	case map[string]any:
		return appendMap(b, v, depth)
	}
	return nil, fmt.Errorf("a %T is no plain value", value)
}

func appendMap(b []byte, m map[string]any, depth int) ([]byte, error) {
	b = fmt.Appendf(b, "m%d:", len(m))
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		var err error
		if b, err = appendValue(fmt.Appendf(b, "s%d:%s", len(k), k), m[k], depth+1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func appendNumber(b []byte, text string) ([]byte, error) {
	if len(text) > maxDigits {
		return nil, fmt.Errorf("a number of %d digits", len(text))
	}
	if !strings.ContainsAny(text, ".eE") {
		n, ok := new(big.Int).SetString(text, 10)
		if !ok {
			return nil, fmt.Errorf("%.40q is no number", text)
		}
		return fmt.Appendf(b, "i%s;", n), nil
	}
	f, err := json.Number(text).Float64()
	if err != nil && !math.IsInf(f, 0) { // what is too large is infinite, as Python reads it
		return nil, err
	}
	return appendFloat(b, f), nil
}

func appendFloat(b []byte, f float64) []byte {
	if f == math.Trunc(f) && math.Abs(f) < maxWhole {
		return fmt.Appendf(b, "i%d;", int64(f))
	}
	return fmt.Appendf(b, "d%016x;", math.Float64bits(f))
}

// saysNothing reports whether a setting is as good as absent: null, false, or empty. Zero is a value.
func saysNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
