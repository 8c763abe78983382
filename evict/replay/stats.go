package replay

import (
	"slices"

	"github.com/quire-kv/quire/evict"
)

// Stats says what a workload is like, in figures that decide how a cache does on it. Shares are of 1.
type Stats struct {
	Requests    int     `json:"requests"`
	Seconds     float64 `json:"seconds"` // from the first request to the last
	Accesses    int     `json:"accesses"`
	Pages       int     `json:"pages"`
	HitRate     float64 `json:"hit_rate"`     // of accesses, in a cache without end
	MeanPages   float64 `json:"mean_pages"`   // of a request
	PagesP90    int     `json:"pages_p90"`    // of a request
	GapP10      float64 `json:"gap_p10"`      // seconds between two uses of a page
	GapP50      float64 `json:"gap_p50"`      //
	GapP90      float64 `json:"gap_p90"`      //
	UsedOnce    float64 `json:"used_once"`    // of pages
	Top1Percent float64 `json:"top_1percent"` // accesses to the hundredth of the pages that are used most
	Families    float64 `json:"families"`     // roots for each request: 1 is no sharing at all
	TopFamilies float64 `json:"top_families"` // accesses below the ten roots that are used most
	LRU1        float64 `json:"lru_1percent"` // hit rate of LRU with room for a hundredth of the pages
	LRU5        float64 `json:"lru_5percent"` //
	LRU20       float64 `json:"lru_20percent"`
}

// topRoots is how many roots count as the top.
const topRoots = 10

// StatsOf measures a workload; it replays it three times.
func StatsOf(w *Workload) Stats {
	s := Stats{Requests: len(w.Requests), Accesses: w.Accesses(), Pages: w.Pages()}
	if s.Accesses == 0 {
		return s
	}
	s.Seconds = w.Requests[s.Requests-1].Seconds - w.Requests[0].Seconds
	s.reuse(w)
	uses, below := usesOf(w)
	once := 0
	for _, n := range uses {
		if n == 1 {
			once++
		}
	}
	s.UsedOnce = float64(once) / float64(s.Pages)
	s.Top1Percent = float64(top(uses, (s.Pages+99)/100)) / float64(s.Accesses)
	s.Families = float64(len(below)) / float64(s.Requests)
	s.TopFamilies = float64(top(below, topRoots)) / float64(s.Accesses)
	for _, c := range []struct {
		part int
		to   *float64
	}{{100, &s.LRU1}, {20, &s.LRU5}, {5, &s.LRU20}} {
		capacity := (s.Pages + c.part - 1) / c.part
		if r, err := Replay(w, make([]float64, s.Pages), evict.NewLRU(Slots(capacity, w)), capacity, Options{}); err == nil {
			*c.to = float64(r.Hits) / float64(s.Accesses)
		}
	}
	return s
}

// reuse fills in what is about single accesses.
func (s *Stats) reuse(w *Workload) {
	last := make([]float64, w.Pages())
	for p := range last {
		last[p] = -1
	}
	var gaps []float64
	var depths []int
	for i := range w.Requests {
		a := &w.Requests[i]
		depths = append(depths, len(a.Pages))
		for _, p := range a.Pages {
			if last[p] >= 0 {
				gaps = append(gaps, a.Seconds-last[p])
			}
			last[p] = a.Seconds
		}
	}
	s.HitRate = float64(len(gaps)) / float64(s.Accesses)
	s.MeanPages = float64(s.Accesses) / float64(s.Requests)
	slices.Sort(depths)
	s.PagesP90 = depths[(len(depths)-1)*9/10]
	if len(gaps) > 0 {
		slices.Sort(gaps)
		s.GapP10, s.GapP50, s.GapP90 = gaps[(len(gaps)-1)/10], gaps[(len(gaps)-1)/2], gaps[(len(gaps)-1)*9/10]
	}
}

// usesOf counts the uses of each page, and the accesses below each root.
func usesOf(w *Workload) (uses, below []int) {
	uses = make([]int, w.Pages())
	roots := map[int32]int{} // root to its place in below
	for i := range w.Requests {
		pages := w.Requests[i].Pages
		for _, p := range pages {
			uses[p]++
		}
		if len(pages) > 0 {
			at, ok := roots[pages[0]]
			if !ok {
				at = len(below)
				roots[pages[0]] = at
				below = append(below, 0)
			}
			below[at] += len(pages)
		}
	}
	return uses, below
}

// top is the sum of the n greatest.
func top(of []int, n int) (sum int) {
	sorted := slices.Clone(of)
	slices.Sort(sorted)
	for _, v := range sorted[max(0, len(sorted)-n):] {
		sum += v
	}
	return sum
}
