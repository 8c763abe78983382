package evict

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// check compares the sample's table and the shadows' counts with those made anew.
func (s *sample) check(t *testing.T) {
	t.Helper()
	pages := 0
	var units [modes]float64
	children := map[uint32]*[modes]uint16{}
	for i := uint32(1); i < s.n; i++ {
		p := s.pages.At(i)
		if p.tag == 0 {
			continue
		}
		pages++
		if s.find(p.tag) != i || !s.takes(p.tag) {
			t.Fatalf("slot %d: its tag is found at %d, sampled %v", i, s.find(p.tag), s.takes(p.tag))
		}
		for m := range modes {
			if p.in[m].resident {
				units[m] += float64(p.units)
				if parent := s.parent(p); parent != 0 {
					if children[parent] == nil {
						children[parent] = new([modes]uint16)
					}
					children[parent][m]++
				}
			}
		}
	}
	filled := 0
	for _, slot := range s.slots.Slice() {
		if slot != 0 {
			filled++
		}
	}
	if filled != pages {
		t.Fatalf("%d pages, %d in the table", pages, filled)
	}
	for m := range modes {
		c := &s.shadows.caches[m]
		if c.units != units[m] {
			t.Fatalf("%v: %v units counted, %v held", m, c.units, units[m])
		}
		leaves := uint32(0)
		for i := uint32(1); i < s.n; i++ {
			p := s.pages.At(i)
			n := uint16(0)
			if x := children[i]; x != nil {
				n = x[m]
			}
			if p.in[m].resident && p.in[m].children != n {
				t.Fatalf("%v: slot %d has %d children, counted %d", m, i, n, p.in[m].children)
			}
			if leaf := p.in[m].resident && n == 0; leaf != (p.in[m].at != 0) {
				t.Fatalf("%v: slot %d is a leaf: %v", m, i, leaf)
			} else if leaf {
				leaves++
			}
		}
		if leaves != c.n {
			t.Fatalf("%v: %d leaves, %d counted", m, leaves, c.n)
		}
	}
}

// TestSampleKeepsItsBooks through growth, thinning, forgetting and pages that change their size.
func TestSampleKeepsItsBooks(t *testing.T) {
	const maxPages = 3 * samplePages
	v, rnd := NewVBR(maxPages+1, 3), rand.New(rand.NewPCG(1, 1))
	v.Resize(Host, 1000*unitBytes, 1000)
	now, next := 0.0, Ref(0)
	for i := range 30000 {
		now += 0.1
		chain := 1 + rnd.IntN(12)
		parent := Ref(0)
		if next > 0 && rnd.IntN(2) == 0 {
			parent = 1 + Ref(rnd.IntN(int(next)))
			v.Touch(now, parent)
		}
		for range chain {
			if next == maxPages {
				break
			}
			next++
			v.Insert(now, next, Attrs{Bytes: uint64(1+rnd.IntN(3)) * unitBytes, FLOPs: float64(1 + rnd.IntN(9)), KeyTag: rnd.Uint64(), Parent: parent})
			parent = next
		}
		if i%1000 == 500 {
			r := 1 + Ref(rnd.IntN(int(next)))
			v.Insert(now, r, Attrs{Bytes: 7 * unitBytes, FLOPs: 1})
			v.Touch(now, r)
		}
		switch i {
		case 10000, 20000, 29999:
			v.sample.check(t)
		case 15000:
			v.Resize(Host, 3*samplePages/shadowShare*unitBytes, 3*samplePages/shadowShare)
			v.sample.check(t)
		case 25000:
			v.Resize(Host, 500*unitBytes, 500)
			v.sample.check(t)
		}
	}
	if v.sample.n <= samplePages {
		t.Errorf("%d pages in the sample: nothing was ever forgotten", v.sample.n)
	}
}

// A policy with little memory for its sample keeps within it.
func TestSampleWithinItsMemory(t *testing.T) {
	for _, bytes := range []uint64{0, VBRLeastSampleBytes, 1 << 20, VBRSampleBytes, 1 << 40} {
		v := NewVBR(1<<12, 1)
		v.WatchWithin(bytes)
		for i := range 3 << 15 {
			v.Pass(float64(i)/ticksPerSecond, []Attrs{{KeyTag: uint64(i + 1), Bytes: 4096}})
		}
		v.sample.check(t)
		most := min(max(bytes, VBRLeastSampleBytes), VBRSampleBytes)
		if got := v.sample.footprint() - uint64(unsafe.Sizeof(sample{})); got > most+sampledBytes || got < most/3 {
			t.Errorf("%d bytes are watched within %d", got, most)
		}
	}
}
