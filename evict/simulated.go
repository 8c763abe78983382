package evict

import "math"

// Simulated is what a policy knows of itself and of what other choices would have saved, from a sample of the pages
// scaled up to all. Sums are since the start.
type Simulated struct {
	Mode    string  // in use
	Sampled float64 // part of all pages
	FLOPs   float64 // of all uses
	Content float64 // of uses of pages seen before: what a cache without end saves
	Saved   float64 // of uses of pages that were there
	Modes   [modes]struct {
		Name  string
		Saved float64 // by a cache of the same size in this mode
	}
}

// Simulator is a policy that has a Simulated.
type Simulator interface{ Simulated() Simulated }

var _ Simulator = (*VBR)(nil)

// Simulated is what the shadows found so far.
func (v *VBR) Simulated() Simulated {
	out := v.sample.sums
	out.Mode, out.Sampled = v.sample.mode.String(), 1/v.sample.scale()
	for m := range out.Modes {
		out.Modes[m].Name = mode(m).String()
	}
	return out
}

// count adds one use to the sums.
func (s *sample) count(p *sampled, known, hit bool) {
	flops := p.flops() * s.scale()
	s.sums.FLOPs += flops
	if known {
		s.sums.Content += flops
	}
	if hit {
		s.sums.Saved += flops
	}
}

func (s *sample) scale() float64 { return math.Exp2(float64(s.shift)) }
