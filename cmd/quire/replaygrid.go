package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/replay"
)

// replayReport is what quire replay found. Its JSON is stable.
type replayReport struct {
	Seed           uint64        `json:"seed"`
	PageTokens     uint32        `json:"page_tokens"`
	FLOPsPerSecond float64       `json:"flops_per_second"`
	Traces         []replayTrace `json:"traces"`
}

type replayTrace struct {
	Name     string       `json:"name"`
	Requests int          `json:"requests"`
	Accesses int          `json:"page_accesses"`
	Pages    int          `json:"pages"`    // different ones
	HitRate  float64      `json:"hit_rate"` // of a cache without end
	Models   []replayCost `json:"models"`
}

type replayCost struct {
	Name       string       `json:"name"`
	PageBytes  uint64       `json:"page_bytes"`
	FLOPs      float64      `json:"flops"`         // of all accesses
	Content    float64      `json:"content_flops"` // saved by a cache without end
	Capacities []replayCell `json:"capacities"`
}

type replayCell struct {
	Pages    int         `json:"capacity_pages"`
	Percent  float64     `json:"capacity_percent"` // of the different pages
	Disk     int         `json:"disk_pages"`       // of a tier below; 0: none
	Upper    float64     `json:"upper_flops"`      // certified bound
	Rounds   int         `json:"upper_rounds"`
	Belady   replayRow   `json:"belady"`
	Policies []replayRow `json:"policies"`
}

type replayRow struct {
	Policy       string  `json:"policy"`
	Hits         int     `json:"hit_pages"`
	HitRate      float64 `json:"hit_rate"`
	Saved        float64 `json:"saved_flops"`
	SavedSeconds float64 `json:"saved_seconds"`
	Written      int     `json:"written_pages"`
	WrittenBytes uint64  `json:"written_bytes"`  // to memory: taken in, and brought back from disk
	DiskHits     int     `json:"disk_hit_pages"` // of the hits, those that were on disk alone
	DiskBytes    uint64  `json:"disk_written_bytes"`
	Evicted      int     `json:"evicted_pages"`
	Refused      int     `json:"refused_pages"`
	Orphans      int     `json:"orphan_pages"`
	OfUpper      float64 `json:"of_upper"`
	OfContent    float64 `json:"of_content"`
	Decisions    string  `json:"decisions"`
}

// replay loads the traces one by one and replays each whole grid of models, capacities and policies on a few workers.
func (a *app) replay(ctx context.Context, traces []string, o replayOptions) error {
	if err := o.check(len(traces)); err != nil {
		return err
	}
	policies, err := o.chosen()
	if err != nil {
		return err
	}
	capacities, err := parseCapacities(o.capacities)
	if err != nil {
		return err
	}
	disk := []capacity{{}}
	if o.disk != "" {
		if disk, err = parseCapacities([]string{o.disk}); err != nil {
			return err
		}
	}
	models, err := a.replayModels(o.models)
	if err != nil {
		return err
	}
	bar := a.progress(len(traces)*len(models)*len(capacities)*(1+len(policies)), "replay")
	report := replayReport{Seed: o.load.Seed, PageTokens: o.load.PageTokens, FLOPsPerSecond: o.flops}
	for _, path := range traces {
		w, err := loadTrace(path, o.load)
		if err != nil {
			return err
		}
		g := grid{w: w, o: &o, policies: policies, bar: bar}
		if o.disk != "" {
			g.disk = disk[0].of(w.Pages())
		}
		t, err := g.run(ctx, models, capacities)
		if err != nil {
			return err
		}
		report.Traces = append(report.Traces, t)
	}
	bar.end()
	if o.plot != "" {
		if err := plotReplay(o.plot, &report); err != nil {
			return err
		}
	}
	return a.print(&report, report.write)
}

// grid is the replays of one trace.
type grid struct {
	w        *replay.Workload
	o        *replayOptions
	policies []replay.Named
	disk     int // pages; 0: no such tier
	bar      progress
}

func (g *grid) run(ctx context.Context, models []replayModel, capacities []capacity) (replayTrace, error) {
	t := replayTrace{Name: g.w.Name, Requests: len(g.w.Requests), Accesses: g.w.Accesses(), Pages: g.w.Pages()}
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(g.o.workers)
	t.Models = make([]replayCost, len(models))
	for i, m := range models {
		costs := g.costs(m)
		reuse := g.w.Reuse(costs)
		t.HitRate = ratio(float64(reuse.Hits), float64(reuse.Accesses))
		c := &t.Models[i]
		*c = replayCost{
			Name: m.name, PageBytes: g.pageBytes(m), FLOPs: reuse.FLOPs, Content: reuse.Saved,
			Capacities: make([]replayCell, len(capacities)),
		}
		for k, asked := range capacities {
			cell := &c.Capacities[k]
			cell.Pages, cell.Disk = asked.of(t.Pages), g.disk
			cell.Percent = 100 * ratio(float64(cell.Pages), float64(t.Pages))
			cell.Policies = make([]replayRow, len(g.policies))
			g.cell(ctx, workers, c, cell, costs)
		}
	}
	if err := workers.Wait(); err != nil {
		return t, fmt.Errorf("%s: %w", g.w.Name, err)
	}
	for i := range t.Models {
		t.Models[i].share()
	}
	return t, nil
}

// cell starts the replays of one capacity. Each writes into a place of its own.
func (g *grid) cell(ctx context.Context, workers *errgroup.Group, c *replayCost, cell *replayCell, costs []float64) {
	workers.Go(func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := replay.UpperBound(g.w, costs, cell.Pages+cell.Disk, g.o.rounds)
		cell.Upper, cell.Rounds = b.Upper, b.Rounds
		cell.Belady = g.row(replay.FeasibleBelady(g.w, costs, cell.Pages+cell.Disk), c)
		g.bar.step()
		return nil
	})
	for i, p := range g.policies {
		workers.Go(func() error {
			o := replay.Options{PageBytes: c.PageBytes, Fetch: true, Untold: !g.o.answers, Stop: ctx.Err}
			n := replay.Node{Host: cell.Pages, Disk: cell.Disk}
			if n.Disk > 0 {
				o.Loading = g.loading()
			}
			n.Policies = []evict.Policy{p.New(n.Host+n.Disk, g.w, g.o.load.Seed)}
			r, err := replay.ReplayNode(g.w, costs, n, o)
			if err != nil {
				return fmt.Errorf("%s with %d pages: %w", p.Name, cell.Pages, err)
			}
			r.Policy = p.Name
			cell.Policies[i] = g.row(r, c)
			g.bar.step()
			return nil
		})
	}
}

func (g *grid) pageBytes(m replayModel) uint64 { return max(1, m.tokenBytes*uint64(g.w.PageTokens)) }

func (g *grid) loading() evict.Loading {
	return evict.Loading{BytesPerSecond: float64(g.o.tierRate), FLOPSPerSecond: g.o.flops}
}

// costs are what each page saves: its recomputing, less its loading where the rate of the one tier is known.
func (g *grid) costs(m replayModel) []float64 {
	costs := g.w.Costs(m.shape)
	if g.disk > 0 { // taken off where a page is served from there
		return costs
	}
	loading := g.loading().FLOPs(g.pageBytes(m))
	for p := range costs {
		costs[p] = max(0, costs[p]-loading)
	}
	return costs
}

func (g *grid) row(r replay.Result, c *replayCost) replayRow {
	return replayRow{
		Policy: r.Policy, Hits: r.Hits, HitRate: ratio(float64(r.Hits), float64(g.w.Accesses())),
		Saved: r.Saved, SavedSeconds: r.Saved / g.o.flops,
		Written: r.Written, WrittenBytes: uint64(max(r.Written, r.WrittenTo[evict.Host])) * c.PageBytes,
		DiskHits: r.FromDisk, DiskBytes: uint64(r.WrittenTo[evict.Disk]) * c.PageBytes, Evicted: r.Evicted, Refused: r.Refused, Orphans: r.Orphans,
		Decisions: fmt.Sprintf("%016x", r.Decision),
	}
}

// share fills in how much of the bounds was reached.
func (c *replayCost) share() {
	for i := range c.Capacities {
		cell := &c.Capacities[i]
		of := func(r *replayRow) {
			r.OfUpper, r.OfContent = ratio(r.Saved, cell.Upper), ratio(r.Saved, c.Content)
		}
		of(&cell.Belady)
		for k := range cell.Policies {
			of(&cell.Policies[k])
		}
	}
}

// ratio is 0 of nothing.
func ratio(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}
