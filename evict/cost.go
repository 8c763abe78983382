package evict

// Shape is what recomputing the KV of a model costs, as far as eviction has to know it. It comes from the operator's
// spec, never from a writer.
type Shape struct {
	Params float64 // that every token passes: of a mixture of experts, the active ones
	Layers float64
	Heads  float64 // query heads
	Width  float64 // of a head, averaged over keys and values: of MLA, of what is not compressed
	Window float64 // tokens that a query sees at most; 0: all before it
	Linear bool    // recurrent: a token costs the same at every place
}

// PrefillFLOPs is what a prompt of s tokens costs from nothing:
//
//	full attention     F(s) = 2 P s + 2 L h d s²
//	window w, s > w    F(s) = 2 P s + 2 L h d (2 w s - w²)
//	recurrent          F(s) = 2 P s
//
// The first term is a multiply and an add with each parameter (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). The
// second is QK^T and AV, 4 h d operations for each pair of a query and a key in each layer, over the s²/2 pairs of a
// causal mask.
func (m Shape) PrefillFLOPs(s float64) float64 {
	linear := 2 * m.Params * s
	pairs := s * s
	switch {
	case m.Linear:
		return linear
	case m.Window > 0 && s > m.Window:
		pairs = 2*m.Window*s - m.Window*m.Window
	}
	return linear + 2*m.Layers*m.Heads*m.Width*pairs
}

// PageFLOPs is what recomputing one page costs when all before it is there: tokens [depth*tokens, (depth+1)*tokens).
func (m Shape) PageFLOPs(depth, tokens uint32) float64 {
	from := float64(depth) * float64(tokens)
	return m.PrefillFLOPs(from+float64(tokens)) - m.PrefillFLOPs(from)
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
