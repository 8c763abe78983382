package evict

import "testing"

// TestAFamilyIsLearned: below one root every prompt comes again after 10 seconds, below the other none does. By class and age
// they are alike; a page that nobody asked for twice yet is worth more below the first.
func TestAFamilyIsLearned(t *testing.T) {
	const roots, rounds = 2, 3000
	v := NewVBR(roots+roots*rounds+1, 1)
	v.Resize(Host, 1000*unitBytes, 1000)
	insert := func(now float64, r, parent Ref) {
		v.Insert(now, r, Attrs{Bytes: unitBytes, FLOPs: 1e9, KeyTag: uint64(r), Parent: parent})
	}
	for root := range Ref(roots) {
		insert(0, 1+root, 0)
	}
	next, last := Ref(roots), [10]Ref{}
	for i := range rounds {
		now := float64(1 + i)
		if again := last[i%len(last)]; again != 0 {
			v.Touch(now, 1)
			v.Touch(now, again)
		}
		v.Touch(now, 2)
		insert(now, next+1, 1)
		insert(now, next+2, 2)
		last[i%len(last)] = next + 1
		next += 2
	}
	again, never := v.Worth(rounds+1, next-1, Host, Attrs{}), v.Worth(rounds+1, next, Host, Attrs{})
	if again < 2*never {
		t.Errorf("a page of prompts that come again is worth %.3g, of others %.3g", again, never)
	}
	if x := v.sample.reuse.factors.now[0]; x != 1 {
		t.Errorf("pages of no known family have a factor of %v", x)
	}
}

// TestDepthIsLearned: prompts of 3 pages come again, each with another page below, which does not. By class and age they are
// alike, and a use of each saves the same.
func TestDepthIsLearned(t *testing.T) {
	const rounds, apart = 2000, 10
	v := NewVBR(4*rounds+1, 1)
	v.Resize(Host, 1000*unitBytes, 1000)
	for i := range Ref(rounds) {
		now, first := float64(1+i), 1+4*i
		if i >= apart {
			for d := range Ref(3) {
				v.Touch(now, first-4*apart+d)
			}
		}
		for d, parent := Ref(0), Ref(0); d < 4; d++ {
			v.Insert(now, first+d, Attrs{Bytes: unitBytes, FLOPs: 1e9, KeyTag: uint64(first + d), Parent: parent, Depth: 1 << (2 * d), Tokens: depthUnit})
			parent = first + d
		}
	}
	last := Ref(4*rounds - 3)
	again, never := v.Worth(rounds+1, last+2, Host, Attrs{}), v.Worth(rounds+1, last+3, Host, Attrs{})
	if again < 4*never {
		t.Errorf("a page of a depth that comes again is worth %.3g, one of the depth below %.3g", again, never)
	}
}

func TestTraits(t *testing.T) {
	x := familyOf(0xabcd << 40)
	for octave, tokens := range []uint32{0, 512, 1024, 2048, 4096} {
		for _, page := range []uint32{16, 512} {
			for _, more := range []uint32{0, tokens / 2} {
				y := x.at((tokens+more)/page, page)
				if y.family() != x || int(y>>familyBits) != octave {
					t.Errorf("%d tokens in pages of %d: family %d, octave %d", tokens+more, page, y.family(), y>>familyBits)
				}
			}
		}
	}
	if y := x.at(1<<32-1, 1<<32-1); y.family() != x || y>>familyBits != depthCount-1 {
		t.Errorf("the deepest: family %d, octave %d", y.family(), y>>familyBits)
	}
	if familyOf(0) == 0 || familyOf(1<<40) == 0 {
		t.Error("a root is in family 0")
	}
}

// TestAPageOnItsWayIsNoTurn: the pages of a run that is being offered have parents that are not there yet. Their first
// children go on with no conversation.
func TestAPageOnItsWayIsNoTurn(t *testing.T) {
	v := NewVBR(4, 1)
	v.Insert(0, 1, Attrs{Bytes: 1, FLOPs: 1, KeyTag: 1})
	v.Touch(1, 1)
	if _, turn := v.recall(9, 1, false); turn != 1 {
		t.Errorf("the first child of a page that was used again is turn %d", turn)
	}
	if _, turn := v.recall(9, 2, false); turn != 0 {
		t.Errorf("the child of a page on its way is turn %d", turn)
	}
}

// TestARunIsJudgedByWhatItGoesOnWith: each page of a run that is offered has the turn and the family of the one before.
func TestARunIsJudgedByWhatItGoesOnWith(t *testing.T) {
	v := NewVBR(8, 1)
	v.Insert(0, 1, Attrs{Bytes: 1, FLOPs: 1, KeyTag: 1})
	v.Touch(1, 1)
	for i := range Ref(3) { // refs 2 and 3 are on their way
		v.Worth(2, 0, Host, Attrs{Bytes: 1, FLOPs: 1, KeyTag: uint64(10 + i), Parent: 1 + i})
		if o := v.offered; o.traits != v.pages.At(1).traits || o.turn != 1 {
			t.Errorf("page %d of the run: traits %d, turn %d", i, o.traits, o.turn)
		}
	}
	v.Worth(2, 0, Host, Attrs{Bytes: 1, FLOPs: 1, KeyTag: 20})
	if o := v.offered; o.traits != familyOf(mix(20)) || o.turn != 0 {
		t.Errorf("a new root: traits %d, turn %d", o.traits, o.turn)
	}
}
