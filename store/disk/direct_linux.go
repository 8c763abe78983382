package disk

import (
	"io"

	"golang.org/x/sys/unix"
)

// setDirect makes writes through fd bypass the page cache. The file system may refuse.
func setDirect(fd uintptr) error {
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_DIRECT)
	return err
}

// writeVector writes parts in one system call where the kernel takes them all.
func writeVector(fd uintptr, parts [][]byte, at int64) error {
	for len(parts) > 0 {
		n, err := unix.Pwritev(int(fd), parts[:min(len(parts), maxVector)], at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		at += int64(n)
		for n > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if n > 0 {
			parts[0] = parts[0][n:]
		}
	}
	return nil
}

// maxVector is how many parts one call takes (IOV_MAX).
const maxVector = 1024
