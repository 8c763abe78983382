package store

import (
	"sync"
	"unsafe"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/tier"
)

// moveBatchBytes is how much of a segment is in memory at a time while it is cleaned.
const moveBatchBytes = 16 << 20

// cleanSegment empties one segment, where that wins more than it writes: what the policy would drop next anyway is dropped, the rest is written anew.
func (s *Store) cleanSegment() bool {
	segment, live := s.disk.d.Compact(nil)
	if segment == 0 {
		return false
	}
	levels := s.dropLevels(live)
	emptied := true
	for len(live) > 0 {
		n, bytes := 0, int64(0)
		for n < len(live) && (n == 0 || bytes+live[n].Region.Bytes <= moveBatchBytes) {
			bytes += live[n].Region.Bytes
			n++
		}
		emptied = s.moveOnDisk(live[:n], levels) && emptied
		live = live[n:]
	}
	if !emptied {
		s.disk.d.Keep(segment)
	}
	return emptied
}

// dropLevels is, by shard, the score up to which the policy would drop pages if it needed the bytes of live there.
func (s *Store) dropLevels(live []tier.Resident) []evict.Score {
	need := make([]uint64, len(s.shards))
	for _, r := range live {
		if int(r.Owner.Shard) < len(need) {
			need[r.Owner.Shard] += uint64(r.Region.Bytes)
		}
	}
	levels := make([]evict.Score, len(need))
	for i, sh := range s.shards {
		if need[i] > 0 {
			sh.mu.RLock()
			levels[i] = sh.core.VictimLevel(s.clock.Now(), evict.Disk, need[i])
			sh.mu.RUnlock()
		}
	}
	return levels
}

// moveOnDisk moves extents of one segment to other segments; false when one had to stay.
func (s *Store) moveOnDisk(live []tier.Resident, levels []evict.Score) bool {
	moved := true
	var moves []diskMove
	for _, r := range live {
		if int(r.Owner.Shard) >= len(s.shards) {
			moved = false
			continue
		}
		sh := s.shards[r.Owner.Shard]
		ev := core.Move{Extent: r.Owner.Extent, From: placeOf(evict.Disk, r.Region), Drop: levels[r.Owner.Shard]}
		s.stepFor(sh, ev, 0, func(e core.Effect) {
			switch e := e.(type) {
			case core.MoveRefused:
				moved = false
			case core.Transfer:
				moves = append(moves, diskMove{s: s, sh: sh, t: e, from: r.Region})
			}
		})
	}
	var total int64
	for i := range moves {
		total += tier.RoundUp(moves[i].from.Bytes)
	}
	space := s.disk.space(total)
	for i := range moves {
		n := tier.RoundUp(moves[i].from.Bytes)
		moves[i].mem, space = space[:moves[i].from.Bytes:n], space[n:]
	}
	each(moves, (*diskMove).read)
	each(moves, (*diskMove).write)
	for i := range moves {
		moved = moves[i].finish() && moved
	}
	return moved
}

// diskMove is one extent on its way from one segment to another.
type diskMove struct {
	s        *Store
	sh       *shard
	t        core.Transfer
	from, to tier.Region
	mem      []byte
	err      error
	corrupt  bool
}

// each starts an operation of every move, submits them together and waits for all.
func each(moves []diskMove, start func(*diskMove, func(error)) (tier.Op, bool)) {
	var wait sync.WaitGroup
	ops := make([]tier.Op, 0, len(moves))
	for i := range moves {
		m := &moves[i]
		if m.err != nil || m.corrupt {
			continue
		}
		wait.Add(1)
		if op, ok := start(m, func(err error) { m.err = err; wait.Done() }); ok {
			ops = append(ops, op)
		} else {
			wait.Done()
		}
	}
	if len(ops) > 0 {
		moves[0].s.disk.d.Submit(ops)
	}
	wait.Wait()
}

func (m *diskMove) read(done func(error)) (tier.Op, bool) {
	return tier.Op{Region: m.from, Memory: m.mem, Done: done}, true
}

func (m *diskMove) write(done func(error)) (tier.Op, bool) {
	if m.corrupt = !soundExtent(m.mem); m.corrupt {
		return tier.Op{}, false
	}
	if m.to, m.err = m.s.disk.d.Alloc(tier.Class{Bytes: m.from.Bytes}, tier.Owner{Shard: m.sh.id, Extent: m.t.Into}); m.err != nil {
		m.to = tier.Region{}
		return tier.Op{}, false
	}
	return tier.Op{Region: m.to, Memory: m.mem, Write: true, Note: m.s.noteOf(m.t), Done: done}, true
}

// finish tells the core where the extent is now.
func (m *diskMove) finish() bool {
	done := core.TransferDone{ID: m.t.ID}
	switch {
	case m.corrupt:
		done.Err = reason.Corrupt
	case m.err != nil:
		done.Err = allocReason(m.err)
		if m.to.Handle != 0 {
			m.s.disk.d.Free(m.to)
		}
	default:
		done.To = placeOf(evict.Disk, m.to)
		m.s.counts.cleaned.Add(uint64(m.to.Bytes))
	}
	m.s.step(m.sh, done)
	if m.corrupt {
		m.s.corrupt(m.sh, m.t.Extent, m.t.From) // gone, so the segment is emptied of it too
	}
	return m.err == nil
}

// space is n bytes of the writer's own memory, which begin on a memory page, for direct I/O. What it gave before is void.
func (w *diskWriter) space(n int64) []byte {
	if int64(len(w.buffer)) < n {
		b := make([]byte, max(n, moveBatchBytes)+tier.Align)
		w.buffer = b[-uintptr(unsafe.Pointer(&b[0]))&(tier.Align-1):]
	}
	return w.buffer[:n]
}
