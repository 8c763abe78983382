package bench

import (
	"encoding/binary"
	"math/rand/v2"
)

const hashBytes = 32

// appendKey appends the i-th page hash of a set: every key of a set is different, and so are the sets. Keys are made
// when they are needed, so that the memory of a benchmark is not in what it measures.
func appendKey(dst []byte, set, i uint64) []byte {
	x := i*0x9e3779b97f4a7c15 + set
	for range hashBytes / 8 {
		x += 0xd1b54a32d192ed03
		z := (x ^ x>>32) * 0xd6e8feb86659fd93
		z = (z ^ z>>29) * 0xbf58476d1ce4e5b9
		dst = binary.LittleEndian.AppendUint64(dst, z^z>>32)
	}
	return dst
}

// The sets.
const (
	storedKeys = 1
	otherKeys  = 2
)

// Half of what is asked for is not there.
const missShare = 2

// probes is a pool of batches of keys, half of them stored: drawn before the clock starts, large enough that a batch
// comes back only when the caches have forgotten it. Either as an engine asks, for the pages of one prompt, of which the
// first half is stored, in the order in which it was written; or scattered, every other key at random over all that is
// stored, which is the worst that can be asked of an index.
type probes struct {
	batch int // keys
	keys  []byte
}

// poolKeys is 16 MiB of them.
const poolKeys = 1 << 19

func newProbes(batch, resident int, scattered bool) *probes {
	p := &probes{batch: batch}
	rng := rand.New(rand.NewPCG(3, uint64(batch)))
	n := max(poolKeys/batch, 1) * batch
	p.keys = make([]byte, 0, n*hashBytes)
	from := uint64(0)
	for i := range n {
		in := i % batch
		if in == 0 {
			from = rng.Uint64N(uint64(resident))
		}
		set, key := uint64(storedKeys), (from+uint64(in))%uint64(resident)
		if scattered {
			key = rng.Uint64N(uint64(resident))
		}
		if scattered && in%missShare == 1 || !scattered && in >= p.hits() {
			set = otherKeys
		}
		p.keys = appendKey(p.keys, set, key)
	}
	return p
}

// at is the i-th batch, round and round.
func (p *probes) at(i int) []byte {
	n := p.batch * hashBytes
	i = i % (len(p.keys) / n)
	return p.keys[i*n : (i+1)*n]
}

// hits are the keys of one batch that are stored.
func (p *probes) hits() int { return (p.batch + 1) / missShare }
