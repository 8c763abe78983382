package daemon

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
)

// onDisk is a small daemon with a disk tier in dir.
func onDisk(t *testing.T, dir string, change func(*Config)) Config {
	return small(t, func(c *Config) {
		c.DataDir, c.DiskBytes = dir, minDiskBytes
		if change != nil {
			change(c)
		}
	})
}

// life runs f against a daemon that is stopped afterwards, and answers its log.
func life(t *testing.T, c Config, f func(d *Daemon, w *writer)) string {
	t.Helper()
	var log bytes.Buffer
	d, err := Start(t.Context(), c, Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	}()
	w := write(t, d, client.Auto)
	f(d, w)
	if err := w.client.Close(); err != nil {
		t.Error(err)
	}
	return log.String()
}

func TestDurablePagesOutliveARestart(t *testing.T) {
	c := onDisk(t, t.TempDir(), func(c *Config) { c.NoWriteBehind = true })
	life(t, c, func(_ *Daemon, w *writer) {
		w.mustPublish("kept", true)
		w.mustPublish("deleted", true)
		w.mustPublish("in memory", false)
		if got, err := w.session.Delete(t.Context(), w.run("deleted")); err != nil || got[0].Outcome != client.OK {
			t.Errorf("delete: %v, %v", got, err)
		}
	})
	for range 2 {
		log := life(t, c, func(d *Daemon, w *writer) {
			w.mustServe("kept", reason.None)
			w.mustServe("deleted", reason.Absent)
			w.mustServe("in memory", reason.Absent)
			if _, body := get(t, d, "/readyz?verbose"); !strings.Contains(body, "[+]tier_disk ok\n") {
				t.Error(body)
			}
			_, body := get(t, d, "/metrics")
			for _, want := range []string{"quire_disk_recovered_extents 1\n", "quire_disk_segments ", `quire_tier_capacity_bytes{tier="disk"} 6.7108864e+07`} {
				if !strings.Contains(body, want) {
					t.Errorf("no %q in the metrics", want)
				}
			}
		})
		if !strings.Contains(log, `msg="recovered the disk tier" extents=1 dropped=0`) {
			t.Error(log)
		}
	}
}

func TestMemoryPagesAreWrittenBehind(t *testing.T) {
	c := onDisk(t, t.TempDir(), nil)
	life(t, c, func(_ *Daemon, w *writer) {
		for i := range 8 {
			w.mustPublish(fmt.Sprint("page ", i), false)
		}
	})
	life(t, c, func(_ *Daemon, w *writer) {
		for i := range 8 {
			w.mustServe(fmt.Sprint("page ", i), reason.None)
		}
	})
}

// TestPurgedPagesDoNotComeBack, also not after two restarts.
func TestPurgedPagesDoNotComeBack(t *testing.T) {
	c := onDisk(t, t.TempDir(), nil)
	life(t, c, func(d *Daemon, w *writer) {
		w.mustPublish("old", true)
		id := w.session.ID()
		if _, err := quirev1.NewNamespaceServiceClient(connect(t, d)).Purge(t.Context(), &quirev1.PurgeRequest{Id: id[:]}); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		life(t, c, func(_ *Daemon, w *writer) { w.mustServe("old", reason.Absent) })
	}
}

// TestDefaultDurabilityOfANamespace: a writer that asks for nothing gets what the namespace promises.
func TestDefaultDurabilityOfANamespace(t *testing.T) {
	c := onDisk(t, t.TempDir(), func(c *Config) { c.NoWriteBehind = true })
	life(t, c, func(d *Daemon, w *writer) {
		id := w.session.ID()
		_, err := quirev1.NewNamespaceServiceClient(connect(t, d)).SetPolicy(t.Context(), &quirev1.SetPolicyRequest{
			Id: id[:], Policy: &quirev1.NamespacePolicy{DefaultDurability: quirev1.Durability_DURABILITY_DISK},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.mustPublish("a", false)
	})
	life(t, c, func(_ *Daemon, w *writer) { w.mustServe("a", reason.None) })
	// The same directory without its disk tier: the promise cannot be kept, and is not made.
	c.DiskBytes = 0
	life(t, c, func(_ *Daemon, w *writer) {
		w.mustServe("a", reason.Absent)
		if _, err := w.publish("b", false); !errors.Is(err, reason.Unsupported) {
			t.Errorf("published with %v", err)
		}
	})
}

// TestALostIndexIsMadeAnew: the segments are the truth.
func TestALostIndexIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	c := onDisk(t, dir, nil)
	life(t, c, func(_ *Daemon, w *writer) { w.mustPublish("a", true) })
	if err := os.RemoveAll(filepath.Join(dir, pagesDir, "index")); err != nil {
		t.Fatal(err)
	}
	log := life(t, c, func(_ *Daemon, w *writer) { w.mustServe("a", reason.None) })
	if !strings.Contains(log, "extents=1 dropped=0 segments=1 scanned_segments=1 ") {
		t.Error(log)
	}
}

func TestADiskTierThatFailsToOpenGivesEverythingBack(t *testing.T) {
	dir := t.TempDir()
	pages := filepath.Join(dir, pagesDir)
	if err := os.WriteFile(pages, nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), onDisk(t, dir, nil), Deps{}); err == nil || !strings.Contains(err.Error(), "open the disk tier") {
		t.Fatal(err)
	}
	if err := os.Remove(pages); err != nil {
		t.Fatal(err)
	}
	life(t, onDisk(t, dir, nil), func(_ *Daemon, w *writer) { w.mustPublish("a", true) })
}

// TestAWarningIsNoFailure: a check that warns is named, and the node is ready.
func TestAWarningIsNoFailure(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	warning := check{name: "tier_disk", warns: true, ok: func() error { return errors.New("read-only") }}
	d := &Daemon{admin: startAdmin(listener, false, []check{warning}, prometheus.NewRegistry())}
	if code, body := get(t, d, "/readyz?verbose"); code != 200 || body != "[!]tier_disk: read-only\nreadyz: ok\n" {
		t.Errorf("%d %q", code, body)
	}
	if err := d.admin.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

var update = flag.Bool("update", false, "write the list of metrics anew")

// TestDiskMetricsDocumented: the documented list is the registered one.
func TestDiskMetricsDocumented(t *testing.T) {
	var rows []metricRow
	for _, m := range diskMetrics {
		rows = append(rows, metricRow{m.name, m.kind == prometheus.CounterValue, m.label, m.help})
	}
	checkMetricsDocumented(t, "disk tier", rows)
}

// metricRow is a metric as it is registered.
type metricRow struct {
	name        string
	counts      bool
	label, help string
}

// checkMetricsDocumented compares one list of docs/metrics.md with what is registered, or writes it anew.
func checkMetricsDocumented(t *testing.T, list string, rows []metricRow) {
	t.Helper()
	const path = "../../docs/metrics.md"
	begin, end := "<!-- list of the "+list+": held equal to the code by a test -->\n", "<!-- end of list of the "+list+" -->\n"
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	listed, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no list", path)
	}
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, m := range rows {
		kind, label := "gauge", m.label
		if m.counts {
			kind = "counter"
		}
		if strings.HasSuffix(m.name, "_total") != m.counts {
			t.Errorf("%s is a %s", m.name, kind)
		}
		if label != "" {
			label = "`" + label + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, kind, label, m.help)
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if listed != b.String() {
		t.Errorf("%s differs from what is registered; run go test ./internal/daemon -run Documented -update\n%s", path, b.String())
	}
}
