package sysmem

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var (
	_ encoding.TextMarshaler   = Bytes(0)
	_ encoding.TextUnmarshaler = (*Bytes)(nil)
	_ pflag.Value              = (*Bytes)(nil)
)

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]Bytes{
		"0": 0, "0B": 0, "1": 1, "1073741824": 1 << 30, "8GiB": 8 << 30, "8gib": 8 << 30, " 8 GiB ": 8 << 30, "500MB": 500e6, "500mb": 500e6,
		"1.5KiB": 1536, "1.5GiB": 3 << 29, "0.1KB": 100, "1.0001KB": 1000, "2.9B": 2, "15EiB": 15 << 60, "18446744073709551615": math.MaxUint64,
		"007KiB": 7168, "15.5EiB": 31 << 59, "18.446744073EB": 18446744073000000000,
	} {
		got, err := ParseBytes(s)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
}

func TestParseBytesRefuses(t *testing.T) {
	for s, want := range map[string]string{
		"": "is empty", "  ": "is empty", "-1": "no unit of bytes", "8X": "no unit of bytes", "8 G iB": "no unit of bytes",
		"8G": "means two things, write GiB (powers of 1024) or GB", "1k": "write KiB (powers of 1024) or KB", "GiB": "does not begin with a number",
		".5GiB": "does not begin with a number", "1.GiB": "does not begin with a number", "1.2.3GiB": "does not begin with a number",
		"1.1234567891B": "does not begin with a number", "16EiB": "is larger than", "18446744073709551616": "is larger than",
		"99999999999999999999GB": "is larger than", "18.9EB": "is larger than", strings.Repeat("9", 65): "too long", "١GiB": "no unit of bytes", "1e9": "no unit of bytes",
	} {
		if got, err := ParseBytes(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseBytes(%q) = %d, %v; want %q", s, got, err, want)
		}
	}
}

func TestBytesString(t *testing.T) {
	for b, want := range map[Bytes]string{
		0: "0B", 1: "1B", 1024: "1KiB", 1500: "1500B", 2000: "2KB", 8 << 30: "8GiB", 3 << 29: "1536MiB", 500e6: "500MB", math.MaxUint64: "18446744073709551615B",
	} {
		if got := b.String(); got != want {
			t.Errorf("%d is written %q, want %q", uint64(b), got, want)
		}
	}
}

func TestBytesInFilesAndFlags(t *testing.T) {
	var conf struct{ Size Bytes }
	if err := json.Unmarshal([]byte(`{"Size":"2GiB"}`), &conf); err != nil || conf.Size != 2<<30 {
		t.Errorf("from JSON: %d, %v", conf.Size, err)
	}
	if out, err := json.Marshal(conf); err != nil || string(out) != `{"Size":"2GiB"}` {
		t.Errorf("to JSON: %s, %v", out, err)
	}
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	size := Bytes(4 << 20)
	fs.Var(&size, "host-bytes", "memory of the host tier")
	if err := fs.Parse([]string{"--host-bytes", "3g"}); err == nil || size != 4<<20 {
		t.Errorf("a bad flag: %v, and the value is %s", err, size)
	}
	if err := fs.Parse([]string{"--host-bytes=3GiB"}); err != nil || size.Int64() != 3<<30 {
		t.Errorf("flag: %s, %v", size, err)
	}
	if usage := fs.FlagUsages(); !strings.Contains(usage, "--host-bytes bytes") {
		t.Errorf("usage is %q", usage)
	}
	if Bytes(math.MaxUint64).Int64() != math.MaxInt64 {
		t.Error("Int64 does not saturate")
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"8GiB", "500MB", "1073741824", "1.5 TiB", "", "-1", "9e9", "16EiB", "0.000000001EB", "18.446744073EB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			if len(fmt.Sprint(err)) > 400 {
				t.Errorf("an error of %d characters", len(fmt.Sprint(err)))
			}
			return
		}
		if again, err := ParseBytes(b.String()); err != nil || again != b {
			t.Errorf("%q is %d, written %s, read back as %d, %v", s, uint64(b), b, uint64(again), err)
		}
	})
}
