package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/quire-kv/quire/internal/daemon"
)

// TestTracePlay against a whole server: by LRU, in which times play no part, it does exactly what is predicted.
func TestTracePlay(t *testing.T) {
	s := served(t, func(c *daemon.Config) { c.Eviction = "lru" })
	for _, flags := range []string{"--page-bytes 16384", "--page-bytes 16384 --fetch --speed 1000 --model mla"} {
		out, errOut, code := s.raw(t, "quire trace play "+excerpt+" --policy lru -o json "+flags)
		var r playReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errOut != "" {
			t.Fatalf("%s: exit %d: %s %v", flags, code, errOut, err)
		}
		live := r.Live
		if live != r.Predicted || r.Ratio != 1 {
			t.Errorf("%s: live %+v, predicted %+v", flags, live, r.Predicted)
		}
		if r.Requests != 800 || live.Hits+live.Written+live.Refused != r.Accesses || live.Written-live.Evicted > r.Held ||
			live.Evicted == 0 || math.Abs(live.HitRate*float64(r.Accesses)-float64(live.Hits)) > 0.5 || r.Lost != 0 {
			t.Errorf("%s: %+v", flags, r)
		}
		if strings.Contains(flags, "--speed 1000") && r.Speed > 1000 {
			t.Errorf("%s: %v times as fast", flags, r.Speed)
		}
	}
	if out, _, _ := s.raw(t, "quire ns list -o json"); !strings.Contains(out, `"models": []`) {
		t.Errorf("namespaces that a play left: %s", out)
	}
}

// TestTracePlayRefuses what cannot be meant, before anything is sent.
func TestTracePlayRefuses(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	for flags, want := range map[string]string{
		"--page-bytes 1000": "multiple of 1024", "--speed -1": "--speed -1", "--requests -1": "negative",
		"--policy lur": "did you mean lru", "--arrival 0": "--arrival 0",
	} {
		if _, errOut, code := s.raw(t, "quire trace play "+excerpt+" "+flags); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit %d: %s", flags, code, errOut)
		}
	}
}
