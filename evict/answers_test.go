package evict

import (
	"reflect"
	"slices"
	"testing"
)

// answering has rounds of requests of two tenants, a page each, and tells of every answer. Those of tenant 1 with a short answer
// come again after 10 seconds, as all of tenant 2 whose number is a multiple of 3; the others never. Then pages wait, of which tenant 1 says
// what it likes.
func answering(short, long uint32) (v *VBR, first Ref) {
	const rounds, apart = 3000, 10
	v = NewVBR(2*rounds+1, 1)
	v.Resize(Host, 1000*unitBytes, 1000)
	attrs := func(r Ref, answer uint32) Attrs {
		return Attrs{Bytes: unitBytes, FLOPs: 1e9, KeyTag: uint64(r), Tenant: 1 + uint32(r)%2, Hint: Hint{Answer: answer}}
	}
	tells := func(i Ref) (one, two uint32) {
		one, two = long, 500
		if i%2 == 0 {
			one = short
		}
		if i%3 == 0 {
			two = 5
		}
		return one, two
	}
	for i := range Ref(rounds) {
		now := float64(1 + i)
		if i >= apart {
			if (i-apart)%2 == 0 {
				v.Touch(now, 2+2*(i-apart))
			}
			if (i-apart)%3 == 0 {
				v.Touch(now, 1+2*(i-apart))
			}
		}
		one, two := tells(i)
		v.Insert(now, 2+2*i, attrs(2+2*i, 0))
		v.Insert(now, 1+2*i, attrs(1+2*i, 0))
		v.Insert(now+0.5, 2+2*i, attrs(2+2*i, one))
		v.Insert(now+0.5, 1+2*i, attrs(1+2*i, two))
	}
	first = 2*rounds - 19 // the last ten of each
	for r := first; r <= 2*rounds; r++ {
		v.SetEvictable(r, Host, true)
	}
	return v, first
}

// TestAnswersAreLearned: of pages that are alike, those of a tenant's long answers go before those of its short ones, since the
// latter's requests came again; and the other way round where they did.
func TestAnswersAreLearned(t *testing.T) {
	for _, tokens := range [][2]uint32{{5, 500}, {500, 5}} {
		v, first := answering(tokens[0], tokens[1])
		var again []bool
		for _, x := range v.Victims(3001, Host, 20*unitBytes, nil, nil) {
			if x.Ref%2 == 0 {
				again = append(again, (x.Ref-2)/2%2 == 0)
			}
		}
		if want := slices.Concat(slices.Repeat([]bool{false}, 5), slices.Repeat([]bool{true}, 5)); !slices.Equal(again, want) {
			t.Errorf("answers of %v tokens: victims from %d on come again: %v", tokens, first, again)
		}
	}
}

// TestAnAnswerIsOfOneUse: the next one ends what was said of it.
func TestAnAnswerIsOfOneUse(t *testing.T) {
	v := NewVBR(2, 1)
	a := Attrs{Bytes: 1, FLOPs: 1, KeyTag: 1}
	v.Insert(0, 1, a)
	for uses := range 3 {
		a.Hint = Hint{Answer: 20}
		v.Insert(1, 1, a)
		a.Hint = Hint{}
		v.Insert(1, 1, a) // says nothing new
		p, want := v.pages.At(1), answered(5)
		if uses > 0 {
			want |= usedBefore
		}
		if s := v.sample.pages.At(v.sample.find(p.tag)).told.answer; p.answer != want || s != want {
			t.Errorf("used %d times: answer %d, in the sample %d, want %d", 1+uses, p.answer, s, want)
		}
		v.Touch(2, 1)
		if s := v.sample.pages.At(v.sample.find(p.tag)).told.answer; p.answer != 0 || s != 0 {
			t.Errorf("after use %d: answer %d, in the sample %d", 2+uses, p.answer, s)
		}
	}
	for tokens, octave := range map[uint32]answered{0: 0, 1: 1, 31: 5, 32: 6, 1 << 14: 15, 1<<32 - 1: 15} {
		if x := answerOf(tokens, 1); x != octave {
			t.Errorf("%d tokens: %d, want %d", tokens, x, octave)
		}
	}
}

// TestALieAboutAnswersStaysWithItsTenant: whatever tenant 1 says, tenant 2 loses the same pages, none sooner, and its factors are
// the same; and what pages are worth to the store is as if tenant 1 had said nothing.
func TestALieAboutAnswersStaysWithItsTenant(t *testing.T) {
	plain, first := answering(0, 0)
	losses := func(v *VBR) (others []Ref, at []int) {
		for i := range 20 {
			x := v.Victims(3001, Host, 0, nil, nil)[0]
			if x.Ref%2 != 0 {
				others, at = append(others, x.Ref), append(at, i)
			}
			v.Remove(3001, x.Ref, true)
		}
		return others, at
	}
	worth := func(v *VBR) (all []Score) {
		for r := range first + 20 {
			all = append(all, v.Worth(3001, r, Host, Attrs{Bytes: 1, FLOPs: 1, KeyTag: 1 << 30}))
		}
		return all
	}
	wantWorth := worth(plain)
	others, at := losses(plain)
	for _, lie := range [][2]uint32{{5, 500}, {500, 5}, {1, 1}, {0, 1 << 31}, {1 << 20, 0}} {
		v, _ := answering(lie[0], lie[1])
		if got := worth(v); !slices.Equal(got, wantWorth) {
			t.Errorf("%v: pages are worth something else", lie)
		}
		if !reflect.DeepEqual(v.sample.answers[2], plain.sample.answers[2]) {
			t.Errorf("%v: what was learned of tenant 2's answers differs", lie)
		}
		got, when := losses(v)
		if !slices.Equal(got, others) {
			t.Errorf("%v: tenant 2 loses %v, not %v", lie, got, others)
		}
		for i := range when {
			if when[i] < at[i] {
				t.Errorf("%v: tenant 2 loses %v as victims %v, sooner than %v", lie, got, when, at)
			}
		}
	}
}

// TestTenantsBeyondTheTablesAreNotLearnedOf, and a table is counted when it is there.
func TestTenantsBeyondTheTablesAreNotLearnedOf(t *testing.T) {
	v := NewVBR(4, 1)
	before := v.sample.answers.footprint()
	for r, tenant := range []uint32{answerTenants - 1, answerTenants, 1<<32 - 1} {
		a := Attrs{Bytes: 1, FLOPs: 1, KeyTag: uint64(1 + r), Tenant: tenant, Hint: Hint{Answer: 9}}
		v.Insert(0, Ref(1+r), a)
		if f := v.sample.answers.of(tenant); (f != nil) != (tenant < answerTenants) || f.of(3) != 1 {
			t.Errorf("tenant %d: %v", tenant, f)
		}
		v.SetEvictable(Ref(1+r), Host, true)
	}
	if got := v.sample.answers.footprint(); before != 0 || got != 4*4*answerRows {
		t.Errorf("%d bytes, before anything was told %d", got, before)
	}
	if got := v.Victims(1, Host, 1<<30, nil, nil); len(got) != 3 {
		t.Errorf("victims %v", got)
	}
}
