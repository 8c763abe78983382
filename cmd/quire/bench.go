package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/bench"
	"github.com/quire-kv/quire/internal/daemon"
	"github.com/quire-kv/quire/store/client"
)

// serveChildName is the hidden command that a benchmark runs as its server's process.
const serveChildName = "serve-child"

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine's Quire beside its memcpy",
		Long: `Measure in closed loops, each beside what a plain copy of the same bytes does in the same seconds. Every figure is the
median of several rounds with the least and the most; absolute figures move with what else the machine does, ratios
and CPU seconds much less. Goals are shown where they apply.`,
		Example: `  quire bench fetch
  quire bench exists --batch 1024 --resident 4000000
  quire bench publish -o json`,
	}
	for _, b := range []struct{ name, short, long string }{
		{"exists", "Ask which keys are stored, over gRPC", "Ask which keys are stored, half of which are, over gRPC. A server of its own keeps no payloads, so that millions of pages fit."},
		{"fetch", "Fetch pages over gRPC, every byte verified", "Fetch whole pages over gRPC into touched buffers, every byte verified by the client."},
		{"publish", "Publish pages within this process", "Publish whole pages within this process into a full store: copy, checksum, commit, and the eviction of others."},
		{"hash", "Hash the page chain of a prompt of a million tokens", "Hash 62,500 links of 16 tokens by the rules of SGLang and vLLM, on one core."},
		{"index", "Ask the index of one shard directly", "Ask the index of one shard directly, on one core: with a thousand and with many pages, half of the keys missing."},
	} {
		cmd.AddCommand(a.benchOne(b.name, b.short, b.long))
	}
	cmd.AddCommand(a.serveChildCommand())
	return cmd
}

func (a *app) benchOne(name, short, long string) *cobra.Command {
	var o bench.Options
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Args: exactly(),
		Example: "  quire bench " + name + "\n  quire bench " + name + " --rounds 9 -o json",
	}
	f := cmd.Flags()
	f.IntVar(&o.Rounds, "rounds", 0, "`number` of measured rounds, after one that is not (default 5; hash 25)")
	if name != "hash" {
		f.IntVar(&o.Resident, "resident", 0, "`number` of pages in the store (default 1024; publish 2048, exists 1000, index 4000000)")
		f.DurationVar(&o.Duration, "duration", 0, "`time` of one round (default 2s)")
	}
	if name != "hash" && name != "index" {
		f.IntVar(&o.PageBytes, "page-bytes", 0, "`number` of payload bytes of a page (default 1 MiB; exists 4 KiB)")
		f.IntVar(&o.InFlight, "in-flight", 0, "`number` of calls at once (default 8; publish 1)")
		f.IntVar(&o.Batch, "batch", 0, "`number` of pages or keys of one call (default 1; publish 16, exists 128)")
		f.StringVar(&o.ProfileDir, "profile", "", "write CPU profiles into this `directory`: client.pprof, and server.pprof where there are two processes")
	}
	remote := false
	if name == "exists" || name == "fetch" {
		f.BoolVar(&remote, "remote", false, "measure the server at --server instead of one of its own; it is sent the resident pages")
		f.BoolVar(&o.InProcess, "in-process", false, "run the server in this process instead of one of its own")
	}
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		if remote {
			o.Remote = a.clientOptions()
		}
		return a.bench(ctx, name, o)
	})
	return cmd
}

// clientOptions are the global flags for a client of pages.
func (a *app) clientOptions() client.Options {
	return client.Options{Address: a.server, TokenFile: a.tokenFile, CAFile: a.ca, CertFile: a.cert, KeyFile: a.key, Insecure: a.insecure}
}

func (a *app) bench(ctx context.Context, name string, o bench.Options) error {
	if name == "index" {
		daemon.RareCollections(a.getenv) // as in the server, whose index it is
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.Child = []string{self, "bench", serveChildName}
	bar := progress{}
	o.Progress = func(done, all int) {
		if done == 1 {
			bar = a.progress(all, "rounds")
		}
		bar.step()
	}
	r, err := bench.Run(ctx, name, o)
	bar.end()
	if err != nil {
		return measured(ctx, err)
	}
	return a.print(r, func(w io.Writer) error { return r.Write(w) })
}

// serveChildCommand is the server of a benchmark in a process of its own.
func (a *app) serveChildCommand() *cobra.Command {
	return &cobra.Command{
		Use: serveChildName + " BYTES", Short: "Serve a benchmark of another process", Hidden: true, Args: exactly("BYTES"),
		RunE: a.action(func(ctx context.Context, args []string) error {
			memoryBytes, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || memoryBytes < 0 {
				return usagef("BYTES %q: write the host tier's bytes, 0 for none", args[0])
			}
			return bench.Serve(ctx, memoryBytes, a.in, a.out)
		}),
	}
}
