package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrInUse is a path on which another process listens.
var ErrInUse = errors.New("another process listens on this socket")

const (
	// maxPathBytes is what the kernel takes of a path.
	maxPathBytes = 107
	// bindSuffix is where the socket is bound, so that it appears under its name with its mode.
	bindSuffix = ".new"
)

// Listener is a UNIX socket that is there from Listen to Close.
type Listener struct {
	*net.UnixListener
	path  string
	lock  *os.File
	close sync.Once
}

// Listen takes path over and gives the socket its mode before anybody can connect. A socket that was left behind is
// removed; one that a process listens on is ErrInUse; what is no socket is left alone. The directory is made, open to
// its owner alone, if it is not there. The lock beside the socket, path.lock, stays behind, empty.
func Listen(path string, mode os.FileMode) (*Listener, error) {
	if len(path) == 0 || len(path)+len(bindSuffix) > maxPathBytes {
		return nil, fmt.Errorf("path %q of %d bytes: must be 1 to %d", path, len(path), maxPathBytes-len(bindSuffix))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	lock, err := lockPath(path)
	if err != nil {
		return nil, err
	}
	l, err := bind(path, mode)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Listener{UnixListener: l, path: path, lock: lock}, nil
}

// Path is where the socket is.
func (l *Listener) Path() string { return l.path }

// Close ends the listening and removes the socket. Idempotent.
func (l *Listener) Close() (err error) {
	l.close.Do(func() {
		err = errors.Join(l.UnixListener.Close(), os.Remove(l.path), l.lock.Close())
	})
	return err
}

// lockPath makes sure that of two processes one at most has the socket, whatever either is in the middle of.
func lockPath(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the socket: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func bind(path string, mode os.FileMode) (*net.UnixListener, error) {
	at := path + bindSuffix
	for _, p := range []string{path, at} {
		if err := removeStale(p); err != nil {
			return nil, err
		}
	}
	narrow := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { // not wider for a moment, whatever the umask
		var modeErr error
		err := c.Control(func(fd uintptr) { modeErr = unix.Fchmod(int(fd), uint32(mode)) })
		return errors.Join(err, modeErr)
	}}
	bound, err := narrow.Listen(context.Background(), "unix", at)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l := bound.(*net.UnixListener)
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(at, mode), os.Rename(at, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("place the socket: %w", err), l.Close(), os.Remove(at))
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
		return fmt.Errorf("look at the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and is no socket", path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return fmt.Errorf("%w: %s", ErrInUse, path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove a socket that was left behind: %w", err)
	}
	return nil
}
