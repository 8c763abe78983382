package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/internal/demo"
	"github.com/quire-kv/quire/internal/playback"
	"github.com/quire-kv/quire/internal/sysmem"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// playOptions are the flags of quire trace play.
type playOptions struct {
	load      replay.LoadOptions
	model     string
	policy    string
	pageBytes sysmem.Bytes
	requests  int
	speed     float64
	inFlight  int
	fetch     bool
	answers   bool
}

// Bounds and defaults of a play.
const (
	smallPageBytes = 16 << 10 // about what a page has: a server has records for as many as fit its memory, and not for more
	maxPageBytes   = 64 << 20
	heldEvery      = 64 // requests between two looks at what the store holds
	maxInFlight    = 1024
	maxPlaySpaces  = 1024
)

func (a *app) tracePlayCommand() *cobra.Command {
	var o playOptions
	cmd := &cobra.Command{
		Use:   "play TRACE",
		Short: "Play a trace against a server, and compare with what replay predicts",
		Long: `Play the requests of a trace against the server at --server as an engine would make them: look up the pages of the
prompt with a lease, use those that are there, publish the rest. Then replay the same requests through the policy, in the
order and at the times at which the server says that it decided them, and show both.

The replay takes what the server says of itself: its policy, shards, records and the memory with which the policy may
watch pages; and of each tier as many pages as it held at most. A server that has an eviction_seed is predicted page by
page. Of another nobody knows what it draws: then there are several predictions, each with draws of its own.

Pages are small, so that a server with little memory shows what one with much would do; what they cost is what those of
--model do. Each namespace of a recording has one of its own, all are retired at the end. What else the server holds or
serves meanwhile takes room that the prediction does not know of.

--speed 1 keeps the times of the trace; at --speed 100 everything comes a hundred times as fast, and pages wait a hundredth
of the time to be used again. That changes nothing for a policy that goes by order, as lru does. One that learns how long
pages wait, as vbr does, has it in the prediction too, but sees no less than a 64th of a second. --speed 0 waits for
nothing but the server's answers. With --in-flight above 1 requests overlap: between its lookup and its publication each
waits as long as a prefill of what was not there takes, at the same speed.`,
		Example: `  quire trace play conversation_trace.jsonl
  quire trace play conversation_trace.jsonl --speed 60 --fetch
  quire trace play recorded.jsonl --page-tokens 16 --page-bytes 4KiB --speed 20 --in-flight 32
  quire trace play conversation_trace.jsonl --policy lru --requests 2000 --server cache-1:7000 -o json`,
		Args: exactly("TRACE"),
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "70b", "the `model` whose costs count: 8b, 70b, mla, a spec's file or example:NAME, which must have a shape")
	f.StringVar(&o.policy, "policy", "", "`name` of the policy to predict with; empty: the one that the server evicts by")
	f.Var(&o.pageBytes, "page-bytes", "`size` of the payload of a page, a multiple of two bytes for each of its tokens; 0: about 16KiB")
	f.IntVar(&o.requests, "requests", 0, "play this `number` of requests, the first ones; 0: all")
	f.Float64Var(&o.speed, "speed", 0, "how many `times` as fast as in the trace requests come; 0: as fast as the server answers")
	f.IntVar(&o.inFlight, "in-flight", 1, "`number` of requests that may be under way at once")
	f.BoolVar(&o.fetch, "fetch", false, "get the bytes of the pages that are there too, and compare them")
	f.BoolVar(&o.answers, "answers", true, "tell the server how long each answer was, when it has ended: 30 ms of the trace for each of its tokens after the request")
	traceFlags(cmd, &o.load)
	f.Uint64Var(&o.load.Seed, "seed", 1, "`number` that decides what is drawn at random: arrivals, and samples of the predicting policy")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error { return a.tracePlay(ctx, args[0], o) })
	return cmd
}

func (o *playOptions) check() error {
	unit := playback.PageUnit(o.load.PageTokens)
	if unit == 0 {
		return usagef("--page-tokens 0: write how many tokens a page has")
	}
	if o.pageBytes == 0 {
		o.pageBytes = sysmem.Bytes(max(1, smallPageBytes/unit) * unit)
	}
	switch {
	case o.pageBytes%sysmem.Bytes(unit) != 0 || o.pageBytes > maxPageBytes:
		return usagef("--page-bytes %v: pages of %d tokens have a multiple of %d bytes, up to %d", o.pageBytes, o.load.PageTokens, unit, maxPageBytes)
	case o.inFlight < 1 || o.inFlight > maxInFlight:
		return usagef("--in-flight %d is not between 1 and %d", o.inFlight, maxInFlight)
	case o.requests < 0:
		return usagef("--requests %d is negative", o.requests)
	case !(o.speed >= 0) || math.IsInf(o.speed, 0):
		return usagef("--speed %g: write how many times as fast, or 0", o.speed)
	case !(o.load.MeanArrival > 0) || math.IsInf(o.load.MeanArrival, 0):
		return usagef("--arrival %g: write seconds above 0", o.load.MeanArrival)
	}
	return nil
}

func (a *app) tracePlay(ctx context.Context, path string, o playOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	var chosen []replay.Named
	if o.policy != "" {
		var err error
		if chosen, err = (&replayOptions{policies: []string{o.policy}}).chosen(); err != nil {
			return err
		}
	}
	model, _, err := a.replayModel(o.model)
	if err != nil {
		return err
	}
	w, err := loadTrace(path, o.load)
	if err != nil {
		return err
	}
	if o.requests > 0 && o.requests < len(w.Requests) {
		w.Requests = w.Requests[:o.requests]
	}
	if n := w.Namespaces(); n > maxPlaySpaces {
		return usagef("%s has %d namespaces; at most %d are played", path, n, maxPlaySpaces)
	}
	r, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	p := tracePlaying{a: a, o: &o, w: w, remote: r}
	err = p.open(ctx, model)
	if err == nil {
		err = p.play(ctx)
	}
	if err = errors.Join(err, p.close(ctx)); err != nil {
		return err
	}
	report := p.report()
	report.Trace, report.Server, report.Model = w.Name, a.server, filepath.Base(o.model)
	if err := p.predict(ctx, chosen, &report); err != nil {
		return err
	}
	return a.print(&report, report.write)
}

// tracePlaying is one play.
type tracePlaying struct {
	a        *app
	o        *playOptions
	w        *replay.Workload
	costs    []float64
	group    page.GroupID
	remote   *remote
	sessions []*client.Session // of each namespace
	played   playback.Result
	took     time.Duration
	seen     seen
}

// open opens the namespaces, which nobody used before.
func (p *tracePlaying) open(ctx context.Context, model *namespace.Spec) error {
	run := make([]byte, 8)
	if _, err := rand.Read(run); err != nil {
		return err
	}
	for n := range p.w.Namespaces() {
		spec, err := playback.Spec(model, p.w.Name, fmt.Sprintf("%s %d", hex.EncodeToString(run), n), p.o.load.PageTokens, int(p.o.pageBytes))
		if err != nil {
			return usagef("%s: %v", p.o.model, err)
		}
		if n == 0 {
			shape, _ := cost.ShapeOf(spec) // that of the model
			p.costs, p.group = p.w.Costs(shape), spec.Groups[0].ID()
		}
		s, err := p.remote.Open(ctx, spec)
		if err != nil {
			return err
		}
		p.sessions = append(p.sessions, s)
	}
	return nil
}

func (p *tracePlaying) play(ctx context.Context) (err error) {
	bar := p.a.progress(len(p.w.Requests), "play")
	defer bar.end()
	system := clock.System()
	o := playback.Options{Group: p.group, Fetch: p.o.fetch, Untold: !p.o.answers, InFlight: p.o.inFlight, Clock: system}
	if o.Start, err = p.begin(ctx, system); err != nil {
		return err
	}
	began := time.Now()
	if p.o.speed > 0 {
		o.Before = func(ctx context.Context, _ int, seconds float64) error {
			return wait(ctx, time.Duration(seconds/p.o.speed*float64(time.Second))-time.Since(began))
		}
	}
	if p.o.speed > 0 && p.o.inFlight > 1 {
		o.Compute = func(ctx context.Context, flops float64) error {
			return wait(ctx, time.Duration(flops/demo.DefaultFLOPS/p.o.speed*float64(time.Second)))
		}
	}
	done := 0
	o.After = func(ctx context.Context, _ int, _ *playback.Result) error {
		bar.step()
		if done++; done%heldEvery != 1 {
			return nil
		}
		return p.look(ctx)
	}
	p.played, err = playback.Play(ctx, p.w, p.costs, p.sessions, o)
	p.took = time.Since(began)
	return errors.Join(err, p.look(ctx))
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// close gives the room back, also when the play was ended.
func (p *tracePlaying) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.a.timeout)
	defer cancel()
	var all []error
	for _, s := range p.sessions {
		id := s.ID()
		all = append(all, s.Close())
		_, err := p.remote.namespaces.Drain(ctx, &quirev1.DrainRequest{Id: id[:]})
		if err == nil {
			_, err = p.remote.namespaces.Retire(ctx, &quirev1.RetireRequest{Id: id[:]})
		}
		if err != nil {
			all = append(all, fmt.Errorf("retire namespace %v: %w", id, err))
		}
	}
	return errors.Join(all...)
}
