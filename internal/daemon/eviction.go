package daemon

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
)

// What metadata has room for:
//
//	record of a page 64 B, its cells of the index 10 B, two copies of extents at 32 B    138 B a page
//	lru                                                                                   24 B a page
//	vbr: record 56 B, 4 B for each tier                                                   64 B a page
//	     ghosts, 256 B a page at most                                    128 KiB to 256 MiB a shard
//	     sample, an eighth of metadata together at most                   96 KiB to 6 MiB a shard
//
// Pages have two extents on average at most, copies on disk included (a TP8 writer's have eight, but then they are large).
// The default is enough for memory full of extents of 16 KiB and beside it a disk full of extents of 128 KiB: what engines
// keep is larger. Where there are more, pages are evicted for their records.
const (
	extentsPerPage = 2
	recordBytes    = 64 + 10 + 32*extentsPerPage
	lruPageBytes   = 24
	sampleShare    = 8 // of metadata

	memoryPageBytes = 16 << 10
	diskPageBytes   = 128 << 10

	minMetadataBytes      = mib
	minMetadataShardBytes = 512 << 10 // with vbr: well above its ghosts and sample at their least
)

// The policies.
const (
	evictVBR = "vbr"
	evictLRU = "lru"
)

var evictions = []string{evictVBR, evictLRU}

func (c *Config) minMetadata() uint64 {
	if c.Eviction == evictLRU {
		return minMetadataBytes
	}
	return max(minMetadataBytes, uint64(c.Shards)*minMetadataShardBytes)
}

// defaultMetadata is what the pages need that fit memory and disk, in whole MiB, and at most the half of memory.
func (c *Config) defaultMetadata() uint64 {
	pages, shards := c.MemoryBytes/memoryPageBytes+c.DiskBytes/diskPageBytes, uint64(c.Shards)
	wanted := pages * (recordBytes + lruPageBytes)
	if c.Eviction != evictLRU {
		wanted = pages*(recordBytes+evict.VBRPageBytes) + min(pages*evict.VBRGhostsPageBytes, shards*evict.VBRMostGhostsBytes)
		wanted += min(wanted/(sampleShare-1), shards*evict.VBRSampleBytes) + shards*evict.VBRLeastGhostsBytes
	}
	wanted = (wanted + mib - 1) &^ (mib - 1)
	return max(c.minMetadata(), min(wanted, c.MemoryBytes/2&^(mib-1)))
}

// sampleBytes is what each shard's policy may watch pages with.
func (c *Config) sampleBytes() uint64 {
	return min(max(c.MetadataBytes/sampleShare/uint64(c.Shards), evict.VBRLeastSampleBytes), evict.VBRSampleBytes)
}

// limits are how many records metadata has room for.
func (c *Config) limits() core.Limits {
	pages := c.MetadataBytes / (recordBytes + lruPageBytes)
	if c.Eviction != evictLRU {
		shards, each := uint64(c.Shards), recordBytes+evict.VBRPageBytes
		room := c.MetadataBytes - min(c.MetadataBytes, shards*(c.sampleBytes()+evict.VBRLeastGhostsBytes))
		pages = room / (each + evict.VBRGhostsPageBytes)
		if most := shards * evict.VBRMostGhostsBytes; room > most {
			pages = max(pages, (room-most)/each)
		}
	}
	return core.Limits{Pages: pages, Extents: pages * extentsPerPage}
}

// newPolicy makes the policies of shards.
func (c *Config) newPolicy() (func(shard int) evict.Policy, error) {
	refs := int(min(c.limits().Pages+1, evict.MaxRefs))
	if c.Eviction == evictLRU {
		return func(int) evict.Policy { return evict.NewLRU(refs) }, nil
	}
	seed := c.EvictionSeed
	if seed == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, fmt.Errorf("seed of eviction: %w", err)
		}
		seed = binary.LittleEndian.Uint64(b[:])
	}
	return func(shard int) evict.Policy {
		v := evict.NewVBR(refs, seed+uint64(shard))
		v.WatchWithin(c.sampleBytes())
		return v
	}, nil
}

// evictionSetting is what Status tells of it.
func (c *Config) evictionSetting() server.EvictionSetting {
	l := c.limits()
	s := server.EvictionSetting{Policy: c.Eviction, Shards: c.Shards, Pages: l.Pages, Extents: l.Extents, Seed: c.EvictionSeed}
	if c.Eviction != evictLRU {
		s.SampleBytes = c.sampleBytes()
	}
	return s
}

// fingerprintKey is the one that belongs to the seed; 0: a random one.
func (c *Config) fingerprintKey() uint64 {
	if c.EvictionSeed == 0 {
		return 0
	}
	return page.FingerprintKey(c.EvictionSeed)
}
