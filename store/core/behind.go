package core

import (
	"runtime"

	"github.com/quire-kv/quire/evict"
)

// behindQueue holds pages that were committed and are not on Disk yet: a heap, of which the first is worth most there.
// What a page is worth is that of the last look.
type behindQueue struct {
	items  []behindPage
	max    int
	seq    uint64
	bytes  uint64 // of all
	missed bool   // some page found the queue full
}

type behindPage struct {
	ref   PageRef
	bytes uint64 // in Host when it was queued
	worth evict.Score
	seq   uint64 // of pages worth the same the first queued is first
	left  int    // of its path, when only a part of that was begun: the page waits for the rest; 0: not begun
}

func (q *behindQueue) len() int    { return len(q.items) }
func (q *behindQueue) empty() bool { return len(q.items) == 0 }

// push queues a page. A full queue keeps it in place of its last, which is among the least, or not at all: left names what
// is not queued.
func (q *behindQueue) push(p behindPage) (left PageRef, full bool) {
	q.seq++
	p.seq = q.seq
	if full = len(q.items) >= q.max; full {
		q.missed = true
		last := q.items[len(q.items)-1]
		if p.worth <= last.worth {
			return p.ref, true
		}
		left = last.ref
		q.bytes -= last.bytes
		q.items = q.items[:len(q.items)-1]
	}
	q.items = append(q.items, p)
	q.bytes += p.bytes
	heapFix(q, len(q.items)-1)
	return left, full
}

// lower notes that the first is worth less now, and says whether it is the first still.
func (q *behindQueue) lower(worth evict.Score) bool {
	seq := q.items[0].seq
	q.items[0].worth = worth
	heapFix(q, 0)
	return q.items[0].seq == seq
}

func (q *behindQueue) pop() {
	q.bytes -= q.items[0].bytes
	last := len(q.items) - 1
	q.items[0] = q.items[last]
	q.items = q.items[:last]
	heapFix(q, 0)
}

func (q *behindQueue) less(i, j int) bool {
	a, b := &q.items[i], &q.items[j]
	return a.worth > b.worth || a.worth == b.worth && a.seq < b.seq
}

func (q *behindQueue) swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }

// queueBehind queues a page once, for all of its extents.
func (s *Shard) queueBehind(i uint32) {
	p := s.pages.At(i)
	if !s.o.WriteBehind || p.has(flagQueued) {
		return
	}
	p.set(flagQueued, true)
	left, full := s.behind.push(behindPage{ref: p.ref(i), bytes: s.pageBytes(p)[evict.Host], worth: s.worthIn(i, evict.Disk)})
	if !full {
		return
	}
	s.totals.BehindRefused++
	if q := s.pages.At(left.Slot); q.gen == left.Gen {
		q.set(flagQueued, false)
	}
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
	if ev.Tier == evict.Disk && !ev.Writable && !was {
		s.waitNoMore()
	}
	if ev.Tier == evict.Disk && was && ev.Writable && s.o.WriteBehind {
		s.sweep.catchUp = true
		s.sweep.request()
		s.tellBehind()
	}
}

// writeBehind starts to copy about so many bytes of what is queued, the worthiest first. Before a page go those of its
// ancestors that are not on Disk either: what lies there is always a prefix, but for what a Persist named. They are judged
// as one, by the best of them:
//
//	WriteBehind --> Transfer{Worth: the best of the path} --no place--> Reclaim{Judge, Worth}
//	                                                   \ the next victim scores more, or the parent was refused:
//	                                                     TransferDone{NotWorth}; queued again when it is used
func (s *Shard) writeBehind(ev *WriteBehind) {
	if s.readOnly[evict.Disk] {
		return
	}
	for sent := uint64(0); sent < ev.Bytes && !s.behind.empty(); {
		s.worthiestFirst()
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
// up by its ancestors. A page whose parent cannot be on
// Disk is not written, nor the rest of a path of which nothing came there since a part of it was begun.
func (s *Shard) writeFirst(bytes uint64) (sent uint64, done bool) {
	first := &s.behind.items[0]
	ref := first.ref
	p := s.pages.At(ref.Slot)
	if p.gen != ref.Gen || !p.has(flagQueued) {
		return 0, true
	}
	s.path = s.path[:0]
	worth := evict.Score(0)
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
		worth = max(worth, s.worthIn(i, evict.Disk))
	}
	if first.left != 0 && len(s.path) >= first.left {
		p.set(flagQueued, false)
		return 0, true
	}
	first.left = len(s.path)
	for n := len(s.path) - 1; n >= 0; n-- {
		if sent >= bytes {
			return sent, false
		}
		sent += s.copyToDisk(s.path[n], worth)
	}
	if p.gen == ref.Gen {
		p.set(flagQueued, false)
	}
	return sent, true
}

// maxBehindLooks bounds how many pages are looked at anew to find the worthiest: all were worth more when they were queued.
const maxBehindLooks = 64

// worthiestFirst brings a page to the head of the queue that is worth most there now.
func (s *Shard) worthiestFirst() {
	for range maxBehindLooks {
		first := s.behind.items[0]
		if p := s.pages.At(first.ref.Slot); p.gen != first.ref.Gen || !p.has(flagQueued) {
			return
		}
		if w := s.worthIn(first.ref.Slot, evict.Disk); w >= first.worth || s.behind.lower(w) {
			return
		}
	}
}

// worthIn is what a committed page scores in a tier, or would.
func (s *Shard) worthIn(i uint32, t evict.Tier) evict.Score {
	p := s.pages.At(i)
	f := s.families.at(p.family)
	n := s.tally(p, f.ep)
	return s.o.Policy.Worth(seconds(s.now), evict.Ref(i), t, s.attrs(p, f, &n))
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
func (s *Shard) copyToDisk(i uint32, worth evict.Score) (sent uint64) {
	s.eachMissing(i, s.pages.At(i), func(x uint32) {
		before := s.nextID
		if t, _ := s.startCopy(x, evict.Disk, worth); t != nil && t.id > before {
			sent += s.extents.At(x).held()
		}
	})
	return sent
}

// Follows says whether the parent of what a Transfer brings to Disk is there, or on its way, where every page before is
// needed. Where it is not, it was refused a place meanwhile, and the runtime refuses this too.
func (s *Shard) Follows(id uint64) bool {
	ok := true
	if t := s.transfers[id]; t != nil && t.from != t.into {
		if x := s.extents.At(t.from); x.listed() {
			p := s.pages.At(x.owner)
			ok = p.parent == 0 || s.families.at(p.family).geo.Parents != ParentPrefix || s.pages.At(p.parent).has(nearIn(t.to))
		}
	}
	runtime.KeepAlive(s)
	return ok
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
