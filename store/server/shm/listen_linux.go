package shm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/quire-kv/quire/store/shm/socket"
)

// ListenOptions say who may connect. Zero values are documented defaults.
type ListenOptions struct {
	// Path of the socket. Its directory is made, open to its owner alone, if it is not there.
	Path string
	Mode os.FileMode // of the socket; default 0600
	// AnyUser lets users other than the node's own and root in: for nodes where a token says who calls.
	AnyUser bool

	Memory  Memory // what is shared; required
	Staging StagingLimits
}

// listener is a UNIX socket whose connections share memory with the node.
type listener struct {
	*socket.Listener
	o       ListenOptions
	own     uint32
	staging *stagingBudget
}

// Listen takes the path over, as socket.Listen does. Connections that it accepts are for a frame.Server.
func Listen(o ListenOptions) (net.Listener, error) {
	if o.Memory == nil {
		return nil, errors.New("shm: Memory is required")
	}
	o.Staging.fill()
	l, err := socket.Listen(o.Path, cmp.Or(o.Mode, 0o600))
	if err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	return &listener{Listener: l, o: o, own: uint32(os.Geteuid()), staging: newStagingBudget(o.Staging)}, nil
}

// Accept answers the next connection of somebody who may connect; others find theirs closed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		c, err := socket.New(raw)
		if err != nil {
			continue
		}
		who, err := c.Peer()
		if err != nil || !l.welcomes(who.Uid) {
			c.Close()
			continue
		}
		return newConn(c, who, l.o.Memory, l.staging), nil
	}
}

// welcomes says whether a user may connect. Who it is then is up to its token.
func (l *listener) welcomes(uid uint32) bool { return l.o.AnyUser || uid == l.own || uid == 0 }
