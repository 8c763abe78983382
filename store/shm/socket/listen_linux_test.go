package socket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func listenAt(t *testing.T, path string, mode os.FileMode) *Listener {
	t.Helper()
	l, err := Listen(path, mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestListen: the socket appears with its mode in a directory of the owner's; a second listener is told.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "dir", "s")
	l := listenAt(t, path, 0o600)
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
	if _, err := Listen(path, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a second listener: %v", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first one lost its socket: %v", err)
	} else {
		c.Close()
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	defer syscall.Umask(syscall.Umask(0o077))
	listenAt(t, path, 0o666)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestSocketsLeftBehind: those of a process that was killed are replaced; what is no socket, or what somebody without
// the lock listens on, stays.
func TestSocketsLeftBehind(t *testing.T) {
	dir := t.TempDir()
	stale := func(name string) string {
		path := filepath.Join(dir, name)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		return path
	}
	path := stale("stale")
	stale("stale" + bindSuffix)
	listenAt(t, path, 0o600)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, 0o600); err == nil {
		t.Error("listens in place of a file")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
	live := filepath.Join(dir, "live")
	other, err := net.Listen("unix", live)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := Listen(live, 0o600); !errors.Is(err, ErrInUse) {
		t.Errorf("a socket was taken from who listens on it: %v", err)
	}
	for _, path := range []string{"", filepath.Join(dir, strings.Repeat("x", maxPathBytes))} {
		if _, err := Listen(path, 0o600); err == nil {
			t.Errorf("path of %d bytes", len(path))
		}
	}
}
