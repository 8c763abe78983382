package replay

import (
	"container/heap"
	"iter"
)

// Steps are those of a workload in which each request is served at once. With told, the length of its answer is told when its tokens
// have been generated, if requests come after that.
func (w *Workload) Steps(told bool) iter.Seq[Step] {
	return func(yield func(Step) bool) {
		var due steps
		for i := range w.Requests {
			a := &w.Requests[i]
			for len(due) > 0 && due[0].Seconds <= a.Seconds {
				if !yield(heap.Pop(&due).(Step)) {
					return
				}
			}
			for phase := LookUp; phase <= End; phase++ {
				if !yield(Step{i, phase, a.Seconds}) {
					return
				}
			}
			if told && a.Output > 0 {
				heap.Push(&due, Step{i, Tell, a.Seconds + tokenSeconds*float64(a.Output)})
			}
		}
	}
}

// steps are a heap: the earliest first, of equal ones that of the earlier request.
type steps []Step

func (s steps) Len() int { return len(s) }

func (s steps) Less(i, j int) bool {
	return s[i].Seconds < s[j].Seconds || s[i].Seconds == s[j].Seconds && s[i].Request < s[j].Request
}

func (s steps) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

func (s *steps) Push(x any) { *s = append(*s, x.(Step)) }

func (s *steps) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// tell says of the pages of a request that are there how long its answer was.
func (s *sim) tell(e Step) {
	a := &s.w.Requests[e.Request]
	for _, p := range a.Pages {
		if s.at[p].there() {
			attrs := s.attrs(p)
			attrs.Hint.Answer = uint32(a.Output)
			s.shardOf(p).policy.Insert(e.Seconds, s.at[p].slot, attrs)
		}
	}
}
