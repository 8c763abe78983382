package index

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quire-kv/quire/store/page"
)

// churn replaces the entries of a full index again and again, and answers the most that its files took.
type churn struct {
	live     int64 // entries
	hash     int   // bytes of a hash
	turns    int   // how often everything is replaced
	segments bool  // whole segments go, the oldest first, instead of entries at random
}

func (c *churn) run(t testing.TB, r *rand.Rand, x *Index) (most int64) {
	g := newGenerator(r, 3)
	g.perSeg = max(64<<10*c.live/10, 1<<20)
	var live []Entry
	b := x.NewBatch()
	for n := int64(0); n < c.live*int64(c.turns+1); n++ {
		var e Entry
		g.next(&e)
		h := make([]byte, c.hash)
		fill(r, h)
		e.Key.Hash, _ = page.MakeHash(h)
		fill(r, h)
		e.Parent, _ = page.MakeHash(h) // no chain: nothing to compress
		if int64(len(live)) == c.live {
			if c.segments {
				oldest := live[0].Segment
				b.DeleteSegment(oldest)
				for len(live) > 0 && live[0].Segment == oldest {
					live = live[1:]
				}
			} else {
				i := r.IntN(len(live))
				b.Delete(live[i].Segment, live[i].Offset)
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			}
		}
		live = append(live, e)
		b.Put(&e)
		if n%16 == 15 {
			b.Applied(e.Segment, e.Offset)
			b.NextSeq(e.Seq + 1)
			apply(t, x, b)
			most = max(most, x.DiskBytes())
		}
	}
	return most
}

// TestBound fills indexes to what MaxEntries allows, and to a part of it, and replaces everything several times: at no
// moment do the files take more than Bound says.
func TestBound(t *testing.T) {
	if testing.Short() {
		t.Skip("long, and one goroutine's")
	}
	r := newRand(t)
	for _, c := range []struct{ maxBytes, part, turns int64 }{
		{MinBytes, 1, 4}, {MinBytes, 10, 10}, {4 << 20, 1, 1}, {16 << 20, 10, 2},
	} {
		for _, hash := range []int{32, page.MaxHashBytes} {
			for _, segments := range []bool{false, true} {
				n := MaxEntries(c.maxBytes) / c.part
				churn := churn{live: n, hash: hash, turns: int(c.turns), segments: segments}
				x := openAt(t, vfs.NewMem(), c.maxBytes)
				most := churn.run(t, r, x)
				what := fmt.Sprintf("%d entries of %d-byte hashes in %d MiB, segments %v", n, hash, c.maxBytes>>20, segments)
				bound := Bound(c.maxBytes, n)
				if most > bound {
					t.Errorf("%s: files took %d bytes, at most %d", what, most, bound)
				}
				t.Logf("%s: at most %d %% of %d bytes, %d an entry; written %d an entry",
					what, 100*most/bound, bound, most/n, int64(x.Written())/(n*(c.turns+1)))
				closeIndex(t, x)
			}
		}
	}
}
