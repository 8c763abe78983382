package core

import (
	"github.com/quire-kv/quire/evict"
)

// behindQueue holds pages that were committed and are not on Disk yet, in the order of their commits.
type behindQueue struct {
	items  []behindPage
	head   int
	max    int
	bytes  uint64 // of all
	missed bool   // some page found the queue full
}

type behindPage struct {
	ref   PageRef
	bytes uint64 // in Host when it was queued
}

func (q *behindQueue) len() int    { return len(q.items) - q.head }
func (q *behindQueue) empty() bool { return q.len() == 0 }

// push is false when the queue is full.
func (q *behindQueue) push(p behindPage) bool {
	if q.len() >= q.max {
		q.missed = true
		return false
	}
	if q.head > 64 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0], q.items[q.head:]...)
		q.head = 0
	}
	q.items = append(q.items, p)
	q.bytes += p.bytes
	return true
}

func (q *behindQueue) pop() {
	q.bytes -= q.items[q.head].bytes
	q.head++
}

// queueBehind queues a page once, for all of its extents.
func (s *Shard) queueBehind(i uint32) {
	p := s.pages.At(i)
	if !s.o.WriteBehind || p.has(flagQueued) {
		return
	}
	if !s.behind.push(behindPage{p.ref(i), s.pageBytes(p)[evict.Host]}) {
		s.totals.BehindRefused++
		return
	}
	p.set(flagQueued, true)
}

// tellBehind asks for a WriteBehind when there is something for it to do.
func (s *Shard) tellBehind() {
	if !s.behind.empty() && !s.readOnly[evict.Disk] {
		s.emit(Behind{Bytes: s.behind.bytes})
	}
}

// tierState notes whether a tier takes bytes. A Disk that does again catches up on what was not queued, or was dropped
// from the queue, meanwhile.
func (s *Shard) tierState(ev *TierState) {
	if ev.Tier >= evict.NumTiers {
		return
	}
	was := s.readOnly[ev.Tier]
	s.readOnly[ev.Tier] = !ev.Writable
	if ev.Tier == evict.Disk && was && ev.Writable && s.o.WriteBehind {
		s.sweep.catchUp = true
		s.sweep.request()
		s.tellBehind()
	}
}

// writeBehind starts to copy about so many bytes of what is queued. Before a page go those of its ancestors that are not on
// Disk either: what lies there is always a prefix, but for what a Persist named.
func (s *Shard) writeBehind(ev *WriteBehind) {
	if s.readOnly[evict.Disk] {
		return
	}
	for sent := uint64(0); sent < ev.Bytes && !s.behind.empty(); {
		n, done := s.writeFirst(ev.Bytes - sent)
		sent += n
		if done {
			s.behind.pop()
		}
	}
	if s.behind.empty() && s.behind.missed {
		s.behind.missed = false
		s.sweep.catchUp = true
		s.sweep.request()
	}
	s.tellBehind()
}

// maxBehindPath bounds the ancestors of one page that are written before it.
const maxBehindPath = 1 << 16

// writeFirst starts to copy the first page of the queue and what must come before; done is false when the bytes were used
// up by its ancestors. A page whose parent cannot be on Disk is not written.
func (s *Shard) writeFirst(bytes uint64) (sent uint64, done bool) {
	ref := s.behind.items[s.behind.head].ref
	p := s.pages.At(ref.Slot)
	if p.gen != ref.Gen || !p.has(flagQueued) {
		return 0, true
	}
	s.path = s.path[:0]
	prefix := s.families.at(p.family).geo.Parents == ParentPrefix
	for i := ref.Slot; i != 0 && (i == ref.Slot || !s.pages.At(i).has(nearIn(evict.Disk))); i = s.pages.At(i).parent {
		if !s.worthWriting(i) || len(s.path) == maxBehindPath {
			if i != ref.Slot && !prefix { // its absence harms nobody
				break
			}
			p.set(flagQueued, false)
			return 0, true
		}
		s.path = append(s.path, i)
	}
	for n := len(s.path) - 1; n >= 0; n-- {
		if sent >= bytes {
			return sent, false
		}
		sent += s.copyToDisk(s.path[n])
	}
	if p.gen == ref.Gen {
		p.set(flagQueued, false)
	}
	return sent, true
}

// worthWriting says whether a page is there and would not be evicted first.
func (s *Shard) worthWriting(i uint32) bool {
	p := s.pages.At(i)
	if !p.has(flagCommitted) {
		return false
	}
	f := s.families.at(p.family)
	t := s.tally(p, f.ep)
	return f.ep.state.Life != Retired && !s.attrs(p, f, &t).Doomed
}

// copyToDisk starts to copy what is not on Disk of a page and says how many bytes that is.
func (s *Shard) copyToDisk(i uint32) (sent uint64) {
	s.eachMissing(i, s.pages.At(i), func(x uint32) {
		before := s.nextID
		if t, _ := s.startCopy(x, evict.Disk); t != nil && t.id > before {
			sent += s.extents.At(x).held()
		}
	})
	return sent
}

// eachMissing calls f with the best copy of each accepted extent of a page that has none on Disk. f may evict other
// pages.
func (s *Shard) eachMissing(i uint32, p *pageRecord, f func(x uint32)) {
	if !p.has(flagCommitted) {
		return
	}
	s.owned = append(s.owned[:0], s.committedOf(p)...)
	for rest := s.owned; len(rest) > 0; {
		x, copies := s.bestCopy(rest)
		onDisk := false
		for _, c := range rest[:copies] {
			onDisk = onDisk || s.extents.At(c).tier() == evict.Disk
		}
		rest = rest[copies:]
		if !onDisk && s.epochOf(i).lineages.accepted(s.extents.At(x).lineage) {
			f(x)
		}
	}
}
