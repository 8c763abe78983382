package core

import (
	"math"
	"unsafe"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
)

// Totals is what a shard holds in all.
type Totals struct {
	Pages, Placeholders, Extents uint64 // each copy of an extent counts
	Tiers                        [evict.NumTiers]TierTotals
	Behind                       uint64 // pages queued for write-behind
	BehindRefused                uint64 // pages that were not queued, since the queue was full, since start
	ReadLeases, Publications     uint64
	PinnedBytes                  uint64
	MetadataBytes                uint64
	Evicted                      uint64                  // pages whose last copy went, since start
	Removed                      [reason.Count]uint64    // extents whose last copy went, and corrupt copies, by reason, since start
	Orphaned                     [NumOrphanCauses]uint64 // pages whose parent went, since start
	OrphanedBytes                [NumOrphanCauses]uint64 // of pages below one that went, of all copies, since start
	Granted, CommittedPages      uint64                  // since start
	RefusedPages                 [reason.Count]uint64    // Begin and Commit, since start; those not worth it are counted apart
	NotWorth                     uint64                  // pages offered that were worth less than what a full tier has, since start
	LeaseTTLEnded                uint64                  // read and publication leases that ran out
}

// TierTotals is what a shard holds in one tier.
type TierTotals struct {
	Extents uint64 // committed copies
	Bytes   uint64 // of all places, grants and copies under way, slack included
	Evicted uint64 // pages that left the tier, since start
	// NotWorth counts copies of extents that the tier did not take, or keep once they were read, since all that could go was
	// worth more; since start.
	NotWorth uint64
	Victims  Scores // of what was evicted, and of what was dropped since it was not worth moving
}

// Scores is how scores are distributed: counts of those below each power of ten from LeastScore on.
type Scores struct {
	Counts [NumScores]uint64 // the last: of all above
	Sum    float64           // doomed pages count as 0
}

// The powers of ten.
const (
	LeastScore = -6
	NumScores  = 20
)

func (s *Scores) add(x evict.Score) {
	v := max(float64(x), 0)
	s.Sum += v
	i := 0
	if v > 0 {
		i = min(max(int(math.Ceil(math.Log10(v)))-LeastScore, 0), NumScores-1)
	}
	s.Counts[i]++
}

// Add adds the totals of another shard to t.
func (t *Totals) Add(o Totals) {
	t.Pages += o.Pages
	t.Placeholders += o.Placeholders
	t.Extents += o.Extents
	t.ReadLeases += o.ReadLeases
	t.Publications += o.Publications
	t.PinnedBytes += o.PinnedBytes
	t.MetadataBytes += o.MetadataBytes
	t.Evicted += o.Evicted
	t.Granted += o.Granted
	t.CommittedPages += o.CommittedPages
	t.LeaseTTLEnded += o.LeaseTTLEnded
	t.NotWorth += o.NotWorth
	t.Behind += o.Behind
	t.BehindRefused += o.BehindRefused
	for i := range t.Tiers {
		t.Tiers[i].Extents += o.Tiers[i].Extents
		t.Tiers[i].Bytes += o.Tiers[i].Bytes
		t.Tiers[i].Evicted += o.Tiers[i].Evicted
		t.Tiers[i].NotWorth += o.Tiers[i].NotWorth
		for j, n := range o.Tiers[i].Victims.Counts {
			t.Tiers[i].Victims.Counts[j] += n
		}
		t.Tiers[i].Victims.Sum += o.Tiers[i].Victims.Sum
	}
	for i := range t.Removed {
		t.Removed[i] += o.Removed[i]
		t.RefusedPages[i] += o.RefusedPages[i]
	}
	for i := range t.Orphaned {
		t.Orphaned[i] += o.Orphaned[i]
		t.OrphanedBytes[i] += o.OrphanedBytes[i]
	}
}

// Totals counts.
func (s *Shard) Totals() Totals {
	t := s.totals
	for _, ep := range s.epochs.order {
		t.PinnedBytes += ep.pinned
		for i := range t.Tiers {
			t.Tiers[i].Bytes += ep.bytes[i]
		}
	}
	t.Behind = uint64(s.behind.len())
	t.Placeholders = uint64(s.pages.used) - t.Pages - s.openOnly
	t.ReadLeases, t.Publications = uint64(s.tenures.leases), uint64(s.tenures.pubs)
	t.MetadataBytes = s.metadataBytes()
	return t
}

// metadataBytes is the memory that records, index and policy have touched.
func (s *Shard) metadataBytes() uint64 {
	return uint64(s.pages.top+1)*uint64(unsafe.Sizeof(pageRecord{})) +
		uint64(s.extents.top+1)*uint64(unsafe.Sizeof(extentRecord{})) +
		s.index.bytes() + s.o.Policy.FootprintBytes()
}
