package evict_test

import (
	"math"
	"testing"

	"github.com/quire-kv/quire/evict"
)

// dumbFLOPs counts a prompt token by token.
func dumbFLOPs(m *evict.Shape, tokens int) (sum float64) {
	for t := range tokens {
		sum += 2 * m.Params
		seen := float64(t) + 0.5 // half of itself: the causal mask is s²/2 pairs
		sum += 4 * m.Heads * m.Width * m.Layers * seen
		for _, w := range m.Windowed {
			sum += 4 * m.Heads * m.Width * w.Layers * math.Min(seen, w.Tokens)
		}
	}
	return sum
}

func TestPrefillFLOPs(t *testing.T) {
	llama := evict.Shape{Params: 70_553_706_496, Layers: 80, Heads: 64, Width: 128}
	if f := llama.PrefillFLOPs(8192); math.Abs(f-1.24e15) > 0.005e15 {
		t.Errorf("Llama 3 70B: F(8192) = %g, want about 1.24e15", f)
	}
	windowed := evict.Shape{Params: 1e6, Layers: 2, Heads: 8, Width: 64, Windowed: []evict.Windowed{{Layers: 10, Tokens: 128}, {Layers: 3, Tokens: 512}}}
	recurrent := evict.Shape{Params: 1e6, Heads: 8, Width: 64}
	for name, m := range map[string]*evict.Shape{"full": &llama, "windows": &windowed, "recurrent": &recurrent} {
		for _, tokens := range []int{0, 1, 100, 128, 129, 512, 3000} {
			if got, want := m.PrefillFLOPs(float64(tokens)), dumbFLOPs(m, tokens); math.Abs(got-want) > 1e-9*want {
				t.Errorf("%s: %d tokens cost %g, counted one by one %g", name, tokens, got, want)
			}
		}
		sum := 0.0
		for d := range uint32(10) {
			sum += m.PageFLOPs(d, 16)
		}
		if want := m.SpanFLOPs(0, 160); math.Abs(sum-want) > 1e-9*want {
			t.Errorf("%s: ten pages cost %g, their tokens %g", name, sum, want)
		}
	}
	if a, b := recurrent.PageFLOPs(0, 16), recurrent.PageFLOPs(1000, 16); a != b {
		t.Errorf("recurrent: a page costs %g at the root and %g at depth 1,000", a, b)
	}
	if a, b := windowed.PageFLOPs(32, 16), windowed.PageFLOPs(1000, 16); b-a != deeper(&windowed, 32, 1000) {
		t.Errorf("windows: beyond them only full layers grow: %g", b-a)
	}
}

// deeper is by how much more a page of 16 tokens costs deeper down, for the layers that see all.
func deeper(m *evict.Shape, from, to uint32) float64 {
	full := evict.Shape{Heads: m.Heads, Width: m.Width, Layers: m.Layers}
	return full.PageFLOPs(to, 16) - full.PageFLOPs(from, 16)
}

func TestLoading(t *testing.T) {
	l := evict.Loading{BytesPerSecond: 10e9, FLOPSPerSecond: 3e15}
	if got := l.FLOPs(5e9); got != 1.5e15 {
		t.Errorf("half a second of loading costs %g operations", got)
	}
	if got := (evict.Loading{FLOPSPerSecond: 3e15}).FLOPs(1); got != 0 {
		t.Errorf("an unknown rate costs %g", got)
	}
}
