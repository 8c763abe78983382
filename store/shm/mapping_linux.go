package shm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrDescriptor is a descriptor that is not safe to map.
var ErrDescriptor = errors.New("shm: descriptor is not a sealed memfd")

// Map maps all of fd for reading and closes it. It must be a memfd that is sealed against shrinking, so that no
// access can fail, and at most maxBytes long. ErrDescriptor.
//
// hugetlb says whether reserved huge pages are taken: reading a hole of them can end the process where none are left,
// so they are for who trusts the owner.
func Map(fd int, maxBytes int64, hugetlb bool) ([]byte, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shm: stat descriptor: %w", err)
	}
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: seals %#x, %w", ErrDescriptor, got, errors.Join(err))
	}
	if st.Size <= 0 || st.Size > maxBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrDescriptor, st.Size, maxBytes)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("shm: stat file system: %w", err)
	}
	if !hugetlb && fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("%w: file system %#x", ErrDescriptor, fs.Type)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shm: map %d bytes: %w", st.Size, err)
	}
	return mem, nil
}

// Unmap ends a Map.
func Unmap(mem []byte) error { return unix.Munmap(mem) }
