package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quire-kv/quire/internal/daemon"
)

// TestScansAreNotWorthTheirRoom: a server whose room is too small for what is asked for again and again, half of the
// requests being long prompts that nobody repeats, comes to refuse these, and says so wherever one looks.
func TestScansAreNotWorthTheirRoom(t *testing.T) {
	s := served(t, func(c *daemon.Config) {
		c.AdminListen, c.MemoryBytes, c.MetadataBytes, c.Shards = "127.0.0.1:0", 32<<20, 16<<20, 1
	})
	out, errOut, code := s.raw(t, "quire trace play "+scans(t, 1500, 16_000)+" --policy vbr --page-bytes 16384 -o json")
	var r playReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK {
		t.Fatalf("exit %d: %s %v", code, errOut, err)
	}
	if r.Live.Refused == 0 || r.Live.Evicted == 0 {
		t.Fatalf("nothing was refused: %+v", r)
	}
	answer, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	metrics, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("quire_not_worth_pages_total %d\n", r.Live.Refused),
		fmt.Sprintf("quire_pages_total{method=\"BeginPublish\",outcome=\"refused\",reason=\"not_worth\"} %d\n", r.Live.Refused),
	} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if out, errOut, _ := s.raw(t, "quire top --once -o json"); !strings.Contains(out, fmt.Sprintf(`"not_worth_pages": %d`, r.Live.Refused)) {
		t.Errorf("quire top: %s %s", out, errOut)
	}
	t.Logf("%d of %d pages refused, room for %d", r.Live.Refused, r.Accesses, r.Held)
}

// scans writes a trace: every other request asks for one of so many pages, the others for two pages that come once.
func scans(t *testing.T, hot, requests int) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "scans.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, r := bufio.NewWriter(f), rand.New(rand.NewPCG(14, 1))
	for i := range requests {
		ids := fmt.Sprint(r.IntN(hot))
		if i%2 == 1 {
			ids = fmt.Sprintf("%d, %d", hot+2*i, hot+2*i+1)
		}
		n := 1 + strings.Count(ids, ",")
		fmt.Fprintf(w, `{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": [%s]}`+"\n", 100*i, 512*n, ids)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
