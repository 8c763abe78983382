package demo

import (
	"encoding/binary"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/page"
)

// Payloads follow from hash, head and layer, word by word, so that any byte that is not the page's own is noticed: of
// another page, another head, another layer or another place. Words do not depend on each other, so that a core makes
// them faster than the network carries them.

// cellSeed starts the words of one cell.
func cellSeed(hash []byte, head, layer uint16) uint64 {
	return binary.LittleEndian.Uint64(hash) ^ uint64(head)<<48 ^ uint64(layer)<<32 ^ 0x517cc1b727220a95
}

// step is between the states of two words, each of which is mixed by itself.
const step = 0x9e3779b97f4a7c15

func word(state uint64) uint64 {
	state ^= state >> 32
	state *= 0xd6e8feb86659fd93
	return state ^ state>>29
}

// fillView writes the payload of view v of a page.
func fillView(dst, hash []byte, v page.View, cellBytes int) {
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			fillCell(dst[:cellBytes], cellSeed(hash, h, l))
			dst = dst[cellBytes:]
		}
	}
}

// fillCell takes cells of a multiple of 8 bytes.
func fillCell(cell []byte, state uint64) {
	for ; len(cell) >= 8; cell = cell[8:] {
		binary.LittleEndian.PutUint64(cell, word(state))
		state += step
	}
}

// wrongBytes counts the bytes of a view that are not the page's.
func wrongBytes(got, hash []byte, v page.View, cellBytes int) (wrong uint64) {
	for h := v.H0; h < v.H1; h++ {
		for l := v.L0; l < v.L1; l++ {
			wrong += wrongInCell(got[:cellBytes], cellSeed(hash, h, l))
			got = got[cellBytes:]
		}
	}
	return wrong
}

func wrongInCell(cell []byte, state uint64) (wrong uint64) {
	for ; len(cell) >= 8; cell = cell[8:] {
		if d := binary.LittleEndian.Uint64(cell) ^ word(state); d != 0 {
			wrong += nonZeroBytes(d)
		}
		state += step
	}
	return wrong
}

func nonZeroBytes(d uint64) (n uint64) {
	for ; d != 0; d >>= 8 {
		if d&0xff != 0 {
			n++
		}
	}
	return n
}

// slab is memory for a window of pages in the views of one rank, used again and again.
type slab struct {
	memory  []byte
	buffers [][]byte
	items   []client.Item
}

// of are n buffers of so many bytes.
func (s *slab) of(n, bytes int) [][]byte {
	if len(s.memory) < n*bytes {
		s.memory = make([]byte, n*bytes)
	}
	s.buffers = s.buffers[:0]
	for i := range n {
		s.buffers = append(s.buffers, s.memory[i*bytes:(i+1)*bytes:(i+1)*bytes])
	}
	return s.buffers
}
