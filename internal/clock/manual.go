package clock

import (
	"sort"
	"sync"
	"time"
)

// Manual is a clock that stands still until it is moved. Timers run on the goroutine that moves it, in order.
type Manual struct {
	mu     sync.Mutex // guards all below
	now    Instant
	base   time.Time
	timers []*manualTimer
}

type manualTimer struct {
	at Instant
	f  func()
}

// NewManual starts at instant 0 and the given wall time.
func NewManual(wall time.Time) *Manual { return &Manual{base: wall} }

// Now is the instant it was moved to.
func (m *Manual) Now() Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Wall is the start's wall time plus what has passed.
func (m *Manual) Wall() Wall {
	m.mu.Lock()
	defer m.mu.Unlock()
	return WallOf(m.base.Add(time.Duration(m.now)))
}

// AfterFunc registers f for the Advance that reaches d from now.
func (m *Manual) AfterFunc(d time.Duration, f func()) func() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &manualTimer{at: m.now.Add(d), f: f}
	m.timers = append(m.timers, t)
	return func() bool { return m.drop(t) }
}

func (m *Manual) drop(t *manualTimer) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, x := range m.timers {
		if x == t {
			m.timers = append(m.timers[:i], m.timers[i+1:]...)
			return true
		}
	}
	return false
}

// Advance moves the clock by d and runs what falls due, in order of time.
func (m *Manual) Advance(d time.Duration) {
	m.mu.Lock()
	end := m.now.Add(d)
	for {
		sort.SliceStable(m.timers, func(i, j int) bool { return m.timers[i].at < m.timers[j].at })
		if len(m.timers) == 0 || m.timers[0].at > end {
			break
		}
		t := m.timers[0]
		m.timers = m.timers[1:]
		m.now = max(m.now, t.at)
		m.mu.Unlock()
		t.f()
		m.mu.Lock()
	}
	m.now = end
	m.mu.Unlock()
}
