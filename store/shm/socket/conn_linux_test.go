package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is the two ends of one connection.
func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = Dial(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	if b, err = New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// files are descriptors of n files that hold their number.
func files(t *testing.T, n int) (fds []int) {
	t.Helper()
	for i := range n {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, []byte{byte(i), byte(i >> 8)}, 0); err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	return fds
}

// TestDescriptors: any number of them is there once the write that they went with was read, in order, and no other
// copy is left on either side.
func TestDescriptors(t *testing.T) {
	before := open(t)
	a, b := pair(t)
	for _, n := range []int{0, 1, maxOnce, maxOnce + 1, 3*maxOnce + 5} {
		a.Send(files(t, n)...)
		msg := bytes.Repeat([]byte("abcdefgh"), 100)
		sent := make(chan error, 1)
		go func() {
			_, err := a.WriteBuffers(net.Buffers{nil, slices.Clone(msg[:3]), slices.Clone(msg[3:])})
			sent <- err
		}()
		got := make([]byte, len(msg))
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, msg) {
			t.Fatalf("%d descriptors: %v", n, err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		fds := b.Take()
		if len(fds) != n {
			t.Fatalf("%d descriptors of %d", len(fds), n)
		}
		for i, fd := range fds {
			var two [2]byte
			if _, err := unix.Pread(fd, two[:], 0); err != nil || two != [2]byte{byte(i), byte(i >> 8)} {
				t.Errorf("descriptor %d is %v, %v", i, two, err)
			}
		}
		closeAll(fds)
	}
	a.Send(files(t, 3)...)
	b.Send(files(t, 3)...)
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	a.Send(files(t, 1)...)
	if n := open(t); n != before {
		t.Errorf("%d descriptors are open, %d were", n, before)
	}
}

func open(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestClose: by any goroutine, any number of times; whoever waits returns.
func TestClose(t *testing.T) {
	a, b := pair(t)
	got := make(chan error, 2)
	go func() {
		var err error
		for err == nil { // some bytes may come before the end
			_, err = a.Read(make([]byte, 1))
		}
		got <- err
	}()
	go func() {
		_, err := b.Write(make([]byte, 64<<20)) // nobody reads so much
		got <- err
	}()
	for range 2 {
		a.Close()
	}
	for range 2 {
		if err := <-got; err == nil {
			t.Error("no error")
		}
	}
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("read from a peer that is gone")
	}
	if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("read after Close: %v", err)
	}
}

func TestPeer(t *testing.T) {
	a, b := pair(t)
	for _, c := range []*Conn{a, b} {
		p, err := c.Peer()
		if err != nil || p.Uid != uint32(os.Geteuid()) || p.Pid != int32(os.Getpid()) {
			t.Errorf("%+v, %v", p, err)
		}
	}
}

func TestTooManyDescriptors(t *testing.T) {
	a, b := pair(t)
	fd := files(t, 1)[0]
	defer unix.Close(fd)
	var last error
	for range maxWaiting/maxOnce + 1 {
		var fds []int
		for range maxOnce {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Skip(err)
			}
			fds = append(fds, dup)
		}
		a.Send(fds...)
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		_, last = b.Read(make([]byte, 1))
	}
	if !errors.Is(last, ErrDescriptors) {
		t.Error(last)
	}
}
