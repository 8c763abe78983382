package shm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/shm/socket"
)

// ErrInUse is a socket on which another process listens.
var ErrInUse = errors.New("shm: another process listens on this socket")

// maxPathBytes is what the kernel takes of a path.
const maxPathBytes = 107

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
	*net.UnixListener
	o       ListenOptions
	own     uint32
	lock    *os.File
	staging *stagingBudget
	close   sync.Once
}

// Listen takes the path over. A socket that was left behind is removed; one that a process listens on is ErrInUse.
// The lock beside the socket stays behind, empty. Connections that it accepts are for a frame.Server.
func Listen(o ListenOptions) (net.Listener, error) {
	if o.Memory == nil {
		return nil, errors.New("shm: Memory is required")
	}
	o.Mode = cmp.Or(o.Mode, 0o600)
	o.Staging.fill()
	if len(o.Path) == 0 || len(o.Path)+len(bindSuffix) > maxPathBytes {
		return nil, fmt.Errorf("shm: path %q of %d bytes: must be 1 to %d", o.Path, len(o.Path), maxPathBytes-len(bindSuffix))
	}
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, fmt.Errorf("shm: directory of the socket: %w", err)
	}
	lock, err := lockPath(o.Path)
	if err != nil {
		return nil, err
	}
	l, err := bind(&o)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &listener{UnixListener: l, o: o, own: uint32(os.Geteuid()), lock: lock, staging: newStagingBudget(o.Staging)}, nil
}

// lockPath makes sure that of two processes one at most has the socket, whatever either is in the middle of.
func lockPath(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("shm: lock of the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		return nil, fmt.Errorf("shm: lock %s: %w", path, err)
	}
	return f, nil
}

// bindSuffix is where the socket is bound, so that it appears under its name with its mode.
const bindSuffix = ".new"

func bind(o *ListenOptions) (*net.UnixListener, error) {
	for _, p := range []string{o.Path, o.Path + bindSuffix} {
		if err := removeStale(p); err != nil {
			return nil, err
		}
	}
	at := o.Path + bindSuffix
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("shm: listen: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(at, o.Mode), os.Rename(at, o.Path)); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: place the socket: %w", err), l.Close(), os.Remove(at))
	}
	return l, nil
}

// removeStale removes a socket that nobody listens on. Anything that is no socket is left alone.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("shm: look at the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("shm: %s is there and is no socket", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return fmt.Errorf("%w: %s", ErrInUse, path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("shm: remove a socket that was left behind: %w", err)
	}
	return nil
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

// Close ends the listening and removes the socket. Idempotent.
func (l *listener) Close() (err error) {
	l.close.Do(func() {
		err = errors.Join(l.UnixListener.Close(), os.Remove(l.o.Path), l.lock.Close())
	})
	return err
}
