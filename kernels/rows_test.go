package kernels

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// rowsHold compares rows with a byte by byte copy; bytes between rows must stay.
func rowsHold(t *testing.T, src []byte, n, dstStride, srcStride, run, offset int) {
	t.Helper()
	want := bytes.Repeat([]byte{guard}, offset+n*dstStride+run+64)
	got := bytes.Clone(want)
	for k := range n {
		for b := range run {
			want[offset+k*dstStride+b] = src[k*srcStride+b]
		}
	}
	rows(got[offset:], src, n, dstStride, srcStride, run)
	if !bytes.Equal(got, want) {
		t.Fatalf("%d rows of %d, strides %d and %d, offset %d: wrong bytes", n, run, dstStride, srcStride, offset)
	}
}

func TestRowsEqualPlain(t *testing.T) {
	r := newRand(t)
	src := randomBytes(r, 64<<10)
	atEveryLevel(t, func(t *testing.T) {
		for run := 1; run <= 1200; run++ {
			n := 1 + r.IntN(20)
			rowsHold(t, src, n, run+r.IntN(200), r.IntN(2)*(run+r.IntN(100)), run, r.IntN(64))
		}
		for offset := range 64 {
			for from := range 64 {
				rowsHold(t, src[from:], 3, 256, 256, 64+r.IntN(193), offset)
			}
		}
	})
}

func FuzzRows(f *testing.F) {
	f.Add(uint64(1), uint8(10), uint16(256), uint16(0), uint16(1792), uint8(0))
	f.Add(uint64(2), uint8(1), uint16(31), uint16(7), uint16(0), uint8(63))
	f.Fuzz(func(t *testing.T, seed uint64, n uint8, run, dstGap, srcStride uint16, offset uint8) {
		if n == 0 || run == 0 {
			return
		}
		src := randomBytes(rand.New(rand.NewPCG(seed, 0)), (int(n)-1)*int(srcStride)+int(run))
		rowsHold(t, src, int(n), int(run)+int(dstGap), int(srcStride), int(run), int(offset))
	})
}
