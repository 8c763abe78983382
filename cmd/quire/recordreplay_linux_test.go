package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quire-kv/quire/internal/daemon"
)

// TestRecordThenReplay is what operators do: record a server's traffic, replay the file, and play it against another server.
// What is in the file is what was asked, under names from which nobody can tell it.
func TestRecordThenReplay(t *testing.T) {
	dir := t.TempDir()
	recording := filepath.Join(dir, "recorded.jsonl")
	c := daemon.Config{GRPCListen: "127.0.0.1:0", AdminListen: "off", MemoryBytes: 128 << 20, Record: recording}
	d, err := daemon.Start(t.Context(), c.Resolve(0), daemon.Deps{Version: "v0.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{dir: dir, env: []string{"QUIRE_SERVER=" + d.GRPCAddress()}}
	var played playReport
	read := func(line string, into any) {
		t.Helper()
		out, errOut, code := s.raw(t, line)
		if err := json.Unmarshal([]byte(out), into); err != nil || code != exitOK {
			t.Fatalf("%s: exit %d: %s %v", line, code, errOut, err)
		}
	}
	read("quire trace play "+excerpt+" --requests 200 --page-bytes 2KiB -o json", &played)
	if err := d.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	var report replayReport
	read("quire replay "+recording+" --policy lru --capacity 100% --rounds 1 -o json", &report)
	got := report.Traces[0]
	if got.Requests != played.Requests || got.Accesses != played.Accesses || got.Pages != played.Held ||
		math.Abs(got.HitRate-played.Live.HitRate) > 1e-9 {
		t.Errorf("recorded %+v, played %+v", got, played)
	}
	text, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "mooncake") || strings.Count(string(text), "\n") != 200 {
		t.Errorf("the recording: %.300s", text)
	}
	// What a kill leaves ends within a line.
	if err := os.WriteFile(recording, text[:len(text)-9], 0o600); err != nil {
		t.Fatal(err)
	}
	other := served(t, func(c *daemon.Config) { c.Eviction = "lru" }) // which decides the same on any clock
	s.env = other.env
	var again playReport
	read("quire trace play "+recording+" --page-bytes 2KiB -o json", &again)
	if again.Requests != 199 || again.Namespaces != 1 || again.Live.Hits == 0 || again.Live.Hits != again.Predicted.Hits {
		t.Errorf("played again: %+v", again)
	}
}
