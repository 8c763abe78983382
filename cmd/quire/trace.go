package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/evict/replay"
)

func (a *app) traceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Describe request traces, make others like them, play them against a server",
		Long: `Describe request traces, make others like them, and play them against a server. A trace is in the Mooncake format or the
compact one of coding agents, plain or packed by gzip; what quire makes is in the Mooncake format.`,
		Example: `  quire trace show conversation_trace.jsonl
  quire trace generate conversation_trace.jsonl --out made.jsonl
  quire trace play conversation_trace.jsonl`,
	}
	cmd.AddCommand(a.traceShowCommand(), a.traceGenerateCommand(), a.tracePlayCommand())
	return cmd
}

func (a *app) traceShowCommand() *cobra.Command {
	var o replay.LoadOptions
	cmd := &cobra.Command{
		Use:   "show TRACE...",
		Short: "Show what decides how a cache does on a trace: reuse, concentration, sharing",
		Example: `  quire trace show conversation_trace.jsonl
  quire trace show *.jsonl -o json`,
		Args: atLeastOne("TRACE"),
	}
	traceFlags(cmd, &o)
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "`number` that decides when conversations start, where a trace does not tell")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error {
		var all []namedStats
		for _, path := range args {
			w, err := loadTrace(path, o)
			if err != nil {
				return err
			}
			all = append(all, namedStats{w.Name, replay.StatsOf(w)})
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		return a.print(all, func(out io.Writer) error { return writeStats(out, all) })
	})
	return cmd
}

func (a *app) traceGenerateCommand() *cobra.Command {
	o := replay.LoadOptions{PageTokens: replay.DefaultPageTokens}
	var requests int
	var out string
	cmd := &cobra.Command{
		Use:   "generate TRACE",
		Short: "Make a trace that is like a real one, and compare the two",
		Long: `Make a trace that is like a real one: the same steps of sessions (how long after the last, what was dropped, what added),
drawn anew below the same shared prefixes. None of its block ids means what it meant in the real one. Then show both
side by side. The same trace, number of requests and seed make the same file.`,
		Example: `  quire trace generate conversation_trace.jsonl --out made.jsonl
  quire trace generate conversation_trace.jsonl --out long.jsonl --requests 200000 --seed 7`,
		Args: exactly("TRACE"),
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "", "write the trace to this `file`, which must not exist")
	f.IntVar(&requests, "requests", 0, "make this `number` of requests; 0: as many as the real trace has")
	f.Uint64Var(&o.Seed, "seed", 1, "`number` that decides what is drawn")
	f.Float64Var(&o.MeanArrival, "arrival", replay.DefaultMeanArrival, "mean `seconds` between starts of conversations, where a trace does not tell")
	cmd.RunE = a.action(func(_ context.Context, args []string) error {
		if out == "" {
			return usagef("--out is missing: the file to write")
		}
		source, err := loadTrace(args[0], o)
		if err != nil {
			return err
		}
		made, err := replay.FitTo(source).Generate(requests, o.Seed)
		if err != nil {
			return usagef("%v", err)
		}
		if err := writeTrace(out, made); err != nil {
			return err
		}
		w, err := replay.FromRequests("made", made)
		if err != nil {
			return err
		}
		all := []namedStats{{source.Name, replay.StatsOf(source)}, {w.Name, replay.StatsOf(w)}}
		return a.print(all, func(o io.Writer) error { return writeStats(o, all) })
	})
	return cmd
}

func writeTrace(path string, requests []replay.Request) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	return replay.WriteMooncake(f, requests)
}

// loadTrace loads a trace that has something to replay.
func loadTrace(path string, o replay.LoadOptions) (*replay.Workload, error) {
	if o.PageTokens == 0 {
		return nil, usagef("--page-tokens 0: write how many tokens a page has")
	}
	w, err := replay.LoadFile(path, o)
	switch {
	case err != nil:
		return nil, err
	case len(w.Requests) == 0:
		return nil, fmt.Errorf("%s: there is no request in it", path)
	case w.Pages() == 0:
		return nil, fmt.Errorf("%s: no request has as many as %d tokens, so there are no pages; write fewer with --page-tokens", path, w.PageTokens)
	}
	return w, nil
}

// namedStats is what a trace is like.
type namedStats struct {
	Name string `json:"name"`
	replay.Stats
}

// writeStats is one column for each trace.
func writeStats(w io.Writer, all []namedStats) error {
	head := []string{""}
	for _, s := range all {
		head = append(head, s.Name)
	}
	t := newTable(head...)
	line := func(what string, of func(s *replay.Stats) string) {
		cells := []string{what}
		for i := range all {
			cells = append(cells, of(&all[i].Stats))
			t.numbers(i + 1)
		}
		t.row(cells...)
	}
	share := func(what string, of func(s *replay.Stats) float64) {
		line(what, func(s *replay.Stats) string { return percent(of(s)) })
	}
	count := func(what string, of func(s *replay.Stats) float64) {
		line(what, func(s *replay.Stats) string { return countText(uint64(math.Round(of(s)))) })
	}
	seconds := func(what string, of func(s *replay.Stats) float64) {
		line(what, func(s *replay.Stats) string { return fmt.Sprintf("%.1f s", of(s)) })
	}
	count("requests", func(s *replay.Stats) float64 { return float64(s.Requests) })
	seconds("from first to last", func(s *replay.Stats) float64 { return s.Seconds })
	count("page accesses", func(s *replay.Stats) float64 { return float64(s.Accesses) })
	count("different pages", func(s *replay.Stats) float64 { return float64(s.Pages) })
	line("pages of a request, mean", func(s *replay.Stats) string { return fmt.Sprintf("%.1f", s.MeanPages) })
	count("  one in ten has more than", func(s *replay.Stats) float64 { return float64(s.PagesP90) })
	share("hits of a cache without end", func(s *replay.Stats) float64 { return s.HitRate })
	share("  of LRU with 1 % of the pages", func(s *replay.Stats) float64 { return s.LRU1 })
	share("  of LRU with 5 %", func(s *replay.Stats) float64 { return s.LRU5 })
	share("  of LRU with 20 %", func(s *replay.Stats) float64 { return s.LRU20 })
	seconds("between uses of a page, 1 in 10 below", func(s *replay.Stats) float64 { return s.GapP10 })
	seconds("  half below", func(s *replay.Stats) float64 { return s.GapP50 })
	seconds("  9 in 10 below", func(s *replay.Stats) float64 { return s.GapP90 })
	share("pages used once", func(s *replay.Stats) float64 { return s.UsedOnce })
	share("accesses to the most used 1 % of pages", func(s *replay.Stats) float64 { return s.Top1Percent })
	share("accesses below the 10 most used roots", func(s *replay.Stats) float64 { return s.TopFamilies })
	share("roots for each request", func(s *replay.Stats) float64 { return s.Families })
	return t.write(w)
}
