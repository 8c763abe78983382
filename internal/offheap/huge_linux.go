package offheap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugeBytes = 2 << 20

// adviseHuge asks for huge pages behind the first two, which stay small so that small arrays cost little. A kernel
// without them says no, and nothing is lost but speed.
func adviseHuge(mem []byte) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	skip := int((start+3*hugeBytes-1)&^(hugeBytes-1) - start)
	if skip < len(mem) {
		_ = unix.Madvise(mem[skip:], unix.MADV_HUGEPAGE)
	}
}
