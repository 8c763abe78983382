package kernels

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzChunkReassembly: whatever the portions, the bytes arrive, the sums are those of the whole, and what does not fit
// is refused.
func FuzzChunkReassembly(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"), uint16(20), uint16(7), []byte{1, 0, 5, 3, 200})
	f.Add(bytes.Repeat([]byte("quire"), 400), uint16(600), uint16(64), []byte{64, 64, 128, 1})
	f.Add([]byte{}, uint16(1), uint16(1), []byte{})
	f.Fuzz(func(t *testing.T, payload []byte, unit, piece uint16, portions []byte) {
		c := Cut{int(unit), int(piece)}
		if c.check() != nil {
			var s Summer
			if err := s.Reset(payload, c, nil); !errors.Is(err, ErrPlan) {
				t.Fatalf("%+v: %v", c, err)
			}
			return
		}
		want := naiveSums(payload, c)
		sums := make([]uint64, c.Count(len(payload)))
		if len(sums) != len(want) {
			t.Fatalf("%+v of %d bytes: %d pieces, want %d", c, len(payload), len(sums), len(want))
		}
		dst := make([]byte, len(payload))
		feed(t, dst, payload, c, sums, portions)
		if !bytes.Equal(dst, payload) || !equal(sums, want) {
			t.Fatal("wrong bytes or sums")
		}
		straight(t, payload, c, want)
	})
}

// feed writes payload in the given portions, and then the rest.
func feed(t *testing.T, dst, payload []byte, c Cut, sums []uint64, portions []byte) {
	t.Helper()
	var s Summer
	if err := s.Reset(dst, c, sums); err != nil {
		t.Fatal(err)
	}
	rest := payload
	for _, p := range portions {
		n := min(int(p), len(rest))
		if k, err := s.Write(rest[:n]); k != n || err != nil {
			t.Fatal(k, err)
		}
		rest = rest[n:]
		if s.Offset() != len(payload)-len(rest) || s.Complete() != (len(rest) == 0) {
			t.Fatal("offset", s.Offset())
		}
	}
	if n, err := s.Write(make([]byte, len(rest)+1)); n != 0 || !errors.Is(err, ErrBounds) {
		t.Fatal("an overrun was taken", n, err)
	}
	if _, err := s.Write(rest); err != nil || !s.Complete() || s.Summed() != len(sums) {
		t.Fatal("incomplete", err)
	}
}

// straight holds the one-shot variants to the same sums.
func straight(t *testing.T, payload []byte, c Cut, want []uint64) {
	t.Helper()
	dst, sums := make([]byte, len(payload)), make([]uint64, len(want))
	if err := CopySumPieces(dst, payload, c, sums); err != nil || !bytes.Equal(dst, payload) || !equal(sums, want) {
		t.Fatal("CopySumPieces", err)
	}
	clear(sums)
	if err := SumPieces(payload, c, sums); err != nil || !equal(sums, want) {
		t.Fatal("SumPieces", err)
	}
}

// A buffer that is too small or too large is refused before a byte moves: never a short copy, never an overrun.
func TestCase_C57_BufferSize(t *testing.T) {
	src := bytes.Repeat([]byte{7}, 100)
	c := Cut{50, 20}
	for _, n := range []int{0, 99, 101} {
		dst := make([]byte, n)
		if err := CopySumPieces(dst, src, c, make([]uint64, 6)); !errors.Is(err, ErrBounds) {
			t.Errorf("CopySumPieces to %d: %v", n, err)
		}
		if !bytes.Equal(dst, make([]byte, n)) {
			t.Errorf("bytes moved to a buffer of %d", n)
		}
	}
	for _, n := range []int{5, 7} {
		dst, sums := make([]byte, 100), make([]uint64, n)
		var s Summer
		for i, err := range []error{
			CopySumPieces(dst, src, c, sums), SumPieces(src, c, sums),
			s.Reset(dst, c, sums),
		} {
			if !errors.Is(err, ErrSums) {
				t.Errorf("%d sums, call %d: %v", n, i, err)
			}
		}
		if !bytes.Equal(dst, make([]byte, 100)) {
			t.Error("bytes moved")
		}
	}
	var zero Summer
	if n, err := zero.Write([]byte{1}); n != 0 || !errors.Is(err, ErrBounds) {
		t.Error("the zero Summer took bytes", err)
	}
}

func TestSummerAllocations(t *testing.T) {
	src, dst := make([]byte, 1<<16), make([]byte, 1<<16)
	sums := make([]uint64, 4)
	var s Summer
	if n := testing.AllocsPerRun(10, func() {
		if s.Reset(dst, Cut{1 << 15, 1 << 14}, sums) != nil {
			t.Fail()
		}
		for at := 0; at < len(src); at += 5000 {
			s.Write(src[at:min(at+5000, len(src))])
		}
	}); n != 0 || !s.Complete() {
		t.Errorf("%v allocations", n)
	}
}
