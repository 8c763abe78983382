package core

import (
	"unsafe"

	"github.com/quire-kv/quire/reason"
)

// Totals is what a shard holds in all.
type Totals struct {
	Pages, Placeholders, Extents uint64
	ReadLeases, Publications     uint64
	PinnedBytes                  uint64
	MetadataBytes                uint64
	Evicted                      uint64                  // pages, since start
	Removed                      [reason.Count]uint64    // pages and extents by reason, since start
	Orphaned                     [NumOrphanCauses]uint64 // since start
	Granted, CommittedPages      uint64                  // since start
	RefusedPages                 [reason.Count]uint64    // Begin and Commit, since start
	LeaseTTLEnded                uint64                  // read and publication leases that ran out
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
	for i := range t.Removed {
		t.Removed[i] += o.Removed[i]
		t.RefusedPages[i] += o.RefusedPages[i]
	}
	for i := range t.Orphaned {
		t.Orphaned[i] += o.Orphaned[i]
	}
}

// Totals counts.
func (s *Shard) Totals() Totals {
	t := s.totals
	for _, ep := range s.epochs.order {
		t.PinnedBytes += ep.pinned
	}
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
