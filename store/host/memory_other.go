//go:build !linux

package host

import (
	"unsafe"

	"github.com/quire-kv/quire/store/tier"
)

// heapMemory is plain memory, for the systems on which the library is built but no server runs.
type heapMemory struct{}

func newMemory(bool) memory { return heapMemory{} }

func (heapMemory) mapping(bytes int64, _ bool) (*mapping, error) {
	raw := make([]byte, bytes+tier.Align)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (tier.Align - 1)
	return &mapping{mem: raw[skip : int64(skip)+bytes : int64(skip)+bytes], bytes: bytes, file: -1}, nil
}

func (h heapMemory) reserve(bytes int64) (*mapping, error) { return h.mapping(bytes, true) }

func (heapMemory) trim(m *mapping, bytes int64) error {
	m.mem, m.bytes = m.mem[:bytes:bytes], bytes
	return nil
}

func (heapMemory) populate(*mapping, int64, int64) (int64, error) { return 0, nil }
func (heapMemory) unmap(m *mapping) error                         { m.mem = nil; return nil }
func (heapMemory) reservesHuge() bool                             { return false }
func (heapMemory) hint() string                                   { return "" }
