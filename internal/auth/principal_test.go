package auth

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"github.com/quire-kv/quire/namespace"
)

func TestPrincipalURI(t *testing.T) {
	for uri, want := range map[string]namespace.Principal{
		"quire://default/engine/e1":      {Name: "e1", Tenant: "default", Role: namespace.RoleEngine},
		"quire://team-a/operator/ops":    {Name: "ops", Tenant: "team-a", Role: namespace.RoleOperator},
		"quire://t.x_1/read-only/viewer": {Name: "viewer", Tenant: "t.x_1", Role: namespace.RoleReadOnly},
	} {
		got, err := ParsePrincipalURI(uri)
		if err != nil || got != want || PrincipalURI(got) != uri {
			t.Errorf("%s: %+v %v", uri, got, err)
		}
	}
	for _, uri := range []string{
		"", "quire://", "quire://a/engine", "quire://a/engine/", "quire:///engine/e", "quire://a/root/e", "http://a/engine/e",
		"quire://a/engine/e/f", "quire://A/engine/e", "quire://a/engine/e%2f", "quire://a:1/engine/e", "quire://a@b/engine/e",
		"quire://a/engine/e?x", "quire://a/engine/" + strings.Repeat("e", 64), "QUIRE://a/engine/e", "quire://-a/engine/e",
	} {
		if p, err := ParsePrincipalURI(uri); err == nil {
			t.Errorf("%q reads as %+v", uri, p)
		}
	}
}

// A certificate with none or two of our URIs names nobody; other URIs do not matter.
func TestPrincipalOf(t *testing.T) {
	parse := func(uris ...string) *x509.Certificate {
		c := &x509.Certificate{}
		for _, s := range uris {
			u, err := url.Parse(s)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
		return c
	}
	if p, ok := PrincipalOf(parse("spiffe://x/y", "quire://a/engine/e")); !ok || p.Name != "e" || p.Role != namespace.RoleEngine {
		t.Errorf("got %+v %v", p, ok)
	}
	for _, c := range []*x509.Certificate{
		parse(), parse("spiffe://x/y"), parse("quire://a/engine/e", "quire://a/operator/e"), parse("quire://a/engine/e", "quire://a/engine/e"),
		parse("quire://a/engine/e?role=operator"), parse("quire://a/engine/%65"), parse("quire://u@a/engine/e"), parse("quire://a/engine/e#f"),
	} {
		if p, ok := PrincipalOf(c); ok {
			t.Errorf("%v names %+v", c.URIs, p)
		}
	}
}

func FuzzPrincipalURI(f *testing.F) {
	f.Add("quire://default/engine/e1")
	f.Add("quire://a/read-only/b")
	f.Add("quire://a/operator/../b")
	f.Add("quire://%41/engine/b")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePrincipalURI(s)
		if err == nil && PrincipalURI(p) != s {
			t.Fatalf("%q reads as %+v", s, p)
		}
		u, uerr := url.Parse(s)
		if uerr != nil {
			return
		}
		// A certificate's URI goes through url.URL: that must not make a principal out of what is none.
		if got, ok := PrincipalOf(&x509.Certificate{URIs: []*url.URL{u}}); ok {
			if back, err := ParsePrincipalURI(u.String()); err != nil || back != got {
				t.Fatalf("%q: certificate names %+v, text %+v %v", s, got, back, err)
			}
		}
	})
}
