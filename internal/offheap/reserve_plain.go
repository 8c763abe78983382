//go:build !linux && !darwin

package offheap

import "unsafe"

// reserve takes plain memory: large zeroed slices come untouched from the operating system.
func reserve(bytes int) (mem []byte, unmap func([]byte)) {
	words := make([]uint64, (bytes+7)/8) // aligned for any record
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes), nil
}
