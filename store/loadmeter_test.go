package store

import (
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/clock"
)

// The rate is of the time in which something is read: pauses do not count, and reads side by side count once.
func TestLoadMeter(t *testing.T) {
	var m loadMeter
	now := clock.Instant(0)
	read := func(side int, took time.Duration, bytes uint64) (rate float64, told bool) {
		for range side {
			m.begin(now)
		}
		now = now.Add(took)
		for range side {
			r, tell := m.end(now, bytes)
			rate, told = r, told || tell
		}
		now = now.Add(time.Hour)
		return rate, told
	}
	if r, told := read(1, time.Second, loadWindowBytes/2); r != 0 || told {
		t.Errorf("half a window: %g, told %v", r, told)
	}
	if r, told := read(1, time.Second, loadWindowBytes/2); r != loadWindowBytes/2 || !told {
		t.Errorf("one window in two seconds: %g, told %v", r, told)
	}
	if r, told := read(4, 2*time.Second, loadWindowBytes/4); r != loadWindowBytes/2 || told {
		t.Errorf("four at once, as fast: %g, told %v", r, told)
	}
	if r, told := read(1, time.Second, loadWindowBytes); r != loadWindowBytes*5/8 || !told {
		t.Errorf("twice as fast: %g, told %v", r, told)
	}
	for range 20 {
		read(1, 8*time.Second, loadWindowBytes)
	}
	if r, _ := read(1, 8*time.Second, 0); r < loadWindowBytes/8 || r > loadWindowBytes/7 {
		t.Errorf("a slow disk: %g", r)
	}
	if m.inFlight != 0 || m.now() != m.rate {
		t.Errorf("%+v", m.inFlight)
	}
}
