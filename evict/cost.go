package evict

// Shape is what recomputing the KV of a model costs, as far as eviction has to know it. It comes from the operator's
// spec, never from a writer. All layers run for a page of any of them.
type Shape struct {
	Params   float64    // that every token passes: of a mixture of experts, the active ones
	Heads    float64    // query heads
	Width    float64    // of a head, averaged over keys and values: of MLA, of what is not compressed
	Layers   float64    // in which a token sees all before it
	Windowed []Windowed // in which it sees the last ones alone. Recurrent layers are neither: their work is in Params
}

// Windowed is layers in which a token sees itself and the last ones, Tokens together.
type Windowed struct{ Layers, Tokens float64 }

// PrefillFLOPs is what a prompt of s tokens costs from nothing:
//
//	F(s) = 2 P s + 2 h d Σ pairs over the layers
//
//	full attention   pairs = s²
//	window w, s > w  pairs = 2 w s - w²
//	recurrent        pairs = 0
//
// The first term is a multiply and an add with each parameter (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). The
// second is QK^T and AV, 4 h d operations for each pair of a query and a key in each layer, over the s²/2 pairs of a
// causal mask.
func (m Shape) PrefillFLOPs(s float64) float64 {
	pairs := m.Layers * s * s
	for _, w := range m.Windowed {
		if seen := w.Tokens; s > seen {
			pairs += w.Layers * (2*seen*s - seen*seen)
		} else {
			pairs += w.Layers * s * s
		}
	}
	return 2*m.Params*s + 2*m.Heads*m.Width*pairs
}

// SpanFLOPs is what recomputing tokens [from, to) costs when all before them is there.
func (m Shape) SpanFLOPs(from, to uint64) float64 {
	return m.PrefillFLOPs(float64(to)) - m.PrefillFLOPs(float64(from))
}

// PageFLOPs is SpanFLOPs of one page: tokens [depth*tokens, (depth+1)*tokens).
func (m Shape) PageFLOPs(depth, tokens uint32) float64 {
	from := uint64(depth) * uint64(tokens)
	return m.SpanFLOPs(from, from+uint64(tokens))
}

// Loading is what bringing a page back from its tier costs, in the operations that the device could have done
// meanwhile. It is taken off what the page saves.
type Loading struct {
	BytesPerSecond float64 // measured, of the tier
	FLOPSPerSecond float64 // of prefill, of the engines that load
}

// FLOPs is the cost of loading so many bytes; 0 where a rate is unknown.
func (l Loading) FLOPs(bytes uint64) float64 {
	if l.BytesPerSecond <= 0 {
		return 0
	}
	return float64(bytes) / l.BytesPerSecond * l.FLOPSPerSecond
}
