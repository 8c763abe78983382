package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/store/storetest"
)

// What a server had recorded when it was killed reads back, up to where the file ends, and is still there when the next one
// records beside it.
func TestRecordingOfAKilledServer(t *testing.T) {
	const pages = 1000 // of a request
	path := filepath.Join(t.TempDir(), "recorded.jsonl")
	s := startServer(t, "--record", path)
	session := open(t, dial(t, s.address), smallSpec(t))
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	asked := 0
	for end := time.Now().Add(time.Minute); size() < 1<<20; asked++ { // requests are written once so many are open
		if time.Now().After(end) {
			t.Fatalf("%d bytes are written of %d requests", size(), asked)
		}
		if _, err := session.Exists(t.Context(), run(session, storetest.Chain(fmt.Sprint("asked ", asked), pages)), 0); err != nil {
			t.Fatal(err)
		}
	}
	s.kill()
	left, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, geo := group(session)
	read := func() *replay.Workload {
		t.Helper()
		w, err := replay.LoadFile(path, replay.LoadOptions{PageTokens: geo.Tokens})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := read()
	if n := len(w.Requests); n == 0 || n >= asked || n != bytes.Count(left, []byte("\n")) || w.Pages() != n*pages {
		t.Errorf("%d requests of %d pages read back, of %d asked and %d lines", n, w.Pages(), asked, bytes.Count(left, []byte("\n")))
	}
	if err := os.WriteFile(path, left[:len(left)-100], 0o600); err != nil { // as where the kill meets a write
		t.Fatal(err)
	}
	if n := len(read().Requests); n != bytes.Count(left[:len(left)-100], []byte("\n")) {
		t.Errorf("%d requests read back from a file that ends within a line", n)
	}
	startServer(t, "--record", path)
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, left[:len(left)-100]) {
		t.Errorf("the next server changed the recording: %v", err)
	}
	if _, err := os.Stat(path + ".1"); err != nil {
		t.Error(err)
	}
}
