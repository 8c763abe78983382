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

// TestTracePlayPredictsByTheServersBounds: with what the server says of itself, and of when it decided what, LRU comes out the
// same where room ends and where records for small pages do; and so does VBR by a known seed, though on the server's clock, by
// which pages wait for a few 64ths of a second. What LRU does with requests that overlap comes out near. With a disk tier,
// whose pace nobody knows beforehand, all is accounted for and both say that the disk was written; how near they come is not
// held.
func TestTracePlayPredictsByTheServersBounds(t *testing.T) {
	lru := func(c *daemon.Config) { c.Eviction = "lru" }
	vbr := func(c *daemon.Config) { c.EvictionSeed = 5 }
	disk := func(c *daemon.Config) { c.Eviction, c.DataDir, c.DiskBytes = "lru", t.TempDir(), 96<<20 }
	const exact, near, any = 1e-9, 0.03, 1e9
	for name, c := range map[string]struct {
		flags  string
		off    float64 // what is saved, from what is predicted
		change func(*daemon.Config)
	}{
		"room":        {"--page-bytes 16KiB", exact, lru},
		"records":     {"--page-bytes 4KiB", exact, lru},
		"vbr":         {"--page-bytes 16KiB --speed 100", exact, vbr},
		"overlapping": {"--page-bytes 16KiB --speed 200 --in-flight 8", near, lru},
		"disk":        {"--page-bytes 16KiB --fetch --requests 400 --speed 40", any, disk},
	} {
		t.Run(name, func(t *testing.T) {
			s := served(t, c.change)
			out, errOut, code := s.raw(t, "quire trace play "+excerpt+" -o json "+c.flags)
			var r playReport
			if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errOut != "" {
				t.Fatalf("exit %d: %s %v", code, errOut, err)
			}
			t.Logf("%d pages held, %+v, predicted %+v: %v", r.Held, r.Live, r.Predicted, r.Ratio)
			live := r.Live
			if live.Hits+live.Written+live.Refused+r.Present != r.Accesses || r.Predictions != 1 {
				t.Errorf("%+v", r)
			}
			if math.Abs(r.Ratio-1) > c.off || live.Evicted == 0 || c.off == exact && (live.Hits != r.Predicted.Hits || live.Evicted != r.Predicted.Evicted) {
				t.Errorf("not as predicted: %+v", r)
			}
			if (name == "disk") != (r.Live.DiskBytes > 0) || (name == "disk") != (r.Predicted.DiskBytes > 0) {
				t.Errorf("written to disk: %d, predicted %d", r.Live.DiskBytes, r.Predicted.DiskBytes)
			}
		})
	}
}

// TestTracePlayOverlapping of a server that says its seed, and of one that does not, whose predictions have draws of their own.
func TestTracePlayOverlapping(t *testing.T) {
	for seed, predictions := range map[uint64]int{5: 1, 0: 8} {
		s := served(t, func(c *daemon.Config) { c.EvictionSeed = seed })
		out, errOut, code := s.raw(t, "quire trace play "+excerpt+" --requests 300 --in-flight 8 --speed 400 --fetch -o json")
		var r playReport
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || errOut != "" {
			t.Fatalf("exit %d: %s %v", code, errOut, err)
		}
		live := r.Live
		if r.Requests != 300 || live.Hits+live.Written+live.Refused+r.Present != r.Accesses || r.Predictions != predictions || r.Seeded != (seed != 0) ||
			r.Low > r.Predicted.Saved*(1+1e-9) || r.High < r.Predicted.Saved*(1-1e-9) || r.ServerPolicy != "vbr" {
			t.Errorf("%+v", r)
		}
	}
}

// TestTracePlayRefuses what cannot be meant, before anything is sent.
func TestTracePlayRefuses(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	for flags, want := range map[string]string{
		"--page-bytes 1000": "multiple of 1024", "--speed -1": "--speed -1", "--requests -1": "negative",
		"--policy lur": "did you mean lru", "--arrival 0": "--arrival 0", "--page-bytes 64GiB": "up to", "--in-flight 0": "--in-flight 0",
		"--page-tokens 0": "--page-tokens 0",
	} {
		if _, errOut, code := s.raw(t, "quire trace play "+excerpt+" "+flags); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit %d: %s", flags, code, errOut)
		}
	}
}
