package classic

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quire-kv/quire/evict"
)

// twin is a policy done plainly: slices, searched from one end to the other. Pages are named by their tags.
type twin interface {
	insert(tag uint64, now float64, cost float64)
	touch(tag uint64, now float64)
	evict(tag uint64)
	victim(now float64, free func(tag uint64) bool) uint64 // 0: none
}

// cut takes tag out of a list.
func cut(list []uint64, tag uint64) []uint64 {
	return slices.DeleteFunc(slices.Clone(list), func(x uint64) bool { return x == tag })
}

// first is the first that may go.
func first(list []uint64, free func(uint64) bool) uint64 {
	for _, tag := range list {
		if free(tag) {
			return tag
		}
	}
	return 0
}

// valued twins take the least value, of equals the one used longest ago.
type valued struct {
	order []uint64 // by last use
	value func(tag uint64, now float64) float64
}

func (v *valued) use(tag uint64) { v.order = append(cut(v.order, tag), tag) }

func (v *valued) victim(now float64, free func(uint64) bool) (least uint64) {
	for _, tag := range v.order {
		if free(tag) && (least == 0 || v.value(tag, now) < v.value(least, now)) {
			least = tag
		}
	}
	return least
}

type plainFIFO struct{ order []uint64 }

func (f *plainFIFO) insert(tag uint64, _, _ float64) { f.order = append(f.order, tag) }
func (f *plainFIFO) touch(uint64, float64)           {}
func (f *plainFIFO) evict(tag uint64)                { f.order = cut(f.order, tag) }
func (f *plainFIFO) victim(_ float64, free func(uint64) bool) uint64 {
	return first(f.order, free)
}

// plainValue is LFU, GDSF and cost over age.
type plainValue struct {
	valued
	uses, cost, used, priority map[uint64]float64
	inflation                  float64
}

func newPlainValue(value func(p *plainValue, tag uint64, now float64) float64) *plainValue {
	p := &plainValue{uses: map[uint64]float64{}, cost: map[uint64]float64{}, used: map[uint64]float64{}, priority: map[uint64]float64{}}
	p.value = func(tag uint64, now float64) float64 { return value(p, tag, now) }
	return p
}

func (p *plainValue) insert(tag uint64, now, cost float64) {
	p.uses[tag], p.cost[tag] = 0, cost
	p.touch(tag, now)
}

func (p *plainValue) touch(tag uint64, now float64) {
	p.use(tag)
	p.uses[tag]++
	p.used[tag] = now
	p.priority[tag] = p.inflation + p.uses[tag]*(p.cost[tag]/twinBytes)
}

func (p *plainValue) evict(tag uint64) {
	p.order = cut(p.order, tag)
	p.inflation = max(p.inflation, p.priority[tag])
}

type plainSIEVE struct {
	order   []uint64
	visited map[uint64]bool
	hand    int
}

func (s *plainSIEVE) insert(tag uint64, _, _ float64) { s.order = append(s.order, tag) }
func (s *plainSIEVE) touch(tag uint64, _ float64)     { s.visited[tag] = true }
func (s *plainSIEVE) evict(tag uint64) {
	if s.order = cut(s.order, tag); s.hand >= len(s.order) { // else it points at the next now
		s.hand = 0
	}
	delete(s.visited, tag)
}

func (s *plainSIEVE) victim(_ float64, free func(uint64) bool) uint64 {
	for range 2*len(s.order) + 1 {
		if s.hand >= len(s.order) {
			s.hand = 0
		}
		tag := s.order[s.hand]
		if free(tag) && !s.visited[tag] {
			return tag
		}
		if free(tag) {
			delete(s.visited, tag)
		}
		s.hand++
	}
	return 0
}

type plainS3 struct {
	small, main, ghost []uint64
	uses               map[uint64]int
	target, most       int
}

func (s *plainS3) insert(tag uint64, _, _ float64) {
	s.uses[tag] = 0
	if slices.Contains(s.ghost, tag) {
		s.ghost = cut(s.ghost, tag)
		s.main = append(s.main, tag)
	} else {
		s.small = append(s.small, tag)
	}
}

func (s *plainS3) touch(tag uint64, _ float64) { s.uses[tag] = min(3, s.uses[tag]+1) }

func (s *plainS3) evict(tag uint64) {
	if slices.Contains(s.small, tag) {
		if s.ghost = append(s.ghost, tag); len(s.ghost) > s.most {
			s.ghost = s.ghost[1:]
		}
	}
	s.small, s.main = cut(s.small, tag), cut(s.main, tag)
}

func (s *plainS3) victim(_ float64, free func(uint64) bool) uint64 {
	for {
		a, b := first(s.small, free), first(s.main, free)
		switch {
		case a == 0 && b == 0:
			return 0
		case a != 0 && (len(s.small) >= s.target || b == 0):
			if s.uses[a] < 2 {
				return a
			}
			s.small, s.main, s.uses[a] = cut(s.small, a), append(s.main, a), 0
		default:
			if s.uses[b] == 0 {
				return b
			}
			s.uses[b]--
			s.main = append(cut(s.main, b), b)
		}
	}
}

type plainARC struct {
	t, b [2][]uint64 // oldest first
	p    float64
	c    int
}

func (a *plainARC) insert(tag uint64, _, _ float64) {
	to := 0
	if slices.Contains(a.b[0], tag) {
		to, a.p = 1, min(float64(a.c), a.p+max(1, float64(len(a.b[1]))/float64(len(a.b[0]))))
	} else if slices.Contains(a.b[1], tag) {
		to, a.p = 1, max(0, a.p-max(1, float64(len(a.b[0]))/float64(len(a.b[1]))))
	}
	a.b = [2][]uint64{cut(a.b[0], tag), cut(a.b[1], tag)}
	a.t[to] = append(a.t[to], tag)
	for len(a.b[0]) > 0 && len(a.t[0])+len(a.b[0]) > a.c {
		a.b[0] = a.b[0][1:]
	}
	for len(a.b[1]) > 0 && len(a.t[0])+len(a.t[1])+len(a.b[0])+len(a.b[1]) > 2*a.c {
		a.b[1] = a.b[1][1:]
	}
}

func (a *plainARC) touch(tag uint64, _ float64) {
	a.t = [2][]uint64{cut(a.t[0], tag), append(cut(a.t[1], tag), tag)}
}

func (a *plainARC) evict(tag uint64) {
	for i := range a.t {
		if slices.Contains(a.t[i], tag) {
			a.t[i], a.b[i] = cut(a.t[i], tag), append(a.b[i], tag)
		}
	}
	a.b[0] = a.b[0][max(0, len(a.b[0])-a.c):]
	a.b[1] = a.b[1][max(0, len(a.b[1])-2*a.c):]
}

func (a *plainARC) victim(_ float64, free func(uint64) bool) uint64 {
	t1, t2 := first(a.t[0], free), first(a.t[1], free)
	if t1 != 0 && (t2 == 0 || float64(len(a.t[0])) > a.p) {
		return t1
	}
	return t2
}

type plainTiny struct {
	window, probation, protected []uint64 // oldest first
	sketch                       sketch
	windowMost, protectedMost    int
}

func (w *plainTiny) insert(tag uint64, _, _ float64) {
	w.sketch.add(tag)
	if w.window = append(w.window, tag); len(w.window) > w.windowMost {
		w.probation, w.window = append(w.probation, w.window[0]), w.window[1:]
	}
}

func (w *plainTiny) touch(tag uint64, _ float64) {
	w.sketch.add(tag)
	if slices.Contains(w.window, tag) {
		w.window = append(cut(w.window, tag), tag)
		return
	}
	w.probation, w.protected = cut(w.probation, tag), append(cut(w.protected, tag), tag)
	if len(w.protected) > w.protectedMost {
		w.probation, w.protected = append(w.probation, w.protected[0]), w.protected[1:]
	}
}

func (w *plainTiny) evict(tag uint64) {
	w.window, w.probation, w.protected = cut(w.window, tag), cut(w.probation, tag), cut(w.protected, tag)
}

func (w *plainTiny) victim(_ float64, free func(uint64) bool) uint64 {
	main := first(w.probation, free)
	if main == 0 {
		main = first(w.protected, free)
	}
	for len(w.window) >= w.windowMost && len(w.window) > 0 {
		c := w.window[0]
		if !free(c) {
			w.window, w.probation = w.window[1:], append(w.probation, c)
			continue
		}
		if main == 0 || w.sketch.count(c) <= w.sketch.count(main) {
			return c
		}
		w.window, w.probation = w.window[1:], append(w.probation, c)
		return main
	}
	if main == 0 {
		return first(w.window, free)
	}
	return main
}

const (
	twinBytes    = 4096.
	twinCapacity = 12
)

// twins are all policies that are compared with one, each beside it.
func twins() map[string]func() (*Policy, twin) {
	target := max(1, twinCapacity/s3SmallPart)
	value := func(f func(p *plainValue, tag uint64, now float64) float64) twin { return newPlainValue(f) }
	return map[string]func() (*Policy, twin){
		"fifo": func() (*Policy, twin) { return NewFIFO(), &plainFIFO{} },
		"lfu": func() (*Policy, twin) {
			return NewLFU(), value(func(p *plainValue, tag uint64, _ float64) float64 { return p.uses[tag] })
		},
		"gdsf": func() (*Policy, twin) {
			return NewGDSF(), value(func(p *plainValue, tag uint64, _ float64) float64 { return p.priority[tag] })
		},
		"costage": func() (*Policy, twin) {
			return NewCostAge(1), value(func(p *plainValue, tag uint64, now float64) float64 {
				return p.cost[tag] / twinBytes / max(now-p.used[tag], leastAge)
			})
		},
		"sieve": func() (*Policy, twin) { return NewSIEVE(), &plainSIEVE{visited: map[uint64]bool{}} },
		"s3fifo": func() (*Policy, twin) {
			return NewS3FIFO(twinCapacity), &plainS3{uses: map[uint64]int{}, target: target, most: twinCapacity - target}
		},
		"arc": func() (*Policy, twin) { return NewARC(twinCapacity), &plainARC{c: twinCapacity} },
		"wtinylfu": func() (*Policy, twin) {
			return NewWTinyLFU(twinCapacity), &plainTiny{sketch: newSketch(twinCapacity), windowMost: 1, protectedMost: (twinCapacity - 1) * 8 / 10}
		},
	}
}

// TestEachAgainstItsTwin: pages come, are used, may go or not; every victim is the twin's.
func TestEachAgainstItsTwin(t *testing.T) {
	for name, both := range twins() {
		t.Run(name, func(t *testing.T) {
			victims := 0
			for rounds := 0; victims < 1000; rounds++ { // one, or some of the fewer checks of -short
				if rounds == 20 {
					t.Fatalf("only %d victims were compared", victims)
				}
				rapid.Check(t, func(t *rapid.T) {
					p, plain := both()
					victims += compare(t, p, plain)
				})
			}
		})
	}
}

func compare(t *rapid.T, p *Policy, plain twin) (victims int) {
	const tags = 3 * twinCapacity
	refs, slots := map[uint64]evict.Ref{}, map[evict.Ref]uint64{}
	pinned := map[uint64]bool{}
	free := func(tag uint64) bool { return !pinned[tag] }
	now := 0.
	for range rapid.IntRange(1, 400).Draw(t, "steps") {
		now += float64(rapid.IntRange(0, 8).Draw(t, "dt")) / 4
		tag := 1 + uint64(rapid.IntRange(0, tags-1).Draw(t, "tag"))*uint64(rapid.IntRange(0, 1).Draw(t, "hot"))
		if r, ok := refs[tag]; ok {
			if rapid.IntRange(0, 3).Draw(t, "pin") == 0 {
				pinned[tag] = !pinned[tag]
				p.SetEvictable(r, evict.Host, !pinned[tag])
				continue
			}
			p.Touch(now, r)
			plain.touch(tag, now)
			continue
		}
		r := evict.Ref(len(refs) + 1)
		if len(refs) == twinCapacity {
			got := p.Victims(now, evict.Host, 0, nil, nil)
			want := plain.victim(now, free)
			if again := p.Victims(now, evict.Host, 1, nil, nil); !slices.Equal(again, got) {
				t.Fatalf("victims %v, asked again %v", got, again)
			}
			if want == 0 != (len(got) == 0) || want != 0 && slots[got[0].Ref] != want {
				t.Fatalf("victims %v (tag %d), the twin's is %d", got, slots[append(got, evict.Victim{})[0].Ref], want)
			}
			if want == 0 {
				continue
			}
			victims++
			r = got[0].Ref
			p.Remove(now, r, true)
			plain.evict(want)
			delete(refs, want)
			delete(pinned, want)
		}
		cost := float64(rapid.IntRange(1, 1000).Draw(t, "cost"))
		refs[tag], slots[r] = r, tag
		p.Insert(now, r, evict.Attrs{Bytes: twinBytes, FLOPs: cost, KeyTag: tag})
		plain.insert(tag, now, cost)
		p.SetEvictable(r, evict.Host, true)
	}
	return victims
}

// all is every policy of the package.
func all(capacity int, seed uint64) map[string]*Policy {
	return map[string]*Policy{
		"fifo": NewFIFO(), "lfu": NewLFU(), "gdsf": NewGDSF(), "sieve": NewSIEVE(), "s3fifo": NewS3FIFO(capacity), "arc": NewARC(capacity),
		"wtinylfu": NewWTinyLFU(capacity), "lhd": NewLHD(capacity, seed), "costage": NewCostAge(seed), "marconi": NewMarconi(capacity, seed),
	}
}

// TestThePartsOfTheInterface: doomed pages go first, other tiers are not ranked, what is not evictable never goes, what
// was removed is forgotten.
func TestThePartsOfTheInterface(t *testing.T) {
	for name, p := range all(8, 1) {
		for r := evict.Ref(1); r <= 8; r++ {
			p.Insert(float64(r), r, evict.Attrs{Bytes: 4096, FLOPs: 1e12, KeyTag: uint64(r)})
		}
		if v := p.Victims(9, evict.Host, 0, nil, nil); len(v) != 0 {
			t.Errorf("%s: victims %v before any may go", name, v)
		}
		for r := evict.Ref(1); r <= 8; r++ {
			p.SetEvictable(r, evict.Host, r != 3)
			p.SetEvictable(r, evict.Disk, true)
		}
		if v := p.Victims(9, evict.Disk, 0, nil, nil); len(v) != 0 {
			t.Errorf("%s: victims %v of a tier that is not ranked", name, v)
		}
		p.Insert(9, 5, evict.Attrs{Bytes: 4096, Doomed: true, KeyTag: 5})
		p.Touch(10, 5)
		v := p.Victims(10, evict.Host, 0, nil, nil)
		if len(v) != 1 || v[0].Ref != 5 || v[0].Score >= 0 || p.Worth(10, 5, evict.Host, evict.Attrs{}) >= 0 {
			t.Errorf("%s: victims %v, want the doomed page below 0", name, v)
		}
		seen := []evict.Ref{}
		for len(v) > 0 {
			if p.Worth(11, 0, evict.Host, evict.Attrs{}) <= v[0].Score {
				t.Errorf("%s: a page that comes is worth no more than %v", name, v)
			}
			seen = append(seen, v[0].Ref)
			p.Remove(11, v[0].Ref, true)
			v = p.Victims(11, evict.Host, 0, nil, nil)
		}
		slices.Sort(seen)
		if want := []evict.Ref{1, 2, 4, 5, 6, 7, 8}; !slices.Equal(seen, want) {
			t.Errorf("%s: went %v, want %v", name, seen, want)
		}
		p.Remove(12, 3, false)
		p.Touch(12, 3)
		p.SetEvictable(3, evict.Host, true)
		if v := p.Victims(12, evict.Host, 0, nil, nil); len(v) != 0 || p.FootprintBytes() == 0 {
			t.Errorf("%s: victims %v of nothing, %d bytes", name, v, p.FootprintBytes())
		}
	}
}

// TestHitDensityByHand: three hits at age 1, one page gone at age 1 and two at age 3. From the oldest on: at age 3 no hit,
// two ends, each one step to stay: 0/2. Age 2: nothing happens, two pages pass: 0/4. Age 1: 3 hits of 6, which pass too:
// 3/10. Age 0: all six pass once more: 3/16.
func TestHitDensityByHand(t *testing.T) {
	var c lhdClass
	c.hits[1], c.ends[1], c.ends[3] = 3, 1, 2
	c.density[4] = 0.25
	c.learn()
	for age, want := range []float64{3. / 16, 3. / 10, 0, 0, 0.25} {
		if c.density[age] != want {
			t.Errorf("density at age %d is %v, want %v", age, c.density[age], want)
		}
	}
	if c.hits[1] != 3*lhdDecay || c.ends[3] != 2*lhdDecay {
		t.Errorf("hits %v, ends %v did not fade", c.hits[1], c.ends[3])
	}
}

// TestLHDTakesTheLeastDense: of pages of one class, the one whose age promises fewest hits goes, not the oldest.
func TestLHDTakesTheLeastDense(t *testing.T) {
	p := NewLHD(1024, 1)
	l := p.rule.(*lhd)
	if l.shift != 6 {
		t.Fatalf("ages in steps of 2^%d uses, want 2^6: 512 of them are 16 times 1,024", l.shift)
	}
	for r := evict.Ref(1); r <= 3; r++ {
		p.Insert(0, r, evict.Attrs{Bytes: 4096, KeyTag: uint64(r)})
		p.SetEvictable(r, evict.Host, true)
		l.at(r).marked = false
		p.clock += 64 // a step apart: ages 3, 2, 1
	}
	l.class(1).density[3], l.class(1).density[2], l.class(1).density[1] = 0.5, 0.1, 0.3
	for _, want := range []evict.Ref{2, 3, 1} {
		v := p.Victims(1, evict.Host, 0, nil, nil)
		if len(v) != 1 || v[0].Ref != want {
			t.Fatalf("victims %v, want %d", v, want)
		}
		p.clock-- // removing is a change too: the ages stay
		p.Remove(1, want, true)
	}
}

// TestMarconiByHand: at 10 s, three pages used at 0, 6 and 8 s: recency 0.1, 0.25, 0.5, scaled 0, 0.375, 1. Efficiency 9,
// 1, 3, scaled 1, 0, 0.25. With alpha 0 the first has least; with 1 they have 1, 0.375, 1.25.
func TestMarconiByHand(t *testing.T) {
	for alpha, want := range map[float64]evict.Ref{0: 1, 1: 2, 0.25: 1, 0.5: 2} {
		p := newMarconi(alpha, 1)
		for i, used := range []float64{0, 6, 8} {
			r := evict.Ref(i + 1)
			p.Insert(used, r, evict.Attrs{Bytes: 1, FLOPs: []float64{9, 1, 3}[i], KeyTag: uint64(r)})
			p.SetEvictable(r, evict.Host, true)
		}
		if v := p.Victims(10, evict.Host, 0, nil, nil); len(v) != 1 || v[0].Ref != want {
			t.Errorf("alpha %v: victims %v, want %d", alpha, v, want)
		}
	}
}

// TestMarconiFindsAlpha: dear pages come back after long, cheap ones never: the more efficiency counts the better.
func TestMarconiFindsAlpha(t *testing.T) {
	var notes []note
	for i := range 4000 {
		n := note{tag: uint64(1000 + i), used: float64(i), flops: 1, bytes: 1}
		if i%4 == 0 {
			n.tag, n.flops = uint64(1+i/4%8), 1000
		}
		notes = append(notes, n)
	}
	m := NewMarconi(10, 1).rule.(*marconi)
	m.notes = notes
	m.choose()
	if low, high := tryOn(notes, newMarconi(0, 1), 10), tryOn(notes, newMarconi(m.alpha, 1), 10); m.alpha == 0 || high <= low || !m.chosen {
		t.Errorf("alpha %v saves %v, alpha 0 %v", m.alpha, high, low)
	}
}

func TestSketchCountsAndForgets(t *testing.T) {
	s := newSketch(100)
	for range 6 {
		s.add(7)
	}
	if got := s.count(7); got != 6 || s.count(8) != 0 {
		t.Errorf("counted %d and %d, want 6 and 0", got, s.count(8))
	}
	for range 40 {
		s.add(9)
	}
	if got := s.count(9); got != sketchMost {
		t.Errorf("counted %d, want no more than %d", got, sketchMost)
	}
	for range 1000 - 46 {
		s.add(10)
	}
	if got := s.count(7); got != 3 {
		t.Errorf("after 1000 uses of a cache of 100: %d, want half of 6", got)
	}
}

func TestGhostsKeepTheLast(t *testing.T) {
	g := newGhosts(3)
	for tag := uint64(1); tag <= 5; tag++ {
		g.add(tag)
	}
	if got := fmt.Sprint(g.has(1), g.has(2), g.has(3), g.has(4), g.has(5), g.take(4), g.take(4), g.len()); got != "false false true true true true false 2" {
		t.Error(got)
	}
	for range 10_000 { // what is taken out and put in again does not pile up
		g.add(9)
		g.take(9)
	}
	if g.len() != 2 || len(g.ring) > 2*g.most+samples+1 {
		t.Errorf("%d ghosts in a ring of %d", g.len(), len(g.ring))
	}
	for tag := uint64(10); tag < 13; tag++ {
		g.add(tag)
	}
	if g.has(3) || g.has(5) || !g.has(10) || g.len() != 3 {
		t.Errorf("%d ghosts; the oldest went first: %v %v", g.len(), g.has(3), g.has(5))
	}
}

// TestSamplesCome: more pages than are looked at; another state gives other samples, the same gives the same.
func TestSamplesCome(t *testing.T) {
	var p pool
	for r := evict.Ref(1); r <= 1000; r++ {
		p.set(r, true)
	}
	for r := evict.Ref(1); r <= 500; r++ {
		p.set(r, false)
	}
	a, b, c := p.sample(1, nil), p.sample(1, nil), p.sample(1+samples, nil)
	if len(a) != samples || !slices.Equal(a, b) || slices.Equal(a, c) || slices.Min(append(a, c...)) <= 500 {
		t.Errorf("samples %v, %v, %v", a, b, c)
	}
}
