package core

import (
	"runtime"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// Usage is what a shard holds of one namespace epoch.
type Usage struct {
	Namespace page.NamespaceID
	Epoch     page.Epoch
	Life      Life
	Pages     uint64                 // with at least one committed extent
	Extents   uint64                 // committed; each copy counts
	Bytes     uint64                 // of places in all tiers, slot slack to 4 KiB included
	Tiers     [evict.NumTiers]uint64 // the same by tier
	Charged   uint64                 // each extent once, however many copies it has: what the quota bounds
	Pinned    uint64
	Evicted   uint64 // pages whose last copy went for room, since start
	Orphans   [NumOrphanCauses]uint64
}

// OrphanCause says why a page's parent is gone.
type OrphanCause uint8

// The causes. Eviction is not one of them: it never makes an orphan.
const (
	OrphanDeleted OrphanCause = iota
	OrphanExpired
	OrphanCorrupt
	OrphanHidden  // the parent's provenance is no longer accepted
	OrphanAborted // the parent was given up by its writer
	OrphanLost    // the parent did not outlive the process
	NumOrphanCauses
)

// LeaseInfo is one live lease for operators.
type LeaseInfo struct {
	Publish   bool
	Lease     LeaseID
	Token     Token
	Principal Principal
	Session   Session
	Namespace page.NamespaceID
	Epoch     page.Epoch
	Pages     int
	Bytes     uint64
	Remaining time.Duration
}

// Explanation says what the shard knows of one key.
type Explanation struct {
	Ref      PageRef
	Known    bool // a record exists, with or without committed extents
	Served   bool // a whole-page read would be served now
	Reason   reason.Reason
	Complete bool
	Open     int    // extents being written
	Landing  int    // copies on their way to another tier
	Parts    []Part // all copies, those of one extent one after the other
	Depth    uint32
	Children uint32
	Pins     uint32
	Orphan   bool
	Parent   PageRef // zero: root or unknown
	Expiry   clock.Wall
	Score    evict.Score // in RankTier
	Unit     string      // of Score, for people
	RankTier evict.Tier  // Host if it is there, else where it is
	Below    int         // pages that score less, of Sampled
	Sampled  int         // pages that may go from that tier, taken here and there; maxRanked at most
}

// What a rank looks at, at most.
const (
	maxRanked      = 256
	maxRankRecords = 4096
)

// Usage appends one entry per namespace epoch that has records, or had some evicted, in order of first sight.
func (s *Shard) Usage(dst []Usage) []Usage {
	for _, ep := range s.epochs.order {
		if ep.families == 0 && ep.evicted == 0 {
			continue
		}
		dst = append(dst, Usage{
			Namespace: ep.state.ID, Epoch: ep.state.Epoch, Life: ep.state.Life,
			Pages: ep.pages, Extents: ep.extents, Bytes: ep.bytes.sum(),
			Tiers: ep.bytes, Charged: ep.charged, Pinned: ep.pinned, Evicted: ep.evicted, Orphans: ep.orphans,
		})
	}
	return dst
}

// Leases appends the live leases in order of id.
func (s *Shard) Leases(now clock.Instant, dst []LeaseInfo) []LeaseInfo {
	defer runtime.KeepAlive(s)
	for n := s.tenures.first; n != nil; n = n.next {
		info := LeaseInfo{
			Principal: n.principal, Session: n.session, Namespace: n.ep.state.ID, Epoch: n.ep.state.Epoch,
			Remaining: max(n.until.Sub(now), 0),
		}
		if n.pub != nil {
			s.describePublication(n.pub, &info)
		} else {
			s.describeLease(n.lease, &info)
		}
		dst = append(dst, info)
	}
	return dst
}

func (s *Shard) describePublication(pub *publication, info *LeaseInfo) {
	info.Publish, info.Token, info.Pages = true, pub.token, pub.openNow
	for i := range pub.pages {
		for _, x := range pub.pages[i].grants {
			info.Bytes += s.extents.At(x).held()
		}
	}
}

func (s *Shard) describeLease(l *lease, info *LeaseInfo) {
	info.Lease, info.Pages = l.id, len(l.at)
	for _, e := range l.pages {
		if g := s.gone[e.ref]; g != nil {
			info.Bytes += g.bytes.sum()
		} else if e.ref != (PageRef{}) {
			info.Bytes += s.pins[e.ref.Slot].bytes.sum()
		}
	}
}

// Explain says what the shard knows of one key and why it would or would not be served.
func (s *Shard) Explain(now clock.Instant, wall clock.Wall, k *page.Key) Explanation {
	defer runtime.KeepAlive(s)
	family, ep, why := s.resolve(&k.Family)
	if why != reason.None {
		return Explanation{Reason: why}
	}
	i := uint32(0)
	if family != 0 {
		i = s.index.find(fingerprintOf(k.Hash.Bytes(), s.o.FingerprintKey), family)
	}
	if i == 0 {
		return Explanation{Reason: reason.Absent}
	}
	p, f := s.pages.At(i), s.families.at(family)
	e := Explanation{
		Ref: p.ref(i), Known: true, Complete: p.has(flagComplete), Depth: p.depth, Children: p.children,
		Pins: s.pins[i].leases, Orphan: p.has(flagOrphan), Expiry: p.expiry,
	}
	e.Reason = s.served(p, ep, f.geo.Full(), wall)
	e.Served = e.Reason == reason.None
	if p.parent != 0 {
		e.Parent = s.pages.At(p.parent).ref(p.parent)
	}
	for x := p.extents; x != 0; x = s.extents.At(x).next {
		r := s.extents.At(x)
		switch r.state() {
		case extentOpen:
			e.Open++
			continue
		case extentLanding:
			e.Landing++
			continue
		}
		e.Parts = append(e.Parts, Part{
			Extent: x, Place: r.place(), View: r.view, Take: r.view, Accepted: ep.lineages.accepted(r.lineage),
		})
	}
	t := s.tally(p, ep)
	e.RankTier = s.o.Tier
	for tier := range evict.NumTiers {
		if t.in != 0 && !t.in.has(s.o.Tier) && t.in.has(tier) {
			e.RankTier = tier
			break
		}
	}
	e.Score, e.Unit = s.worth(now, i, e.RankTier), "s of the last use since the start"
	if _, ok := s.o.Policy.(evict.Simulator); ok {
		e.Unit = "FLOP per byte-second"
	}
	s.rank(now, i, &e)
	return e
}

func (s *Shard) worth(now clock.Instant, i uint32, tier evict.Tier) evict.Score {
	p := s.pages.At(i)
	f := s.families.at(p.family)
	t := s.tally(p, f.ep)
	return s.o.Policy.Worth(seconds(now), evict.Ref(i), tier, s.attrs(p, f, &t))
}

// rank compares a page with others that may go from its tier, spread evenly over the records.
func (s *Shard) rank(now clock.Instant, of uint32, e *Explanation) {
	if !s.pages.At(of).has(flagCommitted) {
		return
	}
	step := max(s.pages.top/maxRankRecords, 1)
	for i, n := uint32(1), 0; i <= s.pages.top && n < maxRankRecords && e.Sampled < maxRanked; i, n = i+step, n+1 {
		p := s.pages.At(i)
		if i == of || p.family == 0 || !p.has(flagCommitted) {
			continue
		}
		if t := s.tally(p, s.epochOf(i)); !s.evictable(i, p, &t).has(e.RankTier) {
			continue
		}
		e.Sampled++
		if s.worth(now, i, e.RankTier) < e.Score {
			e.Below++
		}
	}
}

// Simulated is what the shard's policy knows of itself and other choices; ok is false when it simulates nothing.
func (s *Shard) Simulated() (x evict.Simulated, ok bool) {
	defer runtime.KeepAlive(s)
	if p, is := s.o.Policy.(evict.Simulator); is {
		return p.Simulated(), true
	}
	return evict.Simulated{}, false
}

// PlaceOf is a place of some committed extent of ref, in Host if it is there, for reading its header; ok is false for
// placeholders.
func (s *Shard) PlaceOf(ref PageRef) (p Place, v page.View, f page.Family, ok bool) {
	defer runtime.KeepAlive(s)
	if ref.Slot == 0 || ref.Slot > s.pages.top || s.pages.At(ref.Slot).gen != ref.Gen || s.pages.At(ref.Slot).family == 0 {
		return Place{}, page.View{}, page.Family{}, false
	}
	r := s.pages.At(ref.Slot)
	for i := r.extents; i != 0; i = s.extents.At(i).next {
		if x := s.extents.At(i); x.state() == extentCommitted && (!ok || x.tier() == evict.Host) {
			p, v, f, ok = x.place(), x.view, s.families.at(r.family).key, true
			if x.tier() == evict.Host {
				break
			}
		}
	}
	return p, v, f, ok
}
