package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/host"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
	"github.com/quire-kv/quire/store/shm"
	"github.com/quire-kv/quire/store/shm/socket"
	"github.com/quire-kv/quire/store/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTier(t *testing.T) *host.Driver {
	t.Helper()
	d, err := host.New(host.Options{CapacityBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func listenAt(t *testing.T, o ListenOptions) net.Listener {
	t.Helper()
	if o.Memory == nil {
		o.Memory = newTier(t)
	}
	l, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// pair is a client's socket and the node's half of it.
func pair(t *testing.T, o ListenOptions) (*socket.Conn, *conn) {
	t.Helper()
	o.Path = filepath.Join(t.TempDir(), "s")
	l := listenAt(t, o)
	c, err := socket.Dial(t.Context(), o.Path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); k.Close() })
	return c, k.(*conn)
}

// TestListen: the socket is the node's own unless it is said otherwise; a second listener is told.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := listenAt(t, ListenOptions{Path: path})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := Listen(ListenOptions{Path: path, Memory: newTier(t)}); !errors.Is(err, socket.ErrInUse) {
		t.Errorf("a second listener: %v", err)
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	listenAt(t, ListenOptions{Path: path, Mode: 0o666})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestStrangersFindTheirsClosed: users other than the node's own and root, unless all may come.
func TestStrangersFindTheirsClosed(t *testing.T) {
	for _, c := range []struct {
		any  bool
		own  uint32
		uid  uint32
		want bool
	}{{false, 1000, 1000, true}, {false, 1000, 0, true}, {false, 1000, 1001, false}, {true, 1000, 1001, true}, {false, 0, 1000, false}} {
		l := &listener{o: ListenOptions{AnyUser: c.any}, own: c.own}
		if got := l.welcomes(c.uid); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	_, k := pair(t, ListenOptions{})
	if p, ok := k.AuthInfo().(Peer); !ok || p.UID != uint32(os.Geteuid()) || p.PID != int32(os.Getpid()) || p.AuthType() != "unix" {
		t.Errorf("%+v", k.AuthInfo())
	}
}

// TestSlabsAreHandedOutOnce: the first name in a slab brings its descriptors, and only slabs of one namespace have any.
func TestSlabsAreHandedOutOnce(t *testing.T) {
	d := newTier(t)
	c, k := pair(t, ListenOptions{Memory: d})
	class := tier.Class{Namespace: page.NamespaceID{1}, Epoch: 1, Bytes: 100_000}
	var regions []tier.Region
	for range 3 {
		r, err := d.Alloc(class, tier.Owner{})
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, r)
	}
	mixed, err := d.Alloc(tier.Class{Bytes: 100_000}, tier.Owner{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := k.Refer(mixed.Memory); ok {
		t.Error("a mixed slab has a name")
	}
	var refs []rpc.Ref
	for _, r := range regions {
		ref, ok := k.Refer(r.Memory[4096:8192])
		if !ok || ref.Offset != uint64(r.Offset)+4096 || ref.Bytes != 4096 {
			t.Fatalf("%+v, %v", ref, ok)
		}
		refs = append(refs, ref)
	}
	if _, err := k.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	fds := c.Take()
	if len(fds) != 2 {
		t.Fatalf("%d descriptors", len(fds))
	}
	mem, err := shm.Map(fds[0], 1<<30, true)
	if err != nil {
		t.Fatal(err)
	}
	defer shm.Unmap(mem)
	gens, err := shm.Map(fds[1], 1<<30, false)
	if err != nil {
		t.Fatal(err)
	}
	defer shm.Unmap(gens)
	g, err := shm.OpenGenerations(gens, len(mem))
	if err != nil || g.Number() != refs[0].Slab {
		t.Fatal(err)
	}
	d.Free(regions[1])
	for i, r := range refs {
		if want := i != 1; r.Slab != refs[0].Slab || g.Valid(r.Offset, r.SlotGeneration, r.SlabGeneration) != want {
			t.Errorf("%+v: valid is not %v", r, want)
		}
	}
}

// memfd is an area as a client might send it.
func memfd(t *testing.T, bytes int64, flags, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test-area", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		t.Skip(err)
	}
	if err := unix.Ftruncate(fd, bytes); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestStaging: what a client names is found, within the bounds of what it handed out.
func TestStaging(t *testing.T) {
	c, k := pair(t, ListenOptions{})
	for i := range 3 {
		fd := memfd(t, 8192, 0, unix.F_SEAL_SHRINK)
		if _, err := unix.Pwrite(fd, []byte{byte(i + 1)}, 5000); err != nil {
			t.Fatal(err)
		}
		c.Send(fd)
	}
	send(t, c, k)
	for i := range uint64(3) {
		b, done, err := k.Resolve(&rpc.Ref{Slab: i, Offset: 5000, Bytes: 3192})
		if err != nil || len(b) != 3192 || b[0] != byte(i+1) {
			t.Fatalf("area %d: %v, %v", i, b[:1], err)
		}
		done()
	}
	for _, r := range []rpc.Ref{{Slab: 3}, {Slab: 1 << 63}, {Offset: 8193}, {Offset: 8192, Bytes: 1}, {Bytes: 8193}, {Offset: 1 << 63, Bytes: 1 << 63}, {Offset: 1, Bytes: 1<<64 - 1}} {
		if _, _, err := k.Resolve(&r); !errors.Is(err, ErrStaging) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if !k.Valid(&rpc.Ref{}) {
		t.Error("staged bytes are not valid")
	}
	// A reader keeps its mapping past the end of the connection.
	b, done, err := k.Resolve(&rpc.Ref{Slab: 2, Offset: 5000, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	if b[0] != 3 {
		t.Error("unmapped under its reader")
	}
	if _, _, err := k.Resolve(&rpc.Ref{Bytes: 1}); err == nil {
		t.Error("a name after the end")
	}
	done()
	if left := k.staged.budget.left(k.peer.UID); left != k.staged.budget.limits.BytesPerUser {
		t.Errorf("%d bytes may be staged after the end", left)
	}
}

func send(t *testing.T, from *socket.Conn, to *conn) {
	t.Helper()
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestUnsafeDescriptors: what could end the node, or is too much, is not mapped, and nothing of the client is from
// then on.
func TestUnsafeDescriptors(t *testing.T) {
	limits := StagingLimits{AreasPerConn: 2, BytesPerConn: 1 << 20, BytesPerUser: 3 << 19}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, fds := range map[string]func() []int{
		"not sealed": func() []int { return []int{memfd(t, 8192, 0, 0)} },
		"grow only":  func() []int { return []int{memfd(t, 8192, 0, unix.F_SEAL_GROW)} },
		"empty":      func() []int { return []int{memfd(t, 0, 0, unix.F_SEAL_SHRINK)} },
		"a file": func() []int {
			fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return []int{fd}
		},
		"a pipe": func() []int {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			unix.Close(p[1])
			return p[:1]
		},
		"huge pages": func() []int { return []int{memfd(t, 2<<20, unix.MFD_HUGETLB, unix.F_SEAL_SHRINK)} },
		"too large":  func() []int { return []int{memfd(t, 1<<20+1, 0, unix.F_SEAL_SHRINK)} },
		"too much": func() []int {
			return []int{memfd(t, 1<<19, 0, unix.F_SEAL_SHRINK), memfd(t, 1<<19+1, 0, unix.F_SEAL_SHRINK)}
		},
		"too many areas": func() []int {
			return []int{memfd(t, 1, 0, unix.F_SEAL_SHRINK), memfd(t, 1, 0, unix.F_SEAL_SHRINK), memfd(t, 1, 0, unix.F_SEAL_SHRINK)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, k := pair(t, ListenOptions{Staging: limits})
			c.Send(fds()...)
			send(t, c, k)
			if _, _, err := k.Resolve(&rpc.Ref{}); !errors.Is(err, ErrStaging) {
				t.Error(err)
			}
			c.Send(memfd(t, 1, 0, unix.F_SEAL_SHRINK))
			send(t, c, k)
			if _, _, err := k.Resolve(&rpc.Ref{}); !errors.Is(err, ErrStaging) {
				t.Errorf("taken back in: %v", err)
			}
		})
	}
}

// TestStagingOfOneUser is bounded over all of its connections.
func TestStagingOfOneUser(t *testing.T) {
	b := newStagingBudget(StagingLimits{AreasPerConn: 64, BytesPerConn: 1 << 20, BytesPerUser: 1 << 20})
	one, two, other := &staging{budget: b, owner: 1}, &staging{budget: b, owner: 1}, &staging{budget: b, owner: 2}
	for _, s := range []*staging{one, two, other} {
		s.take([]int{memfd(t, 3<<18, 0, unix.F_SEAL_SHRINK)})
	}
	if one.broken != nil || !errors.Is(two.broken, ErrStaging) || other.broken != nil {
		t.Error(one.broken, two.broken, other.broken)
	}
	for _, s := range []*staging{one, two, other} {
		s.close()
	}
	if len(b.of) != 0 {
		t.Errorf("%v", b.of)
	}
}
