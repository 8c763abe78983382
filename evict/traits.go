package evict

import "math/bits"

// traits are what else is known of a page than its class: its family, and in the bits above how deep it lies.
//
// All pages below one root are a family: one application's system prompt, one tool's preamble, or one conversation. A root's
// keyed tag chooses one of familyCount; family 0 is that of pages whose root is not known. Depths are octaves of 512 tokens.
//
// Families whose requests come again more, or less, than class and age alone say have a factor of their own for the hazard,
// and so have depths (proportional hazards, as for classes: reuse.go):
//
//	factor = (uses seen + prior) / (uses expected by class, age and the other factor + prior)
//
// Of the many families that come once none has the uses to move its factor much, so what they share of a place harms little.
type traits uint16

const (
	familyBits  = 12
	familyCount = 1 << familyBits
	depthBits   = 4
	depthCount  = 1 << depthBits
	traitBits   = familyBits + depthBits

	depthUnit = 512 // tokens

	familyPrior = 1000 // uses, as many as a few dozen requests have pages
	depthPrior  = 50
	leastFactor = 1. / 16
	mostFactor  = 16
)

// familyOf the pages below a root.
func familyOf(tag uint64) traits { return traits(max(tag>>40&(familyCount-1), 1)) }

func (x traits) family() traits { return x & (familyCount - 1) }

// at is x with the depth of a page that has so many tokens, as those above it have.
func (x traits) at(depth, tokens uint32) traits {
	octave := bits.Len64(uint64(depth) * uint64(tokens) / depthUnit)
	return x.family() | traits(min(octave, depthCount-1))<<familyBits
}

// factors are those of families, and behind them those of depths.
type factors struct {
	now      traitSums
	seen     traitSums
	expected traitSums
}

type traitSums [familyCount + depthCount]float32

func (x traits) places() (family, depth int) {
	return int(x.family()), familyCount + int(x>>familyBits)
}

func (f *factors) of(x traits) float32 {
	family, depth := x.places()
	return f.now[family] * f.now[depth]
}

// saw counts what was seen of a page's life: uses, where so many were expected by class and age.
func (f *factors) saw(x traits, uses, expected float32) {
	family, depth := x.places()
	f.seen[family] += uses
	f.seen[depth] += uses
	f.expect(&f.expected, x, expected)
}

func (f *factors) expect(sums *traitSums, x traits, expected float32) {
	family, depth := x.places()
	sums[family] += expected * f.now[depth]
	sums[depth] += expected * f.now[family]
}

// learn makes the factors anew. underWay are the uses that were expected of lives that have not ended.
func (f *factors) learn(underWay *traitSums) {
	for i := range f.now {
		prior := float32(familyPrior)
		if i >= familyCount {
			prior = depthPrior
		}
		f.now[i] = factorOf(f.seen[i], f.expected[i]+underWay[i], prior)
		f.seen[i] *= keepCounts
		f.expected[i] *= keepCounts
	}
	f.now[0] = 1
}

// factorOf a hazard of which so many uses were seen where so many were expected. prior is how many it takes to move it.
func factorOf(seen, expected, prior float32) float32 {
	return min(max((seen+prior)/(expected+prior), leastFactor), mostFactor)
}
