package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/cost"
	"github.com/quire-kv/quire/internal/playback"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// playOptions are the flags of quire trace play.
type playOptions struct {
	load      replay.LoadOptions
	model     string
	policy    string
	pageBytes int
	requests  int
	speed     float64
	fetch     bool
}

// Bounds and defaults of a play.
const (
	smallPageBytes = 16 << 10 // about what a page has: a server has records for as many as fit its memory, and not for more
	maxPageBytes   = 64 << 20
	heldEvery      = 64 // requests between two looks at what the store holds
)

func (a *app) tracePlayCommand() *cobra.Command {
	var o playOptions
	cmd := &cobra.Command{
		Use:   "play TRACE",
		Short: "Play a trace against a server, and compare with what replay predicts",
		Long: `Play the requests of a trace against the server at --server, one after the other, as an engine would make them: look up
the pages of the prompt with a lease, use those that are there, publish the rest. Then replay the same requests, at the
times when they were made, through the policy over as many pages as the store held at most, and show both.

Pages are small, so that a server with little memory shows what one with much would do; what they cost is what those of
--model do. They are in a namespace of their own, which is retired at the end. What else the server holds or serves
meanwhile takes room that the prediction does not know of.

--speed 1 keeps the times of the trace; at --speed 100 everything comes a hundred times as fast, and pages wait a hundredth
of the time to be used again. That changes nothing for a policy that goes by order, as lru does. One that learns how long
pages wait, as vbr does, has it in the prediction too, but sees no less than a 64th of a second. --speed 0 waits for
nothing but the server's answers.`,
		Example: `  quire trace play conversation_trace.jsonl
  quire trace play conversation_trace.jsonl --speed 60 --fetch
  quire trace play conversation_trace.jsonl --policy lru --requests 2000 --server cache-1:7000 -o json`,
		Args: exactly("TRACE"),
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "70b", "the `model` whose costs count: 8b, 70b, mla, a spec's file or example:NAME, which must have a shape")
	f.StringVar(&o.policy, "policy", "vbr", "`name` of the policy that the server evicts by")
	f.IntVar(&o.pageBytes, "page-bytes", 0, "`number` of payload bytes of a page, a multiple of two for each of its tokens; 0: about 16384")
	f.IntVar(&o.requests, "requests", 0, "play this `number` of requests, the first ones; 0: all")
	f.Float64Var(&o.speed, "speed", 0, "how many `times` as fast as in the trace requests come; 0: as fast as the server answers")
	f.BoolVar(&o.fetch, "fetch", false, "get the bytes of the pages that are there too, and compare them")
	traceFlags(cmd, &o.load)
	f.Uint64Var(&o.load.Seed, "seed", 1, "`number` that decides what is drawn at random: arrivals, and samples of the predicting policy")
	cmd.RunE = a.action(func(ctx context.Context, args []string) error { return a.tracePlay(ctx, args[0], o) })
	return cmd
}

func (o *playOptions) check() error {
	unit := playback.PageUnit(o.load.PageTokens)
	if o.pageBytes == 0 {
		o.pageBytes = max(1, smallPageBytes/unit) * unit
	}
	switch {
	case o.pageBytes < unit || o.pageBytes%unit != 0 || o.pageBytes > maxPageBytes:
		return usagef("--page-bytes %d: pages of %d tokens have a multiple of %d bytes, up to %d", o.pageBytes, o.load.PageTokens, unit, maxPageBytes)
	case o.requests < 0:
		return usagef("--requests %d is negative", o.requests)
	case !(o.speed >= 0) || math.IsInf(o.speed, 0):
		return usagef("--speed %g: write how many times as fast, or 0", o.speed)
	case !(o.load.MeanArrival > 0) || math.IsInf(o.load.MeanArrival, 0):
		return usagef("--arrival %g: write seconds above 0", o.load.MeanArrival)
	}
	return nil
}

// playReport is what a play found. Its JSON is stable.
type playReport struct {
	Trace     string    `json:"trace"`
	Server    string    `json:"server"`
	Model     string    `json:"model"`
	Policy    string    `json:"policy"` // of the prediction
	Requests  int       `json:"requests"`
	Accesses  int       `json:"page_accesses"`
	FLOPs     float64   `json:"flops"` // of all accesses
	PageBytes int       `json:"page_bytes"`
	Seconds   float64   `json:"seconds"`        // that the play took
	Speed     float64   `json:"speed"`          // times as fast as in the trace, as it came out
	Held      int       `json:"held_pages"`     // at most
	Unleased  int       `json:"unleased_pages"` // hits beyond what a lease may hold
	Lost      int       `json:"lost_pages"`     // hits that could not be fetched
	Live      playShare `json:"live"`
	Predicted playShare `json:"predicted"`
	Ratio     float64   `json:"saved_of_predicted"`
}

type playShare struct {
	Hits    int     `json:"hit_pages"`
	HitRate float64 `json:"hit_rate"`
	Saved   float64 `json:"saved_flops"`
	Written int     `json:"written_pages"`
	Evicted int     `json:"evicted_pages"`
	Refused int     `json:"refused_pages"`
}

func (a *app) tracePlay(ctx context.Context, path string, o playOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	chosen, err := (&replayOptions{policies: []string{o.policy}}).chosen()
	if err != nil {
		return err
	}
	model, _, err := a.replayModel(o.model)
	if err != nil {
		return err
	}
	w, err := replay.LoadFile(path, o.load)
	if err != nil {
		return err
	}
	if o.requests > 0 && o.requests < len(w.Requests) {
		w.Requests = w.Requests[:o.requests]
	}
	run := make([]byte, 8)
	if _, err := rand.Read(run); err != nil {
		return err
	}
	spec, err := playback.Spec(model, w.Name, hex.EncodeToString(run), o.load.PageTokens, o.pageBytes)
	if err != nil {
		return usagef("%s: %v", o.model, err)
	}
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Open(ctx, spec)
	if err != nil {
		return err
	}
	shape, _ := cost.ShapeOf(spec) // that of the model
	p := tracePlaying{a: a, o: &o, w: w, costs: w.Costs(shape), client: c, session: s}
	err = p.play(ctx, spec.Groups[0].ID())
	if err := errors.Join(err, p.look(ctx), s.Close(), p.retire(ctx)); err != nil {
		return err
	}
	report := p.report()
	report.Trace, report.Server, report.Model, report.Policy = w.Name, a.server, filepath.Base(o.model), o.policy
	if err := p.predict(ctx, chosen[0], &report); err != nil {
		return err
	}
	return a.print(&report, report.write)
}

// tracePlaying is one play.
type tracePlaying struct {
	a       *app
	o       *playOptions
	w       *replay.Workload
	costs   []float64
	client  *client.Client
	session *client.Session
	played  playback.Result
	took    time.Duration
	held    int // pages, at most
	evicted int
}

func (p *tracePlaying) play(ctx context.Context, group page.GroupID) (err error) {
	bar := p.a.progress(len(p.w.Requests), "play")
	defer bar.end()
	o := playback.Options{Group: group, Fetch: p.o.fetch}
	began := time.Now()
	if p.o.speed > 0 {
		o.Before = func(ctx context.Context, _ int, seconds float64) error {
			return wait(ctx, time.Duration(seconds/p.o.speed*float64(time.Second))-time.Since(began))
		}
	}
	o.After = func(ctx context.Context, request int, _ *playback.Result) error {
		bar.step()
		if request%heldEvery != 0 {
			return nil
		}
		return p.look(ctx)
	}
	p.played, err = playback.Play(ctx, p.w, p.costs, p.session, o)
	p.took = time.Since(began)
	return err
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

// look asks what the store holds of the namespace.
func (p *tracePlaying) look(ctx context.Context) error {
	id := p.session.ID()
	r, err := p.client.Namespaces().Get(ctx, &quirev1.GetRequest{Id: id[:]})
	if err != nil {
		return fmt.Errorf("ask what the store holds: %w", err)
	}
	u := r.GetNamespace().GetUsage()
	p.held, p.evicted = max(p.held, int(u.GetPages())), int(u.GetEvictedPages())
	return nil
}

// retire gives the room back, also when the play was ended.
func (p *tracePlaying) retire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.a.timeout)
	defer cancel()
	id := p.session.ID()
	_, err := p.client.Namespaces().Drain(ctx, &quirev1.DrainRequest{Id: id[:]})
	if err == nil {
		_, err = p.client.Namespaces().Retire(ctx, &quirev1.RetireRequest{Id: id[:]})
	}
	if err != nil {
		return fmt.Errorf("retire namespace %v: %w", id, err)
	}
	return nil
}

func (p *tracePlaying) report() playReport {
	r, took := &p.played, p.took.Seconds()
	out := playReport{
		Requests: r.Requests, Accesses: r.Accesses, FLOPs: r.FLOPs, PageBytes: p.o.pageBytes, Seconds: took,
		Held: p.held, Unleased: r.Unleased, Lost: r.Lost,
		Live: playShare{
			Hits: r.Hits, HitRate: ratio(float64(r.Hits), float64(r.Accesses)), Saved: r.Saved,
			Written: r.Written, Evicted: p.evicted, Refused: r.NotWorth + r.NoRoom,
		},
	}
	if n := len(p.w.Requests); n > 0 {
		out.Speed = ratio(p.w.Requests[n-1].Seconds, took)
	}
	return out
}

// predict replays what was played.
func (p *tracePlaying) predict(ctx context.Context, policy replay.Named, out *playReport) error {
	room := p.held
	if p.evicted == 0 {
		room = p.w.Pages() // nobody knows how much more there was
	}
	predicted, err := playback.Predict(p.w, p.costs, &p.played, policy.New(room, p.w, p.o.load.Seed), room,
		replay.Options{PageBytes: uint64(p.o.pageBytes), Stop: ctx.Err})
	if err != nil {
		return err
	}
	out.Predicted = playShare{
		Hits: predicted.Hits, HitRate: ratio(float64(predicted.Hits), float64(out.Accesses)), Saved: predicted.Saved,
		Written: predicted.Written, Evicted: predicted.Evicted, Refused: predicted.Refused,
	}
	out.Ratio = ratio(out.Live.Saved, out.Predicted.Saved)
	return nil
}

// write is the report for people.
func (r *playReport) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s against %s: %s requests, %s page accesses, costs of %s, in %.1f s: %.3g times as fast as in the trace\n",
		r.Trace, r.Server, countText(uint64(r.Requests)), countText(uint64(r.Accesses)), r.Model, r.Seconds, r.Speed); err != nil {
		return err
	}
	full := "the store held %s pages of %s at most\n\n"
	if r.Live.Evicted == 0 {
		full = "the store held %s pages of %s and evicted none: the prediction has room for all\n\n"
	}
	if _, err := fmt.Fprintf(w, full, countText(uint64(r.Held)), bytesText(uint64(r.PageBytes))); err != nil {
		return err
	}
	t := newTable("", "live", "predicted: "+r.Policy).numbers(1, 2)
	row := func(what string, of func(s *playShare) string) { t.row(what, of(&r.Live), of(&r.Predicted)) }
	row("hits", func(s *playShare) string { return percent(s.HitRate) })
	row("FLOPs saved", func(s *playShare) string { return fmt.Sprintf("%.4g", s.Saved) })
	row("  of all", func(s *playShare) string { return percent(ratio(s.Saved, r.FLOPs)) })
	row("pages written", func(s *playShare) string { return countText(uint64(s.Written)) })
	row("pages evicted", func(s *playShare) string { return countText(uint64(s.Evicted)) })
	row("pages refused", func(s *playShare) string { return countText(uint64(s.Refused)) })
	if err := t.write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nlive saves %s of what is predicted\n", percent(r.Ratio))
	return err
}
