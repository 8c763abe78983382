package namespace

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quire-kv/quire/store/page"
)

// ProvenanceID is SHA-256 of a canonical provenance.
type ProvenanceID [32]byte

// ProvenanceIDOf names a canonical provenance.
func ProvenanceIDOf(canonical []byte) ProvenanceID { return sha256.Sum256(canonical) }

// ErrProvenance is what malformed canonical provenance answers.
var ErrProvenance = errors.New("namespace: malformed canonical provenance")

// Paths of what goes into a canonical provenance and the names they get there.
const (
	provenancePrefix = "provenance."
	recordedPrefix   = "recorded."
	hostPath         = "recorded.host"
)

// CanonicalProvenance is who computes pages under s, as extent headers carry it: lines "name=value\n" in order of
// names, those that say nothing left out. Compared factors keep their short name (engine_version, options.x), recorded
// ones are under "recorded.". The host is left out: it would give every pod a provenance of its own.
func (s *Spec) CanonicalProvenance() []byte {
	var b bytes.Buffer
	for _, f := range s.Factors() { // sorted: "provenance." sorts before "recorded."
		name, compared := strings.CutPrefix(f.Path, provenancePrefix)
		recorded := strings.HasPrefix(f.Path, recordedPrefix) && f.Path != hostPath && !f.zero
		if f.Value != "" && (compared || recorded) {
			fmt.Fprintf(&b, "%s=%s\n", name, f.Value)
		}
	}
	return b.Bytes()
}

// ParseProvenance reads a canonical provenance back: Path is the short name. Errors are ErrProvenance.
func ParseProvenance(canonical []byte) ([]Factor, error) {
	if len(canonical) > page.MaxProvenance {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrProvenance, len(canonical), page.MaxProvenance)
	}
	var out []Factor
	last := Factor{Class: Provenance}
	for rest := string(canonical); rest != ""; {
		line, tail, ended := strings.Cut(rest, "\n")
		name, value, ok := strings.Cut(line, "=")
		if !ok || !ended || !isWord(strings.TrimPrefix(strings.TrimPrefix(name, recordedPrefix), "options.")) || value == "" || !isPlain(value) {
			return nil, fmt.Errorf("%w: line %d is not name=value", ErrProvenance, len(out)+1)
		}
		f := Factor{Path: name, Value: value, Class: Provenance}
		if strings.HasPrefix(name, recordedPrefix) {
			f.Class = Recorded
		}
		if len(out) > 0 && (f.Class < last.Class || f.Class == last.Class && f.Path <= last.Path) {
			return nil, fmt.Errorf("%w: line %d is out of order", ErrProvenance, len(out)+1)
		}
		out, last, rest = append(out, f), f, tail
	}
	return out, nil
}

// Accepts says whether pages computed by this canonical provenance are accepted at now: every waivable factor equals
// the anchor or is joined to it by a live waiver, and under strict the reduction is the namespace's. Malformed bytes
// are not accepted.
func (n *Namespace) Accepts(canonical []byte, now time.Time) bool {
	given, err := ParseProvenance(canonical)
	if err != nil {
		return false
	}
	return n.accepts(given, now)
}

// accepts compares short-named factors with the namespace's own. A factor that one side lacks has the value "".
func (n *Namespace) accepts(given []Factor, now time.Time) bool {
	want, _ := ParseProvenance(n.Spec.CanonicalProvenance()) // a stored spec's own is well formed
	values := make(map[string][2]string, len(want))
	for _, f := range want {
		values[f.Path] = [2]string{f.Value, ""}
	}
	for _, f := range given {
		values[f.Path] = [2]string{values[f.Path][0], f.Value}
	}
	for name, v := range values {
		recorded := strings.HasPrefix(name, recordedPrefix)
		switch {
		case v[0] == v[1], recorded && !(n.Spec.Strict && name == reductionPath):
		case recorded || !n.joined(name, v[1], now):
			return false
		}
	}
	return true
}

// joined says whether a live waiver joins value of the factor to the anchor.
func (n *Namespace) joined(factor, value string, now time.Time) bool {
	for i := range n.Waivers {
		if w := &n.Waivers[i]; w.Factor == factor && w.live(now) && w.has(value) {
			return true
		}
	}
	return false
}

// NextExpiry is when the next live waiver ends; zero if none.
func (n *Namespace) NextExpiry(now time.Time) time.Time {
	var next time.Time
	for i := range n.Waivers {
		if w := &n.Waivers[i]; w.live(now) && (next.IsZero() || w.Expiry.Before(next)) {
			next = w.Expiry
		}
	}
	return next
}
