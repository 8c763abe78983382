package shm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Area is memory that this process fills and a peer reads: a memfd of its own, sealed against any change of its size.
type Area struct {
	Bytes []byte
	fd    int
}

// NewArea makes an area of so many zero bytes.
func NewArea(bytes int) (*Area, error) {
	fd, err := unix.MemfdCreate("quire-staging", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shm: create memfd: %w", err)
	}
	a := &Area{fd: fd}
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: size memfd to %d bytes: %w", bytes, err), unix.Close(fd))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: seal memfd: %w", err), unix.Close(fd))
	}
	if a.Bytes, err = unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: map %d bytes: %w", bytes, err), unix.Close(fd))
	}
	_ = unix.Madvise(a.Bytes, unix.MADV_HUGEPAGE) // where shared memory may have them
	return a, nil
}

// Descriptor is another descriptor of the area, the caller's to close.
func (a *Area) Descriptor() (int, error) {
	fd, err := unix.FcntlInt(uintptr(a.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("shm: duplicate descriptor: %w", err)
	}
	return fd, nil
}

// OffsetOf is where b begins in the area; ok is false when it does not lie in it.
func (a *Area) OffsetOf(b []byte) (offset int, ok bool) {
	at, base := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(a.Bytes)))
	if at < base || at-base > uintptr(len(a.Bytes)) || uintptr(len(b)) > uintptr(len(a.Bytes))-(at-base) {
		return 0, false
	}
	return int(at - base), true
}

// Close gives the memory back, also where a peer still has it mapped: it finds zeros.
func (a *Area) Close() error {
	if a.Bytes == nil {
		return nil
	}
	err := errors.Join(unix.Madvise(a.Bytes, unix.MADV_REMOVE), unix.Munmap(a.Bytes), unix.Close(a.fd))
	a.Bytes, a.fd = nil, -1
	return err
}
