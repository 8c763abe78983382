package evict

import (
	"math"
	"unsafe"

	"github.com/quire-kv/quire/internal/offheap"
)

// LRU evicts from each tier the evictable page that was used longest ago, doomed pages before all others. It ranks Host
// and Disk; a Device tier has no victims.
//
//	head (used last)                                  tail (next victim)
//	  [ ] <-> [ ] <-> [x] <-> [ ] <-> [x] <-> [x]        [ ] [ ] [ ]
//	   x: evictable; the tail of a list always is        parked: not evictable, older than
//	                                                     all in the list, in no order
//
// Each tier has its own lists, so that what lies in one of them only never stands between the victims of the other: one
// of all doomed pages, and one for each share. In a list, pages stand in exact order of use whether they are evictable
// or not. One that is not and comes to the tail is parked: all that are older have gone, so when it turns evictable it
// comes back at the tail. Each parking is paid by the call that put the page into the list, so every method is O(1)
// amortised and the next victim of a list is always at hand; that of several shares is the oldest of as many tails.
type LRU struct {
	pages *offheap.Array[lruPage]
	lists [lruTiers][]lruList // doomed, then by share
	top   Ref                 // highest ever seen: what is touched
}

var _ Policy = (*LRU)(nil)

// MaxRefs bounds the slots of one policy: refs fit 26 bits, as in the index of the core.
const MaxRefs = 1 << 26

type lruList struct{ head, tail Ref }

// lruPage is 24 bytes.
type lruPage struct {
	links [lruTiers]lruLink
	used  uint32 // last use in ticks since start
	size  uint32 // size in 4 KiB, then share, then flags
}

type lruLink struct{ older, newer Ref }

const (
	lruFirst = Host
	lruTiers = int(NumTiers - lruFirst)

	lruKnown     uint32 = 1 << 0                // inserted
	lruDoomed    uint32 = 1 << 1                // of the first lists
	lruLinked    uint32 = 1 << 2                // in a list of the tier, else parked; shifted by the tier
	lruEvictable        = lruLinked << lruTiers // likewise

	lruShareShift  = 2 + 2*lruTiers
	lruShareBits   = 8
	lruSizeShift   = lruShareShift + lruShareBits // sizes beyond 1 GiB count as that
	lruFlags       = 1<<lruShareShift - 1
	lruUnit        = 4 << 10 // bytes
	lruTicksPerSec = 64      // two years fit
	lruUnparkSteps = 64      // parked pages that come back sort themselves among so many others
	lruVictimSteps = 4096    // list entries that Victims looks at behind the first victim
)

// NewLRU returns an empty policy for refs below maxRefs (0: MaxRefs). Memory counts as refs are first used.
func NewLRU(maxRefs int) *LRU {
	if maxRefs <= 0 || maxRefs > MaxRefs {
		maxRefs = MaxRefs
	}
	l := &LRU{pages: offheap.New[lruPage](maxRefs)}
	l.grow(0)
	return l
}

// grow makes the lists of a share.
func (l *LRU) grow(s Share) {
	for t := range l.lists {
		for len(l.lists[t]) < int(s)+2 {
			l.lists[t] = append(l.lists[t], lruList{})
		}
	}
}

// Insert makes or updates a page; updating does not count as a use.
func (l *LRU) Insert(now float64, ref Ref, a Attrs) {
	p := l.pages.At(uint32(ref))
	l.top = max(l.top, ref)
	l.grow(a.Share)
	units := uint32(min((a.Bytes+lruUnit-1)/lruUnit, math.MaxUint32>>lruSizeShift))
	list := uint32(a.Share) << lruShareShift
	if a.Doomed {
		list |= lruDoomed
	}
	const lists = lruDoomed | (1<<lruShareBits-1)<<lruShareShift
	isNew, moves := p.size&lruKnown == 0, p.size&lists != list
	if !isNew && moves {
		for t := range lruTiers {
			l.unlink(t, ref)
			l.trim(t, l.listOf(t, p))
		}
	}
	p.size = units<<lruSizeShift | p.size&(lruFlags&^lists) | lruKnown | list
	switch {
	case isNew:
		p.used = lruTicks(now)
		for t := range lruTiers {
			l.pushHead(t, ref)
			l.trim(t, l.listOf(t, p))
		}
	case moves:
		for t := range lruTiers {
			l.unpark(t, ref)
			l.trim(t, l.listOf(t, p))
		}
	}
}

// Remove forgets a page. LRU keeps no ghosts.
func (l *LRU) Remove(_ float64, ref Ref, _ bool) {
	p := l.pages.At(uint32(ref))
	for t := range lruTiers {
		l.unlink(t, ref)
		l.trim(t, l.listOf(t, p))
	}
	*p = lruPage{}
}

// Touch records a use. Doomed pages keep their place.
func (l *LRU) Touch(now float64, ref Ref) {
	p := l.pages.At(uint32(ref))
	if p.size&lruKnown == 0 {
		return
	}
	p.used = lruTicks(now)
	if p.size&lruDoomed != 0 {
		return
	}
	for t := range lruTiers {
		l.unlink(t, ref)
		l.pushHead(t, ref)
		l.trim(t, l.listOf(t, p))
	}
}

// SetEvictable says whether ref may be a victim of t.
func (l *LRU) SetEvictable(ref Ref, tier Tier, ok bool) {
	p := l.pages.At(uint32(ref))
	if p.size&lruKnown == 0 || tier < lruFirst || tier >= NumTiers {
		return
	}
	t := int(tier - lruFirst)
	if !ok {
		p.size &^= lruEvictable << t
		l.trim(t, l.listOf(t, p))
		return
	}
	p.size |= lruEvictable << t
	if p.size&(lruLinked<<t) == 0 {
		l.unpark(t, ref)
	}
}

// Victims appends victims of t, doomed first, then least recently used; of equals of several shares, the lowest
// share's. It changes nothing and may run beside other readers.
func (l *LRU) Victims(_ float64, tier Tier, need uint64, among *Shares, dst []Victim) []Victim {
	if tier < lruFirst || tier >= NumTiers {
		return dst
	}
	w := lruWalk{l: l, t: int(tier - lruFirst), need: need, steps: lruVictimSteps, dst: dst}
	lists := l.lists[w.t]
	var tails [MaxShares]Ref
	if tails[0] = lists[0].tail; tails[0] != 0 && w.over(tails[:1]) {
		return w.dst
	}
	n := 0
	for i := 1; i < len(lists); i++ {
		if tail := lists[i].tail; tail != 0 && (among == nil || among.Has(Share(i-1))) {
			tails[n] = tail
			n++
		}
	}
	w.over(tails[:n])
	return w.dst
}

// lruWalk looks for victims.
type lruWalk struct {
	l         *LRU
	t         int
	need, got uint64
	steps     int
	dst       []Victim
}

// over goes over lists from their tails on, the oldest page of all first. True: enough was found, or looked at.
func (w *lruWalk) over(at []Ref) bool {
	pages := w.l.pages
	for len(at) > 0 {
		oldest := 0
		for i := 1; i < len(at); i++ {
			if pages.At(uint32(at[i])).used < pages.At(uint32(at[oldest])).used {
				oldest = i
			}
		}
		p := pages.At(uint32(at[oldest]))
		if p.size&(lruEvictable<<w.t) != 0 {
			w.dst = append(w.dst, Victim{at[oldest], p.score()})
			if w.got += uint64(p.size>>lruSizeShift) * lruUnit; w.got >= w.need {
				return true
			}
		}
		if w.steps--; w.steps < 0 { // the tail of a list is evictable: there is one by now
			return true
		}
		if at[oldest] = p.links[w.t].newer; at[oldest] == 0 {
			at = append(at[:oldest], at[oldest+1:]...)
		}
	}
	return false
}

// Worth is the last use; under LRU a page about to be published is worth more than all others, whenever it comes to take
// their place. Doomed pages are worth nothing.
func (l *LRU) Worth(_ float64, ref Ref, _ Tier, a Attrs) Score {
	if a.Doomed {
		return doomedScore
	}
	if p := l.pages.At(uint32(ref)); ref != 0 && p.size&lruKnown != 0 {
		return p.score()
	}
	return MaxScore
}

// Pass forgets at once: LRU takes every run.
func (l *LRU) Pass(float64, []Attrs) {}

// Resize has nothing to do: LRU simulates nothing.
func (l *LRU) Resize(Tier, uint64, uint64) {}

// SetLoading has nothing to do: LRU weighs no cost.
func (l *LRU) SetLoading(Tier, Loading) {}

// FootprintBytes is the memory touched.
func (l *LRU) FootprintBytes() uint64 {
	return (uint64(l.top) + 1) * uint64(unsafe.Sizeof(lruPage{}))
}

const doomedScore Score = -1

func (p *lruPage) score() Score {
	if p.size&lruDoomed != 0 {
		return doomedScore
	}
	return Score(p.used) / lruTicksPerSec
}

func lruTicks(now float64) uint32 {
	return uint32(min(max(now, 0)*lruTicksPerSec, math.MaxUint32))
}

func (l *LRU) listOf(t int, p *lruPage) *lruList {
	if p.size&lruDoomed != 0 {
		return &l.lists[t][0]
	}
	return &l.lists[t][1+p.size>>lruShareShift&(1<<lruShareBits-1)]
}

// trim parks what is not evictable at the tail of a list.
func (l *LRU) trim(t int, list *lruList) {
	for ref := list.tail; ref != 0 && l.pages.At(uint32(ref)).size&(lruEvictable<<t) == 0; ref = list.tail {
		l.unlink(t, ref)
	}
}

// unpark puts a page back near the tail, behind those parked before that are older still.
func (l *LRU) unpark(t int, ref Ref) {
	p := l.pages.At(uint32(ref))
	older, newer := Ref(0), l.listOf(t, p).tail
	for range lruUnparkSteps {
		if newer == 0 || l.pages.At(uint32(newer)).used >= p.used {
			break
		}
		older, newer = newer, l.pages.At(uint32(newer)).links[t].newer
	}
	l.place(t, ref, older, newer)
}

func (l *LRU) pushHead(t int, ref Ref) {
	l.place(t, ref, l.listOf(t, l.pages.At(uint32(ref))).head, 0)
}

// place links ref between two neighbours of its list; 0 is an end.
func (l *LRU) place(t int, ref, older, newer Ref) {
	p := l.pages.At(uint32(ref))
	list := l.listOf(t, p)
	p.links[t] = lruLink{older, newer}
	p.size |= lruLinked << t
	if older == 0 {
		list.tail = ref
	} else {
		l.pages.At(uint32(older)).links[t].newer = ref
	}
	if newer == 0 {
		list.head = ref
	} else {
		l.pages.At(uint32(newer)).links[t].older = ref
	}
}

func (l *LRU) unlink(t int, ref Ref) {
	p := l.pages.At(uint32(ref))
	if p.size&(lruLinked<<t) == 0 {
		return
	}
	list := l.listOf(t, p)
	at := p.links[t]
	if at.older == 0 {
		list.tail = at.newer
	} else {
		l.pages.At(uint32(at.older)).links[t].newer = at.newer
	}
	if at.newer == 0 {
		list.head = at.older
	} else {
		l.pages.At(uint32(at.newer)).links[t].older = at.older
	}
	p.size &^= lruLinked << t
}
