package page

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// String is lower-case hex.
func (id NamespaceID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText is String.
func (id NamespaceID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText parses 64 hex digits.
func (id *NamespaceID) UnmarshalText(text []byte) error { return unhex("namespace id", id[:], text) }

// ParseNamespaceID parses 64 hex digits.
func ParseNamespaceID(s string) (id NamespaceID, err error) {
	err = id.UnmarshalText([]byte(s))
	return id, err
}

// String is lower-case hex.
func (g GroupID) String() string { return hex.EncodeToString(g[:]) }

// MarshalText is String.
func (g GroupID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText parses 64 hex digits.
func (g *GroupID) UnmarshalText(text []byte) error { return unhex("group id", g[:], text) }

// ParseGroupID parses 64 hex digits.
func ParseGroupID(s string) (g GroupID, err error) {
	err = g.UnmarshalText([]byte(s))
	return g, err
}

// String is lower-case hex, or "-" for the scope of plain requests.
func (s Scope) String() string {
	if s == (Scope{}) {
		return "-"
	}
	return hex.EncodeToString(s[:])
}

// MarshalText is String.
func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses 64 hex digits, "-" or nothing.
func (s *Scope) UnmarshalText(text []byte) error {
	if len(text) == 0 || string(text) == "-" {
		*s = Scope{}
		return nil
	}
	return unhex("scope", s[:], text)
}

// ParseScope parses 64 hex digits, "-" or nothing.
func ParseScope(text string) (s Scope, err error) {
	err = s.UnmarshalText([]byte(text))
	return s, err
}

// String is lower-case hex; empty for the zero Hash.
func (h Hash) String() string { return hex.EncodeToString(h.Bytes()) }

// MarshalText is String.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText parses 32 to 128 hex digits; nothing is the zero Hash.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*h = Hash{}
		return nil
	}
	p, err := ParseHash(string(text))
	if err == nil {
		*h = p
	}
	return err
}

// ParseHash parses 32 to 128 hex digits.
func ParseHash(s string) (Hash, error) {
	if len(s) < 2*MinHashBytes || len(s) > 2*MaxHashBytes {
		return Hash{}, fmt.Errorf("parse page hash of %d digits: %w", len(s), ErrHashLen)
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		return Hash{}, fmt.Errorf("parse page hash: %w", err)
	}
	return MakeHash(b)
}

// String is namespace@epoch/scope/group/hash: what `quire page explain` takes.
func (k Key) String() string {
	return fmt.Sprintf("%v@%d/%v/%v/%v", k.Namespace, k.Epoch, k.Scope, k.Group, k.Hash)
}

// MarshalText is String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses the form of String.
func (k *Key) UnmarshalText(text []byte) error {
	p, err := ParseKey(string(text))
	if err == nil {
		*k = p
	}
	return err
}

// ParseKey parses the form of Key.String.
func ParseKey(s string) (k Key, err error) {
	parts := strings.Split(s, "/")
	ns, epoch, ok := strings.Cut(parts[0], "@")
	if len(parts) != 4 || !ok {
		return Key{}, fmt.Errorf("parse key: want namespace@epoch/scope/group/hash: %w", ErrInvalid)
	}
	if k.Namespace, err = ParseNamespaceID(ns); err != nil {
		return Key{}, err
	}
	e, err := strconv.ParseUint(epoch, 10, 64)
	if err != nil || e == 0 {
		return Key{}, fmt.Errorf("parse key: epoch %.32q, want a number from 1: %w", epoch, ErrInvalid)
	}
	k.Epoch = Epoch(e)
	if k.Scope, err = ParseScope(parts[1]); err != nil {
		return Key{}, err
	}
	if k.Group, err = ParseGroupID(parts[2]); err != nil {
		return Key{}, err
	}
	if k.Hash, err = ParseHash(parts[3]); err != nil {
		return Key{}, err
	}
	return k, nil
}

func unhex(what string, dst, text []byte) error {
	if len(text) != hex.EncodedLen(len(dst)) {
		return fmt.Errorf("parse %s of %d digits, want %d: %w", what, len(text), hex.EncodedLen(len(dst)), ErrInvalid)
	}
	var b [32]byte
	if _, err := hex.Decode(b[:], text); err != nil {
		return fmt.Errorf("parse %s: %w", what, err)
	}
	copy(dst, b[:])
	return nil
}
