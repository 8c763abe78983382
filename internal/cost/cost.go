// Package cost says what recomputing the pages of a model costs, by its spec. Pure.
package cost

import (
	"maps"
	"slices"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/namespace"
)

// DefaultFLOPS is what eight H100 do a second in dense bf16, at 40 % of 989 TFLOP/s each.
const DefaultFLOPS = 3.16e15

// ShapeOf is the shape of a valid spec; ok is false when it has none. A layer counts by the widest that its groups say
// a token sees there (all before it, a window, nothing but a state), and those that no group owns, since they share the
// KV of others, as seeing all. Draft layers and the indexers of sparse attention are not counted; what such attention
// leaves out the spec does not say, so its layers see all: an upper estimate.
func ShapeOf(s *namespace.Spec) (m evict.Shape, ok bool) {
	if s.Shape.Params == 0 {
		return m, false
	}
	sees := map[uint16]uint32{} // by layer, tokens; recurrent: 0
	full := map[uint16]bool{}
	for i := range s.Groups {
		g := &s.Groups[i]
		for _, l := range g.Layers {
			switch g.Kind {
			case namespace.KindFull, namespace.KindMLA:
				full[l] = true
			case namespace.KindWindow, namespace.KindRecurrent:
				sees[l] = max(sees[l], g.Window)
			}
		}
	}
	byWindow, narrow := map[uint32]uint32{}, uint32(0)
	for l, window := range sees { // whatever the order: it counts
		if !full[l] {
			byWindow[window]++
			narrow++
		}
	}
	m = evict.Shape{
		Params: float64(s.Shape.Params), Heads: float64(s.Shape.Heads), Width: float64(s.Shape.Width),
		Layers: float64(s.Shape.Layers - min(s.Shape.Layers, narrow)),
	}
	for _, window := range slices.Sorted(maps.Keys(byWindow)) {
		if window > 0 {
			m.Windowed = append(m.Windowed, evict.Windowed{Layers: float64(byWindow[window]), Tokens: float64(window)})
		}
	}
	return m, true
}
