package page

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/zeebo/xxh3"
)

// plainPieces is the rule of DESIGN, literally: per head, whole cells while they fit into 64 KiB; a larger cell every
// 64 KiB. Each piece as {offset, bytes}.
func plainPieces(heads, layers, cell int) (ps [][2]int) {
	for h := range heads {
		open := false
		for l := range layers {
			at := (h*layers + l) * cell
			if cell > MaxPieceBytes {
				for o := 0; o < cell; o += MaxPieceBytes {
					ps = append(ps, [2]int{at + o, min(MaxPieceBytes, cell-o)})
				}
				continue
			}
			if open && ps[len(ps)-1][1]+cell <= MaxPieceBytes {
				ps[len(ps)-1][1] += cell
				continue
			}
			ps, open = append(ps, [2]int{at, cell}), true
		}
	}
	return ps
}

// cellSizes has the edges of the rule among others.
func cellSize(r *rand.Rand) int {
	edges := []int{1, 8192, MaxPieceBytes / 2, MaxPieceBytes/2 + 1, MaxPieceBytes - 1, MaxPieceBytes, MaxPieceBytes + 1, 2 * MaxPieceBytes, 73_728}
	if r.IntN(2) == 0 {
		return edges[r.IntN(len(edges))]
	}
	return 1 + r.IntN(200_000)
}

func TestPiecesEqualPlain(t *testing.T) {
	r := newRand(t)
	for range 2000 {
		heads, layers, cell := 1+r.IntN(4), 1+r.IntN(70), cellSize(r)
		p, want := PiecesOf(layers, cell), plainPieces(heads, layers, cell)
		if p.Count(heads) != len(want) || PieceCount(View{1, 1 + uint16(heads), 2, 2 + uint16(layers)}, uint32(cell)) != len(want) {
			t.Fatalf("%d x %d of %d: %d pieces, want %d", heads, layers, cell, p.Count(heads), len(want))
		}
		for i, w := range want {
			at, n := p.Span(i)
			if at != w[0] || n != w[1] || p.At(at) != i || p.At(at+n-1) != i {
				t.Fatalf("%d x %d of %d: piece %d is %d+%d, want %v", heads, layers, cell, i, at, n, w)
			}
		}
		for range 20 {
			off := r.IntN(heads * layers * cell)
			checkTouched(t, p, want, off, r.IntN(heads*layers*cell-off+1))
		}
	}
}

func checkTouched(t *testing.T, p Pieces, want [][2]int, off, n int) {
	t.Helper()
	first, end, cutsFirst, cutsLast := p.Touched(off, n)
	if n == 0 {
		if first != end || cutsFirst || cutsLast {
			t.Fatalf("an empty run touches [%d,%d)", first, end)
		}
		return
	}
	for i, w := range want {
		touches := w[0] < off+n && off < w[0]+w[1]
		cut := touches && (w[0] < off || w[0]+w[1] > off+n)
		if touches != (i >= first && i < end) {
			t.Fatalf("%+v: run %d+%d: piece %d touched %v, got [%d,%d)", p, off, n, i, touches, first, end)
		}
		if got := i == first && cutsFirst || i == end-1 && cutsLast; touches && got != cut {
			t.Fatalf("%+v: run %d+%d: piece %d cut %v, got %v %v of [%d,%d)", p, off, n, i, cut, cutsFirst, cutsLast, first, end)
		}
	}
}

func TestSumsOfPayload(t *testing.T) {
	v, cell := View{1, 3, 0, 5}, uint32(30_000)
	payload := make([]byte, PayloadBytes(v, cell))
	for i := range payload {
		payload[i] = byte(i * i >> 3)
	}
	sums, err := AppendSumsOf([]byte("x"), payload, v, cell)
	if err != nil {
		t.Fatal(err)
	}
	sums = sums[1:]
	var plain []uint64
	for _, p := range plainPieces(2, 5, int(cell)) {
		plain = append(plain, xxh3.Hash(payload[p[0]:p[0]+p[1]]))
	}
	if !bytes.Equal(sums, AppendSums(nil, plain)) || SumAt(sums, 1) != plain[1] {
		t.Fatal("wrong sums")
	}
	if d := xxh3.Hash128(sums); DigestOfSums(sums) != d.Bytes() || binary.BigEndian.Uint64(sums) == 0 {
		t.Fatal("wrong digest")
	}
	for _, n := range []int{0, len(payload) - 1} {
		if _, err := AppendSumsOf(nil, payload[:n], v, cell); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// The sizes of DESIGN section 3, and that an impossible extent has no piece.
func TestPieceSizes(t *testing.T) {
	for _, c := range []struct {
		name                string
		heads, layers, cell int
		want                Pieces
	}{
		{"Llama-3-8B, 16 tokens", 8, 32, 2 * 16 * 128 * 2, Pieces{4, 64 << 10, 1, 32 * 8192, 32 * 8192}},
		{"Llama-3-70B, 256 tokens", 8, 80, 2 * 256 * 128 * 2, Pieces{160, 64 << 10, 2, 128 << 10, 80 * (128 << 10)}},
		{"DeepSeek-V3, 64 tokens", 1, 61, 64 * 576 * 2, Pieces{122, 64 << 10, 2, 73_728, 61 * 73_728}},
		{"DeepSeek-V3, 16 tokens", 1, 61, 16 * 576 * 2, Pieces{21, 3 * 18_432, 1, 61 * 18_432, 61 * 18_432}},
		{"SmolLM2-135M, 16 tokens", 3, 30, 2 * 16 * 64 * 2, Pieces{2, 64 << 10, 1, 30 * 4096, 30 * 4096}},
	} {
		if got := PiecesOf(c.layers, c.cell); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	for _, p := range []Pieces{PiecesOf(0, 10), PiecesOf(10, 0), PiecesOf(-1, -1)} {
		if p.Count(8) != 0 {
			t.Errorf("%+v", p)
		}
	}
	if PieceCount(View{}, 10) != 0 || PayloadBytes(View{}, 10) != 0 {
		t.Error("an empty view has pieces")
	}
}
