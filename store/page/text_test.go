package page

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unsafe"
)

func TestKeySize(t *testing.T) {
	if s := unsafe.Sizeof(Key{}); s != 176 {
		t.Fatalf("Key is %d bytes", s)
	}
}

func TestHashLengths(t *testing.T) {
	seen := map[Hash]int{}
	for n := range 80 {
		b := make([]byte, n) // zeros: only the length tells them apart
		h, err := MakeHash(b)
		if ok := n >= MinHashBytes && n <= MaxHashBytes; ok != (err == nil) || !ok && !errors.Is(err, ErrHashLen) {
			t.Fatalf("%d bytes: %v", n, err)
		} else if !ok {
			continue
		}
		if m, dup := seen[h]; dup || h.Len() != n || h.IsZero() || !bytes.Equal(h.Bytes(), b) {
			t.Fatalf("%d bytes: equal to %d, len %d", n, m, h.Len())
		}
		seen[h] = n
	}
}

// Everything that has a text form reads its own, and refuses others.
func TestTextForms(t *testing.T) {
	k := sampleHeader().Key
	plain := k
	plain.Scope = Scope{}
	id := sampleHeader().Extent
	hex32 := strings.Repeat("ab", 32)
	for _, c := range []struct {
		v    encoding.TextMarshaler
		into interface {
			encoding.TextMarshaler
			encoding.TextUnmarshaler
		}
		bad []string
	}{
		{k.Namespace, new(NamespaceID), []string{"", "ab", hex32[1:] + "x", hex32 + "00"}},
		{k.Group, new(GroupID), []string{"", "ab", hex32[1:] + "x"}},
		{k.Scope, new(Scope), []string{"--", "ab", hex32[1:] + "x"}},
		{Scope{}, new(Scope), nil},
		{k.Hash, new(Hash), []string{"ab", hex32[1:], hex32[1:] + "x", strings.Repeat("ab", 65), strings.Repeat("ab", 15)}},
		{Hash{}, new(Hash), nil},
		{id, new(ExtentID), []string{"", "a-b", "a-b-c", hex32[:32] + "-x-" + hex32[:32], hex32[:32] + "-1-" + hex32[:30], hex32[:30] + "-1-" + hex32[:32], id.String() + "-"}},
		{k, new(Key), []string{"", "a", strings.Replace(k.String(), "@3", "@0", 1), strings.Replace(k.String(), "@3", "@x", 1), strings.Replace(k.String(), "@3", "", 1), k.String() + "/", "x" + k.String(),
			strings.Replace(k.String(), k.Scope.String(), "x", 1), strings.Replace(k.String(), k.Group.String(), "x", 1), strings.Replace(k.String(), k.Hash.String(), "x", 1)}},
		{plain, new(Key), nil},
		{Elements, new(Grade), []string{"", "invalid", "Elements"}},
		{Cell, new(Grade), nil},
		{Whole, new(Grade), nil},
	} {
		text, err := c.v.MarshalText()
		if err != nil {
			t.Fatalf("%T: %v", c.v, err)
		}
		if err := c.into.UnmarshalText(text); err != nil {
			t.Fatalf("%T %s: %v", c.v, text, err)
		}
		if again, _ := c.into.MarshalText(); !bytes.Equal(again, text) {
			t.Errorf("%T: %s became %s", c.v, text, again)
		}
		for _, bad := range c.bad {
			if err := c.into.UnmarshalText([]byte(bad)); err == nil {
				t.Errorf("%T: %q was taken", c.v, bad)
			}
			if again, _ := c.into.MarshalText(); !bytes.Equal(again, text) {
				t.Errorf("%T: a refused %q left %s", c.v, bad, again)
			}
		}
	}
	if _, err := GradeInvalid.MarshalText(); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if b, err := json.Marshal(struct{ K Key }{plain}); err != nil || !strings.Contains(string(b), "@3/-/") {
		t.Error(string(b), err)
	}
}

func TestExtentIDBytes(t *testing.T) {
	id := sampleHeader().Extent
	b := id.AppendEncode([]byte{9})[1:]
	if len(b) != ExtentIDBytes || b[16] != 0x08 || b[23] != 0x01 {
		t.Fatalf("%x", b)
	}
	if got, err := DecodeExtentID(b); err != nil || got != id {
		t.Fatal(got, err)
	}
	if got, err := ParseExtentID(id.String()); err != nil || got != id {
		t.Fatal(got, err)
	}
	if _, err := DecodeExtentID(b[:39]); !errors.Is(err, ErrTruncated) {
		t.Error(err)
	}
	if _, err := DecodeExtentID(append(b, 0)); !errors.Is(err, ErrTooLong) {
		t.Error(err)
	}
}
