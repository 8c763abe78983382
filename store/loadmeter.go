package store

import (
	"sync"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/core"
)

// loadMeter measures at which rate pages are read from a tier to be served, while any are. What the policies know of it
// follows at most once for each loadWindowBytes, and when it has changed by an eighth.
type loadMeter struct {
	mu       sync.Mutex
	inFlight int
	from     clock.Instant // when what is in flight was counted last
	bytes    uint64        // that came, since the window began
	busy     time.Duration // likewise, with some in flight
	rate     float64       // bytes per second; 0: not known
	told     float64
}

const (
	loadWindowBytes = 8 << 20
	loadWeight      = 4 // windows that the mean is of, about
	loadChange      = 8 // part by which the rate must have changed
)

func (m *loadMeter) begin(now clock.Instant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(now)
	m.inFlight++
}

// end counts what came, 0 for a read that failed. tell: the rate is new to the policies.
func (m *loadMeter) end(now clock.Instant, bytes uint64) (rate float64, tell bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(now)
	m.inFlight--
	if m.bytes += bytes; m.bytes < loadWindowBytes || m.busy <= 0 {
		return m.rate, false
	}
	got := float64(m.bytes) / m.busy.Seconds()
	if m.rate == 0 {
		m.rate = got
	} else {
		m.rate += (got - m.rate) / loadWeight
	}
	m.bytes, m.busy = 0, 0
	if d := m.rate - m.told; d*loadChange < m.told && -d*loadChange < m.told {
		return m.rate, false
	}
	m.told = m.rate
	return m.rate, true
}

func (m *loadMeter) count(now clock.Instant) {
	if m.inFlight > 0 {
		m.busy += now.Sub(m.from)
	}
	m.from = now
}

func (m *loadMeter) now() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rate
}

// loaded counts what came from a tier, and tells the policies when it is faster or slower than they know.
func (s *Store) loaded(t evict.Tier, bytes uint64) {
	rate, tell := s.loads[t].end(s.clock.Now(), bytes)
	if !tell || s.o.PrefillFLOPS <= 0 {
		return
	}
	ev := core.TierLoads{Tier: t, Loading: evict.Loading{BytesPerSecond: rate, FLOPSPerSecond: s.o.PrefillFLOPS}}
	for _, sh := range s.shards {
		s.step(sh, ev)
	}
}
