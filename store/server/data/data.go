// Package data serves the page service over data connections: frames over TCP (docs/formats/frames.md), beside gRPC and
// with the same principals, limits and answers. Page bytes go out of tier memory by writev.
package data

import (
	"crypto/tls"
	"net"

	"github.com/quire-kv/quire/internal/auth"
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/server"
)

// Options of a Server. Zero values are defaults.
type Options struct {
	TLS      *tls.Config // as that of the gRPC server; nil: plain text
	Auth     auth.Mode   // as that of the gRPC server: where may it listen
	Insecure bool        // listen elsewhere than on loopback without TLS or without authentication
	// Frames are further options; Boot, Identify and TLS are filled in.
	Frames frame.ServerOptions
}

// Server serves one node's page service over data connections. Safe for concurrent use.
type Server struct {
	*frame.Server
	policy auth.ListenPolicy
}

// New makes the data connections of node. Stop it while node stops: streams that live long end with node, and calls
// in flight finish on both.
func New(node *server.Server, o Options) *Server {
	f := o.Frames
	f.Boot, f.Identify, f.TLS = node.Boot(), node.Identify, o.TLS
	s := &Server{Server: frame.NewServer(f), policy: auth.ListenPolicy{TLS: o.TLS != nil, Mode: o.Auth, Insecure: o.Insecure}}
	node.Register(s)
	return s
}

// Serve accepts on l until Stop, which it answers with nil. It refuses a listener that others can reach unless the
// server has TLS and authentication, or Insecure. It closes l.
func (s *Server) Serve(l net.Listener) error {
	if l.Addr().Network() == "tcp" {
		if err := s.policy.Check(l.Addr().String()); err != nil {
			l.Close()
			return err
		}
	}
	return s.Server.Serve(l)
}
