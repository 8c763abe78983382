package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quire-kv/quire/internal/sysmem"
)

// machine looks at what the machine gives the server.
func (r *Report) machine() {
	root := os.DirFS("/")
	r.memory(root)
	r.hugePages(root)
	r.limits()
	r.congestion(root)
}

func (r *Report) memory(root fs.FS) {
	available, source, err := sysmem.AvailableIn(root)
	if err != nil {
		r.add("memory", Note, "%v: set memory to a size", err)
		return
	}
	r.add("memory", OK, "%.1f GiB available, says %s", float64(available)/(1<<30), source)
}

// Where the kernel says what huge pages there are.
const (
	shmemHugePages = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
	freeHugePages  = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
)

// hugePages asks for one as the memory tier does.
func (r *Report) hugePages(root fs.FS) {
	mode, free := chosen(readLine(root, shmemHugePages)), readLine(root, freeHugePages)
	asked := fmt.Sprintf("shmem_enabled is %s, %s reserved huge pages are free", orUnknown(mode), orUnknown(free))
	switch {
	case hugePage(unix.MFD_HUGETLB, 0):
		r.add("huge pages", OK, "%s: memory is made of reserved ones", asked)
	case slices.Contains([]string{"always", "within_size", "advise", "force"}, mode):
		r.add("huge pages", OK, "%s: memory has them from its first use", asked)
	case hugePage(0, unix.MADV_COLLAPSE):
		r.add("huge pages", OK, "%s: memory gets them in the background, page by page", asked)
	default:
		r.add("huge pages", Note, "%s, and none can be had: copies out of memory run at four fifths of their speed, "+
			"checks in place at three quarters; 'echo advise > /%s' allows them", asked, shmemHugePages)
	}
}

// hugePageBytes is the size of a huge page on the machines that we know.
const hugePageBytes = 2 << 20

// hugePage tries to get one, of a memfd as the memory tier makes them, at an address that allows it.
func hugePage(flags, advice int) bool {
	fd, err := unix.MemfdCreate("quire-doctor", unix.MFD_CLOEXEC|flags)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if unix.Ftruncate(fd, hugePageBytes) != nil {
		return false
	}
	at, err := unix.MmapPtr(-1, 0, nil, 2*hugePageBytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return false
	}
	defer func() { _ = unix.MunmapPtr(at, 2*hugePageBytes) }()
	base := unsafe.Add(at, -uintptr(at)&(hugePageBytes-1))
	if _, err := unix.MmapPtr(fd, 0, base, hugePageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return false // no reserved one is free
	}
	mem := unsafe.Slice((*byte)(base), hugePageBytes)
	if advice == 0 {
		return true
	}
	mem[0] = 1 // a range without any page is refused
	return unix.Madvise(mem, advice) == nil
}

// leastFiles is enough for some hundred segments and a thousand clients.
const leastFiles = 4096

func (r *Report) limits() {
	var files, locked unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_NOFILE, &files), unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked)); err != nil {
		r.add("open files", Note, "%v", err)
		return
	}
	if files.Max < leastFiles {
		r.add("open files", Note, "at most %d: each segment and each client takes some; set LimitNOFILE=%d or more", files.Max, leastFiles)
	} else {
		r.add("open files", OK, "at most %s", limitText(files.Max))
	}
	r.add("locked memory", OK, "at most %s bytes; the server locks none", limitText(locked.Max))
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// loopbackControl is what data connections ask for where the peer is this host.
const loopbackControl = "cubic"

func (r *Report) congestion(root fs.FS) {
	standard := orUnknown(readLine(root, "proc/sys/net/ipv4/tcp_congestion_control"))
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, loopbackControl)
	}
	switch {
	case err == nil:
		r.add("congestion control", OK, "%s for connections within this host, %s for others", loopbackControl, standard)
	case standard == "bbr":
		r.add("congestion control", Note, "bbr, and %s cannot be had (%v): connections within this host run at a quarter of their speed; 'modprobe tcp_cubic' allows it", loopbackControl, err)
	default:
		r.add("congestion control", OK, "%s for all; %s cannot be had (%v)", standard, loopbackControl, err)
	}
}

// readLine is the first line of a kernel's file, or nothing.
func readLine(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

// chosen is the word in brackets of "always [madvise] never".
func chosen(line string) string {
	_, rest, _ := strings.Cut(line, "[")
	word, _, _ := strings.Cut(rest, "]")
	return word
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
