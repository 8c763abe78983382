package evict

import (
	"math/bits"
	"unsafe"
)

// answered is what is known of the answer to the request that used a page last: the octave of its tokens, and in the bit above
// whether the page had been used before. 0: nothing.
//
// Whose request has got a short answer comes back another time than who has read a long one. How much more, or less, a page is
// used for that is a factor of its rate, learned as those of families and depths are (traits.go):
//
//	factor = (uses seen + prior) / (uses expected by class, age, family and depth + prior)
//
// both counted from the time on when the answer was told: a request that is not over has none.
//
// An answer is a client's word. So its factor ranks pages of one tenant among each other, as hints do (advice.go), and is learned
// for each tenant from that tenant's pages alone: who lies spoils the order of its own pages.
type answered uint8

const (
	answerBits = 5
	answerRows = 1 << answerBits
	usedBefore = answered(answerRows / 2)

	answerTenants = 256 // those with lower numbers have factors
	answerPrior   = 50  // uses
)

func answerOf(tokens uint32, uses uint8) answered {
	x := answered(min(bits.Len32(tokens), int(usedBefore)-1))
	if x != 0 && uses > 1 {
		x |= usedBefore
	}
	return x
}

// answers are the factors of tenants. What one has takes memory from the first answer on that it tells of.
type answers [answerTenants]*answerFactors

type answerFactors struct {
	now, seen, expected, underWay [answerRows]float32
}

// of a tenant; nil: it has told of no answer.
func (a *answers) of(tenant uint32) *answerFactors {
	if tenant >= answerTenants {
		return nil
	}
	return a[tenant]
}

func (f *answerFactors) of(x answered) float64 {
	if f == nil || x == 0 {
		return 1
	}
	return float64(f.now[x])
}

// told is what the sample notes of the answer to the request that used one of its pages last.
type told struct {
	answer answered
	bin    uint8 // of the page's age then
	tenant uint8
}

// tell notes the answer of a page whose use began a life in the sample.
func (s *sample) tell(now uint32, page *vbrPage) {
	slot := s.find(page.tag)
	if slot == 0 || page.tenant >= answerTenants || page.answer == 0 {
		return
	}
	if s.answers[page.tenant] == nil {
		f := &answerFactors{}
		f.learn()
		s.answers[page.tenant] = f
	}
	p := s.pages.At(slot)
	p.told = told{page.answer, uint8(ageBin(now - p.used)), uint8(page.tenant)}
}

// answerUses are those that were expected of a life since its answer was told.
func (s *sample) answerUses(p *sampled, bin int) float32 {
	expected := &s.reuse.expected[p.class]
	return s.reuse.factors.of(p.traits) * max(expected[bin]-expected[p.told.bin], 0)
}

// sawAnswer counts the uses of a life that ends.
func (s *sample) sawAnswer(p *sampled, uses float32, age uint32) {
	if x := p.told; x.answer != 0 {
		f := s.answers[x.tenant]
		f.seen[x.answer] += uses
		f.expected[x.answer] += s.answerUses(p, ageBin(age))
	}
}

// awaitAnswer counts what was expected of a life that has not ended.
func (s *sample) awaitAnswer(p *sampled, bin int) {
	if x := p.told; x.answer != 0 {
		s.answers[x.tenant].underWay[x.answer] += s.answerUses(p, bin)
	}
}

// learn makes the factors anew.
func (f *answerFactors) learn() {
	for x := range f.now {
		f.now[x] = factorOf(f.seen[x], f.expected[x]+f.underWay[x], answerPrior)
		f.seen[x] *= keepCounts
		f.expected[x] *= keepCounts
	}
	f.underWay = [answerRows]float32{}
}

func (a *answers) footprint() (n uint64) {
	for _, f := range a {
		if f != nil {
			n += uint64(unsafe.Sizeof(*f))
		}
	}
	return n
}

func (a *answers) learn() {
	for _, f := range a {
		if f != nil {
			f.learn()
		}
	}
}
