package client

import (
	"fmt"
	"slices"
	"sync"

	"github.com/quire-kv/quire/store/shm"
)

// Staging is memory that a caller fills and publishes from: a node on the same host reads it where it lies, so nothing
// is copied on this side. Over every other transport it is memory like any other.
type Staging struct {
	m    *sharedMemory
	area *shm.Area
	once sync.Once
}

// Staging makes an area of so many bytes. Make few and keep them: a node maps at most 64 areas and 1 GiB on one
// connection, and lets go of them only with it; beyond that, what is published is copied.
func (c *Client) Staging(bytes int) (*Staging, error) {
	if bytes <= 0 || bytes > maxAreaBytes {
		return nil, fmt.Errorf("staging of %d bytes: want 1 to %d", bytes, maxAreaBytes)
	}
	a, err := shm.NewArea(bytes)
	if err != nil {
		return nil, err
	}
	s := &Staging{m: c.shared, area: a}
	s.m.mu.Lock()
	s.m.areas = append(s.m.areas, a)
	s.m.mu.Unlock()
	return s, nil
}

// Bytes is the memory. What is in it must not change from the begin of a Publish out of it to its return.
func (s *Staging) Bytes() []byte { return s.area.Bytes }

// Close gives the memory back; no Publish may be reading it. Idempotent.
func (s *Staging) Close() (err error) {
	s.once.Do(func() {
		s.m.mu.Lock()
		s.m.areas = slices.DeleteFunc(s.m.areas, func(a *shm.Area) bool { return a == s.area })
		s.m.mu.Unlock()
		err = s.area.Close()
	})
	return err
}
