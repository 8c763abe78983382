package page

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// A store whose draws shall be known beforehand has one number, its seed, from which they all follow: its fingerprints have
// FingerprintKey, and the policy of shard i draws by the seed and i. Who knows it can make page hashes that fall on one
// fingerprint, and so are misses: it is for trials, not for a store to which strangers write.

// FingerprintKey is the key of fingerprints that belongs to a seed.
func FingerprintKey(seed uint64) uint64 {
	return (seed*0x9e3779b97f4a7c15 ^ 0x2545f4914f6cdd1d) | 1
}

// KeyTag is by what the policies of a store with this seed know the page of a hash.
func KeyTag(seed uint64, hash []byte) uint64 { return xxh3.Hash128Seed(hash, FingerprintKey(seed)).Hi }

// ShardOf is in which of so many shards all pages of a namespace epoch are, with their chains and leases.
func ShardOf(id NamespaceID, e Epoch, shards int) int {
	h := binary.LittleEndian.Uint64(id[:8]) ^ uint64(e)*0x9e3779b97f4a7c15
	return int(h % uint64(shards))
}
