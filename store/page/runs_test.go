package page

import (
	"errors"
	"testing"
)

// cellIDs is the plain model of a head-major buffer: which cell of the page each cell of it is.
func cellIDs(v View) (ids [][2]uint16) {
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			ids = append(ids, [2]uint16{h, l})
		}
	}
	return ids
}

func TestRunsEqualPlain(t *testing.T) {
	r := newRand(t)
	for range 20_000 {
		src, dst, take := randomView(r), randomView(r), randomView(r)
		cell := uint32(1 + r.IntN(3))
		runs := RunsBetween(src, dst, take, cell)
		ids, at := cellIDs(src), map[[2]uint16]int{}
		for i, id := range cellIDs(dst) {
			at[id] = i * int(cell)
		}
		moved := map[int]int{} // byte of src -> byte of dst
		for k := range runs.N {
			s, d, n := runs.Run(k)
			for b := range n {
				moved[s+b] = d + b
			}
		}
		common := take.Intersect(src).Intersect(dst)
		if len(moved) != common.Cells()*int(cell) || runs.Total() != len(moved) {
			t.Fatalf("%v -> %v of %v: %+v", src, dst, take, runs)
		}
		for s := range len(ids) * int(cell) {
			id := ids[s/int(cell)]
			d, ok := moved[s]
			in := id[0] >= common.H0 && id[0] < common.H1 && id[1] >= common.L0 && id[1] < common.L1
			if ok != in || ok && d != at[id]+s%int(cell) {
				t.Fatalf("%v -> %v of %v: byte %d to %d %v", src, dst, take, s, d, ok)
			}
			checkLocate(t, runs, s, d, ok)
		}
	}
}

func checkLocate(t *testing.T, runs Runs, s, d int, in bool) {
	t.Helper()
	got, n, ok := runs.Locate(s)
	if ok != in || ok && (got != d || n < 1 || n > runs.Bytes) {
		t.Fatalf("%+v: byte %d at %d+%d %v, want %d %v", runs, s, got, n, ok, d, in)
	}
	if !ok {
		return
	}
	last, _, ok := runs.Locate(s + n - 1)
	if _, more, _ := runs.Locate(s + n - 1); !ok || last != d+n-1 || more != 1 {
		t.Fatalf("%+v: %d bytes from %d are not one run", runs, n, s)
	}
}

// Whole heads are one run, so that a TP slice of a whole page is one contiguous range and no byte more.
func TestRunsMergeWholeHeads(t *testing.T) {
	page := View{0, 8, 0, 32}
	for rank := range 4 {
		v, err := TPView(rank, 4, 8, 32)
		if err != nil {
			t.Fatal(err)
		}
		want := Runs{Src: rank * 2 * 32 * 100, Bytes: 6400, SrcStride: 6400, DstStride: 6400, N: 1}
		if got := RunsOf(page, v.View, 100); got != want {
			t.Errorf("rank %d: %+v", rank, got)
		}
	}
	if got := RunsOf(page, View{2, 5, 4, 8}, 100); got != (Runs{Src: 6800, Bytes: 400, SrcStride: 3200, DstStride: 400, N: 3}) {
		t.Errorf("%+v", got)
	}
	if got := RunsOf(View{0, 2, 0, 2}, View{2, 4, 0, 2}, 100); got.N != 0 || got.Total() != 0 {
		t.Errorf("outside: %+v", got)
	}
}

func TestTPView(t *testing.T) {
	for _, c := range []struct {
		rank, tp int
		heads    uint16
		want     RankView
	}{
		{0, 1, 8, RankView{View{0, 8, 0, 4}, 0, 1}},
		{3, 4, 8, RankView{View{6, 8, 0, 4}, 0, 1}},
		{7, 8, 8, RankView{View{7, 8, 0, 4}, 0, 1}},
		{5, 16, 8, RankView{View{2, 3, 0, 4}, 1, 2}},
		{7, 8, 2, RankView{View{1, 2, 0, 4}, 3, 4}},
		{6, 8, 1, RankView{View{0, 1, 0, 4}, 6, 8}}, // MLA
	} {
		if got, err := TPView(c.rank, c.tp, c.heads, 4); err != nil || got != c.want {
			t.Errorf("rank %d of %d over %d heads: %+v %v", c.rank, c.tp, c.heads, got, err)
		}
	}
	for _, c := range []struct {
		rank, tp int
		heads    uint16
		want     error
	}{
		{0, 3, 8, ErrUnsupported}, {0, 12, 8, ErrUnsupported}, {0, 0, 8, ErrInvalid}, {-1, 2, 8, ErrInvalid}, {2, 2, 8, ErrInvalid}, {0, 1, 0, ErrInvalid},
	} {
		if _, err := TPView(c.rank, c.tp, c.heads, 4); !errors.Is(err, c.want) {
			t.Errorf("rank %d of %d over %d heads: %v, want %v", c.rank, c.tp, c.heads, err, c.want)
		}
	}
	if _, err := TPView(0, 1, 8, 0); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func TestPPView(t *testing.T) {
	v := View{2, 4, 0, 10}
	for stage, want := range []View{{2, 4, 0, 4}, {2, 4, 4, 7}, {2, 4, 7, 10}} {
		if got, err := PPView(v, stage, []uint16{4, 3, 3}); err != nil || got != want {
			t.Errorf("stage %d: %v %v", stage, got, err)
		}
	}
	for _, c := range []struct {
		v      View
		stage  int
		layers []uint16
	}{{v, 3, []uint16{4, 3, 3}}, {v, -1, []uint16{10}}, {v, 0, []uint16{4, 3}}, {v, 0, nil}, {View{0, 1, 1, 10}, 0, []uint16{10}}} {
		if _, err := PPView(c.v, c.stage, c.layers); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Of ranks that hold the same, exactly one writes each page, and over many pages all of them do their share.
func TestReplicaWriters(t *testing.T) {
	r := newRand(t)
	for _, c := range []struct {
		tp    int
		heads uint16
	}{{8, 8}, {8, 2}, {8, 1}, {6, 2}, {16, 1}} {
		count := make([]int, c.tp)
		const pages = 2000
		for range pages {
			var b [32]byte
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			h, _ := MakeHash(b[:MinHashBytes+r.IntN(17)])
			covered := map[uint16]int{}
			for rank := range c.tp {
				v, err := TPView(rank, c.tp, c.heads, 2)
				if err != nil {
					t.Fatal(err)
				}
				if v.Writes(&h) {
					count[rank]++
					covered[v.H0]++
				}
			}
			if len(covered) != min(c.tp, int(c.heads)) {
				t.Fatalf("tp %d over %d heads: written %v", c.tp, c.heads, covered)
			}
			for _, n := range covered {
				if n != 1 {
					t.Fatalf("tp %d over %d heads: written %v", c.tp, c.heads, covered)
				}
			}
		}
		share := pages / max(1, c.tp/int(c.heads))
		for rank, n := range count {
			if n < share/2 {
				t.Errorf("tp %d over %d heads: rank %d writes %d of %d", c.tp, c.heads, rank, n, pages)
			}
		}
	}
	h, _ := MakeHash([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5}) // 2^120 + 5; 2^120 = 4^60 = 1 modulo 3
	if v := (RankView{Replica: 0, Replicas: 3}); !v.Writes(&h) {
		t.Error("the hash is not read as a big-endian number")
	}
}
