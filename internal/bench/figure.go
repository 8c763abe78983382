package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Figure is one measured quantity over the rounds: the median, and the least and the most that were seen.
type Figure struct {
	Name   string  `json:"name"` // stable
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Goal   string  `json:"goal,omitempty"`    // ">= 0.07"; empty: there is none, or not with these parameters
	Passed *bool   `json:"reached,omitempty"` // the median against the goal
}

// series collects one figure's values, a value a round.
type series struct {
	name, unit string
	values     []float64
}

// sheet collects the series of a benchmark in the order in which they are first seen.
type sheet struct{ all []*series }

func (s *sheet) add(name, unit string, value float64) {
	i := slices.IndexFunc(s.all, func(x *series) bool { return x.name == name })
	if i < 0 {
		i, s.all = len(s.all), append(s.all, &series{name: name, unit: unit})
	}
	s.all[i].values = append(s.all[i].values, value)
}

// figures sums up, with goals by name.
func (s *sheet) figures(goals map[string]goal) []Figure {
	out := make([]Figure, len(s.all))
	for i, x := range s.all {
		slices.Sort(x.values)
		out[i] = Figure{Name: x.name, Unit: x.unit, Median: median(x.values), Min: x.values[0], Max: x.values[len(x.values)-1]}
		if g, ok := goals[x.name]; ok {
			passed := g.holds(out[i].Median)
			out[i].Goal, out[i].Passed = g.String(), &passed
		}
	}
	return out
}

// median of sorted values.
func median(v []float64) float64 {
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// goal is a bound on a figure: at least or at most.
type goal struct {
	bound  float64
	atMost bool
}

func atLeast(x float64) goal { return goal{x, false} }
func atMost(x float64) goal  { return goal{x, true} }

func (g goal) holds(x float64) bool {
	if g.atMost {
		return x <= g.bound
	}
	return x >= g.bound
}

// String is ">= 0.07" or "<= 10".
func (g goal) String() string {
	sign := ">="
	if g.atMost {
		sign = "<="
	}
	return sign + " " + number(g.bound)
}

// number is x with four significant digits, or whole with thousands apart when it is large.
func number(x float64) string {
	if x < 10_000 && x > -10_000 {
		s := strconv.FormatFloat(x, 'g', 4, 64)
		if !strings.Contains(s, "e") {
			return s
		}
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	s := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Write shows a report to people.
func (r *Report) Write(w io.Writer) error {
	var names []string
	for k := range r.Parameters {
		names = append(names, k)
	}
	slices.Sort(names)
	fmt.Fprintf(w, "%s: %s/%s, %d CPUs, %s", r.Bench, r.Machine.OS, r.Machine.Arch, r.Machine.CPUs, r.Machine.Go)
	for _, k := range names {
		fmt.Fprintf(w, "; %s %v", strings.ReplaceAll(k, "_", " "), r.Parameters[k])
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tMEDIAN\tMIN .. MAX\tUNIT\tGOAL\t")
	for _, f := range r.Figures {
		spread := number(f.Min) + " .. " + number(f.Max)
		if f.Min == f.Max {
			spread = ""
		}
		goal := f.Goal
		if f.Passed != nil && !*f.Passed {
			goal += " not reached"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", strings.ReplaceAll(f.Name, "_", " "), number(f.Median), spread, f.Unit, goal)
	}
	return t.Flush()
}
