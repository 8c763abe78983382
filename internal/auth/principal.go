package auth

import (
	"crypto/x509"
	"errors"
	"net/url"
	"strings"

	"github.com/quire-kv/quire/namespace"
)

// A certificate names its principal in one URI SAN:
//
//	quire://tenant/role/name
//
// tenant and name are 1 to 63 of a-z 0-9 . _ - and begin with a letter or digit; role is engine, operator or
// read-only.

const (
	uriScheme    = "quire"
	maxNameBytes = 63
)

// ErrPrincipalURI is a URI that names no principal.
var ErrPrincipalURI = errors.New("a principal is quire://tenant/role/name with role engine, operator or read-only")

// RoleName is a role's text, "" for none.
func RoleName(r namespace.Role) string {
	switch r {
	case namespace.RoleEngine:
		return "engine"
	case namespace.RoleOperator:
		return "operator"
	case namespace.RoleReadOnly:
		return "read-only"
	}
	return ""
}

// ParseRole reads a role's text.
func ParseRole(s string) (namespace.Role, bool) {
	for _, r := range []namespace.Role{namespace.RoleEngine, namespace.RoleOperator, namespace.RoleReadOnly} {
		if RoleName(r) == s {
			return r, true
		}
	}
	return 0, false
}

// PrincipalURI is p as a certificate carries it; p must be valid (ValidName).
func PrincipalURI(p namespace.Principal) string {
	return uriScheme + "://" + p.Tenant + "/" + RoleName(p.Role) + "/" + p.Name
}

// ParsePrincipalURI reads PrincipalURI back. One principal has one URI: nothing is unescaped or folded.
func ParsePrincipalURI(s string) (namespace.Principal, error) {
	rest, ok := strings.CutPrefix(s, uriScheme+"://")
	if !ok {
		return namespace.Principal{}, ErrPrincipalURI
	}
	part := strings.Split(rest, "/")
	if len(part) != 3 || !ValidName(part[0]) || !ValidName(part[2]) {
		return namespace.Principal{}, ErrPrincipalURI
	}
	role, ok := ParseRole(part[1])
	if !ok {
		return namespace.Principal{}, ErrPrincipalURI
	}
	return namespace.Principal{Name: part[2], Tenant: part[0], Role: role}, nil
}

// ValidName reports whether s can be the name of a tenant or principal.
func ValidName(s string) bool {
	if s == "" || len(s) > maxNameBytes {
		return false
	}
	for i := range len(s) {
		c := s[i]
		word := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !word && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// PrincipalOf is the principal that a verified certificate names; ok is false unless exactly one of its URIs is ours.
func PrincipalOf(c *x509.Certificate) (p namespace.Principal, ok bool) {
	var found *url.URL
	for _, u := range c.URIs {
		if u.Scheme != uriScheme {
			continue
		}
		if found != nil {
			return namespace.Principal{}, false
		}
		found = u
	}
	if found == nil {
		return namespace.Principal{}, false
	}
	p, err := ParsePrincipalURI(found.String())
	return p, err == nil
}
