package client

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/kernels"
)

// TestGuarded: memory that cannot be read is noticed, in whatever code it is read; other panics go on.
func TestGuarded(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	dst := make([]byte, len(mem))
	for name, read := range map[string]func(){
		"load": func() { dst[0] = mem[1<<19] }, "copy": func() { copy(dst, mem) }, "sum": func() { kernels.Sum(mem) },
		"copy and sum": func() { kernels.CopySum(dst, mem) },
	} {
		if !guarded(read) {
			t.Errorf("%s: a fault in sound memory", name)
		}
		if err := unix.Mprotect(mem[1<<19:], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
		if guarded(read) {
			t.Errorf("%s: no fault", name)
		}
		if err := unix.Mprotect(mem, unix.PROT_READ); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if v := recover(); v != "other" {
			t.Errorf("%v", v)
		}
	}()
	guarded(func() { panic("other") })
}
