//go:build linux || darwin

package offheap

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// reserve maps anonymous memory of which only touched pages count.
func reserve(bytes int) (mem []byte, unmap func([]byte)) {
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		panic(fmt.Errorf("offheap: reserve %d bytes of address space: %w", bytes, err))
	}
	adviseHuge(mem)
	return mem, func(m []byte) { _ = unix.Munmap(m) }
}
