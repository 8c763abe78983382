//go:build !linux

package shm

import (
	"errors"
	"net"
	"os"
)

// ErrUnsupported is a system on which no memory is shared.
var ErrUnsupported = errors.New("shm: memory is shared with clients on Linux alone")

// ListenOptions say who may connect.
type ListenOptions struct {
	Path    string
	Mode    os.FileMode
	AnyUser bool
	Memory  Memory
	Staging StagingLimits
}

// Memory is what a node shares.
type Memory any

// StagingLimits bound what clients have the node map.
type StagingLimits struct {
	AreasPerConn int
	BytesPerConn int64
	BytesPerUser int64
}

// Listen answers ErrUnsupported.
func Listen(ListenOptions) (net.Listener, error) { return nil, ErrUnsupported }
