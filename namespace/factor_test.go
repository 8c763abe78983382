package namespace

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/quire-kv/quire/store/page"
)

// TestEveryFieldHasAClassAndCounts walks the struct by reflection, beside the walk under test: every leaf has a class,
// and changing it changes the factors at that path, and the canonical bytes unless it is recorded.
func TestEveryFieldHasAClassAndCounts(t *testing.T) {
	base := func() *Spec {
		return &Spec{Groups: []Group{{Kind: "full", Layers: Layers{0}, Components: []Component{{Name: "k"}}}}}
	}
	leaves := 0
	eachLeaf(reflect.TypeFor[Spec](), nil, func(index []any, class Class, path string) {
		leaves++
		if class < Semantic || class > Recorded {
			t.Errorf("%s has no class", path)
			return
		}
		changed := base()
		v := reflect.ValueOf(changed).Elem()
		for _, i := range index {
			switch i := i.(type) {
			case int:
				v = v.Field(i)
			case item:
				v = v.Index(int(i))
			}
		}
		disturb(t, v)
		diff := diffFactors(base().Factors(), changed.Factors())
		same := string(base().Canonical()) == string(changed.Canonical())
		if class == Recorded && (len(diff) > 0 || !same) || class != Recorded && (len(diff) == 0 || same) {
			t.Errorf("%s (%v): %d differences, same canonical bytes %v", path, class, len(diff), same)
		}
		for _, d := range diff {
			if len(diff) == 1 && d.Class != class {
				t.Errorf("%s: class %v in the diff, %v in the struct", path, d.Class, class)
			}
		}
	})
	if leaves < 40 {
		t.Errorf("%d leaves: the walk misses some", leaves)
	}
}

type item int

func eachLeaf(typ reflect.Type, index []any, each func(index []any, class Class, path string)) {
	var visit func(typ reflect.Type, index []any, class Class, path string)
	visit = func(typ reflect.Type, index []any, class Class, path string) {
		switch {
		case typ == reflect.TypeFor[[]Group](), typ == reflect.TypeFor[[]Component]():
			visit(typ.Elem(), append(index[:len(index):len(index)], item(0)), class, path+"[0]")
		case typ.Kind() == reflect.Struct:
			for i := range typ.NumField() {
				f := typ.Field(i)
				c := class
				if own := f.Tag.Get("class"); own != "" {
					c = parseClass(own)
				}
				if f.Tag.Get("yaml") == "" {
					c = 0
				}
				visit(f.Type, append(index[:len(index):len(index)], i), c, path+"."+f.Name)
			}
		default:
			each(index, class, path)
		}
	}
	visit(typ, index, 0, "")
}

func disturb(t *testing.T, v reflect.Value) {
	switch v.Interface().(type) {
	case Digest:
		v.Set(reflect.ValueOf(DigestOf(nil)))
	case Layers:
		v.Set(reflect.ValueOf(Layers{1, 2}))
	case map[string]string:
		v.Set(reflect.ValueOf(map[string]string{"a": "b"}))
	case page.Grade:
		v.Set(reflect.ValueOf(page.Cell))
	case string:
		v.SetString(v.String() + "x")
	case bool:
		v.SetBool(true)
	default:
		if !v.CanUint() {
			t.Fatalf("a leaf of type %v: the walk does not know it", v.Type())
		}
		v.SetUint(7)
	}
}

func TestStrictReductionIsSemantic(t *testing.T) {
	a, b := &Spec{Record: Recordings{Reduction: "tp8"}}, &Spec{Record: Recordings{Reduction: "tp4"}}
	if d := Diff(a, b); len(d) > 0 {
		t.Errorf("recorded only, yet %v", d)
	}
	a.Strict, b.Strict = true, true
	if got, want := fmt.Sprint(Diff(a, b)), "[{recorded.reduction tp8 tp4 semantic}]"; got != want {
		t.Errorf("strict: %s, want %s", got, want)
	}
}

// TestDiffIsDumbDiff compares the merge with two maps.
func TestDiffIsDumbDiff(t *testing.T) {
	a := &Spec{Prov: Provenanced{Options: map[string]string{"x": "1", "y": "2"}}, Groups: []Group{{Kind: "full", Layers: Layers{0, 1}}}}
	b := &Spec{Prov: Provenanced{Options: map[string]string{"y": "3", "z": "4"}}, Groups: []Group{{Kind: "window", Layers: Layers{0, 1}}}}
	values := map[string][2]string{}
	for _, f := range a.Factors() {
		values[f.Path] = [2]string{f.Value, ""}
	}
	for _, f := range b.Factors() {
		values[f.Path] = [2]string{values[f.Path][0], f.Value}
	}
	want := 0
	for _, v := range values {
		if v[0] != v[1] {
			want++
		}
	}
	got := Diff(a, b)
	for i, d := range got {
		if values[d.Path] != [2]string{d.A, d.B} || i > 0 && got[i-1].Path >= d.Path {
			t.Errorf("%+v, want %q, in order", d, values[d.Path])
		}
	}
	if len(got) != want {
		t.Errorf("%d differences, want %d", len(got), want)
	}
}
