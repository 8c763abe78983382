package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/internal/demo"
	"github.com/quire-kv/quire/internal/suggest"
	"github.com/quire-kv/quire/internal/sysmem"
	"github.com/quire-kv/quire/namespace"
)

// replayOptions are the flags of quire replay.
type replayOptions struct {
	load       replay.LoadOptions
	policies   []string
	capacities []string
	disk       string
	models     []string
	flops      float64
	tierRate   sysmem.Bytes
	rounds     int
	workers    int
	plot       string
	answers    bool
}

// Bounds of what one command is asked for.
const (
	maxReplayTraces = 64
	maxReplayJobs   = 100_000
	maxRounds       = 1_000_000
)

func (a *app) replayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay TRACE...",
		Short: "Replay request traces through eviction policies, beside what no policy can beat",
		Long: `Replay request traces through eviction policies over one tier of pages, for each capacity and each model's costs, and say
how much of the bounds each reaches. Nothing is served: only which pages are there is kept track of. A trace is in the
Mooncake format or the compact one of coding agents, plain or packed by gzip. Policies:

` + policyLines() + `
"of upper" is the share of the certified bound: no policy, even one that knows the future, saves more at this capacity.
"of content" is the share of what a cache without end saves. The line of belady is a schedule that knows the future and
keeps prefixes whole. "decisions" is a hash of all that a policy decided: equal for equal inputs and seeds.`,
		Example: `  quire replay conversation_trace.jsonl
  quire replay conversation_trace.jsonl --policy lru,gdsf --capacity 1%,5%,20000 --model 8b,70b,mla
  quire replay conversation_trace.jsonl --capacity 1%,5% --disk 20% --tier-rate 3GB
  quire replay *.jsonl --model my-spec.yaml --plot replay.svg -o json`,
		Args: atLeastOne("TRACE"),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.policies, "policy", policyNames(), "`names` of policies")
	f.StringSliceVar(&o.capacities, "capacity", []string{"0.5%", "1%", "2%", "5%", "10%", "20%", "50%"}, "`list` of capacities: pages, or percent of the trace's different pages")
	f.StringVar(&o.disk, "disk", "", "`capacity` of a disk tier below each of these, to which goes what is worth its room: pages, or percent; for "+tierPolicies+" (default none)")
	f.StringSliceVar(&o.models, "model", []string{"70b"}, "`list` of models whose costs count: 8b, 70b, mla, a spec's file or example:NAME, which must have a shape")
	f.Float64Var(&o.flops, "flops", demo.DefaultFLOPS, "FLOP/s (`number`) of the accelerators whose time is saved: eight H100 at 40 %")
	f.Var(&o.tierRate, "tier-rate", "`size` that the tier gives back in a second, with --disk that one; what loading a page takes is then taken off what it saves")
	traceFlags(cmd, &o.load)
	f.Uint64Var(&o.load.Seed, "seed", 1, "`number` that decides what is drawn at random: arrivals, and samples of policies")
	f.BoolVar(&o.answers, "answers", true, "tell policies how long each answer was, when it has ended: 30 ms for each of its tokens after the request")
	f.IntVar(&o.rounds, "rounds", replay.DefaultRounds, "`number` of prices that the certified bound tries: more make it tighter")
	f.IntVar(&o.workers, "workers", 0, "`number` of replays at a time; 0: as many as processors")
	f.StringVar(&o.plot, "plot", "", "draw shares of the certified bound into this `file`.svg")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error {
		if o.disk != "" && !cmd.Flags().Changed("policy") {
			o.policies = []string{"vbr", "lru"}
		}
		return a.replay(ctx, args, o)
	})
	return cmd
}

// traceFlags say how a trace is read.
func traceFlags(cmd *cobra.Command, o *replay.LoadOptions) {
	cmd.Flags().Uint32Var(&o.PageTokens, "page-tokens", replay.DefaultPageTokens, "`number` of tokens of a page: whole blocks of the trace")
	cmd.Flags().Float64Var(&o.MeanArrival, "arrival", replay.DefaultMeanArrival, "mean `seconds` between starts of conversations, where a trace does not tell")
}

func atLeastOne(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("%s is missing", name)
		}
		return nil
	}
}

func policyNames() (names []string) {
	for _, p := range replay.Policies() {
		names = append(names, p.Name)
	}
	return names
}

func policyLines() string {
	var b strings.Builder
	for _, p := range replay.Policies() {
		fmt.Fprintf(&b, "  %-9s %s\n", p.Name, p.About)
	}
	return b.String()
}

// tierPolicies are those that know a second tier.
const tierPolicies = "vbr or lru"

func knowsTiers(policy string) bool { return policy == "vbr" || policy == "lru" }

// replayModel is a model as far as its costs go.
type replayModel struct {
	name       string
	shape      evict.Shape
	tokenBytes uint64
}

// modelSources are short names for specs that are built in.
func modelSources() map[string]string {
	return map[string]string{
		"8b": examplePrefix + "llama-3-8b", "70b": examplePrefix + "llama-3-70b", "mla": examplePrefix + "deepseek-v3-mla",
	}
}

func (a *app) replayModels(sources []string) (models []replayModel, err error) {
	for _, name := range sources {
		spec, shape, err := a.replayModel(name)
		if err != nil {
			return nil, err
		}
		models = append(models, replayModel{name: filepath.Base(name), shape: shape, tokenBytes: spec.TokenBytes()})
	}
	return models, nil
}

// replayModel is one model by its short name, a spec's file or example:NAME.
func (a *app) replayModel(name string) (*namespace.Spec, evict.Shape, error) {
	source := name
	if short, ok := modelSources()[name]; ok {
		source = short
	}
	text, err := a.specText(source)
	if err != nil {
		return nil, evict.Shape{}, err
	}
	spec, err := namespace.Parse([]byte(text))
	if err != nil {
		return nil, evict.Shape{}, fmt.Errorf("%s: %w", name, err)
	}
	shape, ok := cost.ShapeOf(spec)
	if !ok {
		return nil, shape, usagef("%s has no shape, and nobody knows what its pages cost; add shape: {params, layers, heads, width}", name)
	}
	return spec, shape, nil
}

func (o *replayOptions) chosen() (chosen []replay.Named, err error) {
	all := replay.Policies()
	for _, name := range o.policies {
		i := slices.IndexFunc(all, func(p replay.Named) bool { return p.Name == name })
		if i < 0 {
			if near, ok := suggest.Nearest(name, policyNames()); ok {
				return nil, usagef("no policy %q; did you mean %s?", name, near)
			}
			return nil, usagef("no policy %q; one of %s", name, strings.Join(policyNames(), ", "))
		}
		if !slices.ContainsFunc(chosen, func(p replay.Named) bool { return p.Name == name }) {
			chosen = append(chosen, all[i])
		}
	}
	return chosen, nil
}

// capacity is one that was asked for: pages, or a share of the trace's.
type capacity struct {
	pages   int
	percent float64 // 0: pages are given
}

func parseCapacities(texts []string) (out []capacity, err error) {
	for _, text := range texts {
		var c capacity
		number, isPercent := strings.CutSuffix(strings.TrimSpace(text), "%")
		if isPercent {
			c.percent, err = strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err == nil && !(c.percent > 0 && c.percent <= 100) {
				err = strconv.ErrRange
			}
		} else if c.pages, err = strconv.Atoi(number); err == nil && c.pages < 1 {
			err = strconv.ErrRange
		}
		if err != nil {
			return nil, usagef("--capacity %q: write a number of pages, or percent above 0 up to 100, for example 5%%", text)
		}
		out = append(out, c)
	}
	return out, nil
}

// of is the capacity in pages for a trace of so many.
func (c capacity) of(pages int) int {
	if c.percent == 0 {
		return c.pages
	}
	return max(1, int(math.Round(c.percent/100*float64(pages))))
}

// check refuses what cannot be meant.
func (o *replayOptions) check(traces int) error {
	switch {
	case traces > maxReplayTraces:
		return usagef("%d traces; at most %d at once", traces, maxReplayTraces)
	case !(o.flops > 0) || math.IsInf(o.flops, 0):
		return usagef("--flops %g: write how many operations a second the accelerators do", o.flops)
	case o.rounds < 1 || o.rounds > maxRounds:
		return usagef("--rounds %d is not between 1 and %d", o.rounds, maxRounds)
	case !(o.load.MeanArrival > 0) || math.IsInf(o.load.MeanArrival, 0):
		return usagef("--arrival %g: write seconds above 0", o.load.MeanArrival)
	case o.plot != "" && filepath.Ext(o.plot) != ".svg":
		return usagef("--plot %q: the name ends with .svg", o.plot)
	case o.disk != "" && slices.ContainsFunc(o.policies, func(p string) bool { return !knowsTiers(p) }):
		return usagef("--disk is for --policy %s: the others know one tier", tierPolicies)
	case o.workers < 0:
		return usagef("--workers %d is negative", o.workers)
	}
	if jobs := traces * len(o.policies) * len(o.capacities) * len(o.models); jobs > maxReplayJobs {
		return usagef("%d replays; at most %d at once", jobs, maxReplayJobs)
	}
	if o.workers == 0 {
		o.workers = runtime.GOMAXPROCS(0)
	}
	return nil
}
