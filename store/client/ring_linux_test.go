package client

import (
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/store/shm"
)

// TestRing: what is lent never overlaps, comes back in any order, and what fits into an empty ring is found there.
func TestRing(t *testing.T) {
	const size = 64
	rapid.Check(t, func(t *rapid.T) {
		mem := make([]byte, size)
		r := &ring{area: &shm.Area{Bytes: mem}}
		type part struct {
			from, n int
			free    func()
		}
		var lent []part
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(lent) > 0 && rapid.Bool().Draw(t, "free") {
				i := rapid.IntRange(0, len(lent)-1).Draw(t, "which")
				lent[i].free()
				lent = append(lent[:i], lent[i+1:]...)
				continue
			}
			n := rapid.IntRange(1, size).Draw(t, "bytes")
			b, free := r.take(n)
			if b == nil {
				if len(lent) == 0 {
					t.Fatalf("%d bytes do not fit into an empty ring", n)
				}
				continue
			}
			p := part{int(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&mem[0]))), n, free}
			if len(b) != n || p.from+n > size {
				t.Fatalf("%d bytes at %d", len(b), p.from)
			}
			for _, o := range lent {
				if p.from < o.from+o.n && o.from < p.from+p.n {
					t.Fatalf("%d+%d overlaps %d+%d", p.from, p.n, o.from, o.n)
				}
			}
			lent = append(lent, p)
		}
	})
}
