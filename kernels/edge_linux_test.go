package kernels

import (
	"sync"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// fenced is memory between two pages that cannot be touched: whoever reads or writes beside it ends the test.
func fenced(t *testing.T, pages int) []byte {
	t.Helper()
	const page = 4096
	all, err := unix.Mmap(-1, 0, (pages+2)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(all) })
	for _, fence := range [][]byte{all[:page], all[(pages+1)*page:]} {
		if err := unix.Mprotect(fence, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return all[page : (pages+1)*page : (pages+1)*page]
}

func TestNothingBesideIsTouched(t *testing.T) {
	r := newRand(t)
	src, dst := fenced(t, 2), fenced(t, 2)
	copy(src, randomBytes(r, len(src)))
	atEveryLevel(t, func(t *testing.T) {
		for n := range 4201 {
			holds(t, dst, 0, src[len(src)-n:])
			holds(t, dst, len(dst)-n, src[:n])
		}
		for run := 1; run <= 1200; run++ {
			n := len(src) / run
			rows(dst, src[len(src)-n*run:], n, run, run, run)
			rows(dst[len(dst)-n*run:], src, n, run, run, run)
			if n >= 2 {
				stride := (len(src) - run) / (n - 1)
				used := (n-1)*stride + run
				rows(dst[len(dst)-used:], src[len(src)-used:], n, stride, stride, run)
			}
		}
	})
}

// twice is one memory at two addresses.
func twice(t *testing.T, bytes int) (a, b []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("quire-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*[]byte{&a, &b} {
		mem, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(mem) })
		*p = mem
	}
	return a, b
}

// A source that another process changes while it is copied: the sum is that of what arrived.
func TestSumIsOfWhatArrived(t *testing.T) {
	r := newRand(t)
	src, theirs := twice(t, 8192)
	dst := alignedBytes(8192)
	atEveryLevel(t, func(t *testing.T) {
		stop := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					theirs[(i*977)%len(theirs)]++
				}
			}
		})
		for range 5000 {
			n := r.IntN(len(src) + 1)
			for _, c := range copySums {
				if got := c.f(dst[:n], src[:n]); got != xxh3.Hash(dst[:n]) {
					t.Errorf("%s of %d bytes: the sum is not that of the destination", c.name, n)
				}
			}
		}
		close(stop)
		writer.Wait()
	})
}
