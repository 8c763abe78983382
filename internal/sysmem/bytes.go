package sysmem

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// Bytes is a size that people write with a unit: "8GiB", "500MB", "1.5TiB", "1073741824". It is a flag value and a
// text value, so that one spelling serves flags, environment and files.
type Bytes uint64

type unit struct {
	name  string
	bytes uint64
}

// Binary units first: String takes the first that divides.
var units = [...]unit{
	{"EiB", 1 << 60}, {"PiB", 1 << 50}, {"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"EB", 1e18}, {"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"B", 1},
}

const (
	maxBytesText = 64 // longer is no size, and is not quoted whole in an error
	maxFraction  = 9  // digits after the point
)

// ParseBytes reads a whole or decimal number and a unit. Case does not matter; a number alone is bytes; a fraction
// is rounded down to whole bytes. "K", "M" and "G" alone are refused: they mean two things.
func ParseBytes(s string) (Bytes, error) {
	text := strings.TrimSpace(s)
	if len(text) > maxBytesText {
		return 0, fmt.Errorf("size of %d characters is too long, write for example 8GiB", len(text))
	}
	if text == "" {
		return 0, fmt.Errorf("size is empty, write for example 8GiB")
	}
	end := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end < 0 {
		end = len(text)
	}
	per, err := unitOf(text, strings.TrimSpace(text[end:]))
	if err != nil {
		return 0, err
	}
	whole, fraction, hasPoint := strings.Cut(text[:end], ".")
	if whole == "" || hasPoint && (fraction == "" || len(fraction) > maxFraction || strings.Contains(fraction, ".")) {
		return 0, fmt.Errorf("size %q does not begin with a number, write for example 8GiB or 1.5GiB", text)
	}
	n, err := strconv.ParseUint(whole, 10, 64)
	if err != nil {
		return 0, tooLarge(text)
	}
	return scale(text, n, fraction, per)
}

func unitOf(text, name string) (uint64, error) {
	if name == "" {
		return 1, nil
	}
	for _, u := range units {
		if strings.EqualFold(u.name, name) {
			return u.bytes, nil
		}
	}
	for _, u := range units {
		if strings.EqualFold(u.name[:1], name) && strings.HasSuffix(u.name, "iB") {
			return 0, fmt.Errorf("size %q: unit %q means two things, write %siB (powers of 1024) or %sB (powers of 1000)", text, name, u.name[:1], u.name[:1])
		}
	}
	return 0, fmt.Errorf("size %q has no unit of bytes, write B, KB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)", text)
}

// scale is (n + 0.fraction) * per, rounded down.
func scale(text string, n uint64, fraction string, per uint64) (Bytes, error) {
	hi, total := bits.Mul64(n, per)
	if hi != 0 {
		return 0, tooLarge(text)
	}
	if fraction != "" {
		f, err := strconv.ParseUint(fraction, 10, 64)
		if err != nil {
			return 0, tooLarge(text)
		}
		hi, lo := bits.Mul64(f, per)
		part, _ := bits.Div64(hi, lo, uint64(math.Pow10(len(fraction)))) // f < 10^len, so part < per
		var carry uint64
		if total, carry = bits.Add64(total, part, 0); carry != 0 {
			return 0, tooLarge(text)
		}
	}
	return Bytes(total), nil
}

func tooLarge(text string) error {
	return fmt.Errorf("size %q is larger than %s", text, Bytes(math.MaxUint64))
}

// String is exact: the largest unit that divides, powers of 1024 before powers of 1000. ParseBytes reads it back.
func (b Bytes) String() string {
	if b == 0 {
		return "0B"
	}
	for _, u := range units {
		if uint64(b)%u.bytes == 0 {
			return strconv.FormatUint(uint64(b)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatUint(uint64(b), 10) + "B"
}

// Int64 is b for interfaces that count in int64, saturating.
func (b Bytes) Int64() int64 { return int64(min(b, math.MaxInt64)) }

// MarshalText is String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is ParseBytes. On an error b is unchanged.
func (b *Bytes) UnmarshalText(text []byte) error { return b.Set(string(text)) }

// Set is ParseBytes, as flags call it. On an error b is unchanged.
func (b *Bytes) Set(s string) error {
	v, err := ParseBytes(s)
	if err != nil {
		return err
	}
	*b = v
	return nil
}

// Type is what help prints for the value.
func (*Bytes) Type() string { return "bytes" }
