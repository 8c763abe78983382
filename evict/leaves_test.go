package evict

import "testing"

// checkLeaves compares the lists with the records: each leaf stands where its page says, as its page is.
func (v *VBR) checkLeaves(fatal func(format string, args ...any)) {
	for t := range v.leaves {
		check := func(l *leafList, doomed bool, s int) {
			for at := uint32(1); at <= l.n; at++ {
				r := l.list.At(at).ref()
				p := v.pages.At(uint32(r))
				var want leaf
				want.set(r, p)
				if p.at[t] != at || p.flags&vbrDoomed != 0 != doomed || !doomed && int(p.share) != s || *l.list.At(at) != want {
					fatal("tier %d, share %d, place %d: %+v of %+v", t, s, at, *l.list.At(at), *p)
				}
			}
		}
		check(&v.leaves[t].doomed, true, 0)
		for s := range v.leaves[t].shares {
			check(&v.leaves[t].shares[s], false, s)
		}
	}
}

// TestVictimsAreFairlyDrawn though those that are looked at for one lie side by side: of leaves that came in the order of
// their worth, a victim is on average the least of as many as are drawn. Each victim comes again as the dearest.
func TestVictimsAreFairlyDrawn(t *testing.T) {
	const pages, rounds = 50 * drawn, 20000
	v, next := NewVBR(pages+1, 1), 1.0
	worth := make([]float64, pages+1)
	come := func(r Ref) {
		worth[r] = next
		v.Insert(1, r, Attrs{Bytes: 1 << 20, FLOPs: 1e9 * next, KeyTag: uint64(next) << 20})
		v.SetEvictable(r, Host, true)
		next++
	}
	for r := Ref(1); r <= pages; r++ {
		come(r)
	}
	sum := 0.0
	for range rounds {
		x := v.Victims(1, Host, 0, nil, nil)[0].Ref
		for r := 1; r <= pages; r++ {
			if worth[r] < worth[x] {
				sum++
			}
		}
		v.Remove(1, x, false)
		come(x)
	}
	if mean, want := sum/rounds, float64(pages)/(drawn+1); mean > 1.1*want || mean < want/4 {
		t.Errorf("%.1f pages are worth less than a victim, of %d drawn it should be %.1f", mean, drawn, want)
	}
}

// TestVictimsOfManyShares: what may go is in lists one behind the other, more of it than is looked at together.
func TestVictimsOfManyShares(t *testing.T) {
	const each = drawn
	shares := []Share{0, 3, 200, 255}
	v := NewVBR(len(shares)*each+1, 1)
	for r := Ref(1); int(r) <= len(shares)*each; r++ {
		v.Insert(1, r, Attrs{Bytes: unitBytes, FLOPs: 1e9, KeyTag: uint64(r), Share: shares[int(r)%len(shares)]})
		v.SetEvictable(r, Disk, true)
	}
	var among Shares
	for _, s := range []Share{3, 7, 255} {
		among.Set(s, true)
	}
	for moves := range 100 {
		seen := map[Ref]bool{}
		for _, x := range v.Victims(2, Disk, maxVictims*unitBytes, &among, nil) {
			if share := v.pages.At(uint32(x.Ref)).share; seen[x.Ref] || !among.Has(share) {
				t.Fatalf("page %d of share %d is a victim; seen before: %v", x.Ref, share, seen[x.Ref])
			}
			seen[x.Ref] = true
		}
		if len(seen) < each {
			t.Fatalf("%d victims of %d that may go", len(seen), 2*each)
		}
		v.Touch(2, Ref(1+moves))
	}
}
