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
// Each tier has its own lists, so that what lies in one of them only never stands between the victims of the other. In
// a list, pages stand in exact order of use whether they are evictable or not. One that is not and comes to the tail
// is parked: all that are older have gone, so when it turns evictable it comes back at the tail. Each parking is paid
// by the call that put the page into the list, so every method is O(1) amortised and the next victim is always at
// hand.
type LRU struct {
	pages *offheap.Array[lruPage]
	lists [lruTiers][2]lruList // normal, doomed
	top   Ref                  // highest ever seen: what is touched
}

var _ Policy = (*LRU)(nil)

// MaxRefs bounds the slots of one policy: refs fit 26 bits, as in the index of the core.
const MaxRefs = 1 << 26

type lruList struct{ head, tail Ref }

// lruPage is 24 bytes.
type lruPage struct {
	links [lruTiers]lruLink
	used  uint32 // last use in ticks since start
	size  uint32 // size in 4 KiB, then flags
}

type lruLink struct{ older, newer Ref }

const (
	lruFirst = Host
	lruTiers = int(NumTiers - lruFirst)

	lruKnown     uint32 = 1 << 0                // inserted
	lruDoomed    uint32 = 1 << 1                // of the second lists
	lruLinked    uint32 = 1 << 2                // in a list of the tier, else parked; shifted by the tier
	lruEvictable        = lruLinked << lruTiers // likewise

	lruSizeShift   = 2 + 2*lruTiers
	lruFlags       = 1<<lruSizeShift - 1
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
	return &LRU{pages: offheap.New[lruPage](maxRefs)}
}

// Insert makes or updates a page; updating does not count as a use.
func (l *LRU) Insert(now float64, ref Ref, a Attrs) {
	p := l.pages.At(uint32(ref))
	l.top = max(l.top, ref)
	units := uint32(min((a.Bytes+lruUnit-1)/lruUnit, math.MaxUint32>>lruSizeShift))
	isNew, wasDoomed := p.size&lruKnown == 0, p.size&lruDoomed != 0
	p.size = units<<lruSizeShift | p.size&lruFlags | lruKnown
	switch {
	case isNew:
		if p.used = lruTicks(now); a.Doomed {
			p.size |= lruDoomed
		}
		for t := range lruTiers {
			l.pushHead(t, ref)
			l.trim(t)
		}
	case wasDoomed != a.Doomed:
		for t := range lruTiers {
			l.unlink(t, ref)
		}
		p.size ^= lruDoomed
		for t := range lruTiers {
			l.unpark(t, ref)
			l.trim(t)
		}
	}
}

// Remove forgets a page. LRU keeps no ghosts.
func (l *LRU) Remove(_ float64, ref Ref, _ bool) {
	for t := range lruTiers {
		l.unlink(t, ref)
		l.trim(t)
	}
	*l.pages.At(uint32(ref)) = lruPage{}
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
		l.trim(t)
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
		l.trim(t)
		return
	}
	p.size |= lruEvictable << t
	if p.size&(lruLinked<<t) == 0 {
		l.unpark(t, ref)
	}
}

// Victims appends victims of t, doomed first, then least recently used. It changes nothing and may run beside other
// readers.
func (l *LRU) Victims(_ float64, tier Tier, need uint64, dst []Victim) []Victim {
	if tier < lruFirst || tier >= NumTiers {
		return dst
	}
	t := int(tier - lruFirst)
	var got uint64
	steps := 0
	for _, list := range [...]*lruList{&l.lists[t][1], &l.lists[t][0]} {
		for ref := list.tail; ref != 0; steps++ {
			p := l.pages.At(uint32(ref))
			if p.size&(lruEvictable<<t) != 0 {
				dst = append(dst, Victim{ref, p.score()})
				got += uint64(p.size>>lruSizeShift) * lruUnit
				if got >= need {
					return dst
				}
			}
			if steps == lruVictimSteps { // the tail of a list is evictable: there is one by now
				return dst
			}
			ref = p.links[t].newer
		}
	}
	return dst
}

// Worth is the last use; for a page about to be published, now: under LRU it is worth more than all others. Doomed
// pages are worth nothing.
func (l *LRU) Worth(now float64, ref Ref, _ Tier, a Attrs) Score {
	if a.Doomed {
		return doomedScore
	}
	if p := l.pages.At(uint32(ref)); ref != 0 && p.size&lruKnown != 0 {
		return p.score()
	}
	return Score(now)
}

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
		return &l.lists[t][1]
	}
	return &l.lists[t][0]
}

// trim parks what is not evictable at the tails of a tier.
func (l *LRU) trim(t int) {
	for i := range l.lists[t] {
		list := &l.lists[t][i]
		for ref := list.tail; ref != 0 && l.pages.At(uint32(ref)).size&(lruEvictable<<t) == 0; ref = list.tail {
			l.unlink(t, ref)
		}
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
