package evict

import "testing"

// TestGhosts: a ghost is found until it is taken or made room for, over a doubling of the table too.
func TestGhosts(t *testing.T) {
	g := newGhosts(1 << 20)
	tag := func(i int) uint64 { return mix(uint64(i) + 1) }
	const n = 1000
	for i := range n {
		g.put(ghost{tag: tag(i), used: uint32(i), uses: uint8(i)})
	}
	before := g.buckets
	g.grow(int(before) * ghostWays / ghostsPer * 2)
	if g.buckets != 2*before {
		t.Fatalf("%d buckets after %d", g.buckets, before)
	}
	for i := range n {
		if x := g.find(tag(i)); x == nil || x.uses != uint8(i) {
			t.Fatalf("ghost %d is %v", i, x)
		}
		g.take(tag(i))
		if g.find(tag(i)) != nil {
			t.Fatalf("ghost %d was taken and is there", i)
		}
	}
	if g.find(0) != nil {
		t.Error("no tag is a ghost")
	}
}

// TestTheOldestGhostMakesRoom.
func TestTheOldestGhostMakesRoom(t *testing.T) {
	g := newGhosts(1)
	same := func(i int) uint64 { return uint64(i+1) << 1 } // all in one bucket
	for i := range ghostWays {
		g.put(ghost{tag: same(i), used: uint32(100 - i)})
	}
	g.put(ghost{tag: same(0), used: 200}) // anew, in its own place
	g.put(ghost{tag: same(ghostWays), used: 300})
	for i := range ghostWays + 1 {
		if there := g.find(same(i)) != nil; there != (i != ghostWays-1) {
			t.Errorf("ghost %d: %v", i, there)
		}
	}
}
