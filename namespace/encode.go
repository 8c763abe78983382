package namespace

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/quire-kv/quire/store/page"
)

// MarshalJSON is the text form that Parse reads back to an equal Spec: fields in their order, those that say nothing
// left out. Deterministic.
func (s *Spec) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	encode(&b, reflect.ValueOf(s).Elem())
	return b.Bytes(), nil
}

// UnmarshalJSON reads the structure without validating it.
func (s *Spec) UnmarshalJSON(data []byte) error {
	d, r := decodeSpec(data)
	if r != nil {
		return r
	}
	*s = *d
	return nil
}

func encode(b *bytes.Buffer, v reflect.Value) {
	switch x := v.Interface().(type) {
	case string:
		writeString(b, x)
		return
	case Digest, Layers:
		writeString(b, leafText(v))
		return
	case page.Grade:
		writeString(b, gradeText(x))
		return
	case map[string]string:
		writeList(b, "{}", slices.Sorted(maps.Keys(x)), func(_ int, k string) {
			writeString(b, k)
			b.WriteByte(':')
			writeString(b, x[k])
		})
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		encodeStruct(b, v)
	case reflect.Slice:
		writeList(b, "[]", make([]struct{}, v.Len()), func(i int, _ struct{}) { encode(b, v.Index(i)) })
	default:
		b.WriteString(leafText(v))
	}
}

func encodeStruct(b *bytes.Buffer, v reflect.Value) {
	var set []int
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() && !(f.Kind() == reflect.Slice && f.Len() == 0) {
			set = append(set, i)
		}
	}
	writeList(b, "{}", set, func(_, i int) {
		writeString(b, v.Type().Field(i).Tag.Get("yaml"))
		b.WriteByte(':')
		encode(b, v.Field(i))
	})
}

func writeList[T any](b *bytes.Buffer, brackets string, items []T, each func(int, T)) {
	b.WriteByte(brackets[0])
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		each(i, item)
	}
	b.WriteByte(brackets[1])
}

func writeString(b *bytes.Buffer, s string) {
	text, _ := json.Marshal(s) // a string always marshals
	b.Write(text)
}
