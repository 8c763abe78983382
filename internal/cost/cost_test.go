package cost

import (
	"reflect"
	"testing"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
)

func TestShapeOf(t *testing.T) {
	shape := namespace.Shape{Params: 1000, Layers: 20, Heads: 4, Width: 8}
	group := func(kind string, window uint32, layers ...uint16) namespace.Group {
		return namespace.Group{Kind: kind, Window: window, Layers: layers}
	}
	for name, c := range map[string]struct {
		groups   []namespace.Group
		layers   float64
		windowed []evict.Windowed
	}{
		"full":                       {[]namespace.Group{group(namespace.KindFull, 0, 0, 1)}, 20, nil},
		"MLA with an indexer":        {[]namespace.Group{group(namespace.KindMLA, 0, 0, 1), group(namespace.KindIndexer, 0, 0, 1)}, 20, nil},
		"a draft layer":              {[]namespace.Group{group(namespace.KindFull, 0, 0), group(namespace.KindDraft, 0, 20)}, 20, nil},
		"windows":                    {[]namespace.Group{group(namespace.KindFull, 0, 0), group(namespace.KindWindow, 512, 1, 2), group(namespace.KindWindow, 128, 3)}, 17, []evict.Windowed{{Layers: 1, Tokens: 128}, {Layers: 2, Tokens: 512}}},
		"recurrent":                  {[]namespace.Group{group(namespace.KindFull, 0, 3), group(namespace.KindRecurrent, 0, 0, 1, 2)}, 17, nil},
		"both in one layer":          {[]namespace.Group{group(namespace.KindFull, 0, 0), group(namespace.KindRecurrent, 0, 0, 1)}, 19, nil},
		"window and state in one":    {[]namespace.Group{group(namespace.KindWindow, 64, 0), group(namespace.KindRecurrent, 0, 0)}, 19, []evict.Windowed{{Layers: 1, Tokens: 64}}},
		"more layers than the shape": {[]namespace.Group{group(namespace.KindRecurrent, 0, namespace.LayerRange(0, 30)...)}, 0, nil},
	} {
		want := evict.Shape{Params: 1000, Heads: 4, Width: 8, Layers: c.layers, Windowed: c.windowed}
		if got, ok := ShapeOf(&namespace.Spec{Shape: shape, Groups: c.groups}); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if _, ok := ShapeOf(&namespace.Spec{}); ok {
		t.Error("a spec without a shape has one")
	}
}

// TestWhatPrefillOfTheExamplesCosts: F(8,192) of the built-in specs is what is counted by hand from the sizes of the models: 2 P
// S for the parameters, and for the causal half of all pairs a product of the keys' width and one of the values'.
func TestWhatPrefillOfTheExamplesCosts(t *testing.T) {
	const tokens = 8192
	for name, m := range map[string]struct{ params, layers, heads, keys, values float64 }{
		"llama-3-8b":      {8_030_261_248, 32, 32, 128, 128},
		"llama-3-70b":     {70_553_706_496, 80, 64, 128, 128},
		"deepseek-v3-mla": {37e9, 61, 128, 128 + 64, 128}, // arXiv:2412.19437, section 4.2: heads of 128, 64 for rope
	} {
		s, err := namespace.ParseExample(name)
		if err != nil {
			t.Fatal(err)
		}
		shape, ok := ShapeOf(s)
		pairs := m.layers * m.heads * tokens * tokens / 2
		if want := 2*m.params*tokens + 2*pairs*(m.keys+m.values); !ok || shape.PrefillFLOPs(tokens) != want {
			t.Errorf("%s: F(%d) = %g, want %g", name, tokens, shape.PrefillFLOPs(tokens), want)
		}
	}
}
