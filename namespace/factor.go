package namespace

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/quire-kv/quire/store/page"
)

// Class orders factors by what a difference means.
type Class uint8

// The classes.
const (
	Semantic       Class = iota + 1 // which values these are: never waivable
	Representation                  // what the bytes mean: never waivable
	Provenance                      // who computed them: waivable value by value
	Recorded                        // never compared
)

var classNames = [...]string{Semantic: "semantic", Representation: "representation", Provenance: "provenance", Recorded: "recorded"}

// String is the stable lower-case name.
func (c Class) String() string {
	if c >= Semantic && int(c) < len(classNames) {
		return classNames[c]
	}
	return "invalid_class"
}

func parseClass(s string) Class {
	for c := Semantic; c <= Recorded; c++ {
		if classNames[c] == s {
			return c
		}
	}
	return 0
}

// Factor is one leaf of a spec with its path and class.
type Factor struct {
	Path, Value string
	Class       Class
	zero        bool // says nothing: not encoded, so that fields added later move no id
}

// Factors is the one walk from which the canonical encoding, the id and Diff are made, so that no field can be
// in one and not in another. Sorted by path. Groups are named by kind and first layer, components by name: paths do
// not depend on the order in which groups were written.
func (s *Spec) Factors() []Factor {
	w := walker{strict: s.Strict}
	w.walk(reflect.ValueOf(s).Elem(), "", 0)
	slices.SortFunc(w.out, func(a, b Factor) int { return strings.Compare(a.Path, b.Path) })
	return w.out
}

const reductionPath = "recorded.reduction"

type walker struct {
	strict bool
	out    []Factor
}

func (w *walker) walk(v reflect.Value, path string, class Class) {
	switch x := v.Interface().(type) {
	case []Group:
		for i := range x {
			w.walk(v.Index(i), fmt.Sprintf("%s[%s]", path, x[i].name()), class)
		}
		return
	case []Component:
		names := make([]string, len(x)) // their order is the order of bytes
		for i := range x {
			names[i] = x[i].Name
			w.walk(v.Index(i), fmt.Sprintf("%s[%s]", path, x[i].Name), class)
		}
		w.leaf(path, strings.Join(names, ","), class, len(x) == 0)
		return
	case map[string]string:
		for k, value := range x {
			w.leaf(path+"."+k, value, class, false)
		}
		return
	}
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			name, c := fieldTags(v.Type().Field(i), class)
			w.walk(v.Field(i), join(path, name), c)
		}
		return
	}
	w.leaf(path, leafText(v), class, v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0)
}

func (w *walker) leaf(path, value string, class Class, zero bool) {
	if w.strict && path == reductionPath {
		class = Semantic
	}
	w.out = append(w.out, Factor{path, value, class, zero})
}

// name tells groups of one spec apart: two groups of one kind never own the same layer.
func (g *Group) name() string {
	if len(g.Layers) == 0 {
		return g.Kind
	}
	return g.Kind + ":" + strconv.Itoa(int(g.Layers[0]))
}

func fieldTags(f reflect.StructField, above Class) (name string, c Class) {
	if own := parseClass(f.Tag.Get("class")); own != 0 {
		above = own
	}
	return f.Tag.Get("yaml"), above
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// leafText is the one text form of a leaf's value.
func leafText(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case string:
		return x
	case bool:
		return strconv.FormatBool(x)
	case Digest:
		return x.String()
	case Layers:
		return x.String()
	case page.Grade:
		return gradeText(x)
	}
	return strconv.FormatUint(v.Uint(), 10)
}

var gradeNames = map[string]page.Grade{"elements": page.Elements, "cell": page.Cell, "whole": page.Whole}

func gradeText(g page.Grade) string {
	for name, grade := range gradeNames {
		if grade == g {
			return name
		}
	}
	return ""
}
