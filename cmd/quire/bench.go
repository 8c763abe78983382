package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/quire-kv/quire/internal/bench"
	"github.com/quire-kv/quire/internal/daemon"
	"github.com/quire-kv/quire/internal/sysmem"
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
		{"shm", "Fetch, map, publish and ask over shared memory", `Fetch, map, publish and ask over shared memory, a row for each kind of call and size of page; a server of its own holds
1 GiB of pages. Every byte is verified. "staged" is published from a staging area that is filled already, "publish" from the
caller's own memory.`},
		{"data", "Fetch, publish and ask over data connections", `Fetch, publish and ask over data connections on loopback, a row for each kind of call and size of page; a server of its
own holds 1 GiB of pages. Every byte is verified. "bare" is a loop of writev and recv over sockets of the same kind,
with nothing of Quire in between.`},
		{"disk", "Publish to disk, overwrite a full disk tier, read from it", `Measure the disk tier in a directory that is removed at the end: pages published durably, beside direct writes to a file
of the same disk ("durable", "durable_2" with two callers); pages overwritten and deleted at 90 % full until five
capacities are written ("churn"); pages fetched that are on disk alone, with the kernel's page cache warm ("hot").
Writes some fifteen times --disk.`},
		{"restart", "Kill a server with a million pages on disk and start it again", `Store many small pages on disk, kill the server and start it again on the same directory: how long from exec to the
last right answer of exists over all pages. The kernel's page cache stays warm. A page takes 8 KiB of disk.`},
		{"mixed", "Read, write, delete and evict together for a long time", `Let readers, writers and deletes at a server that is far too small for what they use, with a disk tier below it, and
watch: every byte that is read, the server's resident memory, what its tiers hold, and latencies. Says how it goes now
and then on standard error.`},
		{"hash", "Hash the page chain of a prompt of a million tokens", "Hash 62,500 links of 16 tokens by the rules of SGLang and vLLM, on one core."},
		{"index", "Ask the index of one shard directly", "Ask the index of one shard directly, on one core: with a thousand and with many pages, half of the keys missing."},
		{"kernels", "Copy, sum and permute pages on one core", "Copy with a checksum, sum in place, and permute between an engine's order and head-major, both ways: pages of 1 MiB out of 1 GiB, on one core."},
	} {
		cmd.AddCommand(a.benchOne(b.name, b.short, b.long))
	}
	cmd.AddCommand(a.serveChildCommand())
	return cmd
}

func (a *app) benchOne(name, short, long string) *cobra.Command {
	var o bench.Options
	memory, disk := sysmem.Bytes(bench.DefaultMemoryBytes), sysmem.Bytes(bench.DefaultDiskBytes)
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Args: exactly(),
		Example: "  quire bench " + name + "\n  quire bench " + name + " " + benchExample(name) + " -o json",
	}
	f := cmd.Flags()
	of := func(names ...string) bool { return slices.Contains(names, name) }
	if !of("mixed") {
		f.IntVar(&o.Rounds, "rounds", 0, "`number` of measured rounds, after one that is not (default 5; hash 25, restart 3)")
	}
	if of("exists", "fetch", "publish", "index", "restart") {
		f.IntVar(&o.Resident, "resident", 0, "`number` of pages in the store (default 1024; publish 2048, exists 1000, restart 1000000, index 4000000)")
	}
	if !of("hash", "restart") {
		f.DurationVar(&o.Duration, "duration", 0, "`time` of one round (default 2s; shm and data 1s, mixed 10m)")
	}
	if of("exists", "fetch", "publish", "disk", "mixed") {
		f.IntVar(&o.PageBytes, "page-bytes", 0, "`number` of payload bytes of a page (default 1 MiB; exists 4 KiB, mixed 256 KiB)")
	}
	if of("exists", "fetch", "publish", "mixed") {
		f.IntVar(&o.InFlight, "in-flight", 0, "`number` of calls at once (default 8; publish 1, mixed 4)")
	}
	if of("exists", "fetch", "publish", "disk") {
		f.IntVar(&o.Batch, "batch", 0, "`number` of pages or keys of one call (default 1; publish and disk 16, exists 128)")
	}
	if !of("hash", "index", "kernels", "restart") {
		f.StringVar(&o.ProfileDir, "profile", "", "write CPU profiles into this `directory`: client.pprof, and server.pprof where there are two processes; of several servers the last remains")
	}
	if of("shm", "data", "disk") {
		f.StringSliceVar(&o.Rows, "rows", nil, "measure these `rows` alone, names with commas between")
	}
	if of("disk", "restart", "mixed") {
		f.StringVar(&o.Dir, "dir", "", "make the data directory in this `directory`; it is removed at the end (default the working directory)")
	}
	if of("mixed") {
		f.Var(&memory, "memory", "`size` of the host tier")
	}
	if of("disk", "mixed") {
		f.Var(&disk, "disk", "`size` of the disk tier")
	}
	if of("disk") {
		f.Float64Var(&o.Full, "full", 0, "`share` of the tier that is kept full of live pages while it is overwritten (default 0.9)")
	}
	if of("restart") {
		f.BoolVar(&o.Orderly, "orderly", false, "stop the server instead of killing it")
	}
	if of("restart", "mixed") {
		f.StringVar((*string)(&o.Transport), "transport", "", "`name` of the transport: shm, data, grpc (default the best that can be had)")
	}
	remote := false
	if of("exists", "fetch") {
		f.BoolVar(&remote, "remote", false, "measure the server at --server instead of one of its own; it is sent the resident pages")
		f.BoolVar(&o.InProcess, "in-process", false, "run the server in this process instead of one of its own")
	}
	cmd.RunE = a.action(func(ctx context.Context, _ []string) error {
		if remote {
			o.Remote = a.clientOptions()
		}
		o.MemoryBytes, o.DiskBytes = int64(memory), int64(disk)
		return a.bench(ctx, name, o)
	})
	return cmd
}

// benchExample is flags that somebody may want.
func benchExample(name string) string {
	switch name {
	case "shm", "data":
		return "--rows fetch_16,publish_16"
	case "disk":
		return "--dir /var/tmp --disk 8GiB"
	case "restart":
		return "--resident 100000"
	case "mixed":
		return "--duration 1m"
	}
	return "--rounds 9"
}

// clientOptions are the global flags for a client of pages.
func (a *app) clientOptions() client.Options {
	return client.Options{Address: a.server, TokenFile: a.tokenFile, CAFile: a.ca, CertFile: a.cert, KeyFile: a.key, Insecure: a.insecure}
}

func (a *app) bench(ctx context.Context, name string, o bench.Options) error {
	if name == "index" {
		ballast := daemon.RareCollections(a.getenv) // as in the server, whose index it is
		defer runtime.KeepAlive(ballast)
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
	o.Say = func(line string) { fmt.Fprintln(a.errOut, line) }
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
		Use: serveChildName + " NODE", Short: "Serve a benchmark of another process", Hidden: true, Args: exactly("NODE"),
		RunE: a.action(func(ctx context.Context, args []string) error {
			return bench.Serve(ctx, args[0], a.in, a.out)
		}),
	}
}
