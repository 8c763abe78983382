package store_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
	"github.com/quire-kv/quire/store/tier"
)

// declared is a policy by which a page is worth what its writer says, and what is offered more than all that is there.
type declared struct {
	*evict.LRU // for what it need not know
	pages      map[evict.Ref]evict.Attrs
	free       [evict.NumTiers]map[evict.Ref]bool
}

func newDeclared(int) evict.Policy {
	p := declared{LRU: evict.NewLRU(1 << 12), pages: map[evict.Ref]evict.Attrs{}}
	for t := range p.free {
		p.free[t] = map[evict.Ref]bool{}
	}
	return p
}

func (p declared) Insert(_ float64, r evict.Ref, a evict.Attrs) { p.pages[r] = a }
func (p declared) Touch(float64, evict.Ref)                     {}
func (p declared) Remove(_ float64, r evict.Ref, _ bool) {
	delete(p.pages, r)
	for t := range p.free {
		delete(p.free[t], r)
	}
}

func (p declared) SetEvictable(r evict.Ref, t evict.Tier, ok bool) {
	if delete(p.free[t], r); ok {
		p.free[t][r] = true
	}
}

func (p declared) Worth(_ float64, r evict.Ref, _ evict.Tier, a evict.Attrs) evict.Score {
	if r == 0 {
		return evict.MaxScore
	}
	return evict.Score(a.Declared)
}

func (p declared) Victims(now float64, t evict.Tier, need uint64, _ *evict.Shares, dst []evict.Victim) []evict.Victim {
	var all []evict.Victim
	for _, r := range slices.Sorted(maps.Keys(p.free[t])) {
		all = append(all, evict.Victim{Ref: r, Score: p.Worth(now, r, t, p.pages[r])})
	}
	slices.SortStableFunc(all, func(a, b evict.Victim) int { return int(a.Score - b.Score) })
	for i, bytes := 0, uint64(0); i < len(all) && (i == 0 || bytes < need); i++ {
		dst, bytes = append(dst, all[i]), bytes+p.pages[all[i].Ref].Bytes
	}
	return dst
}

// metered is a disk that does so many writes and no more, until it is given more.
type metered struct {
	tier.Durable
	mu      sync.Mutex
	left    int
	held    []tier.Op
	came    []page.Hash // in order
	waiting int64       // bytes of held
	most    int64       // of waiting
}

func (m *metered) Submit(ops []tier.Op) {
	m.mu.Lock()
	var now []tier.Op
	for _, op := range ops {
		if !op.Write {
			now = append(now, op)
			continue
		}
		m.came = append(m.came, hashOf(op.Memory))
		m.held = append(m.held, op)
		m.waiting += op.Region.Bytes
	}
	m.most = max(m.most, m.waiting)
	m.mu.Unlock()
	m.Durable.Submit(now)
	m.give(0)
}

func (m *metered) give(n int) {
	m.mu.Lock()
	m.left += n
	n = min(m.left, len(m.held))
	now := m.held[:n:n]
	m.left, m.held = m.left-n, m.held[n:]
	for i := range now {
		m.waiting -= now[i].Region.Bytes
	}
	m.mu.Unlock()
	m.Durable.Submit(now)
}

// order is what came to be written, after so many.
func (m *metered) order(after int) []page.Hash {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.came[min(after, len(m.came)):])
}

func hashOf(region []byte) page.Hash {
	var h page.Header
	n, err := page.HeaderBytes(region[page.HeadBytes:])
	if err == nil {
		err = page.DecodeHeader(&h, region[page.HeadBytes:][:n])
	}
	if err != nil {
		panic(err)
	}
	return h.Key.Hash
}

// slowDisk is a store over a metered disk, and what it should do, done plainly.
type slowDisk struct {
	*storetest.Fixture
	t     *testing.T
	disk  *metered
	rnd   *rand.Rand
	worth map[page.Hash]float64
	above map[page.Hash]page.Hash // the page before
	waits map[page.Hash]bool      // in memory, and not given to the disk
	calls int                     // that the disk was given
}

func newSlowDisk(t *testing.T, host int64, o core.Options) *slowDisk {
	s := &slowDisk{t: t, rnd: seeded(t), worth: map[page.Hash]float64{}, above: map[page.Hash]page.Hash{}, waits: map[page.Hash]bool{}}
	s.Fixture = storetest.New(t, storetest.Options{
		CapacityBytes: host, Shards: 1, Core: o, NewPolicy: newDeclared,
		Disk: &storetest.Disk{Wrap: func(d tier.Durable) tier.Durable { s.disk = &metered{Durable: d}; return s.disk }},
	})
	t.Cleanup(func() { s.disk.give(1 << 30) })
	s.Declares = func(hash []byte) float64 { return s.worth[mustHash(t, hash)] }
	return s
}

// fill gives the disk as much as write-behind lets wait there, and says how many pages that are.
func (s *slowDisk) fill(host int64) (pages int) {
	size := page.RegionBytes(s.Geometry.Full(), s.Geometry.CellBytes, len(s.Canonical))
	s.calls = int((host/8 + size - 1) / size)
	s.publish("first", s.calls)
	clear(s.waits)
	s.await()
	return s.calls
}

// publish makes a chain whose pages are worth something, each another thing.
func (s *slowDisk) publish(name string, pages int) {
	s.t.Helper()
	chain := storetest.Chain(name, pages)
	for i := range pages {
		h := mustHash(s.t, chain[32*i:][:32])
		s.worth[h] = float64(s.rnd.IntN(1 << 20))
		s.waits[h] = true
		if i > 0 {
			s.above[h] = mustHash(s.t, chain[32*(i-1):][:32])
		}
	}
	mustPublish(s.t, s.Fixture, chain, whole)
}

// await waits until the disk was given as many pages as it should have been.
func (s *slowDisk) await() {
	s.t.Helper()
	await(s.t, fmt.Sprintf("%d pages are given to the disk", s.calls), func() bool { return len(s.disk.order(0)) >= s.calls })
}

// next is the page that should be given to the disk now: of all that wait the worthiest, or the first of those before it
// that waits too.
func (s *slowDisk) next() page.Hash {
	var best page.Hash
	for h := range s.waits {
		if best == (page.Hash{}) || s.worth[h] > s.worth[best] {
			best = h
		}
	}
	for up, ok := s.above[best]; ok && s.waits[up]; up, ok = s.above[up] {
		best = up
	}
	return best
}

// writes lets the disk do so many writes, one after the other, and holds what it is given against what it should be.
func (s *slowDisk) writes(n int) {
	s.t.Helper()
	for range n {
		want := s.next()
		s.calls++
		s.disk.give(1)
		if want == (page.Hash{}) {
			continue
		}
		s.await()
		if got := s.disk.order(s.calls - 1); len(got) != 1 || got[0] != want {
			s.t.Fatalf("write %d: %d pages came, the first is worth %g; want one worth %g", s.calls, len(got), s.worth[got[0]], s.worth[want])
		}
		delete(s.waits, want)
	}
}

// On a disk that cannot keep up, what waits is written in the order of its worth, what a page stands on before it; how much
// waits at the disk itself is bounded.
func TestASlowDiskGetsTheWorthiestFirst(t *testing.T) {
	const host = 16 << 20
	s := newSlowDisk(t, host, core.Options{})
	s.fill(host)
	for c := range 30 {
		s.publish(fmt.Sprint("chain ", c), 1+s.rnd.IntN(6))
	}
	pages := len(s.waits)
	s.writes(pages)
	if size := int64(s.Geometry.Full().Cells()) * int64(s.Geometry.CellBytes); s.disk.most > host/8+2*size || pages < 60 {
		t.Errorf("%d pages waited, %d bytes of them at the disk", pages, s.disk.most)
	}
}

// present says which of the chains' pages are stored.
func (s *slowDisk) present(chains [][]byte) map[page.Hash]bool {
	s.t.Helper()
	there := map[page.Hash]bool{}
	for _, chain := range chains {
		bits, lead := exists(s.t, s.Fixture, chain, whole)
		for i, ok := range bits {
			if ok {
				there[mustHash(s.t, chain[32*i:][:32])] = true
			}
			if ok != (i < lead) {
				s.t.Fatalf("what is left of a chain is no prefix: %v", bits)
			}
		}
	}
	return there
}

// leaves are those of the pages that wait on which none stands.
func (s *slowDisk) leaves(there map[page.Hash]bool) map[page.Hash]bool {
	out := maps.Clone(s.waits)
	for h := range there {
		delete(out, s.above[h])
	}
	return out
}

// What does not come to be written before memory is full is dropped by worth: the least of what nothing stands on, so what is
// left of a chain is its beginning, and the disk gets the worthiest of the rest. What was not dropped is on disk in the end.
func TestASlowDiskLosesWhatIsWorthLeast(t *testing.T) {
	const host = 8 << 20
	s := newSlowDisk(t, host, core.Options{})
	s.fill(host)
	var chains [][]byte
	before, dropped := map[page.Hash]bool{}, 0
	for c := range 90 {
		name, pages := fmt.Sprint("chain ", c), 1+s.rnd.IntN(6)
		leaves := s.leaves(before)
		s.publish(name, pages)
		chains = append(chains, storetest.Chain(name, pages))
		now := s.present(chains)
		for h := range before {
			if now[h] {
				continue
			}
			dropped++
			delete(s.waits, h)
			for l := range leaves {
				if now[l] && s.worth[l] < s.worth[h] {
					t.Errorf("a page worth %g was dropped before one worth %g", s.worth[h], s.worth[l])
				}
			}
		}
		s.writes(1)
		before = now
	}
	if dropped < 60 || s.Store.Status().Totals.Orphaned != [core.NumOrphanCauses]uint64{} {
		t.Errorf("%d pages were dropped, orphans %v", dropped, s.Store.Status().Totals.Orphaned)
	}
	s.disk.give(1 << 30)
	settle(t, s.Fixture)
	s.Restart(t)
	if after := s.present(chains); !maps.Equal(after, before) {
		t.Errorf("%d pages are on disk, want %d", len(after), len(before))
	}
}

// The queue for the disk is bounded. What found it full is written when it is empty again.
func TestASlowDiskHasABoundedQueue(t *testing.T) {
	const host, bound = 16 << 20, 40 // more than fit the disk at a time
	s := newSlowDisk(t, host, core.Options{MaxBehind: bound})
	pages := s.fill(host)
	var chains [][]byte
	for c := range 30 {
		s.publish(fmt.Sprint("chain ", c), 2)
		chains = append(chains, storetest.Chain(fmt.Sprint("chain ", c), 2))
	}
	if n := s.Store.Status().Totals; n.Behind != bound || n.BehindRefused < 60-bound { // some found it full twice
		t.Errorf("%d pages wait, %d found no place", n.Behind, n.BehindRefused)
	}
	s.disk.give(1 << 30)
	await(t, "all are written", func() bool { return len(s.disk.order(pages)) == 60 })
	settle(t, s.Fixture)
	s.Restart(t)
	if n := len(s.present(chains)); n != 60 {
		t.Errorf("%d pages are on disk", n)
	}
}
