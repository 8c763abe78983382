package shm

import (
	"github.com/quire-kv/quire/store/frame"
	"github.com/quire-kv/quire/store/server"
)

// Server serves one node's page service to clients on the same host. Safe for concurrent use.
type Server struct{ *frame.Server }

// New makes a server of node's pages for listeners of Listen. Boot and Identify of o are filled in. Stop it while node
// stops: streams that live long end with node, and calls in flight finish on both.
func New(node *server.Server, o frame.ServerOptions) *Server {
	o.Boot, o.Identify, o.TLS = node.Boot(), node.Identify, nil
	s := &Server{frame.NewServer(o)}
	node.Register(s)
	return s
}
