package evict

import "github.com/quire-kv/quire/internal/offheap"

// leaves are the refs that may go from one tier: a dense list for each share, in random order, and one of all that are
// doomed. Where a page stands in its list is in the page's record.
type leaves struct {
	maxRefs int
	rng     splitmix
	doomed  leafList
	shares  []leafList
}

// leaf is a page that may go, with a copy of all that its score is made of: lists are read from one end of a stretch to the
// other, four leaves to a cache line, and no page's record is waited for.
type leaf struct {
	page  uint32  // ref, and in the bits above its class
	used  uint32  // as of the page
	value float32 // likewise
	whose uint32  // its tenant as far as there are bits, its answer, its traits, and whether something is said of it (lean, due)
}

const (
	leafRefBits   = 26
	leafClassBits = 32 - leafRefBits

	leafAnswerShift = 1 + traitBits
	leafTenantShift = leafAnswerShift + answerBits // equal bits above may be two tenants: the record has all of them

	_ = uint(1<<leafRefBits - MaxRefs)
	_ = uint(1<<leafClassBits - classes)
)

func (l *leaf) set(r Ref, p *vbrPage) {
	l.page, l.used, l.value, l.whose = uint32(r)|uint32(p.class())<<leafRefBits, p.used, p.value, p.tenant<<leafTenantShift|uint32(p.answer)<<leafAnswerShift|uint32(p.traits)<<1
	if p.lean != 1 || p.due != 0 {
		l.whose |= 1
	}
}

func (l *leaf) ref() Ref { return Ref(l.page & (1<<leafRefBits - 1)) }

func (l *leaf) traits() traits { return traits(l.whose >> 1) }

func (l *leaf) class() uint8 { return uint8(l.page >> leafRefBits) }

func (l *leaves) of(doomed bool, s Share) *leafList {
	if doomed {
		return &l.doomed
	}
	for len(l.shares) <= int(s) {
		l.shares = append(l.shares, leafList{})
	}
	return &l.shares[s]
}

func (l *leaves) footprint() uint64 {
	n := uint64(l.doomed.most)
	for i := range l.shares {
		n += uint64(l.shares[i].most)
	}
	return n * leafBytes
}

// leafList is a dense list from place 1 on. Its memory is reserved with the first entry and counts as it is touched.
type leafList struct {
	list *offheap.Array[leaf]
	n    uint32
	most uint32 // that it ever had
}

// push puts a page at a place, from 1 to one beyond the last, and what stood there at the end: moved, 0 if there was none.
func (l *leafList) push(r Ref, p *vbrPage, at uint32, maxRefs int) (moved Ref) {
	if l.list == nil {
		l.list = offheap.New[leaf](maxRefs + 1)
	}
	if l.n++; at < l.n {
		there := l.list.At(at)
		moved = there.ref()
		*l.list.At(l.n) = *there
	}
	l.list.At(at).set(r, p)
	l.most = max(l.most, l.n)
	return moved
}

// pull takes out what is at a place; the last one, which it returns, moves there.
func (l *leafList) pull(at uint32) (moved Ref) {
	last := l.list.At(l.n)
	*l.list.At(at) = *last
	l.n--
	return last.ref()
}

// reader reads the lists of some shares one behind the other, as if they were one, and then again from the start.
type reader struct {
	of    *leaves
	among *Shares // nil: all
	total uint32
	share int
	at    uint32
}

func (l *leaves) reader(among *Shares) reader {
	r := reader{of: l, among: among}
	for s := range l.shares {
		if r.has(s) {
			r.total += l.shares[s].n
		}
	}
	return r
}

func (r *reader) has(s int) bool { return r.among == nil || r.among.Has(Share(s)) }

// from sets it to entry i of all.
func (r *reader) from(i uint32) {
	r.at = i
	for r.share = 0; !r.has(r.share) || r.at >= r.of.shares[r.share].n; r.share++ {
		if r.has(r.share) {
			r.at -= r.of.shares[r.share].n
		}
	}
}

// next is up to so many of what comes, at least one.
func (r *reader) next(most uint32) []leaf {
	l := &r.of.shares[r.share]
	some := l.list.Slice()[1+r.at : 1+min(r.at+most, l.n)]
	if r.at += uint32(len(some)); r.at < l.n {
		return some
	}
	for r.at = 0; ; {
		r.share = (r.share + 1) % len(r.of.shares)
		if r.has(r.share) && r.of.shares[r.share].n > 0 {
			return some
		}
	}
}

// splitmix is a generator with 64 bits of state (Steele, Lea, Flood, OOPSLA 2014).
type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	return mix(uint64(*s))
}

// below is a number under n, as even as 32 bits are (Lemire, TOMACS 2019).
func (s *splitmix) below(n uint32) uint32 { return uint32(s.next() >> 32 * uint64(n) >> 32) }

// mix spreads a number over 64 bits, one to one; 0 stays 0.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
