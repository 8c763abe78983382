package auth

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSecretForm(t *testing.T) {
	s := NewSecret()
	if len(s.Reveal()) != 46 || !strings.HasPrefix(s.Reveal(), "qk_") {
		t.Fatalf("form of a secret: %d characters", len(s.Reveal()))
	}
	if NewSecret() == s {
		t.Error("two secrets are equal")
	}
	back, err := ParseSecret(s.Reveal())
	if err != nil || back != s || back.Hash() != s.Hash() {
		t.Errorf("a secret does not come back: %v", err)
	}
}

// No way of printing shows a secret.
func TestSecretIsNeverShown(t *testing.T) {
	s := NewSecret()
	holder := struct {
		Token Secret
		P     *Secret
	}{s, &s}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", s, "holder", holder)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", s, "holder", holder)
	js, err := json.Marshal(holder)
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(js)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		all += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, holder) + fmt.Sprintf(verb, &s)
	}
	if strings.Contains(all, s.Reveal()[3:]) {
		t.Errorf("a secret is shown: %s", all)
	}
}

func FuzzToken(f *testing.F) {
	f.Add("qk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("qk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB") // bits beyond the last byte
	f.Add("qk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	f.Add("qk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n")
	f.Add("")
	f.Add("Bearer qk_")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err == nil && s.Reveal() != text {
			t.Fatalf("%q reads as %q", text, s.Reveal())
		}
		if err == nil { // one secret, one text
			raw, err := secretEncoding.DecodeString(text[len(secretPrefix):])
			if err != nil || secretPrefix+secretEncoding.EncodeToString(raw) != text {
				t.Fatalf("%q is not the only text of its secret", text)
			}
		}
		if got, ok := parseBearer("Bearer " + text); ok != (err == nil) || got != s {
			t.Fatalf("bearer reads %q otherwise", text)
		}
		parseBearer(text)
	})
}
