package demo

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/quire-kv/quire/store/page"
)

// Whatever byte is changed, and wherever a view is taken from, is noticed and counted.
func TestWrongBytesAreCounted(t *testing.T) {
	const cell = 256
	hash := bytes.Repeat([]byte{7}, hashBytes)
	view := page.View{H0: 2, H1: 4, L0: 1, L1: 3}
	b := make([]byte, view.Cells()*cell)
	fillView(b, hash, view, cell)
	if n := wrongBytes(b, hash, view, cell); n != 0 {
		t.Fatalf("%d wrong bytes in what was just made", n)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	changed := map[int]bool{}
	for range 50 {
		at := rng.IntN(len(b))
		if !changed[at] {
			b[at] ^= byte(1 + rng.IntN(255))
			changed[at] = true
		}
	}
	if n := wrongBytes(b, hash, view, cell); n != uint64(len(changed)) {
		t.Errorf("%d wrong bytes, want %d", n, len(changed))
	}
}

// Another page, another head and another layer have other bytes.
func TestPayloadsDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, hash := range []string{"page one........", "page two........"} {
		for h := range uint16(8) {
			for l := range uint16(8) {
				b := make([]byte, 64)
				fillView(b, []byte(hash), page.View{H0: h, H1: h + 1, L0: l, L1: l + 1}, 64)
				if other, ok := seen[string(b)]; ok {
					t.Fatalf("%s %d %d has the bytes of %s", hash, h, l, other)
				}
				seen[string(b)] = hash
			}
		}
	}
}

func BenchmarkFill(b *testing.B) {
	hash, v := bytes.Repeat([]byte{7}, hashBytes), page.View{H1: 8, L1: 8}
	dst := make([]byte, v.Cells()*4096)
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		fillView(dst, hash, v, 4096)
	}
}

func BenchmarkCompare(b *testing.B) {
	hash, v := bytes.Repeat([]byte{7}, hashBytes), page.View{H1: 8, L1: 8}
	dst := make([]byte, v.Cells()*4096)
	fillView(dst, hash, v, 4096)
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		if wrongBytes(dst, hash, v, 4096) != 0 {
			b.Fatal("wrong")
		}
	}
}
