package evict

import (
	"sort"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// plainPage is a page of the plain model: LRU by sorting.
type plainPage struct {
	used      uint32
	doomed    bool
	share     Share
	evictable [NumTiers]bool
	bytes     uint64
}

// victims of a tier, doomed first, then by last use; equals are in no order.
func plainVictims(pages map[Ref]*plainPage, t Tier, among *Shares) []Ref {
	var refs []Ref
	for r, p := range pages {
		if p.evictable[t] && (p.doomed || among == nil || among.Has(p.share)) {
			refs = append(refs, r)
		}
	}
	rank := func(r Ref) int64 {
		if pages[r].doomed {
			return -1
		}
		return int64(pages[r].used)
	}
	sort.Slice(refs, func(i, j int) bool { return rank(refs[i]) < rank(refs[j]) })
	return refs
}

func TestLRUAgainstSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const refs = 40
		l, pages, now := NewLRU(refs+1), map[Ref]*plainPage{}, 0.
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now += rapid.Float64Range(0, 2).Draw(t, "dt")
			r := Ref(rapid.IntRange(1, refs).Draw(t, "ref"))
			p := pages[r]
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 3:
				a := Attrs{Bytes: rapid.Uint64Range(1, 100000).Draw(t, "bytes"), Doomed: rapid.IntRange(0, 5).Draw(t, "doomed") == 0}
				a.Share = rapid.SampledFrom([]Share{0, 0, 1, 200, 255}).Draw(t, "share")
				l.Insert(now, r, a)
				if p == nil {
					p = &plainPage{used: lruTicks(now)}
					pages[r] = p
				}
				p.doomed, p.bytes, p.share = a.Doomed, a.Bytes, a.Share
			case op == 3:
				l.Remove(now, r, true)
				delete(pages, r)
			case op < 6:
				l.Touch(now, r)
				if p != nil {
					p.used = lruTicks(now)
				}
			default:
				tier, ok := Tier(rapid.IntRange(0, int(NumTiers)-1).Draw(t, "tier")), op < 9
				l.SetEvictable(r, tier, ok)
				if p != nil && tier != Device {
					p.evictable[tier] = ok
				}
			}
			var some Shares
			for _, x := range []Share{0, 1, 200, 255} {
				some.Set(x, rapid.Bool().Draw(t, "in"))
			}
			for tier := range NumTiers {
				compareVictims(t, l, pages, tier, nil, now)
				compareVictims(t, l, pages, tier, &some, now)
			}
		}
	})
}

func compareVictims(t *rapid.T, l *LRU, pages map[Ref]*plainPage, tier Tier, among *Shares, now float64) {
	want := plainVictims(pages, tier, among)
	got := l.Victims(now, tier, 1<<62, among, nil)
	if len(got) != len(want) {
		t.Fatalf("tier %v: %d victims, want %d", tier, len(got), len(want))
	}
	seen := map[Ref]bool{}
	for i, v := range got {
		score := Score(pages[want[i]].used) / lruTicksPerSec
		if pages[want[i]].doomed {
			score = -1
		}
		if p := pages[v.Ref]; seen[v.Ref] || p == nil || !p.evictable[tier] || !p.doomed && among != nil && !among.Has(p.share) || v.Score != score {
			t.Fatalf("tier %v victim %d: %+v, want score %v", tier, i, v, score)
		}
		seen[v.Ref] = true
	}
	peek := l.Victims(now, tier, 0, among, nil)
	if len(peek) != min(len(got), 1) || len(peek) == 1 && peek[0] != got[0] {
		t.Fatalf("tier %v: next victim %v, of %v", tier, peek, got)
	}
}

func TestLRUStopsWhenNeedIsMet(t *testing.T) {
	l := NewLRU(100)
	for r := Ref(1); r <= 10; r++ {
		l.Insert(float64(r), r, Attrs{Bytes: 10 << 12})
		l.SetEvictable(r, Host, true)
	}
	for need, want := range map[uint64]int{0: 1, 1: 1, 10 << 12: 1, 10<<12 + 1: 2, 1 << 40: 10} {
		if got := l.Victims(99, Host, need, nil, nil); len(got) != want || got[0].Ref != 1 {
			t.Errorf("need %d: %v, want %d victims from 1", need, got, want)
		}
	}
	if got := l.Victims(99, Disk, 1, nil, nil); got != nil {
		t.Errorf("victims of a tier without pages: %v", got)
	}
}

// A chain is taken from its end: the parent turns into a leaf that is older than all the rest.
func TestLRUTakesAChainFromItsEnd(t *testing.T) {
	l := NewLRU(1000)
	const n = 500
	for r := Ref(1); r <= n; r++ { // parents first, used with their children
		l.Insert(0, r, Attrs{Bytes: 4096})
	}
	l.Insert(5, n+1, Attrs{Bytes: 4096}) // another, used later
	l.SetEvictable(n+1, Host, true)
	l.SetEvictable(n, Host, true)
	for r := Ref(n); r >= 1; r-- {
		v := l.Victims(10, Host, 1, nil, nil)
		if len(v) != 1 || v[0].Ref != r {
			t.Fatalf("victim %v, want %d", v, r)
		}
		l.Remove(10, r, true)
		if r > 1 {
			l.SetEvictable(r-1, Host, true)
		}
	}
	if v := l.Victims(10, Host, 1, nil, nil); len(v) != 1 || v[0].Ref != n+1 {
		t.Fatalf("left: %v", v)
	}
}

// What lies in one tier only does not stand between the victims of another.
func TestLRUFindsAVictimAtOnce(t *testing.T) {
	const n = 100_000
	l := NewLRU(n + 2)
	for r := Ref(1); r <= n; r++ {
		l.Insert(0, r, Attrs{Bytes: 4096})
		l.SetEvictable(r, Disk, true)
	}
	l.Insert(1, n+1, Attrs{Bytes: 4096})
	l.SetEvictable(n+1, Host, true)
	for tier, want := range map[Tier]Ref{Host: n + 1, Disk: 1} {
		list := l.lists[tier-lruFirst][1]
		if v := l.Victims(2, tier, 1, nil, nil); len(v) != 1 || v[0].Ref != want || list.tail != want {
			t.Errorf("%v: victims %v, the list ends with %d; want %d", tier, v, list.tail, want)
		}
	}
	if v := l.Victims(2, Device, 1, nil, nil); v != nil {
		t.Errorf("victims of a tier that is not ranked: %v", v)
	}
}

// A set of shares has its next victim at hand however many pages others have.
func TestLRUFindsAVictimOfAShareAtOnce(t *testing.T) {
	const n = 3 * lruVictimSteps
	l := NewLRU(n + 2)
	for r := Ref(1); r <= n; r++ {
		l.Insert(0, r, Attrs{Bytes: 4096})
		l.SetEvictable(r, Host, true)
	}
	l.Insert(1, n+1, Attrs{Bytes: 4096, Share: 7})
	l.SetEvictable(n+1, Host, true)
	var seven Shares
	seven.Set(7, true)
	if v := l.Victims(2, Host, 1<<40, &seven, nil); len(v) != 1 || v[0].Ref != n+1 {
		t.Errorf("victims of share 7: %v", v)
	}
	if v := l.Victims(2, Host, 0, nil, nil); len(v) != 1 || v[0].Ref != 1 {
		t.Errorf("victims of all: %v", v)
	}
	l.Insert(3, n+1, Attrs{Bytes: 4096}) // its tenant has no guarantee any more
	if v := l.Victims(2, Host, 0, &seven, nil); v != nil {
		t.Errorf("victims of share 7, which is empty: %v", v)
	}
}

// Few victims far apart are not looked for longer than a bound.
func TestLRUBoundsItsSearch(t *testing.T) {
	l := NewLRU(3*lruVictimSteps + 10)
	for r := Ref(1); r <= 3*lruVictimSteps; r++ {
		l.Insert(float64(r), r, Attrs{Bytes: 4096})
	}
	for _, r := range []Ref{1, 2, 3 * lruVictimSteps} {
		l.SetEvictable(r, Host, true)
	}
	l.Touch(1e6, 1) // in the list, in front of all others
	l.Touch(2e6, 2)
	for r := Ref(3); r < 3*lruVictimSteps; r++ {
		l.Touch(3e6, r)
	}
	l.Touch(4e6, 3*lruVictimSteps)
	if v := l.Victims(5e6, Host, 1<<40, nil, nil); len(v) != 2 || v[0].Ref != 1 || v[1].Ref != 2 {
		t.Errorf("%d victims, want the two near the end", len(v))
	}
}

func TestLRUSizes(t *testing.T) {
	if n := unsafe.Sizeof(lruPage{}); n != 24 {
		t.Errorf("lruPage is %d bytes, want 24", n)
	}
	l := NewLRU(0)
	l.Insert(0, 99, Attrs{})
	if n := l.FootprintBytes(); n != 2400 {
		t.Errorf("footprint %d, want 2,400", n)
	}
	l.SetEvictable(50, Host, true) // never inserted
	l.Touch(1, 50)
	if v := l.Victims(1, Host, 1, nil, nil); v != nil {
		t.Errorf("victims that were never inserted: %v", v)
	}
	l.Touch(2, 99)
	for name, c := range map[string]struct {
		ref  Ref
		a    Attrs
		want Score
	}{
		"new": {0, Attrs{}, MaxScore}, "known": {99, Attrs{}, 2}, "not known": {50, Attrs{}, MaxScore},
		"doomed": {0, Attrs{Doomed: true}, -1}, "known and doomed": {99, Attrs{Doomed: true}, -1},
	} {
		if got := l.Worth(3, c.ref, Host, c.a); got != c.want {
			t.Errorf("worth of a %s page: %v, want %v", name, got, c.want)
		}
	}
}

func TestLRUAllocatesNothing(t *testing.T) {
	l := NewLRU(1000)
	dst := make([]Victim, 0, 100)
	r := Ref(0)
	if n := testing.AllocsPerRun(500, func() {
		r = r%900 + 1
		l.Insert(float64(r), r, Attrs{Bytes: 4096})
		l.SetEvictable(r, Host, true)
		l.Touch(float64(r), r)
		l.Victims(float64(r), Host, 40960, nil, dst)
		l.Remove(float64(r), r, false)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
