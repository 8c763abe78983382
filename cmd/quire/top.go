package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Bounds of the interval: below, the server would do more for top than for engines.
const (
	defaultTopInterval = time.Second
	minTopInterval     = 100 * time.Millisecond
)

func (a *app) topCommand() *cobra.Command {
	var once bool
	interval := defaultTopInterval
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch a live server: tiers, rates, hits, evictions, leases, tenants, engines",
		Long: `Watch a live server on a screen that is refreshed each second: how full its tiers are and what they evict, lookups, hits,
pages and bytes a second, leases and sessions, and below them namespaces, tenants or engine instances by use. Press ? there
for the keys. A server that is lost is tried again.

Without a terminal, on a dumb one, with --once or with -o json it watches for one interval, prints what it saw, and ends.
Needs the role operator or read-only.`,
		Example: `  quire top
  quire top --server gpu-1.example:7420 --ca ca.pem --token-file operator.token
  quire top --once
  quire top -o json | jq .per_second`,
		Args: exactly(),
	}
	cmd.Flags().BoolVar(&once, "once", false, "watch for one interval, print what was seen, and end")
	cmd.Flags().DurationVar(&interval, "interval", interval, "`time` between two looks at the server")
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		if interval < minTopInterval {
			return usagef("--interval %v is below %v", interval, minTopInterval)
		}
		if once || a.output == asJSON || !a.onTerminal() {
			return a.topOnce(ctx, interval)
		}
		return a.topScreen(ctx, interval)
	})
	return cmd
}

// onTerminal says whether a screen can be drawn and keys be read.
func (a *app) onTerminal() bool {
	if a.getenv("TERM") == "dumb" { // it moves no cursor
		return false
	}
	for _, f := range []any{a.in, a.out} {
		file, ok := f.(*os.File)
		if !ok || !term.IsTerminal(int(file.Fd())) {
			return false
		}
	}
	return true
}

// topOnce takes two samples, for rates, and prints.
func (a *app) topOnce(ctx context.Context, interval time.Duration) error {
	r, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	first, err := r.sampleWithin(ctx, a.timeout)
	if err != nil {
		return err
	}
	if !pause(ctx, interval) {
		return &exitError{exitFailure, "interrupted"}
	}
	second, err := r.sampleWithin(ctx, a.timeout)
	if err != nil {
		return err
	}
	m := newTopModel(a.server)
	m.learn(topNews{sample: first}, a.now())
	m.learn(topNews{sample: second}, a.now())
	return a.print(m.data, m.snapshot)
}

// snapshot writes all that the screen could show, as plain text.
func (m *topModel) snapshot(w io.Writer) error {
	write := func(lines []topLine) error {
		for _, l := range lines {
			if _, err := fmt.Fprintln(w, l.text()); err != nil {
				return err
			}
		}
		return nil
	}
	m.trail = nil // one interval is no curve
	lines := append(m.headLines(), nil)
	lines = append(append(lines, m.tierLines()...), nil)
	lines = append(append(lines, m.rateLines()...), m.reasonLines()...)
	for m.shown = range numTopTables {
		if t := m.table(); len(t.rows) > 0 {
			lines = append(lines, nil, headed(t.title))
			lines = append(lines, t.lines(0, len(t.rows), m.sorts[m.shown].column)...)
		}
	}
	return write(lines)
}
