package evict

import "math/bits"

// Share numbers the leaf set of a tenant that is guaranteed bytes. Share 0 is everybody else's together.
type Share uint8

// MaxShares bounds the leaf sets of one policy: share 0 and those of 255 tenants with a guarantee.
const MaxShares = 256

// Shares is a set of shares. The zero value is empty.
type Shares [MaxShares / 64]uint64

// AllShares is every share.
func AllShares() Shares {
	var s Shares
	for i := range s {
		s[i] = ^uint64(0)
	}
	return s
}

// Has says whether x is in the set.
func (s *Shares) Has(x Share) bool { return s[x/64]>>(x%64)&1 != 0 }

// Set adds x, or takes it out.
func (s *Shares) Set(x Share, in bool) {
	if in {
		s[x/64] |= 1 << (x % 64)
	} else {
		s[x/64] &^= 1 << (x % 64)
	}
}

// Empty says whether nothing is in the set.
func (s *Shares) Empty() bool { return *s == Shares{} }

// Next is the lowest share in the set from x on; ok is false when there is none.
func (s *Shares) Next(x int) (_ Share, ok bool) {
	for x < MaxShares {
		if w := s[x/64] >> (x % 64); w != 0 {
			return Share(x + bits.TrailingZeros64(w)), true
		}
		x = x/64*64 + 64
	}
	return 0, false
}
