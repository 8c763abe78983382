package host

import (
	"errors"
	"sync"

	"github.com/quire-kv/quire/store/tier"
)

// fakeMemory is memory that can fail, counts what is mapped, and says what the test wants of huge pages.
type fakeMemory struct {
	huge     bool // populate finds huge pages
	reserves bool
	mapErr   func(n int) error      // fate of the nth mapping, from 1
	onPop    func(m *mapping) error // called by populate, without locks
	trimErr  error
	hintsAt  string

	mu     sync.Mutex
	maps   int
	mapped map[*mapping]bool
	bytes  int64
	peak   int64
}

var errNoMemory = errors.New("cannot allocate memory")

func (f *fakeMemory) mapping(bytes int64, keepFile bool) (*mapping, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.maps++
	if f.mapErr != nil {
		if err := f.mapErr(f.maps); err != nil {
			return nil, err
		}
	}
	m := &mapping{mem: make([]byte, bytes), bytes: bytes, file: -1}
	if f.mapped == nil {
		f.mapped = map[*mapping]bool{}
	}
	f.mapped[m] = true
	f.bytes += bytes
	f.peak = max(f.peak, f.bytes)
	return m, nil
}

func (f *fakeMemory) reserve(bytes int64) (*mapping, error) { return f.mapping(bytes, true) }

func (f *fakeMemory) trim(m *mapping, bytes int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trimErr != nil {
		return f.trimErr
	}
	f.bytes -= m.bytes - bytes
	m.mem, m.bytes = m.mem[:bytes:bytes], bytes
	return nil
}

func (f *fakeMemory) populate(m *mapping, from, to int64) (int64, error) {
	if f.onPop != nil {
		if err := f.onPop(m); err != nil {
			return 0, err
		}
	}
	if f.huge {
		return to - from, nil
	}
	return 0, nil
}

func (f *fakeMemory) unmap(m *mapping) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.mapped[m] {
		return errors.New("unmapped twice")
	}
	delete(f.mapped, m)
	f.bytes -= m.bytes
	return nil
}

// share hands nothing out.
func (f *fakeMemory) share(*mapping, uint64, int64, int64) (*export, error) {
	return nil, ErrNotShared
}

func (f *fakeMemory) reservesHuge() bool { return f.reserves }
func (f *fakeMemory) hint() string       { return f.hintsAt }

func (f *fakeMemory) held() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes
}

func sized(n int64) tier.Class { return tier.Class{Bytes: n} }
