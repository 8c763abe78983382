package auth

import (
	"strings"
	"testing"
)

func TestCase_C53_ListenPolicy(t *testing.T) {
	open := []string{"0.0.0.0:1", "[::]:1", ":1", "10.0.0.1:1", "example.org:1", "[fe80::1]:1", "128.0.0.1:1", "localhost.example.org:1"}
	local := []string{"127.0.0.1:1", "127.9.9.9:0", "[::1]:1", "localhost:1", "[::ffff:127.0.0.1]:1", "unix:/run/quire.sock"}
	for _, a := range local {
		if err := (ListenPolicy{}).Check(a); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	for _, a := range open {
		for _, c := range []struct {
			p    ListenPolicy
			want []string // nil: allowed
		}{
			{ListenPolicy{}, []string{"TLS certificate", "authentication", "--insecure", a}},
			{ListenPolicy{TLS: true}, []string{"authentication", "--insecure"}},
			{ListenPolicy{Mode: Tokens}, []string{"TLS certificate", "--insecure"}},
			{ListenPolicy{TLS: true, Mode: Tokens}, nil},
			{ListenPolicy{TLS: true, Mode: MTLS}, nil},
			{ListenPolicy{Insecure: true}, nil},
		} {
			err := c.p.Check(a)
			if (err == nil) != (c.want == nil) {
				t.Errorf("%s %+v: %v", a, c.p, err)
				continue
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s %+v: %q does not say %q", a, c.p, err, w)
				}
			}
		}
	}
	if err := (ListenPolicy{Insecure: true}).Check("no port"); err == nil {
		t.Error("an address without a port is let through")
	}
}
