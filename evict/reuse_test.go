package evict

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestAgeBins: bins are without gaps, each age is in the bin that begins at or before it.
func TestAgeBins(t *testing.T) {
	for b := range ageBins - 1 {
		from, to := binStart(b), binStart(b+1)
		if from >= to || ageBin(from) != b || ageBin(to-1) != b {
			t.Fatalf("bin %d is [%d, %d), ages are in %d and %d", b, from, to, ageBin(from), ageBin(to-1))
		}
	}
	if ageBin(math.MaxUint32) != ageBins-1 {
		t.Error("the oldest age has no bin")
	}
}

func TestClassesGrowWithUses(t *testing.T) {
	last := uint8(0)
	for uses := 1; uses < 256; uses++ {
		c := classOf(uint8(uses), 1)
		if c < last || c >= classes || c%turnClasses != 1 {
			t.Fatalf("%d uses: class %d after %d", uses, c, last)
		}
		last = c
	}
	if last != (countClasses-1)*turnClasses+1 {
		t.Errorf("the last class is %d", last)
	}
}

// TestIndexAgainstItsDefinition on random hazards.
func TestIndexAgainstItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var hazard, index [ageBins]float32
		for b := range hazard {
			hazard[b] = rapid.Float32Range(0, 1).Draw(t, "hazard") * float32(rapid.SampledFrom([]int{0, 1}).Draw(t, "some"))
		}
		indexOf(&hazard, &index)
		a := rapid.IntRange(0, ageBins-1).Draw(t, "age")
		best := 0.0
		for stop := a + 1; stop <= ageBins; stop++ {
			hits, kept, left := 0.0, 0.0, 1.0
			for b := a; b < stop; b++ {
				h := float64(hazard[b])
				hits += left * h
				kept += left * (1 - h/2) * float64(binStart(b+1)-binStart(b)) / ticksPerSecond
				left *= 1 - h
			}
			best = max(best, hits/kept)
		}
		if math.Abs(best-float64(index[a])) > 1e-4*best+1e-12 {
			t.Fatalf("age bin %d: index %v, by definition %v", a, index[a], best)
		}
	})
}

// TestNothingLearnedIsUsesOverAge: the order before anything was seen.
func TestNothingLearnedIsUsesOverAge(t *testing.T) {
	var r reuse
	r.learn(&ages{})
	for c := uint8(0); c < classes; c++ {
		for s := uint32(1); s < 1<<12; s *= 2 {
			ratio := r.rate(c, s*ticksPerSecond) / r.rate(c, 2*s*ticksPerSecond)
			if ratio < 1.6 || ratio > 2.4 {
				t.Fatalf("class %d: %.2f times the rate at half of %d s", c, ratio, 2*s)
			}
		}
		if c >= turnClasses && r.rate(c, 6400) <= r.rate(c-turnClasses, 6400) {
			t.Fatalf("class %d, with more uses, has no higher rate", c)
		}
	}
}

// TestRatesAreLearned: pages of two classes are used again after exponential times; the rates come out.
func TestRatesAreLearned(t *testing.T) {
	r, rnd := &reuse{}, rand.New(rand.NewPCG(1, 2))
	type class struct {
		class uint8
		mean  float64
	}
	both := []class{{classOf(1, 0), 400}, {classOf(2, 1), 20}}
	for range 40 {
		for _, x := range both {
			for range 500 {
				age := rnd.ExpFloat64() * x.mean
				if watched := 3 * x.mean; age < watched {
					r.hit(x.class, 0, ticksOf(age))
				} else {
					r.censor(x.class, 0, ticksOf(watched))
				}
			}
		}
		r.learn(&ages{})
	}
	for _, x := range both {
		c, m := x.class, x.mean
		for _, age := range []float64{m / 10, m / 2, m} {
			if got := float64(r.rate(c, ticksOf(age))) * m; got < 0.85 || got > 1.25 { // the best of several times to stop is found a little too good
				t.Errorf("class %d, used again after %v s: at %v s the rate is %.2f of what it is", c, m, age, got)
			}
		}
	}
}

// TestAPageThatWaitsIsWorthMoreThanOneThatIsOver: pages are used again after about 100 s or never; past that age they are
// worth little, just before it much.
func TestAPageThatWaitsIsWorthMoreThanOneThatIsOver(t *testing.T) {
	r, c := &reuse{}, classOf(1, 0)
	for i := range 20000 {
		if i%2 == 0 {
			r.hit(c, 0, ticksOf(90+float64(i%20)))
		} else {
			r.censor(c, 0, ticksOf(1000))
		}
	}
	r.learn(&ages{})
	early, soon, over := r.rate(c, ticksOf(1)), r.rate(c, ticksOf(85)), r.rate(c, ticksOf(200))
	if !(over < early/10 && early < soon/2) {
		t.Errorf("rates %v at 1 s, %v at 85 s, %v at 200 s", early, soon, over)
	}
}
