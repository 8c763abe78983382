package evict

import (
	"math"
	"unsafe"

	"github.com/quire-kv/quire/internal/offheap"
)

// LRU evicts the evictable page that was used longest ago, doomed pages before all others.
//
//	head (used last)                                  tail (next victim)
//	  [ ] <-> [ ] <-> [x] <-> [ ] <-> [x] <-> [x]        [ ] [ ] [ ]
//	   x: evictable; the tail of a list always is        parked: not evictable, older than
//	                                                     all in the list, in no order
//
// Pages stand in exact order of use whether they are evictable or not. One that is not and comes to the tail is
// parked: all that are older have gone, so when it turns evictable it comes back at the tail. Each parking is paid
// by the call that put the page into the list, so every method is O(1) amortised and the next victim is always at
// hand.
type LRU struct {
	pages *offheap.Array[lruPage]
	lists [2]lruList // normal, doomed
	top   Ref        // highest ever seen: what is touched
}

var _ Policy = (*LRU)(nil)

// MaxRefs bounds the slots of one policy: refs fit 26 bits, as in the index of the core.
const MaxRefs = 1 << 26

type lruList struct{ head, tail Ref }

// lruPage is 16 bytes.
type lruPage struct {
	older, newer Ref
	used         uint32 // last use in ticks since start
	size         uint32 // size in 4 KiB, then flags
}

const (
	lruLinked    uint32 = 1 << iota // in a list; else parked
	lruDoomed                       // of the second list
	lruKnown                        // inserted
	lruEvictable                    // shifted by the tier: three bits
	lruFlags     = lruEvictable<<NumTiers - 1
	lruAnyTier   = lruFlags &^ (lruEvictable - 1)

	lruSizeShift   = 3 + int(NumTiers)
	lruUnit        = 4 << 10 // bytes
	lruTicksPerSec = 64      // two years fit
	lruUnparkSteps = 64      // parked pages that come back sort themselves among so many others
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
	if !isNew && wasDoomed == a.Doomed {
		return
	}
	l.unlink(ref)
	p.size &^= lruDoomed
	if a.Doomed {
		p.size |= lruDoomed
	}
	if isNew {
		p.used = lruTicks(now)
		l.pushHead(ref)
	} else {
		l.unpark(ref)
	}
	l.trim()
}

// Remove forgets a page. LRU keeps no ghosts.
func (l *LRU) Remove(_ float64, ref Ref, _ bool) {
	l.unlink(ref)
	*l.pages.At(uint32(ref)) = lruPage{}
	l.trim()
}

// Touch records a use. Doomed pages keep their place.
func (l *LRU) Touch(now float64, ref Ref) {
	p := l.pages.At(uint32(ref))
	if p.size&lruKnown == 0 {
		return
	}
	p.used = lruTicks(now)
	if p.size&lruDoomed == 0 {
		l.unlink(ref)
		l.pushHead(ref)
		l.trim()
	}
}

// SetEvictable says whether ref may be a victim of t.
func (l *LRU) SetEvictable(ref Ref, t Tier, ok bool) {
	p := l.pages.At(uint32(ref))
	if p.size&lruKnown == 0 {
		return
	}
	if !ok {
		p.size &^= lruEvictable << t
		l.trim()
		return
	}
	p.size |= lruEvictable << t
	if p.size&lruLinked == 0 {
		l.unpark(ref)
	}
}

// Victims appends victims of t, doomed first, then least recently used. With need 0 it changes nothing and may run
// beside other readers.
func (l *LRU) Victims(_ float64, t Tier, need uint64, dst []Victim) []Victim {
	var got uint64
	for _, list := range [...]*lruList{&l.lists[1], &l.lists[0]} {
		for ref := list.tail; ref != 0; {
			p := l.pages.At(uint32(ref))
			if p.size&(lruEvictable<<t) != 0 {
				dst = append(dst, Victim{ref, p.score()})
				if got += uint64(p.size>>lruSizeShift) * lruUnit; got >= need {
					return dst
				}
			}
			ref = p.newer
		}
	}
	return dst
}

// Worth is now: under LRU a page just written is worth more than all others. Doomed pages are worth nothing.
func (l *LRU) Worth(now float64, _ Tier, a Attrs) Score {
	if a.Doomed {
		return doomedScore
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

func (l *LRU) listOf(p *lruPage) *lruList {
	if p.size&lruDoomed != 0 {
		return &l.lists[1]
	}
	return &l.lists[0]
}

// trim parks what is not evictable at the tails.
func (l *LRU) trim() {
	for i := range l.lists {
		for ref := l.lists[i].tail; ref != 0 && l.pages.At(uint32(ref)).size&lruAnyTier == 0; ref = l.lists[i].tail {
			l.unlink(ref)
		}
	}
}

// unpark puts a page back near the tail, behind those parked before that are older still.
func (l *LRU) unpark(ref Ref) {
	p := l.pages.At(uint32(ref))
	list := l.listOf(p)
	older := Ref(0)
	newer := list.tail
	for range lruUnparkSteps {
		if newer == 0 || l.pages.At(uint32(newer)).used >= p.used {
			break
		}
		older, newer = newer, l.pages.At(uint32(newer)).newer
	}
	l.place(ref, older, newer)
}

func (l *LRU) pushHead(ref Ref) {
	l.place(ref, l.listOf(l.pages.At(uint32(ref))).head, 0)
}

// place links ref between two neighbours of its list; 0 is an end.
func (l *LRU) place(ref, older, newer Ref) {
	p := l.pages.At(uint32(ref))
	list := l.listOf(p)
	p.older, p.newer = older, newer
	p.size |= lruLinked
	if older == 0 {
		list.tail = ref
	} else {
		l.pages.At(uint32(older)).newer = ref
	}
	if newer == 0 {
		list.head = ref
	} else {
		l.pages.At(uint32(newer)).older = ref
	}
}

func (l *LRU) unlink(ref Ref) {
	p := l.pages.At(uint32(ref))
	if p.size&lruLinked == 0 {
		return
	}
	list := l.listOf(p)
	if p.older == 0 {
		list.tail = p.newer
	} else {
		l.pages.At(uint32(p.older)).newer = p.newer
	}
	if p.newer == 0 {
		list.head = p.older
	} else {
		l.pages.At(uint32(p.newer)).older = p.older
	}
	p.size &^= lruLinked
}
