package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// topStart is when the tests' server is first seen.
var topStart = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sampleAt is a busy server after so many seconds: a full tier of memory, a disk that fails, two tenants.
func sampleAt(t *testing.T, seconds int) *topSample {
	t.Helper()
	n := uint64(seconds)
	s := &topSample{status: &quirev1.StatusResponse{
		Version: "v1.2.3", BootId: []byte("boot"), Uptime: durationpb.New(time.Duration(seconds) * time.Second), Pages: 1000 + 10*n, Extents: 2000 + 20*n,
		MetadataBytes: 3 << 20, MetadataCapacityBytes: 64 << 20, ReadLeases: 3, Publications: 1, Sessions: 4, PinnedBytes: 5 << 20,
		Tiers: []*quirev1.TierStatus{
			{Tier: "host", CapacityBytes: 1 << 30, LiveBytes: 900 << 20, SlackBytes: 60 << 20, MetadataBytes: 4 << 20, Writable: true, WaterLevel: 12345.6, EvictedPages: 50 * n},
			{Tier: "disk", CapacityBytes: 10 << 30, LiveBytes: 1 << 30, WaterLevel: 0.25, Trouble: "no space left on device"},
		},
		Counters: &quirev1.NodeCounters{
			Lookups: 20 * n, HitKeys: 600 * n, MissedKeys: 200 * n, FetchedPages: 500 * n, FetchedBytes: n << 28, CommittedPages: 7 * n, WrittenBytes: n << 22,
			EvictedPages: n / 2, NotWorthPages: 12, PromotedBytes: n, PersistedBytes: n,
			MissedPages:    []*quirev1.ReasonCount{{Reason: quirev1.Reason_REASON_PROVENANCE, Count: 4}, {Reason: quirev1.Reason_REASON_ABSENT, Count: 1234}},
			RefusedPages:   []*quirev1.ReasonCount{{Reason: quirev1.Reason_REASON_BUSY, Count: 3}},
			RemovedExtents: []*quirev1.ReasonCount{{Reason: quirev1.Reason_REASON_EXPIRED, Count: 9}},
		},
		Eviction: &quirev1.EvictionStatus{UsedFlops: 1e15, ContentFlops: 8e14, SavedFlops: 6e14, Modes: []*quirev1.EvictionMode{
			{Mode: "lru", SavedFlops: 5e14}, {Mode: "value", Shards: 3, SavedFlops: 6e14}, {Mode: "strict", Shards: 1, SavedFlops: 5.8e14},
		}},
	}}
	use := func(ns *quirev1.Namespace, pages, hits, misses uint64) *quirev1.Namespace {
		ns.Usage = &quirev1.NamespaceUsage{Pages: pages, Bytes: pages << 20, Hits: hits, Misses: misses, LastWrite: timestamppb.New(topStart.Add(-time.Hour))}
		return ns
	}
	open := engine("quire-\x1b[2J-evil", 1, 100, func(i *quirev1.Instance) { i.Breaker = quirev1.BreakerState_BREAKER_STATE_OPEN })
	s.namespaces = []*quirev1.Namespace{
		use(reporting(t, 0x11, "research", [2]string{}, engine("gpu-1", 70, 100), open), 600, 500*n, 100*n),
		use(reporting(t, 0x22, "shop", [2]string{}), 400, 100*n, 100*n),
		use(reporting(t, 0x33, "shop", [2]string{}, engine("gpu-2", 0, 0)), 0, 0, 0),
	}
	s.namespaces[2].Usage.LastWrite = nil
	s.tenants = []*quirev1.Tenant{
		{Tenant: "research", MemoryBytes: 600 << 20, GuaranteeBytes: 512 << 20, ChargedBytes: 700 << 20, QuotaBytes: 1 << 30},
		{Tenant: "shop", MemoryBytes: 300 << 20, DiskBytes: 1 << 30, ChargedBytes: 1 << 30, PinnedBytes: 5 << 20, EvictedPages: 1234, Trouble: "does not fit beside the others"},
	}
	return s
}

// text is the screen as goldens keep it, trailing blanks cut.
func screenText(lines []topLine) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.text() + "\n")
	}
	return b.String()
}

// marked is the screen with its styles: each span that is not plain in {}.
func marked(lines []topLine) string {
	letters := map[topStyle]string{topDim: "dim", topHead: "head", topGood: "good", topWarn: "warn", topBad: "BAD"}
	var b strings.Builder
	for _, l := range lines {
		for _, s := range l {
			if text := strings.TrimRight(s.text, " "); s.style != topPlain && text != "" {
				fmt.Fprintf(&b, "{%s:%s}", letters[s.style], text)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestTop holds the screens of quire top. Rewrite with: go test ./cmd/quire -run TestTop$ -rewrite
//
//	size W H          the size of the terminal
//	sample SECONDS... the server answers
//	lost SECONDS      it does not, that long after the start
//	key WORD...       keys
//	screen, styles, snapshot
func TestTop(t *testing.T) {
	keys := topLetters()
	keys["tab"], keys["down"], keys["up"], keys["end"], keys["home"], keys["esc"] = pressTable, pressDown, pressUp, pressEnd, pressHome, pressQuit
	keys["pagedown"], keys["pageup"], keys["x"] = pressPageDown, pressPageUp, pressOther
	m := newTopModel("127.0.0.1:7420")
	datadriven.RunTest(t, "testdata/top", func(t *testing.T, d *datadriven.TestData) string {
		numbers := make([]int, len(d.CmdArgs))
		for i, arg := range d.CmdArgs {
			_, _ = fmt.Sscan(arg.Key, &numbers[i]) // words of key are none
		}
		at := func(seconds int) time.Time { return topStart.Add(time.Duration(seconds) * time.Second) }
		switch d.Cmd {
		case "size":
			m.resize(numbers[0], numbers[1])
		case "sample":
			for _, seconds := range numbers {
				m.learn(topNews{sample: sampleAt(t, seconds)}, at(seconds))
			}
		case "restarted":
			s := sampleAt(t, 1)
			s.status.BootId = []byte("another")
			m.learn(topNews{sample: s}, at(numbers[0]))
		case "lost":
			m.learn(topNews{err: errors.New("connection refused")}, at(numbers[0]))
		case "key":
			for _, arg := range d.CmdArgs {
				k, known := keys[arg.Key]
				if !known {
					d.Fatalf(t, "no key %q", arg.Key)
				}
				if m.key(k) {
					return "quit\n"
				}
			}
		case "screen":
			return screenText(m.view())
		case "styles":
			return marked(m.view())
		case "snapshot":
			var b strings.Builder
			if err := m.snapshot(&b); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return b.String()
		default:
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		return ""
	})
}

// TestTopFitsEveryTerminal: no line is wider than the screen, there are never too many, and the last is that of the
// keys where there is room for it.
func TestTopFitsEveryTerminal(t *testing.T) {
	all := []topKey{pressHelp, pressTable, pressSort, pressSortBack, pressReverse, pressUp, pressDown, pressPageUp, pressPageDown, pressEnd, pressHome, pressOther}
	random := rand.New(rand.NewPCG(1, 2))
	m := newTopModel("127.0.0.1:7420")
	for step := range 3000 {
		switch {
		case step%7 == 0:
			m.learn(topNews{sample: sampleAt(t, 1+step)}, topStart)
		case step%31 == 0:
			m.learn(topNews{err: errors.New("connection\nrefused")}, topStart)
		}
		m.resize(random.IntN(140), random.IntN(45))
		m.key(all[random.IntN(len(all))])
		lines := m.view()
		if len(lines) > m.height {
			t.Fatalf("step %d: %d lines on a screen of %d", step, len(lines), m.height)
		}
		for _, l := range lines {
			wide := 0
			for _, s := range l {
				wide += runes(s.text)
				if strings.ContainsAny(s.text, "\x1b\n") {
					t.Fatalf("step %d: %q would move the cursor", step, s.text)
				}
			}
			if wide > m.width {
				t.Fatalf("step %d: a line of %d cells on a screen of %d: %q", step, wide, m.width, l.text())
			}
		}
	}
	if len(m.trail) > maxTrail {
		t.Errorf("%d samples are kept", len(m.trail))
	}
}

// TestTopKeepsLittle: however long it runs, it keeps one sample and a bounded trail.
func TestTopKeepsLittle(t *testing.T) {
	m := newTopModel("s")
	for i := range 10 * maxTrail {
		m.learn(topNews{sample: sampleAt(t, 1+i)}, topStart)
	}
	if len(m.trail) != maxTrail || cap(m.trail) > 4*maxTrail {
		t.Errorf("%d samples in room for %d, want %d", len(m.trail), cap(m.trail), maxTrail)
	}
}

// TestTopRates: rates are of server's seconds, and none are made up.
func TestTopRates(t *testing.T) {
	r := ratesOf(sampleAt(t, 10), sampleAt(t, 14))
	if r.HitKeys != 600 || r.tiers["host"] != 50 || r.spaces[spaceKeyOf(sampleAt(t, 1).namespaces[0])] != [2]float64{500, 100} {
		t.Errorf("rates %+v", r)
	}
	other := sampleAt(t, 20)
	other.status.BootId = []byte("another")
	for name, r := range map[string]*topRates{
		"nothing before": ratesOf(nil, sampleAt(t, 1)), "backwards": ratesOf(sampleAt(t, 2), sampleAt(t, 1)),
		"no time": ratesOf(sampleAt(t, 2), sampleAt(t, 2)), "another life": ratesOf(sampleAt(t, 2), other),
	} {
		if r != nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
