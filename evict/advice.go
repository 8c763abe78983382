package evict

// What writers and clients say of pages moves only pages of their own tenant against each other: whose page goes is
// found without it. So who lies loses the wrong one of its own pages, and nothing else.

// lean of each thing said: a factor of the score.
var (
	leanOfCategory = [NumCategories]float32{CategoryUnknown: 1, CategoryInteractive: 1, CategoryAgent: 1, CategoryBatch: 1.0 / 4, CategorySystem: 4}
	leanOfNext     = [NumNexts]float32{NextUnknown: 1, NextToolCall: 4, NextNothing: 1.0 / 64}
)

// maxDeclared bounds how far a declared cost may lie from the one that follows from the model's shape.
const maxDeclared = 1024

// said is what a client says of a page: a Category, and in the bits above a Next.
type said uint8

const (
	saidShift = 4

	_ = uint(1<<saidShift - NumCategories)
	_ = uint(1<<saidShift - NumNexts)
)

func (x said) category() Category { return Category(x & (1<<saidShift - 1)) }

func (x said) next() Next { return Next(x >> saidShift) }

// advise takes in what is said of a page; what is not said stays as it was.
func (v *VBR) advise(now float64, p *vbrPage, a Attrs) {
	h := a.Hint
	category, next := p.said.category(), p.said.next()
	if h.Category != CategoryUnknown && h.Category < NumCategories {
		category = h.Category
	}
	if h.Next != NextUnknown && h.Next < NumNexts {
		next = h.Next
	}
	if h.Reuse > 0 {
		p.due = max(ticksOf(now+float64(h.Reuse)), 1)
	}
	p.said = said(category) | said(next)<<saidShift
	p.lean = leanOfCategory[category] * leanOfNext[next]
	if a.Declared > 0 && a.FLOPs > 0 {
		p.lean *= float32(min(max(a.Declared/a.FLOPs, 1.0/maxDeclared), maxDeclared))
	}
	if h.Answer == 0 {
		return
	}
	if p.answer = answerOf(h.Answer, p.uses); v.sample.takes(p.tag) {
		v.sample.tell(ticksOf(now), p)
	}
}

// served ends what was said of the next use: this is it.
func (p *vbrPage) served() {
	p.lean /= leanOfNext[p.said.next()]
	p.said, p.due = said(p.said.category()), 0
}

// leaning is the score of a page among those of its tenant. Until an expected use is due, it is as if the page were
// used that often.
func (p *vbrPage) leaning(tick uint32, score float64) float64 {
	score *= float64(p.lean)
	if p.due > tick {
		soon := float64(p.value) / unitBytes * ticksPerSecond / float64(p.due-tick)
		score = max(score, soon)
	}
	return score
}
