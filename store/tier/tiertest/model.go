package tiertest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/store/tier"
)

// collector takes failures from goroutines that must not call Fatalf of a test: it keeps the first.
type collector struct {
	mu    sync.Mutex
	first string
}

func (c *collector) Helper() {}

func (c *collector) Fatalf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == "" {
		c.first = fmt.Sprintf(format, args...)
	}
}

// testModel runs random calls against a map of what must live where.
func testModel(t *testing.T, h Harness) {
	rapid.Check(t, func(rt *rapid.T) {
		d := h.New(t, h.CapacityBytes)
		defer func() {
			if err := d.Close(); err != nil {
				rt.Fatalf("close: %v", err)
			}
		}()
		m := &model{rig: rig{t: rt, d: d, transient: h.Transient, log: h.Reopen != nil}, live: map[place]held{}}
		rt.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) { m.checkAll() },
			"alloc":   m.alloc,
			"burst":   m.burst,
			"free":    m.free,
			"thin":    m.thin,
			"lookup":  m.lookup,
			"compact": func(*rapid.T) { m.empty(m.live) },
			"keep":    m.keep,
		})
	})
}

type model struct {
	rig
	live  map[place]held
	order []place // of live and dead, oldest first: draws do not depend on map order
	next  uint64
}

var modelClasses = []tier.Class{
	mixed(1), mixed(4_096), mixed(30_000), mixed(700_000), mixed(3 << 20), private(1, 1, 30_000), private(1, 2, 30_000), private(2, 1, 700_000),
}

func (m *model) alloc(t *rapid.T) {
	m.add(modelClasses[rapid.IntRange(0, len(modelClasses)-1).Draw(t, "class")])
}

// add allocates; a tier without room is fine if something lives in it.
func (m *model) add(c tier.Class) bool {
	m.next++
	x, err := m.try(c, m.next)
	if errors.Is(err, tier.ErrFull) {
		if len(m.live) == 0 && !m.transient {
			m.t.Fatalf("an empty tier has no room for %d bytes: %+v", c.Bytes, m.usage())
		}
		return false
	}
	if err != nil {
		m.t.Fatalf("alloc of %d bytes: %v", c.Bytes, err)
	}
	if old, ok := m.live[placeOf(x.Region)]; ok {
		m.t.Fatalf("place %+v was given out and lives already: %+v", placeOf(x.Region), old.Region)
	}
	m.live[placeOf(x.Region)] = x
	m.order = append(m.order, placeOf(x.Region))
	return true
}

func (m *model) burst(t *rapid.T) {
	c := modelClasses[rapid.IntRange(0, len(modelClasses)-1).Draw(t, "class")]
	for range rapid.IntRange(10, 200).Draw(t, "n") {
		if !m.add(c) {
			return
		}
	}
}

func (m *model) pick(t *rapid.T) (held, bool) {
	if len(m.order) == 0 {
		return held{}, false
	}
	x, ok := m.live[m.order[rapid.IntRange(0, len(m.order)-1).Draw(t, "which")]]
	return x, ok
}

func (m *model) free(t *rapid.T) {
	if x, ok := m.pick(t); ok {
		m.drop(x)
	}
}

func (m *model) drop(x held) {
	m.rig.free(x)
	delete(m.live, placeOf(x.Region))
}

// thin frees most of what lives, so that slabs become sparse.
func (m *model) thin(t *rapid.T) {
	n := rapid.IntRange(2, 9).Draw(t, "keep one in")
	for i, p := range m.order {
		if x, ok := m.live[p]; ok && i%n != 0 {
			m.drop(x)
		}
	}
	m.order = nil
	for p := range m.live {
		m.order = append(m.order, p)
	}
	sortPlaces(m.order)
}

func (m *model) lookup(t *rapid.T) {
	if x, ok := m.pick(t); ok {
		m.check(x)
	}
	p := place{rapid.Uint32Range(0, 40).Draw(t, "handle"), tier.Align * rapid.Int64Range(-1, 600).Draw(t, "block")}
	_, found := m.d.Lookup(p.handle, p.offset)
	if _, lives := m.live[p]; found != lives {
		t.Fatalf("lookup of %+v: %v, want %v", p, found, lives)
	}
}

// keep gives up on emptying a slab half way.
func (m *model) keep(t *rapid.T) {
	slab, residents := m.d.Compact(nil)
	if slab == 0 {
		return
	}
	m.checkResidents(slab, residents, m.live)
	for i, x := range residents {
		if i%2 == 1 {
			m.drop(m.live[placeOf(x.Region)])
		}
	}
	m.d.Keep(slab)
}

// checkAll holds usage and slabs against the model.
func (m *model) checkAll() {
	var bytes int64
	serves := map[uint32]tier.Class{}
	for p, x := range m.live {
		bytes += x.Bytes
		c := x.class
		c.Bytes = tier.RoundUp(c.Bytes)
		if have, ok := serves[p.handle]; ok && have != c && !m.log {
			m.t.Fatalf("slab %d serves %+v and %+v", p.handle, have, c)
		}
		serves[p.handle] = c
	}
	if u := m.usage(); u.Live != bytes {
		m.t.Fatalf("live is %d, want %d", u.Live, bytes)
	}
}
