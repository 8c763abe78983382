//go:build !linux

package client

import (
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// errNoSharing is a system on which no memory is shared.
var errNoSharing = rpc.Errorf(reason.Unsupported, "memory is shared with a node on Linux alone")

// sharedMemory shares nothing.
type sharedMemory struct{}

func newSharedMemory() *sharedMemory { return &sharedMemory{} }

func (c *Client) shmDialer() (dialer, error) {
	if c.caps.GetShmSocket() == "" {
		return nil, nil
	}
	return nil, errNoSharing
}

func (*sharedMemory) close() {}

// sharedConn is never made.
type sharedConn struct{ rpc.Sharing }

func (*sharedConn) room(int) ([]byte, func(), bool) { return nil, nil, false }

// Staging is memory that a caller fills and publishes from. No node reads it where it lies on this system.
type Staging struct{ bytes []byte }

// Staging makes so many bytes.
func (c *Client) Staging(bytes int) (*Staging, error) { return &Staging{make([]byte, bytes)}, nil }

// Bytes is the memory.
func (s *Staging) Bytes() []byte { return s.bytes }

// Close forgets it.
func (s *Staging) Close() error { s.bytes = nil; return nil }
