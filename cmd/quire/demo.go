package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/bench"
	"github.com/quire-kv/quire/internal/demo"
	"github.com/quire-kv/quire/internal/sysmem"
)

func (a *app) demoCommand() *cobra.Command {
	var trace string
	memory, disk := sysmem.Bytes(demo.DefaultMemoryBytes), sysmem.Bytes(demo.DefaultDiskBytes)
	o := demo.Options{Version: version()}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a server and two engines over a real trace, check every byte, show every refusal",
		Long: `Run a server on a loopback port with tokens, and act as two inference engines that replay a request trace through
it: look up with a lease, fetch the prefix that is there with every byte checked, publish the rest, written by four
ranks and read by two and one, and the other way round. Then provoke each refusal and show its reason. Nothing is left
behind, unless --data names a directory that keeps the pages: the next demo on it starts warm. Exits 1 if a byte was
wrong or a refusal was not as expected.`,
		Example: `  quire demo
  quire demo --requests 100 -o json
  quire demo --data /var/tmp/quire-demo      # twice: the second one starts warm
  quire demo --trace conversation_trace.jsonl --memory 8GiB`,
		Args: exactly(),
	}
	cmd.Flags().StringVar(&trace, "trace", "", "`file` of requests in the Mooncake format, read as it goes (default the first 800 of the conversation trace)")
	cmd.Flags().IntVar(&o.Requests, "requests", 0, "replay at most this `number` of requests; 0: all")
	cmd.Flags().Var(&memory, "memory", "`size` of the server's pages; what does not fit is evicted")
	cmd.Flags().StringVar(&o.DataDir, "data", "", "`directory` that keeps pages, namespaces and tokens for the next demo")
	cmd.Flags().Var(&disk, "disk", "`size` of the disk tier in --data")
	cmd.Flags().Float64Var(&o.FLOPS, "flops", demo.DefaultFLOPS, "FLOP/s (`number`) of the accelerators whose time is saved: eight H100 at 40 %")
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		o.MemoryBytes, o.DiskBytes = uint64(memory), uint64(disk)
		if trace != "" {
			f, err := os.Open(trace)
			if err != nil {
				return fmt.Errorf("open the trace: %w", err)
			}
			defer f.Close()
			o.Trace, o.TraceName = f, trace
		}
		return a.demo(ctx, o)
	})
	return cmd
}

// builtInRequests is how many requests the built-in slice has; of another trace nobody knows before its end.
const builtInRequests = 800

func (a *app) demo(ctx context.Context, o demo.Options) error {
	all := o.Requests
	if o.Trace == nil && (all == 0 || all > builtInRequests) {
		all = builtInRequests
	} else if all == 0 {
		all = -1
	}
	bar := a.progress(all, "requests")
	o.Progress = bar.step
	r, err := demo.Run(ctx, o)
	bar.end()
	if err != nil {
		return measured(ctx, err)
	}
	if err := a.print(r, func(w io.Writer) error { return r.Write(w) }); err != nil {
		return err
	}
	if problems := r.Problems(); len(problems) > 0 {
		return &exitError{exitFailure, "not as promised: " + strings.Join(problems, "; ")}
	}
	return nil
}

// measured sorts an error of a demo or a benchmark: by the user's wish, by the user's mistake, or by itself.
func measured(ctx context.Context, err error) error {
	var ofDemo demo.OptionError
	var ofBench bench.OptionError
	switch {
	case ctx.Err() != nil:
		return &exitError{exitFailure, "interrupted; what was started has ended"}
	case errors.As(err, &ofDemo):
		return usagef("%s", ofDemo)
	case errors.As(err, &ofBench):
		return usagef("%s", ofBench)
	}
	return err
}
