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
