// Package bench measures Quire: closed loops against a server of its own or one that runs already, each beside what a
// plain copy of the same bytes does on this machine in the same seconds. Absolute figures move with what else a machine
// does; ratios taken in one round, CPU seconds and counts are what to compare.
//
//	parent                                                        child (hidden command, Serve)
//	  client, memcpy reference  ──gRPC, data connections, shm──>    server, store, tiers
//	  meter                     ──stdin──────────────────────────>  meter: usage, fill, profile      (its end is the child's end)
package bench

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/quire-kv/quire/store/client"
)

// Defaults and bounds of Options.
const (
	DefaultMemoryBytes = 512 * mib
	DefaultDiskBytes   = 2048 * mib

	maxInFlight = 4096
	maxRounds   = 1000
	maxBatch    = 16_384 // keys: what a server takes by default
	maxResident = 1 << 26
	maxPage     = 256 << 20
	mib         = 1 << 20
	pageUnit    = 4 << 10 // page bytes are a multiple: 8 heads x 8 layers x 16 tokens x 2 components x 2 bytes
)

// OptionError is an option that cannot be: what is wrong, and what to write.
type OptionError string

func (e OptionError) Error() string { return string(e) }

func optionf(format string, args ...any) error { return OptionError(fmt.Sprintf(format, args...)) }

// Options of every benchmark. Zero values are defaults, which differ from one to the other where the comment says so.
type Options struct {
	PageBytes int           // payload of one page, a multiple of 4 KiB; default 1 MiB, exists and restart 4 KiB, mixed 256 KiB
	InFlight  int           // calls at once; default 8, publish 1, mixed 4
	Batch     int           // pages of one call; default 1, publish and disk 16, exists 128 keys
	Resident  int           // pages in the store; default 1,024, publish 2,048, exists 1,000, restart 1,000,000, index 4,000,000
	Duration  time.Duration // of one measured round; default 2 s, shm and data 1 s, mixed 10 m
	Rounds    int           // measured; default 5, hash 25, restart 3, after one that is not
	Rows      []string      // of shm, data and disk: these alone; default all

	MemoryBytes int64            // of the host tier of mixed; default 512 MiB
	DiskBytes   int64            // of the disk tier of disk and mixed; default 2 GiB
	Full        float64          // of disk: the share of the tier that is kept full of live pages while it is overwritten; default 0.9
	Dir         string           // where disk, restart and mixed make a directory, removed at the end; default the working directory
	Orderly     bool             // restart: the server is stopped instead of killed
	Transport   client.Transport // of restart and mixed; the others have theirs

	// Child is the command line of a process that runs Serve, so that client and server are apart.
	Child []string
	// InProcess puts the server into this process: one CPU account for both sides.
	InProcess bool
	// Remote measures a server that runs already; its address makes it so. What only its process knows is left out.
	Remote client.Options

	ProfileDir string              // files client.pprof and server.pprof are written here; empty: none
	Progress   func(done, all int) // rounds, the unmeasured one included; nil: nobody is told
	Say        func(line string)   // mixed: how it goes, now and then; nil: nobody is told

	arena      int     // bytes of the reference; tests have less
	capacities float64 // that churn writes; likewise
}

// Report is what a benchmark found.
type Report struct {
	Bench      string         `json:"bench"`
	Machine    Machine        `json:"machine"`
	Parameters map[string]any `json:"parameters"`
	Figures    []Figure       `json:"figures"`
}

// Machine is where it ran.
type Machine struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	Go         string `json:"go"`
	CPUs       int    `json:"cpus"`
	GOMAXPROCS int    `json:"gomaxprocs"`
}

func thisMachine() Machine {
	return Machine{runtime.GOOS, runtime.GOARCH, runtime.Version(), runtime.NumCPU(), runtime.GOMAXPROCS(0)}
}

// Run carries out the benchmark called name: one of benches.
func Run(ctx context.Context, name string, o Options) (*Report, error) {
	run, ok := benches()[name]
	if !ok {
		return nil, fmt.Errorf("no benchmark %q", name)
	}
	o.fill(name)
	if err := o.check(); err != nil {
		return nil, err
	}
	r := &Report{Bench: name, Machine: thisMachine(), Parameters: o.parameters(name)}
	figures, err := run(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("bench %s: %w", name, err)
	}
	r.Figures = figures
	return r, nil
}

func benches() map[string]func(context.Context, *Options) ([]Figure, error) {
	return map[string]func(context.Context, *Options) ([]Figure, error){
		"exists": benchExists, "fetch": benchFetch, "publish": benchPublish, "hash": benchHash, "index": benchIndex, "kernels": benchKernels,
		"shm": benchRows(client.SharedMemory, shmRows()), "data": benchRows(client.Data, dataRows()),
		"disk": benchDisk, "restart": benchRestart, "mixed": benchMixed,
	}
}

func (o *Options) fill(name string) {
	o.PageBytes = cmp.Or(o.PageBytes, map[string]int{"exists": pageUnit, "restart": pageUnit, "mixed": 256 << 10}[name], mib)
	o.InFlight = cmp.Or(o.InFlight, map[string]int{"publish": 1, "mixed": 4}[name], 8)
	o.Batch = cmp.Or(o.Batch, map[string]int{"publish": 16, "disk": 16, "exists": 128}[name], 1)
	o.Resident = cmp.Or(o.Resident, map[string]int{"publish": 2048, "exists": 1000, "restart": restartPages, "index": 4_000_000}[name], 1024)
	o.Duration = cmp.Or(o.Duration, map[string]time.Duration{"shm": time.Second, "data": time.Second, "mixed": 10 * time.Minute}[name], 2*time.Second)
	o.Rounds = cmp.Or(o.Rounds, map[string]int{"hash": 25, "restart": 3}[name], 5)
	o.MemoryBytes = cmp.Or(o.MemoryBytes, DefaultMemoryBytes)
	o.DiskBytes = cmp.Or(o.DiskBytes, DefaultDiskBytes)
	o.Full = cmp.Or(o.Full, churnFull)
	o.arena = cmp.Or(o.arena, arenaBytes, 0)
	o.capacities = cmp.Or(o.capacities, churnWrites)
	if o.Progress == nil {
		o.Progress = func(int, int) {}
	}
	if o.Say == nil {
		o.Say = func(string) {}
	}
}

func (o *Options) check() error {
	for _, c := range []struct {
		name         string
		v, low, high int
	}{
		{"--page-bytes", o.PageBytes, pageUnit, maxPage}, {"--in-flight", o.InFlight, 1, maxInFlight},
		{"--batch", o.Batch, 1, maxBatch}, {"--resident", o.Resident, 2, maxResident}, {"--rounds", o.Rounds, 1, maxRounds},
	} {
		if c.v < c.low || c.v > c.high {
			return optionf("%s %d: write %d to %d", c.name, c.v, c.low, c.high)
		}
	}
	if o.PageBytes%pageUnit != 0 {
		return optionf("--page-bytes %d: write a multiple of %d", o.PageBytes, pageUnit)
	}
	if o.DiskBytes < 256*mib || o.MemoryBytes < 64*mib {
		return optionf("--disk: write 256MiB or more, and --memory 64MiB or more")
	}
	if !slices.Contains([]client.Transport{client.Auto, client.SharedMemory, client.Data, client.GRPC}, o.Transport) {
		return optionf("--transport %s: write shm, data or grpc, or leave it out", o.Transport)
	}
	if !(o.Full > 0 && o.Full <= 1) {
		return optionf("--full %g: write a share above 0, up to 1", o.Full)
	}
	if o.Duration < time.Millisecond || o.Duration > time.Hour {
		return optionf("--duration %v: write 1ms to 1h", o.Duration)
	}
	return nil
}

// parameters are the options that the benchmark looks at.
func (o *Options) parameters(name string) map[string]any {
	p := map[string]any{"rounds": o.Rounds}
	switch name {
	case "hash":
		return p
	case "shm", "data", "kernels":
		p["round_seconds"] = o.Duration.Seconds()
		return p
	case "disk":
		p["round_seconds"], p["disk_bytes"], p["page_bytes"] = o.Duration.Seconds(), o.DiskBytes, o.PageBytes
		p["batch"], p["full"] = o.Batch, o.Full
		return p
	case "restart":
		p["resident_pages"], p["orderly"] = o.Resident, o.Orderly
		return p
	case "mixed":
		return map[string]any{
			"seconds": o.Duration.Seconds(), "memory_bytes": o.MemoryBytes, "disk_bytes": o.DiskBytes, "page_bytes": o.PageBytes,
			"in_flight": o.InFlight, "chain_pages": chainPages, "transport": cmp.Or(o.Transport, "the best"),
		}
	}
	p["resident_pages"], p["round_seconds"] = o.Resident, o.Duration.Seconds()
	if name == "index" {
		return p
	}
	p["page_bytes"], p["batch"], p["in_flight"] = o.PageBytes, o.Batch, o.InFlight
	if name != "publish" {
		p["server"] = o.where()
	}
	return p
}

// where the server is.
func (o *Options) where() string {
	switch {
	case o.Remote.Address != "":
		return o.Remote.Address
	case o.InProcess:
		return "in process"
	}
	return "a process of its own"
}

// rounds runs one round for warmth and the measured ones, telling of progress.
func (o *Options) rounds(ctx context.Context, round func(measured bool) error) error {
	for i := range o.Rounds + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := round(i > 0); err != nil {
			return err
		}
		o.Progress(i+1, o.Rounds+1)
	}
	return nil
}
