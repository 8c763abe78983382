package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// counters are since start.
type counters struct {
	read, written, corrupt, confirmed, divergent atomic.Uint64
	promoted, persisted, cleaned                 atomic.Uint64 // bytes: disk to host, host to disk, within the disk
	readErrors, writeErrors                      atomic.Uint64 // of the disk

	mu          sync.Mutex        // guards unconfirmed
	unconfirmed map[string]uint64 // by principal name
}

func (c *counters) unconfirmedBy(principal string) {
	c.mu.Lock()
	c.unconfirmed[principal]++
	c.mu.Unlock()
}

// Usage is what the node holds and has served of one namespace epoch.
type Usage struct {
	core.Usage
	Hits, Misses uint64 // pages asked for by Exists and Lookup
	LastWrite    time.Time
	// NeverHit: it is written to and looked up, and nothing was ever found. Most likely its writers and its readers do
	// not hash alike, or it has a sibling that was meant.
	NeverHit bool
}

// neverHitMisses is how many pages must have been missed before a namespace without a hit is worth a word.
const neverHitMisses = 1000

func (sp *space) neverHit() bool {
	return sp.State.Life != core.Retired && sp.lastWrite.Load() != 0 && sp.hits.Load() == 0 && sp.misses.Load() >= neverHitMisses
}

// Usage of one namespace epoch; zero if nothing was ever held.
func (s *Store) Usage(id page.NamespaceID, e page.Epoch) Usage {
	sp := s.spaces.get(id, e)
	if sp == nil {
		return Usage{}
	}
	u := Usage{
		Hits: sp.hits.Load(), Misses: sp.misses.Load(),
		LastWrite: clock.Wall(sp.lastWrite.Load()).Time(), NeverHit: sp.neverHit(),
	}
	sh := s.shardOf(id, e)
	sh.mu.RLock()
	all := sh.core.Usage(nil)
	sh.mu.RUnlock()
	for _, x := range all {
		if x.Namespace == id && x.Epoch == e {
			u.Usage = x
		}
	}
	return u
}

// TierStatus is one tier of Status.
type TierStatus struct {
	Tier evict.Tier
	tier.Usage
	WaterLevel evict.Score // of the next victim
	Evictable  bool        // there is one
	LoadRate   float64     // bytes per second at which pages are read from it to be served, while any are; 0: not measured
}

// Status is the node at a glance. Counters are since start.
type Status struct {
	Boot     [16]byte
	Uptime   time.Duration
	Tiers    []TierStatus
	Totals   core.Totals // summed over shards
	Sessions int
	Limits   core.Limits
	// MetadataCapacity bounds Totals.MetadataBytes; 0: it is not bounded.
	MetadataCapacity uint64

	ReadBytes, WrittenBytes uint64
	PromotedBytes           uint64 // copied from disk into memory
	PersistedBytes          uint64 // copied from memory to disk
	CleanedBytes            uint64 // moved on disk to empty a segment
	DiskReadErrors          uint64
	DiskWriteErrors         uint64
	CorruptFound            uint64            // extents that failed the node's own verification
	ReportsConfirmed        uint64            // clients' corruption reports that were right
	ReportsUnconfirmed      map[string]uint64 // and those that were not, by principal name
	Divergent               uint64            // commits whose bytes differ from what is stored
	NeverHit                int               // namespaces of which Usage.NeverHit is true
	Eviction                Eviction
}

// Eviction is what the shards' policies know of themselves, from samples: FLOPs of uses, since the start. Zero where they
// know nothing, as LRU.
type Eviction struct {
	Used    float64 // of all uses: what they would have cost without a store
	Content float64 // of uses of pages that were seen before: what a store without end would have saved
	Saved   float64 // of uses of pages that were there
	Modes   []Mode
}

// Mode is one way in which a policy can rank.
type Mode struct {
	Name   string
	Shards int     // that are in it
	Saved  float64 // by a store of the same size that were always in it
}

func (e *Eviction) add(x *evict.Simulated) {
	e.Used += x.FLOPs
	e.Content += x.Content
	e.Saved += x.Saved
	if e.Modes == nil {
		e.Modes = make([]Mode, len(x.Modes))
	}
	for i, m := range x.Modes {
		e.Modes[i].Name = m.Name
		e.Modes[i].Saved += m.Saved
		if m.Name == x.Mode {
			e.Modes[i].Shards++
		}
	}
}

// Status counts now.
func (s *Store) Status() Status {
	st := Status{
		Boot: s.o.Boot, Uptime: s.uptime(), Sessions: s.names.sessionCount(), Limits: s.o.Limits, MetadataCapacity: s.o.MetadataBytes,
		ReadBytes: s.counts.read.Load(), WrittenBytes: s.counts.written.Load(), CorruptFound: s.counts.corrupt.Load(),
		ReportsConfirmed: s.counts.confirmed.Load(), Divergent: s.counts.divergent.Load(),
		ReportsUnconfirmed: map[string]uint64{},
		PromotedBytes:      s.counts.promoted.Load(), PersistedBytes: s.counts.persisted.Load(), CleanedBytes: s.counts.cleaned.Load(),
		DiskReadErrors: s.counts.readErrors.Load(), DiskWriteErrors: s.counts.writeErrors.Load(),
	}
	for _, sp := range s.spaces.all() {
		if sp.neverHit() {
			st.NeverHit++
		}
	}
	s.counts.mu.Lock()
	for k, v := range s.counts.unconfirmed {
		st.ReportsUnconfirmed[k] = v
	}
	s.counts.mu.Unlock()
	for _, sh := range s.shards {
		sh.mu.RLock()
		st.Totals.Add(sh.core.Totals())
		if x, ok := sh.core.Simulated(); ok {
			st.Eviction.add(&x)
		}
		sh.mu.RUnlock()
	}
	for t, d := range s.o.Tiers {
		if d != nil {
			st.Tiers = append(st.Tiers, s.tierStatus(evict.Tier(t), d))
		}
	}
	return st
}

func (s *Store) tierStatus(t evict.Tier, d tier.Driver) TierStatus {
	ts := TierStatus{Tier: t, Usage: d.Usage(), LoadRate: s.loads[t].now()}
	now := s.clock.Now()
	for _, sh := range s.shards {
		sh.mu.RLock()
		level, ok := sh.core.WaterLevel(now, t)
		sh.mu.RUnlock()
		if ok && (!ts.Evictable || level < ts.WaterLevel) {
			ts.WaterLevel, ts.Evictable = level, true
		}
	}
	return ts
}

// LeaseInfo is one live lease with its principal's name.
type LeaseInfo struct {
	core.LeaseInfo
	PrincipalName string
}

// Leases lists live leases of a namespace epoch (zero id: all).
func (s *Store) Leases(id page.NamespaceID, e page.Epoch) []LeaseInfo {
	var out []LeaseInfo
	for _, sh := range s.shards {
		sh.mu.RLock()
		live := sh.core.Leases(s.clock.Now(), nil)
		sh.mu.RUnlock()
		for _, l := range live {
			if id == (page.NamespaceID{}) || l.Namespace == id && l.Epoch == e {
				out = append(out, LeaseInfo{l, s.names.principal(l.Principal)})
			}
		}
	}
	return out
}

// ExtentInfo is one copy of a stored extent.
type ExtentInfo struct {
	ID         page.ExtentID
	View       page.View
	Tier       evict.Tier
	Bytes      int64
	Provenance []byte // canonical, of the writer
	Accepted   bool
	Created    time.Time
	Parent     page.Hash // as its writer said; zero: root or unknown
}

// Explanation says where a key is and why it would or would not be served.
type Explanation struct {
	core.Explanation
	Extents []ExtentInfo
}

// Explain looks at one key. Extents whose header cannot be read before ctx ends are told of as Parts only.
func (s *Store) Explain(ctx context.Context, k *page.Key) Explanation {
	sh := s.shardOf(k.Namespace, k.Epoch)
	sh.mu.RLock()
	x := Explanation{Explanation: sh.core.Explain(s.clock.Now(), s.clock.Wall(), k)}
	sh.mu.RUnlock()
	rd := s.stat(ctx, sh, Caller{}, core.Run{Family: k.Family, Hashes: k.Hash.Bytes()}, page.View{})
	if rd == nil {
		return x
	}
	defer rd.Close()
	for _, part := range x.Parts { // every copy; those of one view are of one extent
		for i := range rd.pages[0].parts {
			if p := &rd.pages[0].parts[i]; p.View == part.View {
				x.Extents = append(x.Extents, infoOf(&p.header, &part))
			}
		}
	}
	return x
}

func infoOf(h *page.Header, p *core.Part) ExtentInfo {
	return ExtentInfo{
		ID: h.Extent, View: h.View, Tier: p.Place.Tier, Bytes: p.Place.Bytes, Provenance: append([]byte(nil), h.Provenance...),
		Accepted: p.Accepted, Created: time.Unix(int64(h.CreatedUnix), 0), Parent: h.Parent,
	}
}

// SameHash is one place where a hash lives.
type SameHash struct {
	Family   page.Family
	Complete bool
}

// SameHash lists the families in which a page of this hash is stored, of every namespace epoch that is not retired;
// bounded by the families that were written to since start.
func (s *Store) SameHash(h page.Hash) []SameHash {
	var out []SameHash
	for _, sp := range s.spaces.all() {
		if sp.State.Life == core.Retired || h.Len() != sp.State.HashBytes {
			continue
		}
		sh := s.shardOf(sp.State.ID, sp.State.Epoch)
		for _, f := range sp.knownFamilies() {
			sh.mu.RLock()
			x := sh.core.Explain(s.clock.Now(), s.clock.Wall(), &page.Key{Family: f, Hash: h})
			sh.mu.RUnlock()
			if x.Known && len(x.Parts) > 0 {
				out = append(out, SameHash{Family: f, Complete: x.Complete})
			}
		}
	}
	return out
}
