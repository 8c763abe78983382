package evict

import (
	"math"
	"math/bits"
)

// Reuse is learned per class from how long pages stayed unused before they were used again. A class is what can be
// known of a page cheaply: how often it was used, and whether its chain goes on or is new.
//
//	turn 0  first pages of their chain, and those that fork off a page which had a child before
//	turn 1  continue, in a later request, a page that had none: the second turn of a conversation
//	turn 2  the third and later ones
//
// A life of a page begins with each use, in the class of then, and ends with the next one (a hit at that age), or is
// watched no more (censored). With n(b) lives that reached age bin b, those censored in it counted half, and h(b) hits in it,
// the hazard is h(b)/n(b), and
//
//	index(class, a) = max over T >= a of  E[hits in (a, T]] / E[time kept in (a, T]]
//
// is the best rate of hits per second that keeping the page from age a on can give: Gittins' index of the stopping
// problem "keep until hit, or give up at T" (Gittins, JRSS B 1979).
//
// Of ages and classes that have seen little, as many lives are added as the constants below say, each with the hazard
// that is believed beforehand. A class is believed to have all classes' hazard, times a factor of its own (proportional
// hazards: Cox, JRSS B 1972); the factor, to grow with the uses; and all classes together, in each bin the hazard of the
// one before. Bins double, so that is one that falls with 1/age: with nothing learned the order is that of uses / age, and
// ages that nothing has reached yet go on as those below them do.
const (
	countClasses = 7 // uses: 1, 2, 3-4, 5-8, 9-16, 17-32, more
	turnClasses  = 3
	classes      = countClasses * turnClasses

	ticksPerSecond = 64
	binsPerOctave  = 2
	ageBins        = 48 // up to 2^24 ticks: three days. Older is the last bin

	priorHazard = 0.01 // of all classes, in the first bin
	globalPrior = 20   // lives in each bin, with the hazard of the one before
	factorPrior = 20   // expected hits, with the factor believed
	classPrior  = 20   // lives in each bin, with all classes' hazard times the factor

	learnEvery = 1 << 10 // uses of sampled pages
	keepCounts = 0.998   // of old counts, each time
)

// factorBelieved of a class before it has seen anything: by uses.
var factorBelieved = [countClasses]float32{1, 2, 3, 4, 5, 6, 7}

func classOf(uses, turn uint8) uint8 {
	c := min(bits.Len8(max(uses, 1)-1), countClasses-1)
	return uint8(c)*turnClasses + min(turn, turnClasses-1)
}

// ageBin of an age in ticks: binsPerOctave bins to each doubling, one tick each at first.
func ageBin(ticks uint32) int {
	if ticks < binsPerOctave {
		return int(ticks)
	}
	top := bits.Len32(ticks) - 2 // the bit below the highest is the place within the octave
	return min(top*binsPerOctave+int(ticks>>top), ageBins-1)
}

// binStart is the first age of a bin, in ticks.
func binStart(b int) uint32 {
	if b < 2*binsPerOctave {
		return uint32(b)
	}
	top := b/binsPerOctave - 1
	return uint32(binsPerOctave+b%binsPerOctave) << top
}

// reuse has the counts and the index made of them.
type reuse struct {
	hits     [classes][ageBins]float32
	censored [classes][ageBins]float32
	index    [classes][ageBins]float32 // hits per second
	expected [classes][ageBins]float32 // hits until a bin's middle
	factors  factors
}

// ages counts lives by class and age.
type ages [classes][ageBins]float32

func (r *reuse) hit(class uint8, x traits, ticks uint32) {
	b := ageBin(ticks)
	r.hits[class][b]++
	r.factors.saw(x, 1, r.expected[class][b])
}

// censor counts a life that is watched no more.
func (r *reuse) censor(class uint8, x traits, ticks uint32) {
	b := ageBin(ticks)
	r.censored[class][b]++
	r.factors.saw(x, 0, r.expected[class][b])
}

// learn computes the index from all counts and the lives under way, and lets old counts fade.
func (r *reuse) learn(underWay *ages) {
	var risk ages
	var allHits, allRisk, base [ageBins]float32
	for c := range risk {
		reached := float32(0)
		for b := ageBins - 1; b >= 0; b-- {
			hits, lost := r.hits[c][b], r.censored[c][b]+underWay[c][b]
			risk[c][b] = reached + hits + lost/2
			reached += hits + lost
			allHits[b] += r.hits[c][b]
			allRisk[b] += risk[c][b]
		}
	}
	believed := float32(priorHazard)
	for b := range base {
		base[b] = (allHits[b] + believed*globalPrior) / (allRisk[b] + globalPrior)
		believed = base[b]
	}
	for c := range risk {
		hits, expected := factorPrior*factorBelieved[c/turnClasses], float32(factorPrior)
		for b := range base {
			hits += r.hits[c][b]
			expected += risk[c][b] * base[b]
		}
		factor := hits / expected
		var hazard [ageBins]float32
		for b := range hazard {
			hazard[b] = min((r.hits[c][b]+classPrior*factor*base[b])/(risk[c][b]+classPrior), 1)
		}
		indexOf(&hazard, &r.index[c])
		sum := float32(0)
		for b := range hazard {
			r.expected[c][b] = sum + hazard[b]/2
			sum += hazard[b]
		}
	}
	for c := range r.hits {
		for b := range r.hits[c] {
			r.hits[c][b] *= keepCounts
			r.censored[c][b] *= keepCounts
		}
	}
}

// indexOf is the best rate from the middle of each bin on.
func indexOf(hazard, index *[ageBins]float32) {
	for a := range index {
		best, left, hits, kept := float32(0), float32(1), float32(0), float32(0)
		for b := a; b < ageBins; b++ {
			width := float32(binStart(b+1)-binStart(b)) / ticksPerSecond
			hits += left * hazard[b]
			kept += left * (1 - hazard[b]/2) * width
			left *= 1 - hazard[b]
			best = max(best, hits/kept)
		}
		index[a] = best
	}
}

// rate is the index at an age, between the bins, but for the factors of traits. It is in the way of each page that is drawn,
// so ageBin and binStart are unrolled.
func (r *reuse) rate(class uint8, ticks uint32) float32 {
	index := &r.index[class]
	if ticks < binsPerOctave {
		return index[ticks]
	}
	top := bits.Len32(ticks) - 2
	b := top*binsPerOctave + int(ticks>>top)
	if b >= ageBins-1 {
		return index[ageBins-1]
	}
	within, perTick := ticks&(1<<top-1), math.Float32frombits(uint32(127-top)<<23) // 1/2^top
	return index[b] + (index[b+1]-index[b])*float32(within)*perTick
}
