package replay

import (
	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/evict/classic"
)

// Maker makes a policy for one replay.
type Maker func(capacity int, w *Workload, seed uint64) evict.Policy

// Named is a policy by its name in commands and tables.
type Named struct {
	Name  string
	About string // one line
	New   Maker
}

// Policies is every policy that can be replayed: the store's own, plain LRU, the others.
func Policies() []Named {
	return []Named{
		{"vbr", "value, benefit, room: the store's own", func(c int, w *Workload, s uint64) evict.Policy { return evict.NewVBR(Slots(c, w), s) }},
		{"lru", "least recently used, as the store has it", func(c int, w *Workload, _ uint64) evict.Policy { return evict.NewLRU(Slots(c, w)) }},
		{"fifo", "first in, first out", func(int, *Workload, uint64) evict.Policy { return classic.NewFIFO() }},
		{"lfu", "least frequently used while resident", func(int, *Workload, uint64) evict.Policy { return classic.NewLFU() }},
		{"sieve", "SIEVE (NSDI 2024)", func(int, *Workload, uint64) evict.Policy { return classic.NewSIEVE() }},
		{"s3fifo", "S3-FIFO (SOSP 2023)", func(c int, _ *Workload, _ uint64) evict.Policy { return classic.NewS3FIFO(c) }},
		{"arc", "ARC (FAST 2003)", func(c int, _ *Workload, _ uint64) evict.Policy { return classic.NewARC(c) }},
		{"wtinylfu", "W-TinyLFU (TOS 2017)", func(c int, _ *Workload, _ uint64) evict.Policy { return classic.NewWTinyLFU(c) }},
		{"lhd", "LHD, least hit density (NSDI 2018)", func(c int, _ *Workload, s uint64) evict.Policy { return classic.NewLHD(c, s) }},
		{"gdsf", "GreedyDual-Size with frequency (1998), by FLOPs", func(int, *Workload, uint64) evict.Policy { return classic.NewGDSF() }},
		{"marconi", "recency and FLOP efficiency (MLSys 2025), alpha by replay", func(c int, _ *Workload, s uint64) evict.Policy { return classic.NewMarconi(c, s) }},
		{"costage", "FLOPs over age", func(_ int, _ *Workload, s uint64) evict.Policy { return classic.NewCostAge(s) }},
	}
}

// Slots is how many refs a policy must know, 0 included: those of what is held, and of a run that is on its way.
func Slots(capacity int, w *Workload) int {
	longest := 0
	for i := range w.Requests {
		longest = max(longest, len(w.Requests[i].Pages))
	}
	return min(max(capacity, 0), w.Pages()) + longest + 1
}
