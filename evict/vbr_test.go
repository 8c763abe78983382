package evict

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestVBRAgainstAModel: whatever is done, victims are pages that may go, of the shares that may lose, none twice, doomed
// ones first, as many as are needed; and pages of one tier's list are no victims of the other.
func TestVBRAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const refs = 40
		v, pages, now := NewVBR(refs+1, rapid.Uint64().Draw(t, "seed")), map[Ref]*plainPage{}, 0.
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now += rapid.Float64Range(0, 2).Draw(t, "dt")
			r := Ref(rapid.IntRange(1, refs).Draw(t, "ref"))
			p := pages[r]
			switch op := rapid.IntRange(0, 10).Draw(t, "op"); {
			case op < 3:
				a := Attrs{
					Bytes: rapid.Uint64Range(1, 100000).Draw(t, "bytes"), FLOPs: rapid.SampledFrom([]float64{0, 1, 1e12}).Draw(t, "flops"),
					Doomed: rapid.IntRange(0, 5).Draw(t, "doomed") == 0, KeyTag: uint64(r),
					Share: rapid.SampledFrom([]Share{0, 0, 1, 200, 255}).Draw(t, "share"),
				}
				if parent := Ref(rapid.IntRange(0, refs).Draw(t, "parent")); parent != r && pages[parent] != nil {
					a.Parent = parent
				}
				v.Insert(now, r, a)
				if p == nil {
					p = &plainPage{}
					pages[r] = p
				}
				p.doomed, p.bytes, p.share = a.Doomed, a.Bytes, a.Share
			case op == 3:
				v.Remove(now, r, rapid.Bool().Draw(t, "evicted"))
				delete(pages, r)
			case op < 6:
				v.Touch(now, r)
			case op == 6:
				v.Pass(now, []Attrs{{KeyTag: 1000 + uint64(r), Bytes: 1}, {KeyTag: 2000 + uint64(r), Bytes: 1, FLOPs: 3}})
			case op == 7:
				v.Resize(Host, rapid.Uint64Range(0, 1<<30).Draw(t, "size"), rapid.Uint64Range(0, 1<<20).Draw(t, "pages"))
			default:
				tier, ok := Tier(rapid.IntRange(0, int(NumTiers)-1).Draw(t, "tier")), op < 10
				v.SetEvictable(r, tier, ok)
				if p != nil && tier != Device {
					p.evictable[tier] = ok
				}
			}
			v.checkLeaves(t.Fatalf)
			var some Shares
			for _, x := range []Share{0, 1, 200, 255} {
				some.Set(x, rapid.Bool().Draw(t, "in"))
			}
			for tier := range NumTiers {
				checkVBRVictims(t, v, pages, tier, nil, now)
				checkVBRVictims(t, v, pages, tier, &some, now)
			}
		}
	})
}

func checkVBRVictims(t *rapid.T, v *VBR, pages map[Ref]*plainPage, tier Tier, among *Shares, now float64) {
	may := plainVictims(pages, tier, among)
	if n := len(v.Victims(now, tier, 0, among, nil)); n != min(1, len(may)) {
		t.Fatalf("%v: %d victims for no bytes, %d may go", tier, n, len(may))
	}
	got := v.Victims(now, tier, math.MaxUint64, among, nil)
	if len(got) != len(may) {
		t.Fatalf("%v: %d victims, %d may go", tier, len(got), len(may))
	}
	seen := map[Ref]bool{}
	for i, x := range got {
		switch p := pages[x.Ref]; {
		case seen[x.Ref] || !slices.Contains(may, x.Ref):
			t.Fatalf("%v: victim %d may not go, or came before", tier, x.Ref)
		case p.doomed != (x.Score == doomedScore):
			t.Fatalf("%v: victim %d scores %v, doomed %v", tier, x.Ref, x.Score, p.doomed)
		case i > 0 && p.doomed && !pages[got[i-1].Ref].doomed:
			t.Fatalf("%v: doomed page %d comes after one that is not", tier, x.Ref)
		case !p.doomed && v.Worth(now, x.Ref, tier, Attrs{}) < 0:
			t.Fatalf("%v: page %d is worth less than nothing", tier, x.Ref)
		}
		seen[x.Ref] = true
	}
}

// TestVBRDrawsTheLeast: of so few pages that all are looked at, the least goes first.
func TestVBRDrawsTheLeast(t *testing.T) {
	v := NewVBR(drawn+1, 1)
	for r := Ref(1); r <= drawn; r++ {
		v.Insert(float64(r), r, Attrs{Bytes: 1 << 20, FLOPs: float64(1 + (7*r)%drawn), KeyTag: uint64(r)})
		v.SetEvictable(r, Host, true)
	}
	got := v.Victims(100, Host, drawnMore<<20, nil, nil)
	if len(got) != drawnMore {
		t.Fatalf("%d victims", len(got))
	}
	first := got[0]
	for r := Ref(1); r <= drawn; r++ {
		if s := v.Worth(100, r, Host, Attrs{}); s < first.Score {
			t.Errorf("page %d scores %v, the victim %d %v", r, s, first.Ref, first.Score)
		}
	}
}

// TestLoadingIsTakenOff: a page that costs more to load than to recompute is worth next to nothing in that tier, and still
// more than one that is used less.
func TestLoadingIsTakenOff(t *testing.T) {
	v := NewVBR(3, 1)
	v.SetLoading(Disk, Loading{BytesPerSecond: 1 << 20, FLOPSPerSecond: 1e9})
	v.Insert(0, 1, Attrs{Bytes: 1 << 20, FLOPs: 5e8})
	v.Insert(0, 2, Attrs{Bytes: 1 << 20, FLOPs: 5e9})
	if host, disk := v.Worth(1, 1, Host, Attrs{}), v.Worth(1, 1, Disk, Attrs{}); host <= 0 || disk*leastOfValue != host {
		t.Errorf("cheap page: %v in memory, %v on disk", host, disk)
	}
	host, disk := v.Worth(1, 2, Host, Attrs{}), v.Worth(1, 2, Disk, Attrs{})
	if ratio := float64(disk / host); math.Abs(ratio-0.8) > 1e-6 {
		t.Errorf("dear page: %v of its worth left on disk, not 4/5", ratio)
	}
}

// hinted is pages of a tenant and of tenant 0, equal but for what is said of the first's; victims until none is left.
func hinted(tenant uint32, said func(r Ref) Attrs) (victims []Ref) {
	const pages = drawn
	v := NewVBR(pages+1, 1)
	for r := Ref(1); r <= pages; r++ {
		a := Attrs{}
		if r%2 == 1 && said != nil {
			a = said(r)
		}
		a.Bytes, a.FLOPs, a.KeyTag, a.Tenant = 1<<20, 1e9*float64(100+r/2), uint64(r), uint32(r%2)*tenant
		v.Insert(0, r, a)
		v.SetEvictable(r, Host, true)
	}
	for {
		got := v.Victims(1, Host, 0, nil, nil)
		if len(got) == 0 {
			return victims
		}
		victims = append(victims, got[0].Ref)
		v.Remove(1, got[0].Ref, true)
	}
}

// TestHintsMoveOnlyTheTenantsOwnPages: what one says of its pages changes which of them goes, and for nobody else when.
func TestHintsMoveOnlyTheTenantsOwnPages(t *testing.T) {
	for _, tenant := range []uint32{1, 1 << (32 - leafTenantShift)} { // a leaf's bits of the second are those of tenant 0
		hintsMoveOnly(t, tenant)
	}
}

func hintsMoveOnly(t *testing.T, tenant uint32) {
	plain := hinted(tenant, nil)
	lies := map[string]func(r Ref) Attrs{
		"dear to recompute": func(r Ref) Attrs { return Attrs{Declared: 1e30} },
		"cheap":             func(r Ref) Attrs { return Attrs{Declared: 1e-30} },
		"system prompts":    func(r Ref) Attrs { return Attrs{Hint: Hint{Category: CategorySystem}} },
		"due at once":       func(r Ref) Attrs { return Attrs{Hint: Hint{Reuse: 2}} },
		"short answers":     func(r Ref) Attrs { return Attrs{Hint: Hint{Answer: 1}} },
		"some at an end":    func(r Ref) Attrs { return Attrs{Hint: Hint{Next: Next(r / 2 % 2 * 2)}} },
	}
	for name, said := range lies {
		got := hinted(tenant, said)
		if len(got) != len(plain) {
			t.Fatalf("%s: %d victims, %d without", name, len(got), len(plain))
		}
		// Until the other tenant has lost all, each of its losses is the one that it would have had.
		var others, others0 []Ref
		for i := range got {
			if got[i]%2 == 0 {
				others = append(others, got[i])
			}
			if plain[i]%2 == 0 {
				others0 = append(others0, plain[i])
			}
		}
		if !slices.Equal(others, others0) {
			t.Errorf("%s: the other tenant than %d loses %v instead of %v", name, tenant, others, others0)
		}
	}
	ended := hinted(tenant, lies["some at an end"])
	var own []Ref
	for _, r := range ended {
		if r%2 == 1 {
			own = append(own, r)
		}
	}
	for i, r := range own {
		if over := r/2%2 == 1; over != (i < len(own)/2) {
			t.Fatalf("own pages go as %v: those of ended sessions are not first", own)
		}
	}
}

// TestAHintEndsWithTheUse that it spoke of.
func TestAHintEndsWithTheUse(t *testing.T) {
	v := NewVBR(2, 1)
	v.Insert(0, 1, Attrs{Bytes: 1, FLOPs: 1, Hint: Hint{Category: CategoryBatch, Next: NextNothing, Reuse: 9}})
	p := v.pages.At(1)
	if p.lean != leanOfCategory[CategoryBatch]*leanOfNext[NextNothing] || p.due != 9*ticksPerSecond {
		t.Fatalf("lean %v, due %v", p.lean, p.due)
	}
	v.Insert(1, 1, Attrs{Bytes: 1, FLOPs: 1, Hint: Hint{}})
	if p.said.next() != NextNothing || p.said.category() != CategoryBatch || p.due == 0 {
		t.Error("a hint that says nothing took back what was said")
	}
	v.Touch(2, 1)
	if p.lean != leanOfCategory[CategoryBatch] || p.due != 0 || p.said.next() != NextUnknown {
		t.Errorf("after the use: lean %v, due %v, next %v", p.lean, p.due, p.said.next())
	}
}

// TestPagesWithoutACostAreWorthWhatOthersAre, so that they neither stay for ever nor go before all others.
func TestPagesWithoutACostAreWorthWhatOthersAre(t *testing.T) {
	v := NewVBR(100, 1)
	for r := Ref(1); r < 100; r++ {
		a := Attrs{Bytes: 1 << 20, FLOPs: 1e12, KeyTag: uint64(r)}
		if r == 99 {
			a.FLOPs = 0
		}
		v.Insert(0, r, a)
	}
	known, unknown := v.Worth(1, 1, Host, Attrs{}), v.Worth(1, 99, Host, Attrs{})
	if ratio := float64(unknown / known); ratio < 0.5 || ratio > 2 {
		t.Errorf("worth %v without a cost, %v with", unknown, known)
	}
}

// TestVBRFootprint: what the doc comment says of memory.
func TestVBRFootprint(t *testing.T) {
	const n = 1 << 18
	v := NewVBR(n+1, 1)
	empty := v.FootprintBytes()
	for r := Ref(1); r <= n; r++ {
		v.Insert(0, r, Attrs{Bytes: 1 << 20, FLOPs: 1e12, KeyTag: uint64(r)})
		v.SetEvictable(r, Host, true)
		v.SetEvictable(r, Disk, true)
	}
	if per := float64(v.FootprintBytes()-empty) / n; per < 56+128 || per > 56+2*16+2*128+32 {
		t.Errorf("%.0f bytes a page", per)
	}
	if empty > 1<<20 {
		t.Errorf("%d bytes with nothing in it", empty)
	}
}

func BenchmarkVBR(b *testing.B) {
	for _, n := range []int{1e6, 1e7} {
		v := filled(n)
		name := map[int]string{1e6: "1M", 1e7: "10M"}[n]
		r := splitmix(1)
		now := 1000.0
		b.Run("Touch/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				now += 1e-6
				v.Touch(now, Ref(1+r.below(uint32(n))))
			}
		})
		b.Run("Evict/"+name, func(b *testing.B) { // a victim, its removal, its page anew
			b.ReportAllocs()
			var some [maxVictims]Victim
			for b.Loop() {
				now += 1e-6
				for _, x := range v.Victims(now, Host, 0, nil, some[:0]) {
					v.Remove(now, x.Ref, true)
					v.Insert(now, x.Ref, Attrs{Bytes: 1 << 20, FLOPs: 1e12, KeyTag: r.next()})
					v.SetEvictable(x.Ref, Host, true)
				}
			}
		})
		b.Run("EvictBatch/"+name, func(b *testing.B) { // per page, 64 at a time
			b.ReportAllocs()
			var some [maxVictims]Victim
			left := 0
			for b.Loop() {
				if left--; left > 0 {
					continue
				}
				now += 1e-6
				got := v.Victims(now, Host, 64<<20, nil, some[:0])
				left = len(got)
				for _, x := range got {
					v.Remove(now, x.Ref, true)
					v.Insert(now, x.Ref, Attrs{Bytes: 1 << 20, FLOPs: 1e12, KeyTag: r.next()})
					v.SetEvictable(x.Ref, Host, true)
				}
			}
		})
	}
}

// filled has n pages in chains of 16, an eighth of which may go.
func filled(n int) *VBR {
	v := NewVBR(n+1, 1)
	v.Resize(Host, uint64(n)<<20, uint64(n))
	v.ghosts.grow(n)
	r := splitmix(7)
	for range v.ghosts.buckets * ghostWays {
		v.ghosts.put(ghost{tag: r.next()})
	}
	for i := Ref(1); i <= Ref(n); i++ {
		a := Attrs{Bytes: 1 << 20, FLOPs: 1e12 * float64(1+i%16), KeyTag: r.next()}
		if i%16 != 1 {
			a.Parent = i - 1
		}
		v.Insert(float64(i)/1e4, i, a)
		v.SetEvictable(i, Host, i%8 == 0)
	}
	return v
}
