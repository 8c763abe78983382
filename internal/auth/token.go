package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"strings"

	"google.golang.org/grpc/credentials"
)

// Secret is a bearer token: "qk_" and 32 random bytes in unpadded base64url, 46 characters. It prints itself redacted
// everywhere; Reveal is the one way out.
type Secret struct{ text string }

const (
	secretPrefix = "qk_"
	secretBytes  = 32
	redacted     = "qk_(redacted)"
)

// ErrSecret is a token that is not in the form of one.
var ErrSecret = errors.New("a token is qk_ and 43 base64url characters")

// secretEncoding is strict: one secret has one text.
var secretEncoding = base64.RawURLEncoding.Strict()

// NewSecret draws a token.
func NewSecret() Secret {
	var b [secretBytes]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return Secret{secretPrefix + secretEncoding.EncodeToString(b[:])}
}

// ParseSecret checks the form of a token.
func ParseSecret(s string) (Secret, error) {
	rest, ok := strings.CutPrefix(s, secretPrefix)
	if !ok || len(rest) != secretEncoding.EncodedLen(secretBytes) {
		return Secret{}, ErrSecret
	}
	var b [secretBytes]byte
	if n, err := secretEncoding.Decode(b[:], []byte(rest)); err != nil || n != secretBytes {
		return Secret{}, ErrSecret
	}
	return Secret{s}, nil
}

// Hash is what is kept of a token: SHA-256 of its text. Tokens have 256 random bits, so no salt is needed and a
// look-up by hash gives no timing that helps.
func (s Secret) Hash() [32]byte { return sha256.Sum256([]byte(s.text)) }

// Reveal is the text, to be shown once or sent.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether there is no token.
func (s Secret) IsZero() bool { return s.text == "" }

// String is redacted.
func (Secret) String() string { return redacted }

// GoString is redacted.
func (Secret) GoString() string { return redacted }

// LogValue is redacted.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText is redacted: a Secret in a config dump or in JSON gives nothing away.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// parseBearer reads the value of an authorization header.
func parseBearer(v string) (Secret, bool) {
	const scheme = "bearer "
	if len(v) <= len(scheme) || !strings.EqualFold(v[:len(scheme)], scheme) {
		return Secret{}, false
	}
	s, err := ParseSecret(v[len(scheme):])
	return s, err == nil
}

// PerRPC sends s with every call; without TLS only where insecure allows it.
func PerRPC(s Secret, insecure bool) credentials.PerRPCCredentials {
	return bearer{s, insecure}
}

type bearer struct {
	secret   Secret
	insecure bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.secret.Reveal()}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.insecure }
