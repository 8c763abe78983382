// Package offheap keeps large arrays of small records out of the Go heap, so that millions of them cost the garbage
// collector nothing.
package offheap

import (
	"runtime"
	"unsafe"
)

// Array is a fixed number of zeroed elements at stable addresses. Address space is reserved whole; memory counts
// only once it is touched. T must hold no pointers: the collector does not look inside. Not safe for concurrent
// writes to one element. The memory goes back when the Array becomes unreachable: whoever keeps a pointer from At
// keeps the Array alive (runtime.KeepAlive) until it is done with it.
type Array[T any] struct{ items []T }

// New reserves n elements; n is at least 1. It panics when not even address space can be had.
func New[T any](n int) *Array[T] {
	var zero T
	n = max(n, 1)
	mem, unmap := reserve(n * int(unsafe.Sizeof(zero)))
	a := &Array[T]{items: unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), n)}
	if unmap != nil {
		runtime.AddCleanup(a, func(m []byte) { unmap(m) }, mem)
	}
	return a
}

// At is element i. It panics beyond Len.
func (a *Array[T]) At(i uint32) *T { return &a.items[i] }

// Len is the number of elements reserved.
func (a *Array[T]) Len() int { return len(a.items) }

// Slice is all elements; the same rules as for At.
func (a *Array[T]) Slice() []T { return a.items }
