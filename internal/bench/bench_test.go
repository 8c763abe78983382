package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childArg makes this test binary the server's process of a benchmark.
const childArg = "serve-child"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == childArg {
		os.Exit(serveChild(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

func serveChild(node string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := Serve(ctx, node, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// quick is as little of a benchmark as still does all that it does.
func quick() Options {
	return Options{
		PageBytes: 64 << 10, Resident: 200, Duration: 5 * time.Millisecond, Rounds: 2, InFlight: 2, Batch: 3,
		Child: []string{os.Args[0], childArg}, DiskBytes: 256 << 20, MemoryBytes: 64 << 20, arena: 16 << 20, capacities: 0.05,
	}
}

// promised are the figures that no machine is too slow for.
var promised = map[string]bool{"wrong_bytes": true, "pages_missing": true, "host_most_used": true, "disk_most_used": true, "churn_most_used": true}

func TestEveryBenchmarkRuns(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   []string
	}{
		{"hash", nil, []string{"sglang_sha256", "vllm_sha256_cbor"}},
		{"kernels", nil, []string{"copy_sum_of_memcpy", "sum_of_memcpy", "permute_sum_of_memcpy", "permute_check_of_memcpy", "memcpy"}},
		{"index", nil, []string{"rss_per_page", "keys_per_cpu_second_1024_of_200", "many_to_few_128", "collector_share_of_cpu_128"}},
		{"publish", nil, []string{"memcpy", "publish", "ratio_to_memcpy", "cpu_seconds_per_gb", "tp_slice_bytes_touched", "latency_p99"}},
		{"fetch", nil, []string{"memcpy", "fetch", "ratio_to_memcpy", "client_cpu_seconds_per_gb", "server_cpu_seconds_per_gb", "client_allocations_per_call", "latency_p50"}},
		{"fetch", func(o *Options) { o.InProcess = true }, []string{"cpu_seconds_per_gb", "allocations_per_call"}},
		{"exists", nil, []string{"keys_per_second", "keys_per_server_core_second", "server_rss_per_page", "server_collector_share_of_cpu"}},
		{"exists", func(o *Options) { o.InProcess = true }, []string{"keys_per_second", "latency_p90"}},
		{"shm", func(o *Options) {
			o.Rows = []string{"fetch_16", "mapped_16", "fetch_one", "staged_16", "publish_16", "exists_128", "small_staged_128"}
		}, []string{"fetch_16_ratio_to_memcpy", "mapped_16_rate", "fetch_one_p50_in_memcpys", "staged_16_rate", "publish_16_rate", "small_staged_128_rate", "exists_128_p50"}},
		{"data", func(o *Options) {
			o.Rows = []string{"bare", "fetch_16", "fetch_8_single", "publish_16", "exists_128_8"}
		}, []string{"bare_rate", "fetch_16_ratio_to_bare", "fetch_8_single_cpu_seconds_per_gb", "publish_16_ratio_to_memcpy", "exists_128_8_keys_per_second"}},
		{"disk", nil, []string{"durable_ratio_to_direct_writes", "durable_device_bytes_per_byte", "churn_device_bytes_per_byte", "churn_pages_kept", "hot_read_ratio_to_memcpy"}},
		{"mixed", func(o *Options) { o.Duration = 600 * time.Millisecond }, []string{"wrong_bytes", "read_p99", "durable_operations", "host_most_used", "rss_growth"}},
		{"restart", nil, []string{"restart", "pages_missing"}},
		{"restart", func(o *Options) { o.Orderly = true }, []string{"restart", "pages_missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, steps := quick(), 0
			o.Dir = t.TempDir()
			if c.change != nil {
				c.change(&o)
			}
			o.Progress = func(int, int) { steps++ }
			r, err := Run(t.Context(), c.name, o)
			if err != nil {
				t.Fatal(err)
			}
			if c.name != "mixed" && steps < o.Rounds+1 {
				t.Errorf("progress was told of %d rounds", steps)
			}
			for _, name := range c.want {
				i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Name == name })
				if i < 0 {
					t.Errorf("no figure %s in %+v", name, r.Figures)
				} else if f := r.Figures[i]; !(f.Min <= f.Median && f.Median <= f.Max) || f.Median < 0 {
					t.Errorf("%+v", f)
				}
			}
			for _, f := range r.Figures {
				if promised[f.Name] && !*f.Passed {
					t.Errorf("%s is %v, and must be %s", f.Name, f.Median, f.Goal)
				}
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
			var text bytes.Buffer
			if err := r.Write(&text); err != nil || !strings.Contains(text.String(), c.name+": ") {
				t.Errorf("%v: %s", err, text.String())
			}
		})
	}
}

// A slice of a page costs the slice's bytes and no others.
func TestSliceTouchesNoMore(t *testing.T) {
	r, err := Run(t.Context(), "publish", quick())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Figures {
		if f.Name == "tp_slice_bytes_touched" && f.Median != 1 {
			t.Errorf("%v slices were touched for one", f.Median)
		}
	}
}

// A server that runs already is filled through its front door and measured there.
func TestRemote(t *testing.T) {
	n, err := startNode(t.Context(), Node{MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer n.stop()
	o := quick()
	o.Remote.Address = n.address
	for _, name := range []string{"fetch", "exists"} {
		if _, err := Run(t.Context(), name, o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{
		{PageBytes: 1000}, {PageBytes: -1}, {InFlight: -1}, {Batch: 1 << 20}, {Resident: 1}, {Rounds: -1}, {Duration: 1},
		{Full: 2}, {Full: -1}, {Transport: "pigeon"}, {DiskBytes: 1}, {MemoryBytes: 1},
	} {
		if _, err := Run(t.Context(), "fetch", o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if _, err := Run(t.Context(), "shm", Options{Rows: []string{"fetch_17"}}); err == nil || !strings.Contains(err.Error(), "fetch_16") {
		t.Errorf("an unknown row: %v", err)
	}
	if _, err := Run(t.Context(), "speed", Options{}); err == nil {
		t.Error("an unknown benchmark runs")
	}
	if _, err := Run(t.Context(), "fetch", Options{}); err == nil || !strings.Contains(err.Error(), "no command") {
		t.Errorf("without a command for the server's process: %v", err)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := quick()
	o.Progress = func(int, int) { cancel() }
	for _, name := range []string{"fetch", "exists", "publish", "hash", "index"} {
		if _, err := Run(ctx, name, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLatencyBuckets(t *testing.T) {
	for _, ns := range []uint64{0, 1, 31, 32, 33, 63, 64, 1000, 123_456_789, 1 << 40, 1<<63 - 1, 1<<64 - 1} {
		b := bucketOf(ns)
		if b >= latencyRange {
			t.Fatalf("%d ns is in bucket %d of %d", ns, b, latencyRange)
		}
		if start := bucketStart(b); start > ns || float64(ns-start) > float64(ns)/32 {
			t.Errorf("%d ns is in the bucket from %d", ns, start)
		}
	}
	var l latencies
	for i := range 1000 {
		l.add(time.Duration(i) * time.Microsecond)
	}
	for _, q := range []float64{.5, .9, .99} {
		want := q * 1e6
		if got := float64(l.quantile(q)); got < want*0.96 || got > want*1.01 {
			t.Errorf("quantile %v is %v ns, want about %v", q, got, want)
		}
	}
	if new(latencies).quantile(.5) != 0 {
		t.Error("nothing has a median")
	}
}

func TestFigures(t *testing.T) {
	var s sheet
	for _, x := range []float64{3, 1, 2, 10} {
		s.add("a", "s", x)
	}
	f := s.figures(map[string]goal{"a": atMost(2)})[0]
	if f.Median != 2.5 || f.Min != 1 || f.Max != 10 || *f.Passed || f.Goal != "<= 2" {
		t.Errorf("%+v", f)
	}
	for x, want := range map[float64]string{0.07: "0.07", 1234.5: "1234", 1.2e6: "1,200,000", 12: "12", 1e-7: "0.0000001", -12345: "-12,345"} {
		if got := number(x); got != want {
			t.Errorf("%v is %q, want %q", x, got, want)
		}
	}
}

// Keys of a set are different, and so are the sets.
func TestKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, set := range []uint64{storedKeys, otherKeys, 10} {
		for i := range uint64(10_000) {
			seen[string(appendKey(nil, set, i))] = true
		}
	}
	if len(seen) != 30_000 {
		t.Errorf("%d different keys of 30,000", len(seen))
	}
}
