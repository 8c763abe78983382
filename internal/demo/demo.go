// Package demo shows Quire at its main job: it starts a real server with real tokens, acts as two inference engines
// that replay a request trace through it with every byte checked, and then provokes each refusal and shows its reason.
//
//	trace ──> engine A (TP4) ──┐                    ┌── BatchExists with lease, Fetch of the prefix,
//	      └─> engine B (TP2/1) ┴─ shared memory ──> server   publish of the rest
//	                                                └── then: every way to be refused
//
// With a data directory the pages outlive it: the next demo on the same directory starts warm.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/internal/bench"
	"github.com/quire-kv/quire/internal/cost"
)

// Defaults of Options.
const (
	DefaultMemoryBytes = 1 << 30
	DefaultDiskBytes   = 8 << 30 // holds what the built-in trace asks for
	// DefaultFLOPS is of the accelerators whose time is saved.
	DefaultFLOPS = cost.DefaultFLOPS

	memcpyDuration = 300 * time.Millisecond
	memcpyArena    = 256 << 20 // beyond most caches, and quick to fill
	minMemoryBytes = 64 << 20  // two windows of pages, and room to turn them over
	minDiskBytes   = 256 << 20
)

// OptionError is an option that cannot be: what is wrong, and what to write.
type OptionError string

func (e OptionError) Error() string { return string(e) }

func optionf(format string, args ...any) error { return OptionError(fmt.Sprintf(format, args...)) }

// Options of a demo. Zero values are defaults.
type Options struct {
	Trace       io.Reader // requests in the Mooncake format; default the slice that is built in
	TraceName   string    // shown; default "mooncake conversation, first 800 requests"
	Requests    int       // replay so many at most; 0: all
	MemoryBytes uint64    // of the server's pages; default 1 GiB
	DataDir     string    // keeps pages, namespaces and tokens for the next demo; empty: all is in memory
	DiskBytes   uint64    // of the disk tier in DataDir; default 8 GiB
	FLOPS       float64   // of the accelerators whose time is saved, per second; default DefaultFLOPS
	Progress    func()    // called after each request; nil: nobody is told
	Version     string    // of this program
}

func (o *Options) fill() error {
	if o.Trace == nil {
		o.Trace, o.TraceName = replay.ConversationSlice(), "mooncake conversation, first 800 requests"
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = DefaultMemoryBytes
	}
	if o.DiskBytes == 0 {
		o.DiskBytes = DefaultDiskBytes
	}
	if o.FLOPS == 0 {
		o.FLOPS = DefaultFLOPS
	}
	if o.Progress == nil {
		o.Progress = func() {}
	}
	switch {
	case o.Requests < 0:
		return optionf("--requests %d: write a number from 1, or leave it out for all", o.Requests)
	case o.MemoryBytes < minMemoryBytes:
		return optionf("--memory: %d bytes are too few; write 64MiB or more", o.MemoryBytes)
	case o.DataDir != "" && o.DiskBytes < minDiskBytes:
		return optionf("--disk: %d bytes are too few; write 256MiB or more", o.DiskBytes)
	case !(o.FLOPS > 0):
		return optionf("--flops %g: write a positive number, for example %g", o.FLOPS, DefaultFLOPS)
	}
	return nil
}

// Run carries out a demo. It returns when everything it started has ended, also when ctx ends in the middle. The
// report says whether what was seen is what is promised: see Problems.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	w, err := openWorld(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	r := newReport(&o, w)
	if err := w.replay(ctx, &o, r); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	view := int(r.Model.StoredPageBytes) / engineA.tp(0)
	if r.Speed.MemcpyGBs, err = bench.Memcpy(ctx, view, windowPages, memcpyArena, memcpyDuration); err != nil {
		return nil, err
	}
	r.finish(w)
	if r.Refusals, err = w.refusals(ctx); err != nil {
		return nil, fmt.Errorf("refusals: %w", err)
	}
	return r, nil
}
