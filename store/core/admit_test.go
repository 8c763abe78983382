package core

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// toyPolicy ranks pages by a score of their attributes, by sorting. Within a tenant it goes by what writers declare.
type toyPolicy struct {
	evict.Policy // what it does not do
	pages        map[evict.Ref]*toyPage
	score        func(a evict.Attrs) evict.Score
	declared     bool
	takesAll     bool
}

type toyPage struct {
	a    evict.Attrs
	from tierSet
}

func newToyPolicy(score func(evict.Attrs) evict.Score) *toyPolicy {
	return &toyPolicy{Policy: evict.NewLRU(1 << 12), pages: map[evict.Ref]*toyPage{}, score: score}
}

func (p *toyPolicy) Insert(_ float64, r evict.Ref, a evict.Attrs) {
	if p.pages[r] == nil {
		p.pages[r] = &toyPage{}
	}
	p.pages[r].a = a
}

func (p *toyPolicy) Remove(_ float64, r evict.Ref, _ bool) { delete(p.pages, r) }
func (p *toyPolicy) Touch(float64, evict.Ref)              {}

func (p *toyPolicy) SetEvictable(r evict.Ref, t evict.Tier, ok bool) {
	if p.pages[r].from &^= 1 << t; ok {
		p.pages[r].from |= 1 << t
	}
}

func (p *toyPolicy) Worth(_ float64, r evict.Ref, _ evict.Tier, a evict.Attrs) evict.Score {
	switch {
	case a.Doomed:
		return -1
	case r == 0 && p.takesAll:
		return evict.MaxScore
	}
	return p.score(a)
}

func (p *toyPolicy) Victims(_ float64, t evict.Tier, need uint64, among *evict.Shares, dst []evict.Victim) []evict.Victim {
	var all []evict.Victim
	for r, pg := range p.pages {
		if pg.from.has(t) && (pg.a.Doomed || among == nil || among.Has(pg.a.Share)) {
			all = append(all, evict.Victim{Ref: r, Score: p.Worth(0, r, t, pg.a)})
		}
	}
	order := func(a, b evict.Victim) int { return cmp.Or(cmp.Compare(a.Score, b.Score), cmp.Compare(a.Ref, b.Ref)) }
	slices.SortFunc(all, order)
	if p.declared && len(all) > 0 && all[0].Score >= 0 {
		tenant := p.pages[all[0].Ref].a.Tenant // who loses a page is for the honest score to say; which one, for its writers
		all = slices.DeleteFunc(all, func(v evict.Victim) bool { return p.pages[v.Ref].a.Tenant != tenant })
		slices.SortStableFunc(all, func(a, b evict.Victim) int {
			return cmp.Compare(p.pages[a.Ref].a.Declared, p.pages[b.Ref].a.Declared)
		})
	}
	var got uint64
	for _, v := range all {
		dst = append(dst, v)
		if got += p.pages[v.Ref].a.Bytes; got >= need {
			break
		}
	}
	return dst
}

func byDeclared(a evict.Attrs) evict.Score { return evict.Score(a.Declared) }

// declaring is a Begin whose pages declare what is said.
func (w *world) declaring(f page.Family, c, from int, flops ...float64) Begin {
	b := w.beginEvent(chain(f, c, from, from+len(flops)), page.View{})
	for i := range b.Pages {
		b.Pages[i].DeclaredFLOPs = flops[i]
	}
	return b
}

// fullOf is a world whose tier is full of one chain of tenant 1 whose pages score 100, but for some free places.
func fullOf(t *testing.T, free int64, quotas ...TenantQuota) (*world, []page.Family, *witness) {
	w, f := tenantWorld(t, 10+free, newToyPolicy(byDeclared), quotas...)
	if n, why := w.offer(w.declaring(f[0], 0, 0, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100)); n != 10 {
		t.Fatalf("into an empty tier: %v", why)
	}
	return w, f, w.s.o.Policy.(*witness)
}

func TestAdmissionJudgesARunByItsBest(t *testing.T) {
	for name, c := range map[string]struct {
		free    int64
		flops   []float64
		granted int
		passed  int
	}{
		"worth less":                  {0, []float64{1, 50, 99}, 0, 3},
		"worth as much":               {0, []float64{1, 50, 100}, 3, 0},
		"one page is worth more":      {0, []float64{1, 200, 1}, 3, 0},
		"there is room":               {5, []float64{1, 1, 1}, 3, 0},
		"there is room for some":      {2, []float64{1, 50, 99, 1}, 2, 2},
		"nothing is left to displace": {0, slices.Repeat([]float64{200}, 12), 10, 0},
	} {
		w, f, seen := fullOf(t, c.free, TenantQuota{})
		n, why := w.offer(w.declaring(f[0], 1, 0, c.flops...))
		refused := len(c.flops) - c.granted
		if n != c.granted || w.leading(f[0], 1, 0, len(c.flops)) != n {
			t.Errorf("%s: %d granted, want %d; %v", name, n, c.granted, why)
		}
		passed := 0
		for _, run := range seen.passed {
			passed += len(run)
		}
		if passed != c.passed || w.s.Totals().NotWorth != uint64(c.passed) {
			t.Errorf("%s: %d pages passed, %d counted, want %d", name, passed, w.s.Totals().NotWorth, c.passed)
		}
		if c.passed > 0 && why != reason.NotWorth || c.passed == 0 && refused > 0 && why != reason.Busy {
			t.Errorf("%s: the rest was refused: %v", name, why)
		}
		if left := w.leading(f[0], 0, 0, 10); left != 10-max(0, c.granted-int(c.free)) {
			t.Errorf("%s: %d of 10 pages are left", name, left)
		}
		w.check()
	}
}

// What is not taken is told with all that the policy needs to know it again, and who came before.
func TestPassTellsOfARun(t *testing.T) {
	w, f, seen := fullOf(t, 1, TenantQuota{})
	if n, _ := w.offer(w.declaring(f[0], 1, 0, 100)); n != 1 { // what could go
		t.Fatal("refused")
	}
	b := w.declaring(f[0], 0, 9, 100, 7, 8, 9) // its first page is there
	b.Hint = evict.Hint{Category: evict.CategoryAgent, Next: evict.NextToolCall, Reuse: 3}
	if n, why := w.offer(b); n != 0 || why != reason.NotWorth || len(seen.passed) != 1 {
		t.Fatalf("%d granted, %v, %d runs passed", n, why, len(seen.passed))
	}
	s := w.s
	slot := func(d int) evict.Ref {
		return evict.Ref(s.index.find(fingerprintOf(testHash(0, d), s.o.FingerprintKey), s.families.ids[f[0]]))
	}
	for i, a := range seen.passed[0] {
		want := evict.Attrs{
			Bytes: tenantPage, Declared: float64(7 + i), Hint: b.Hint, Tokens: 16, Depth: uint32(10 + i), Tenant: 1,
			KeyTag: fingerprintOf(testHash(0, 10+i), s.o.FingerprintKey).hi,
		}
		if i == 0 {
			want.Parent = slot(9)
		}
		if a != want {
			t.Errorf("page %d: %+v, want %+v", i, a, want)
		}
		if slot(10+i) != 0 {
			t.Errorf("page %d has a record", i)
		}
	}
	w.check()
}

// What a run that is not taken follows may have been granted with it: the policy hears of the run when it knows that page.
func TestPassNamesAParentOfTheSameRun(t *testing.T) {
	for _, committed := range []bool{true, false} {
		w, f, seen := fullOf(t, 2, TenantQuota{})
		r := w.begin(w.declaring(f[0], 1, 0, 1, 50, 99, 1))
		if r.Results[1].Outcome != Granted || r.Results[2].Reason != reason.NotWorth || len(seen.passed) != 0 {
			t.Fatalf("%s %s, %d runs passed", show(r.Results[1]), show(r.Results[2]), len(seen.passed))
		}
		want := evict.Ref(0)
		if committed {
			w.commit(f[0], r.Token, 0, 1)
			want = evict.Ref(w.s.index.find(fingerprintOf(testHash(1, 1), w.s.o.FingerprintKey), w.s.families.ids[f[0]]))
		} else {
			w.do(Abort{Token: r.Token})
		}
		if len(seen.passed) != 1 || len(seen.passed[0]) != 2 || seen.passed[0][0].Parent != want || seen.passed[0][1].Parent != 0 {
			t.Errorf("committed %v: %+v, want parent %d", committed, seen.passed, want)
		}
		w.check()
	}
}

// What a tenant is guaranteed it need not be worth; beyond that, and against its own, it must.
func TestAdmissionYieldsToGuarantees(t *testing.T) {
	w, f, _ := fullOf(t, 0, TenantQuota{}, hostGuarantee(3))
	if n, why := w.offer(w.declaring(f[1], 0, 0, 1, 1, 1)); n != 3 {
		t.Errorf("within the guarantee: %v", why)
	}
	if n, why := w.offer(w.declaring(f[1], 0, 3, 1)); n != 0 || why != reason.NotWorth {
		t.Errorf("beyond it: %d granted, %v", n, why)
	}
	w.check()
}

// A writer that lies about what its pages cost, or how deep they stand, takes nothing from other tenants: those keep at
// least what they have beside one that says nothing.
func TestLiesHurtTheirOwnTenant(t *testing.T) {
	run := func(lie func(*rand.Rand) float64) (mine, others int) { // page-steps
		p := newToyPolicy(func(a evict.Attrs) evict.Score { return evict.Score(a.KeyTag % 1000) })
		p.declared, p.takesAll = true, true
		w, f := tenantWorld(t, 60, p, TenantQuota{}, TenantQuota{})
		rnd, liar := rand.New(rand.NewPCG(6, 1)), rand.New(rand.NewPCG(6, 2))
		for range 2000 {
			i, c := rnd.IntN(2), rnd.IntN(8)
			from := rnd.IntN(12)
			r := w.beginEvent(chain(f[i], c, from, from+1+rnd.IntN(12-from)), page.View{})
			for j := range r.Pages {
				if i == 0 {
					r.Pages[j].DeclaredFLOPs = lie(liar)
				}
			}
			w.offer(r)
			n := w.pagesOf(2)
			mine, others = mine+n[0], others+n[1]
		}
		w.check()
		return mine, others
	}
	mine, others := run(func(*rand.Rand) float64 { return 0 })
	if a, b := run(func(*rand.Rand) float64 { return 1e30 }); a != mine || b != others {
		t.Errorf("all dear: the liar keeps %d page-steps and the other %d; without a word %d and %d", a, b, mine, others)
	}
	if a, b := run(func(r *rand.Rand) float64 { return 1e30 * r.Float64() }); a > mine || b < others {
		t.Errorf("some dear: the liar keeps %d page-steps and the other %d; without a word %d and %d", a, b, mine, others)
	}

	w, f := newTestWorld(t, 1<<30)
	w.publish(f, 0, 0, 10)
	b := w.beginEvent(chain(f, 0, 10, 11), page.View{})
	b.Pages[0].Link = LinkRoot // it stands at 10
	w.publishView(b)
	told := w.s.o.Policy.(*witness).pages[evict.Ref(w.s.pages.top)].attrs
	if told.Depth != 0 || told.Parent != 0 {
		t.Errorf("a page that is said to be a root: %+v", told)
	}
	b = w.beginEvent(chain(f, 0, 11, 12), page.View{})
	b.Pages[0].Link, b.Pages[0].Parent = LinkHash, mustHash(testHash(9, 50)) // deep below what nobody has
	if r := w.begin(b); r.Results[0].Reason != reason.ParentMissing {
		t.Errorf("a depth that nothing stands for: %s", show(r.Results[0]))
	}
}

// Under a policy that refuses, and evicts in any order, every page that is there has all before it, nothing is an orphan,
// and what is accounted is held.
func TestAdmissionAndEvictionMakeNoHole(t *testing.T) {
	steps := 50_000
	if testing.Short() {
		steps = 5000
	}
	w, f := tenantWorld(t, 60, newToyPolicy(byDeclared), hostGuarantee(15), TenantQuota{}, TenantQuota{})
	rnd := rand.New(rand.NewPCG(7, 1))
	const chains, depth = 5, 14
	for n := range steps {
		i, c, from := rnd.IntN(len(f)), rnd.IntN(chains), rnd.IntN(depth)
		r := w.beginEvent(chain(f[i], c, from, from+1+rnd.IntN(depth-from)), page.View{})
		switch op := rnd.IntN(20); {
		case op < 14:
			for j := range r.Pages {
				r.Pages[j].DeclaredFLOPs = float64(rnd.IntN(1000))
			}
			w.offer(r)
		case op < 17:
			w.do(Touch{Ticket: w.ticket(), Runs: []Run{r.Run}})
		case op < 19:
			w.lookup(f[i], Principal(1+i), 0, c, from, from+1)
		default:
			w.do(Reclaim{Tier: evict.Host, Bytes: uint64(rnd.IntN(5)) * tenantPage, Tenant: uint32(1 + i), Own: rnd.IntN(2) == 0})
			w.advance(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		}
		s := w.s
		for p := uint32(1); p <= s.pages.top; p++ {
			if pg := s.pages.At(p); pg.family != 0 && pg.has(flagCommitted) && pg.depth > 0 && (pg.parent == 0 || !s.pages.At(pg.parent).has(flagCommitted)) {
				t.Fatalf("step %d: page %d at depth %d stands on nothing", n, p, pg.depth)
			}
		}
		if n%50 == 0 {
			w.check()
		}
	}
	w.check()
	tot := w.s.Totals()
	if tot.Orphaned != [NumOrphanCauses]uint64{} || tot.Placeholders != 0 {
		t.Errorf("orphans %v, placeholders %d", tot.Orphaned, tot.Placeholders)
	}
	if tot.NotWorth == 0 || tot.Evicted == 0 {
		t.Errorf("nothing was refused (%d), or evicted (%d)", tot.NotWorth, tot.Evicted)
	}
}

// The policy hears what the tiers hold whenever that has changed by an eighth, and once they are known to be full.
func TestPolicyHearsOfSizes(t *testing.T) {
	w, f := newTestWorld(t, 1<<40)
	seen := w.s.o.Policy.(*witness)
	near := func(told holding, bytes, pages uint64) bool {
		return max(told.bytes, bytes)-min(told.bytes, bytes) <= told.bytes/resizeShare &&
			max(told.pages, pages)-min(told.pages, pages) <= told.pages/resizeShare
	}
	for c := range 40 {
		w.publish(f, c, 0, 50)
		if pages := uint64(50 * (c + 1)); !near(seen.resized[evict.Host], pages*tenantPage, pages) {
			t.Fatalf("%d pages, told %+v", pages, seen.resized[evict.Host])
		}
	}
	if seen.resizes > 60 {
		t.Errorf("told %d times on the way to 2,000 pages", seen.resizes)
	}
	before := seen.resizes
	w.do(Reclaim{Tier: evict.Host, Bytes: tenantPage})
	w.do(Reclaim{Tier: evict.Host, Bytes: tenantPage})
	if told := seen.resized[evict.Host]; seen.resizes != before+1 || told.pages != 2000 {
		t.Errorf("told %d times of the first eviction, %+v", seen.resizes-before, told)
	}
	w.settleOnDisk(f, 0, 0, 10)
	if told := seen.resized[evict.Disk]; !near(told, 10*tenantPage, 10) {
		t.Errorf("on disk: %+v", told)
	}
	// Grants without a place are more than the tier can hold: they count when they have one.
	before, w.holdAlloc = seen.resizes, true
	w.begin(w.beginEvent(chain(f, 50, 0, 400), page.View{}))
	w.do(Reclaim{Tier: evict.Host, Bytes: 100 * tenantPage})
	if seen.resizes != before {
		t.Errorf("told of %+v while places are asked for", seen.resized[evict.Host])
	}
	w.answer(w.allocs[0], 300)
	if told := seen.resized[evict.Host]; told.pages != 1998-100+300 {
		t.Errorf("told of %d pages where 300 of 400 have found a place", told.pages)
	}
	w.check()
}

func TestHintsReachThePolicy(t *testing.T) {
	w, f := newTestWorld(t, 1<<30)
	seen := w.s.o.Policy.(*witness)
	b := w.beginEvent(chain(f, 0, 0, 2), page.View{})
	b.Hint = evict.Hint{Category: evict.CategoryInteractive, Reuse: 30}
	w.publishView(b)
	w.publish(f, 1, 0, 1)
	if len(seen.hints) != 2 || seen.hints[1] != b.Hint || seen.hints[2] != b.Hint {
		t.Errorf("hints of a publication: %v", seen.hints)
	}
	ended := evict.Hint{Next: evict.NextNothing}
	w.do(Touch{Ticket: w.ticket(), Runs: []Run{chain(f, 0, 1, 3)}, Hint: ended})
	w.do(Touch{Ticket: w.ticket(), Runs: []Run{chain(f, 0, 0, 3)}})
	if seen.hints[1] != b.Hint || seen.hints[2] != ended {
		t.Errorf("hints after a Touch: %v", seen.hints)
	}
	waits, touches := evict.Hint{Next: evict.NextToolCall, Reuse: 5}, seen.touches[1]
	l := Lookup{Ticket: w.ticket(), Runs: []Run{chain(f, 0, 0, 3)}, TTL: time.Second, Hint: waits} // the third page is not there
	w.do(l)
	l.Ticket, l.Hint = w.ticket(), evict.Hint{}
	w.do(l)
	if len(seen.hints) != 2 || seen.hints[1] != waits || seen.hints[2] != waits || seen.touches[1] != touches+2 {
		t.Errorf("hints after a Lookup: %v, of %d uses", seen.hints, seen.touches[1]-touches)
	}
	answer := evict.Hint{Answer: 9}
	w.do(Touch{Ticket: w.ticket(), Runs: []Run{chain(f, 0, 0, 3)}, Hint: answer, HintOnly: true})
	if len(seen.hints) != 2 || seen.hints[1] != answer || seen.hints[2] != answer || seen.touches[1] != touches+2 {
		t.Errorf("hints after one that is no use: %v, of %d uses", seen.hints, seen.touches[1]-touches)
	}
}

// The same with the default policy, which learns: what it learns of one tenant's pages differs with which of them are
// there, so what the others keep swings, but no liar takes a hundredth of it.
func TestLiesHurtTheirOwnTenantUnderVBR(t *testing.T) {
	run := func(lie func(*rand.Rand) float64) (mine, others, hits int) { // page-steps, and pages that the liar finds
		for seed := range uint64(8) {
			w, f := tenantWorld(t, 60, evict.NewVBR(1<<12, seed), TenantQuota{}, TenantQuota{})
			for i := range f {
				st := testNamespace(byte(i+1), 1)
				st.Tenant = uint32(i + 1)
				geo := testGeometry()
				geo.FLOPs = func(from, to uint64) float64 { return float64(to*to - from*from) }
				st.Groups[testGroup] = geo
				w.do(NamespaceChanged{st})
			}
			rnd, liar := rand.New(rand.NewPCG(6, seed)), rand.New(rand.NewPCG(7, seed))
			for range 2000 {
				w.now = w.now.Add(time.Second)
				i, c := rnd.IntN(2), rnd.IntN(8)
				r := w.beginEvent(chain(f[i], c, 0, 1+rnd.IntN(12)), page.View{})
				l := w.lookup(f[i], Principal(1+i), 0, c, 0, len(r.Pages))
				w.do(Release{Principal: Principal(1 + i), Lease: l.Lease})
				for j := range r.Pages {
					if i == 0 {
						r.Pages[j].DeclaredFLOPs = lie(liar)
					}
				}
				w.offer(r)
				n := w.pagesOf(2)
				mine, others = mine+n[0], others+n[1]
				if i == 0 {
					hits += int(l.Leading[0])
				}
			}
			w.check()
		}
		return mine, others, hits
	}
	mine, others, hits := run(func(*rand.Rand) float64 { return 0 })
	if a, b, _ := run(func(*rand.Rand) float64 { return 1e30 }); a != mine || b != others {
		t.Errorf("all dear: the liar keeps %d page-steps and the other %d; without a word %d and %d", a, b, mine, others)
	}
	a, b, found := run(func(r *rand.Rand) float64 { return 1e30 * r.Float64() * float64(r.IntN(2)) })
	t.Logf("some dear: the liar keeps %d page-steps and the other %d; without a word %d and %d; it finds %d pages, not %d", a, b, mine, others, found, hits)
	if b < others-others/100 {
		t.Errorf("some dear: the liar keeps %d page-steps and the other %d; without a word %d and %d", a, b, mine, others)
	}
	if found > hits {
		t.Errorf("the liar finds %d pages, and without a word %d", found, hits)
	}
}
