package namespace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/page"
)

// FuzzParseSpec: any text is refused with a reason and one line, or is a spec with one identity in every form.
func FuzzParseSpec(f *testing.F) {
	for _, e := range namespace.Examples() {
		f.Add(e.YAML)
		s, err := namespace.Parse(e.YAML)
		if err != nil {
			f.Fatal(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte(`{"model":{"id":"\u0000"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := namespace.Parse(text)
		if err != nil {
			var r *namespace.Refusal
			if !errors.As(err, &r) || r.Reason != reason.InvalidSpec || bytes.ContainsAny([]byte(r.Error()), "\n\x00\x1b") {
				t.Errorf("refused with %q", err)
			}
			return
		}
		canonical := s.Canonical()
		if _, err := namespace.DecodeCanonical(canonical); err != nil {
			t.Error(err)
		}
		form, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := namespace.Parse(form)
		if err != nil {
			t.Fatalf("its own JSON is refused: %v", err)
		}
		if !bytes.Equal(again.Canonical(), canonical) || len(namespace.Diff(s, again)) > 0 {
			t.Error("its own JSON is another identity")
		}
		n := &namespace.Namespace{Spec: s}
		if p := s.CanonicalProvenance(); len(p) > page.MaxProvenance || !n.Accepts(p, time.Time{}) {
			t.Error("it does not accept its own provenance")
		}
		for _, g := range s.GroupInfos() {
			if g.CellBytes == 0 || g.Heads == 0 || g.Layers == 0 || g.ID == (page.GroupID{}) {
				t.Errorf("group %+v", g)
			}
		}
	})
}

// FuzzCanonicalDecode: any bytes are refused or encode back to themselves by the documented layout.
func FuzzCanonicalDecode(f *testing.F) {
	for _, e := range namespace.Examples() {
		s, err := namespace.Parse(e.YAML)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(s.Canonical())
	}
	f.Add([]byte{1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		factors, err := namespace.DecodeCanonical(b)
		if err != nil {
			if !errors.Is(err, namespace.ErrCanonical) {
				t.Errorf("%v is not a kind of error", err)
			}
			return
		}
		back := []byte{1, byte(len(factors) >> 8), byte(len(factors))}
		for _, x := range factors {
			back = append(back, byte(x.Class), byte(len(x.Path)>>8), byte(len(x.Path)))
			back = append(append(back, x.Path...), byte(len(x.Value)>>8), byte(len(x.Value)))
			back = append(back, x.Value...)
		}
		if !bytes.Equal(back, b) {
			t.Errorf("%q encodes back to %q", b, back)
		}
	})
}

// FuzzParseProvenance: any bytes are refused or write back to themselves.
func FuzzParseProvenance(f *testing.F) {
	for _, e := range namespace.Examples() {
		s, err := namespace.Parse(e.YAML)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(s.CanonicalProvenance())
	}
	f.Add([]byte("options.x=a=b\nrecorded.y=z\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		factors, err := namespace.ParseProvenance(b)
		if err != nil {
			if !errors.Is(err, namespace.ErrProvenance) {
				t.Errorf("%v is not a kind of error", err)
			}
			return
		}
		var back []byte
		for _, x := range factors {
			back = append(back, x.Path+"="+x.Value+"\n"...)
		}
		if !bytes.Equal(back, b) {
			t.Errorf("%q writes back to %q", b, back)
		}
	})
}
