package evict

// All pages below one root are a family: one application's system prompt, one tool's preamble, or one conversation. Families
// whose requests come again more, or less, than class and age alone say, have a factor of their own for the hazard
// (proportional hazards, as for classes: reuse.go):
//
//	factor = (uses seen + familyPrior) / (uses expected by class and age + familyPrior)
//
// A root's keyed tag chooses one of familyCount. Of the many that come once none has the uses to move its factor much,
// so what they share of a place harms little. Family 0 is that of pages whose root is not known; its factor is 1.
type families struct {
	factor   [familyCount]float32
	seen     [familyCount]float32
	expected [familyCount]float32
}

const (
	familyBits  = 12
	familyCount = 1 << familyBits
	familyPrior = 1000 // uses, as many as a few dozen requests have pages
	leastFactor = 1. / 16
	mostFactor  = 16
)

// familyOf the pages below a root.
func familyOf(tag uint64) uint16 { return uint16(max(tag>>40&(familyCount-1), 1)) }

// used is a life that ended with a use, when so many were expected.
func (f *families) used(family uint16, expected float32) {
	f.seen[family]++
	f.expected[family] += expected
}

// learn makes the factors anew. underWay are the uses that were expected of lives that have not ended.
func (f *families) learn(underWay *[familyCount]float32) {
	for i := range f.factor {
		x := (f.seen[i] + familyPrior) / (f.expected[i] + underWay[i] + familyPrior)
		f.factor[i] = min(max(x, leastFactor), mostFactor)
		f.seen[i] *= keepCounts
		f.expected[i] *= keepCounts
	}
	f.factor[0] = 1
}
