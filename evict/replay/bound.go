package replay

import (
	"math"
	"slices"
	"sort"
)

// Bound is what no policy can beat on one workload at one capacity, in FLOPs saved.
//
// The problem without the order of prefixes: between two accesses of a page lies an interval; keeping the page through
// it saves its cost, and at no time more than `capacity` intervals are kept. That is an upper bound of every policy,
// of those that keep prefixes whole too. Its linear programme has an optimum in whole numbers (the matrix of intervals
// over time is totally unimodular). Its dual has a price λ(t) >= 0 for one page's place at each time, and
//
//	U(λ) = Σ_t capacity λ(t) + Σ_i max(0, cost(i) - Σ_{t in i} λ(t))
//
// is an upper bound for all prices, by weak duality: every iterate is a certificate, and the least one seen is returned.
// Sums are of float64: read U as exact to one part in 10^9.
type Bound struct {
	Content float64 // capacity without end: every page that was seen before is there
	Upper   float64 // certified, at this capacity
	Rounds  int     // of prices that were tried
}

// DefaultRounds of prices come within 0.3 % of what 3,000 reach on the Mooncake traces with capacities of 0.6 to 17.6 %.
const DefaultRounds = 300

// Of the search for prices: it halves its step when so many rounds bring nothing, and ends when the step is so small.
const (
	staleRounds = 10
	firstStep   = 0.1
	leastStep   = 1e-6
	keptCourse  = 0.7 // share of the last direction in the next, against zigzagging
	scaleRounds = 12  // of the search for the scale of the first prices
)

// UpperBound lowers U by the subgradient method with so many rounds (0 or less: DefaultRounds). The price of a gap rises
// while more intervals are worth keeping through it than there are places, and falls while there are fewer. The step is
// Polyak's: the distance to a feasible schedule over the squared length of the direction, shortened when nothing is
// gained. Equal arguments give equal bounds.
func UpperBound(w *Workload, costs []float64, capacity, rounds int) Bound {
	if rounds <= 0 {
		rounds = DefaultRounds
	}
	d := newDual(w, costs, capacity)
	b := Bound{Content: d.content, Upper: d.content}
	if d.content == 0 {
		return b
	}
	lower := FeasibleBelady(w, costs, capacity).Saved
	d.start()
	best, dir := make([]float64, len(d.prices)), make([]float64, len(d.prices))
	step, stale := firstStep, 0
	for b.Rounds < rounds {
		u := d.evaluate()
		b.Rounds++
		if stale++; u < b.Upper*(1-1e-7) {
			stale = 0
		}
		if u < b.Upper {
			b.Upper = u
			copy(best, d.prices)
		}
		if stale > staleRounds {
			step, stale = step/2, 0
			copy(d.prices, best)
			u = d.evaluate()
		}
		norm := d.direction(dir)
		if norm == 0 || step < leastStep {
			break
		}
		length := step * max(u-lower, b.Upper*1e-9) / norm
		for t, g := range dir {
			d.prices[t] = math.Max(0, d.prices[t]-length*g)
		}
	}
	return b
}

// dual is the problem seen from its prices. Gap t lies between requests t and t+1.
type dual struct {
	groups   []group
	content  float64
	capacity float64
	prices   []float64 // of a place in each gap
	sums     []float64 // of prices before each gap
	use      []float64 // intervals worth their price, over each gap
}

// group is the intervals over gaps [from, to): the pages of one request that were used last by one other.
type group struct {
	from, to int32
	costs    []float64 // ascending
	above    []float64 // above[k] is the sum of costs[k:]
}

func newDual(w *Workload, costs []float64, capacity int) *dual {
	gaps := len(w.Requests)
	d := &dual{
		groups: groups(w, costs), capacity: float64(max(capacity, 0)),
		prices: make([]float64, gaps), sums: make([]float64, gaps+1), use: make([]float64, gaps+1),
	}
	for i := range d.groups {
		d.content += d.groups[i].above[0]
	}
	return d
}

// groups finds them along the paths: a parent is used whenever its child is, so pages used last by one request are
// neighbours.
func groups(w *Workload, costs []float64) []group {
	last := make([]int32, w.Pages())
	for i := range last {
		last[i] = -1
	}
	var out []group
	for i := range w.Requests {
		pages := w.Requests[i].Pages
		for len(pages) > 0 && last[pages[0]] >= 0 {
			n, from := 1, last[pages[0]]
			for n < len(pages) && last[pages[n]] == from {
				n++
			}
			out = append(out, newGroup(from, int32(i), pages[:n], costs))
			pages = pages[n:]
		}
		for _, p := range w.Requests[i].Pages {
			last[p] = int32(i)
		}
	}
	return out
}

func newGroup(from, to int32, pages []int32, costs []float64) group {
	both := make([]float64, 2*len(pages)+1)
	g := group{from: from, to: to, costs: both[:len(pages):len(pages)], above: both[len(pages):]}
	for k, p := range pages {
		g.costs[k] = costs[p]
	}
	if !slices.IsSorted(g.costs) {
		slices.Sort(g.costs)
	}
	for k := len(pages) - 1; k >= 0; k-- {
		g.above[k] = g.above[k+1] + g.costs[k]
	}
	return g
}

// evaluate is U at the prices as they stand; use becomes the number of intervals that are worth keeping over each gap.
func (d *dual) evaluate() float64 {
	clear(d.use)
	for t, p := range d.prices {
		d.sums[t+1] = d.sums[t] + p
	}
	u := d.capacity * d.sums[len(d.prices)]
	for i := range d.groups {
		g := &d.groups[i]
		price := d.sums[g.to] - d.sums[g.from]
		k := sort.Search(len(g.costs), func(k int) bool { return g.costs[k] > price })
		if kept := float64(len(g.costs) - k); kept > 0 {
			u += g.above[k] - kept*price
			d.use[g.from] += kept
			d.use[g.to] -= kept
		}
	}
	total := 0.0
	for t := range d.use {
		total += d.use[t]
		d.use[t] = total
	}
	return u
}

// direction turns dir towards the gradient of U, places not used in each gap, and is its squared length. Prices of 0
// do not go below.
func (d *dual) direction(dir []float64) (norm float64) {
	for t := range dir {
		g := d.capacity - d.use[t]
		if d.prices[t] == 0 && g > 0 {
			g = 0
		}
		dir[t] = keptCourse*dir[t] + (1-keptCourse)*g
		norm += dir[t] * dir[t]
	}
	return norm
}

// start gives each gap the price of the first interval for which there is no room, if those that save most for their
// length come first; then scales all prices by the best factor.
func (d *dual) start() {
	density := newDensities(d.groups)
	byStart, next := make([]int, len(d.groups)), 0
	for i := range byStart {
		byStart[i] = i
	}
	sort.SliceStable(byStart, func(i, j int) bool { return d.groups[byStart[i]].from < d.groups[byStart[j]].from })
	ended := 0 // groups are in the order of their ends
	for t := range d.prices {
		for ; ended < len(d.groups) && int(d.groups[ended].to) <= t; ended++ {
			density.add(&d.groups[ended], -1)
		}
		for ; next < len(byStart) && int(d.groups[byStart[next]].from) <= t; next++ {
			density.add(&d.groups[byStart[next]], 1)
		}
		d.prices[t] = density.beyond(int(d.capacity))
	}
	d.scale()
}

// scale searches the factor of all prices at which U, convex along them, is least.
func (d *dual) scale() {
	first := slices.Clone(d.prices)
	at := func(f float64) float64 {
		for t, p := range first {
			d.prices[t] = f * p
		}
		return d.evaluate()
	}
	low, high := 0.0, 2.0
	for range scaleRounds {
		a, b := low+(high-low)/3, high-(high-low)/3
		if at(a) < at(b) {
			high = b
		} else {
			low = a
		}
	}
	at((low + high) / 2)
}

// densities counts the intervals open at one time by cost for each gap that they span, in classes of 2^(1/16).
type densities struct {
	counts [densityClasses]int
	top    float64 // log2 of the highest
	total  int
}

const (
	densityClasses = 1024
	classesPerBit  = 16
)

func newDensities(groups []group) *densities {
	s := &densities{top: math.Inf(-1)}
	for i := range groups {
		g := &groups[i]
		s.top = math.Max(s.top, math.Log2(g.costs[len(g.costs)-1]/float64(g.to-g.from)))
	}
	return s
}

func (s *densities) class(cost float64, length int32) int {
	below := classesPerBit * (s.top - math.Log2(cost/float64(length)))
	return int(math.Min(densityClasses-1, math.Max(0, below)))
}

// add counts a group n times. Of large groups only every fourth page is classed: neighbours differ little.
func (s *densities) add(g *group, n int) {
	length := g.to - g.from
	s.total += n * len(g.costs)
	for k := 0; k < len(g.costs); k += 4 {
		s.counts[s.class(g.costs[k], length)] += n * min(4, len(g.costs)-k)
	}
}

// beyond is the density of the interval that comes after the n densest; 0 if there is none.
func (s *densities) beyond(n int) float64 {
	if s.total <= n {
		return 0
	}
	for class, c := range s.counts {
		if n -= c; n < 0 {
			return math.Exp2(s.top - float64(class)/classesPerBit)
		}
	}
	return 0
}
