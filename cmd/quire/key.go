package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// keyHelp is the form of KEY, for the help of page commands.
const keyHelp = `KEY is [SCOPE:][GROUP/]HASH. HASH is the page hash in hex, or @TEXT for the SHA-256 of TEXT (to try things out).
GROUP is a kind, the beginning of a group id, or a number from 0; it can be left out when the namespace has one
group. SCOPE is 64 hex digits, left out for plain requests.`

// pageKey is a key of one namespace, as far as the wire needs it.
type pageKey struct {
	namespace *quirev1.Namespace
	group     *quirev1.Group
	scope     []byte // nil: plain
	hash      []byte
}

func parseKey(n *quirev1.Namespace, text string) (*pageKey, error) {
	k := &pageKey{namespace: n}
	rest := text
	if scope, after, ok := strings.Cut(rest, ":"); ok && !strings.HasPrefix(rest, "@") && !strings.Contains(scope, "/") {
		b, err := hex.DecodeString(scope)
		if err != nil || len(b) != sha256.Size {
			return nil, usagef("scope %q of key %q is not 64 hex digits", scope, text)
		}
		k.scope, rest = b, after
	}
	group, hash, ok := strings.Cut(rest, "/")
	if !ok || strings.HasPrefix(rest, "@") {
		group, hash = "", rest
	}
	var err error
	if k.group, err = findGroup(n, group); err != nil {
		return nil, err
	}
	k.hash, err = parseHash(hash, int(n.GetHashBytes()))
	return k, err
}

// parseHash reads a page hash of size bytes.
func parseHash(text string, size int) ([]byte, error) {
	if word, ok := strings.CutPrefix(text, "@"); ok {
		return hashOfText(word, size), nil
	}
	b, err := hex.DecodeString(text)
	if err != nil {
		return nil, usagef("page hash %q is not hex; write %d hex digits, or @TEXT", text, 2*size)
	}
	if len(b) != size {
		return nil, usagef("page hash %q has %d bytes; hashes of this namespace have %d", text, len(b), size)
	}
	return b, nil
}

// hashOfText stretches the SHA-256 of word to size bytes.
func hashOfText(word string, size int) []byte {
	sum := sha256.Sum256([]byte(word))
	return bytes.Repeat(sum[:], (size+len(sum)-1)/len(sum))[:size]
}

// findGroup finds one group by kind, id prefix or number; by nothing when there is just one.
func findGroup(n *quirev1.Namespace, name string) (*quirev1.Group, error) {
	groups := n.GetGroups()
	if name == "" && len(groups) == 1 {
		return groups[0], nil
	}
	var kinds []string
	var found []*quirev1.Group
	for i, g := range groups {
		kinds = append(kinds, strconv.Itoa(i)+" ("+g.GetKind()+" "+short(g.GetId())+")")
		switch {
		case name == strconv.Itoa(i):
			return g, nil
		case name != "" && (g.GetKind() == name || isHex(name) && strings.HasPrefix(hex.EncodeToString(g.GetId()), name)):
			found = append(found, g)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	if name == "" {
		return nil, usagef("the namespace has %d groups; write GROUP/HASH with one of %s", len(groups), strings.Join(kinds, ", "))
	}
	return nil, usagef("%q names %d of the namespace's groups; write one of %s", name, len(found), strings.Join(kinds, ", "))
}

func (k *pageKey) ref() *quirev1.NamespaceRef {
	return &quirev1.NamespaceRef{Id: k.namespace.GetId(), Epoch: k.namespace.GetEpoch()}
}

func (k *pageKey) run() *quirev1.KeyRun {
	return &quirev1.KeyRun{Scope: k.scope, Group: k.group.GetId(), Hashes: k.hash}
}

// text is the key as it can be written again.
func (k *pageKey) text() string {
	s := short(k.group.GetId()) + "/" + hex.EncodeToString(k.hash)
	if k.scope != nil {
		s = hex.EncodeToString(k.scope) + ":" + s
	}
	return s
}

// viewFlag is --view h0:h1,l0:l1.
type viewFlag struct{ view *quirev1.View }

func (v *viewFlag) Set(s string) error {
	heads, layers, ok := strings.Cut(s, ",")
	h, okH := span(heads)
	l, okL := span(layers)
	if !ok || !okH || !okL {
		return usagef("write kv heads and layers as h0:h1,l0:l1, for example 0:4,0:32")
	}
	v.view = &quirev1.View{H0: h[0], H1: h[1], L0: l[0], L1: l[1]}
	return nil
}

func span(s string) (out [2]uint32, ok bool) {
	from, to, ok := strings.Cut(s, ":")
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return [2]uint32{uint32(a), uint32(b)}, ok && errA == nil && errB == nil && a < b
}

func (v *viewFlag) String() string { return viewText(v.view) }
func (v *viewFlag) Type() string   { return "view" }

func viewText(v *quirev1.View) string {
	if v == nil {
		return ""
	}
	u := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	return u(v.GetH0()) + ":" + u(v.GetH1()) + "," + u(v.GetL0()) + ":" + u(v.GetL1())
}
