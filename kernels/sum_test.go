package kernels

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// copySums are the functions of one contract.
var copySums = []struct {
	name string
	f    func(dst, src []byte) uint64
}{{"CopySum", CopySum}, {"StreamSum", StreamSum}}

const guard = 0xa5

// holds checks src's sum and copy against the library. dst begins at offset of a buffer whose other bytes must stay.
func holds(t *testing.T, buf []byte, offset int, src []byte) {
	t.Helper()
	want := xxh3.Hash(src)
	if got := Sum(src); got != want {
		t.Fatalf("Sum of %d bytes: %016x, want %016x", len(src), got, want)
	}
	end := offset + len(src)
	for _, c := range copySums {
		from, to := max(offset-128, 0), min(end+128, len(buf))
		for i := from; i < to; i++ {
			buf[i] = guard
		}
		if got := c.f(buf[offset:end], src); got != want {
			t.Fatalf("%s of %d bytes to offset %d: %016x, want %016x", c.name, len(src), offset, got, want)
		}
		if !bytes.Equal(buf[offset:end], src) {
			t.Fatalf("%s of %d bytes to offset %d: wrong bytes", c.name, len(src), offset)
		}
		for i := from; i < to; i++ {
			if (i < offset || i >= end) && buf[i] != guard {
				t.Fatalf("%s of %d bytes to offset %d wrote byte %d", c.name, len(src), offset, i)
			}
		}
	}
}

// alignedBytes begin at a multiple of 4 KiB.
func alignedBytes(n int) []byte {
	b := make([]byte, n+4096)
	skip := -uintptr(unsafe.Pointer(&b[0])) & 4095
	return b[skip : int(skip)+n]
}

func TestSumOfEveryLength(t *testing.T) {
	r := newRand(t)
	src, dst := randomBytes(r, 5<<20), alignedBytes(5<<20)
	atEveryLevel(t, func(t *testing.T) {
		for n := range 4201 {
			at := r.IntN(200)
			holds(t, dst, 128+r.IntN(2)*r.IntN(64), src[at:at+n])
		}
		for range 60 {
			n := 4201 + r.IntN(1<<uint(13+r.IntN(10)))
			at := r.IntN(len(src) - n)
			holds(t, dst, 128+r.IntN(2)*r.IntN(64), src[at:at+n])
		}
		for _, n := range []int{8 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 4 << 20} {
			holds(t, dst, 4096, src[:n])
		}
	})
}

func TestSumAtEveryAlignment(t *testing.T) {
	r := newRand(t)
	src, dst := alignedBytes(8192), alignedBytes(8192)
	copy(src, randomBytes(r, len(src)))
	atEveryLevel(t, func(t *testing.T) {
		for from := range 64 {
			for to := range 64 {
				for _, n := range []int{241, 1024, 1088, 1089, 2000 + r.IntN(3000)} {
					holds(t, dst, 128+to, src[from:from+n])
				}
			}
		}
	})
}

// A destination that is too short is refused like an index; one that is longer keeps what is behind.
func TestSumDestination(t *testing.T) {
	src := bytes.Repeat([]byte{7}, 1000)
	atEveryLevel(t, func(t *testing.T) {
		for _, c := range copySums {
			long := bytes.Repeat([]byte{guard}, 1100)
			if c.f(long, src) != xxh3.Hash(src) || !bytes.Equal(long[1000:], bytes.Repeat([]byte{guard}, 100)) {
				t.Errorf("%s: a longer destination", c.name)
			}
			short := make([]byte, 999)
			func() {
				defer func() {
					if recover() == nil || !bytes.Equal(short, make([]byte, 999)) {
						t.Errorf("%s: a shorter destination was taken", c.name)
					}
				}()
				c.f(short, src)
			}()
		}
	})
}

func TestSumAllocations(t *testing.T) {
	src, dst := make([]byte, 5000), make([]byte, 5000)
	atEveryLevel(t, func(t *testing.T) {
		if n := testing.AllocsPerRun(10, func() { _ = Sum(src) + CopySum(dst, src) + StreamSum(dst, src) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func FuzzCopySum(f *testing.F) {
	f.Add([]byte("quire"), uint16(3), uint8(1), uint8(2))
	f.Add(bytes.Repeat([]byte{0, 255, 1}, 700), uint16(2), uint8(0), uint8(63))
	f.Fuzz(func(t *testing.T, seed []byte, repeat uint16, from, to uint8) {
		long := bytes.Repeat(seed, min(1+int(repeat), 1+(1<<16)/max(1, len(seed))))
		src := long[min(int(from), len(long)):]
		buf := alignedBytes(len(src) + 512)
		holds(t, buf, 128+int(to), src)
	})
}
