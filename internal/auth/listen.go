package auth

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/quire-kv/quire/store/rpc"
)

// ListenPolicy is what a listener has to offer.
type ListenPolicy struct {
	TLS      bool
	Mode     Mode
	Insecure bool // "--insecure" was written out: the operator takes the risk
}

// Check refuses an address that others can reach unless it has TLS and authentication, or Insecure. address is
// host:port, or unix:/path, which file permissions protect. The error says what to add.
func (p ListenPolicy) Check(address string) error {
	local, err := Loopback(address)
	if err != nil {
		return err
	}
	if local || p.Insecure || p.TLS && p.Mode != None {
		return nil
	}
	var add []string
	if !p.TLS {
		add = append(add, "a TLS certificate and key (quire tls dev makes some for development)")
	}
	if p.Mode == None {
		add = append(add, "authentication by tokens or mtls")
	}
	return fmt.Errorf("refusing to listen on %s, which others can reach: add %s, or write out --insecure", address, strings.Join(add, " and "))
}

// Loopback reports whether only this machine can reach address. Names are not looked up: of names, only localhost
// counts.
func Loopback(address string) (bool, error) {
	if _, ok := rpc.UnixPath(address); ok {
		return true, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, fmt.Errorf("address %q is not host:port: %w", address, err)
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback(), nil
}
