package evict

import "github.com/quire-kv/quire/internal/offheap"

// leaves are the refs that may go from one tier: a dense list for each share to draw from, and one of all that are
// doomed. Where a page stands in its list is in the page's record.
type leaves struct {
	maxRefs int
	doomed  refs
	shares  []refs
}

func (l *leaves) of(doomed bool, s Share) *refs {
	if doomed {
		return &l.doomed
	}
	for len(l.shares) <= int(s) {
		l.shares = append(l.shares, refs{})
	}
	return &l.shares[s]
}

func (l *leaves) footprint() uint64 {
	n := uint64(l.doomed.most)
	for i := range l.shares {
		n += uint64(l.shares[i].most)
	}
	return n * 4
}

// refs is a dense list. Its memory is reserved with the first entry and counts as it is touched.
type refs struct {
	list *offheap.Array[Ref]
	n    uint32
	most uint32 // that it ever had
}

// push puts r at the end, and returns its place from 1.
func (l *refs) push(r Ref, maxRefs int) uint32 {
	if l.list == nil {
		l.list = offheap.New[Ref](maxRefs)
	}
	*l.list.At(l.n) = r
	l.n++
	l.most = max(l.most, l.n)
	return l.n
}

// pull takes out what is at a place; the last one, which it returns, moves there.
func (l *refs) pull(at uint32) (moved Ref) {
	l.n--
	moved = *l.list.At(l.n)
	*l.list.At(at - 1) = moved
	return moved
}

// pick draws from several lists as if they were one.
type pick struct {
	from  [MaxShares]*refs
	until [MaxShares]uint32 // by list: how many are in it and those before
	n     int
	total uint32
}

func (k *pick) fill(l *leaves, among *Shares) {
	for s := range l.shares {
		if n := l.shares[s].n; n > 0 && (among == nil || among.Has(Share(s))) {
			k.total += n
			k.from[k.n], k.until[k.n] = &l.shares[s], k.total
			k.n++
		}
	}
}

// at is entry i of all.
func (k *pick) at(i uint32) Ref {
	lo, hi := 0, k.n-1
	for lo < hi {
		if mid := (lo + hi) / 2; i < k.until[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo > 0 {
		i -= k.until[lo-1]
	}
	return *k.from[lo].list.At(i)
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
