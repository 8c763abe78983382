package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
)

// recordOnce runs a server with the recording at path, publishes and asks, and answers what it logged.
func recordOnce(t *testing.T, path string, change func(*Config)) string {
	t.Helper()
	var log bytes.Buffer
	c := small(t, func(c *Config) {
		c.Record = path
		if change != nil {
			change(c)
		}
	})
	d, err := Start(t.Context(), c, Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	w := write(t, d, client.GRPC)
	w.mustPublish("page", false)
	w.mustServe("page", reason.None)
	w.client.Close()
	if err := d.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	return log.String()
}

func requestsOf(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := replay.NewReader(f); ; n++ {
		if q, err := in.Next(); errors.Is(err, io.EOF) {
			return n
		} else if err != nil || !q.FromRecording() {
			t.Fatalf("%+v, %v", q, err)
		}
	}
}

// TestRecord: a recording is written with the stop, a later one leaves it alone, and one that has no room is left out.
func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	for i, name := range []string{path, path + ".1", path + ".2"} {
		if log := recordOnce(t, path, nil); !strings.Contains(log, "file="+name) || requestsOf(t, name) == 0 {
			t.Errorf("recording %d: %d requests in %s\n%s", i, requestsOf(t, name), name, log)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v (%v)", info.Mode(), err)
	}
	if err := os.Truncate(path, mib); err != nil { // as long as all may be together
		t.Fatal(err)
	}
	log := recordOnce(t, path, func(c *Config) { c.RecordLimitBytes = mib })
	if _, err := os.Stat(path + ".3"); err == nil || !strings.Contains(log, "nothing is recorded") {
		t.Errorf("beyond the limit: %v\n%s", err, log)
	}
}

// TestRecordNeedsAFile: a recording that cannot be written is said at the start.
func TestRecordNeedsAFile(t *testing.T) {
	_, err := Start(t.Context(), small(t, func(c *Config) { c.Record = filepath.Join(t.TempDir(), "none", "trace") }), Deps{})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start: %v", err)
	}
}

// TestRecordMetricsDocumented: the documented list is the registered one.
func TestRecordMetricsDocumented(t *testing.T) {
	var rows []metricRow
	for _, m := range recordMetrics() {
		rows = append(rows, metricRow{name: m.name, counts: m.counts, help: m.help})
	}
	checkMetricsDocumented(t, "recording", rows)
}
