package host

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/store/tier"
)

func TestMemfdIsSealedAndAligned(t *testing.T) {
	f := newMemory(false)
	for _, bytes := range []int64{tier.Align, 2 << 20, 5<<20 + tier.Align} {
		m, err := f.mapping(bytes, true)
		if err != nil {
			t.Fatal(err)
		}
		got, err := unix.FcntlInt(uintptr(m.file), unix.F_GET_SEALS, 0)
		if err != nil || got&seals != seals {
			t.Errorf("seals %#x, %v", got, err)
		}
		if err := unix.Ftruncate(m.file, bytes/2); err == nil {
			t.Errorf("a sealed memfd shrinks")
		}
		if at := uintptr(unsafe.Pointer(&m.mem[0])); at%hugePageBytes != 0 {
			t.Errorf("mapped at %#x", at)
		}
		for from := int64(0); from < bytes; from += hugePageBytes {
			if _, err := f.populate(m, from, min(bytes, from+hugePageBytes)); err != nil {
				t.Errorf("populate: %v", err)
			}
		}
		m.mem[0], m.mem[bytes-1] = 1, 2
		var st unix.Stat_t
		if err := unix.Fstat(m.file, &st); err != nil || st.Blocks*512 != bytes {
			t.Errorf("%d bytes are held for a mapping of %d, %v", st.Blocks*512, bytes, err)
		}
		if err := f.unmap(m); err != nil {
			t.Errorf("unmap: %v", err)
		}
	}
}

// TestReservedMemoryIsCut: populated, in huge pages where they can be had, and cut within one, it holds what is counted.
func TestReservedMemoryIsCut(t *testing.T) {
	f := newMemory(false)
	for _, bytes := range []int64{tier.Align, 3<<20 + tier.Align, 8<<20 - tier.Align, 8 << 20} {
		m, err := f.reserve(8 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.populate(m, 0, m.bytes); err != nil {
			t.Fatal(err)
		}
		if err := f.trim(m, bytes); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(m.file, &st); err != nil || st.Size != bytes || st.Blocks*512 != bytes || int64(len(m.mem)) != bytes || m.bytes != bytes {
			t.Errorf("%d bytes in %d of a mapping cut to %d, %v", st.Blocks*512, st.Size, bytes, err)
		}
		if got, err := unix.FcntlInt(uintptr(m.file), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
			t.Errorf("seals %#x, %v", got, err)
		}
		m.mem[0], m.mem[bytes-1] = 1, 2
		if err := f.unmap(m); err != nil {
			t.Errorf("unmap: %v", err)
		}
	}
}

// TestPopulateKeepsContents populates what is written already.
func TestPopulateKeepsContents(t *testing.T) {
	f := newMemory(false)
	m, err := f.mapping(4<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.mem {
		m.mem[i] = byte(i * 7)
	}
	if _, err := f.populate(m, 0, m.bytes); err != nil {
		t.Fatal(err)
	}
	for i, b := range m.mem {
		if b != byte(i*7) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	if err := f.unmap(m); err != nil {
		t.Error(err)
	}
}

// TestCloseLeavesNoMapping looks for memory and descriptors of the tier in the process.
func TestCloseLeavesNoMapping(t *testing.T) {
	d := newTier(t, Options{CapacityBytes: 64 << 20})
	for i := range byte(3) {
		c := tier.Class{Bytes: 700_000}
		c.Namespace[0], c.Epoch = i, 1
		alloc(t, d, c)
	}
	if n := mapped(t); n == 0 {
		t.Error("no mapping of the tier is found while it is open")
	}
	closeTier(t, d)
	if n := mapped(t); n != 0 {
		t.Errorf("%d mappings after close", n)
	}
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink("/proc/self/fd/" + l.Name()); err == nil && strings.Contains(to, "quire-host") {
			t.Errorf("descriptor %s is open: %s", l.Name(), to)
		}
	}
}

func mapped(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "quire-host")
}

func TestChosen(t *testing.T) {
	for line, want := range map[string]string{"always [never] deny": "never", "[always] x": "always", "": "", "plain": "plain", "a [b": "b"} {
		if got := chosen(line); got != want {
			t.Errorf("chosen(%q) = %q, want %q", line, got, want)
		}
	}
}
