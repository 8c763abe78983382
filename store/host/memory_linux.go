package host

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// seals fix the size for whoever maps it. F_SEAL_FUTURE_WRITE would forbid punching holes.
	seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	// maxCollapseFailures in a row end the search for huge pages: each attempt may compact memory, which is dear.
	maxCollapseFailures = 16
	// smallPageBytes is the least that becomes resident.
	smallPageBytes = 4096
	// blockBytes is the unit of Stat_t.Blocks.
	blockBytes = 512

	reservedHugePages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	shmemHugePages    = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
)

// memfd is memory of the operating system, huge pages first:
//
//	MFD_HUGETLB         when the operator reserved huge pages and the size is whole ones
//	MADV_HUGEPAGE       when shmem_enabled allows it: huge at first touch
//	MADV_COLLAPSE       else, page by page while populating (Linux 6.1), whatever shmem_enabled says
//	4 KiB pages         else
type memfd struct {
	small     bool
	reserved  bool         // huge pages were reserved when the tier was made
	failures  atomic.Int32 // of MADV_COLLAPSE in a row
	shmemMode string
	hugeTouch bool // the first touch of memory that asks for it is of a huge page
}

func newMemory(smallPages bool) memory {
	m := &memfd{small: smallPages, shmemMode: chosen(readLine(shmemHugePages))}
	m.hugeTouch = m.shmemMode != "never" && m.shmemMode != "deny" && m.shmemMode != ""
	if n, err := strconv.Atoi(readLine(reservedHugePages)); err == nil {
		m.reserved = n > 0 && !smallPages
	}
	return m
}

func (f *memfd) reservesHuge() bool { return f.reserved }

func (f *memfd) mapping(bytes int64, keepFile bool) (*mapping, error) {
	if f.reserved && bytes%hugePageBytes == 0 {
		if m, err := f.mapFile(bytes, unix.MFD_HUGETLB, keepFile, seals); err == nil {
			m.hugetlb = true
			return m, nil // the pool has room
		}
	}
	return f.mapFile(bytes, 0, keepFile, seals)
}

// reserve makes a mapping that is not sealed yet.
func (f *memfd) reserve(bytes int64) (*mapping, error) {
	return f.mapFile(bytes, 0, true, 0)
}

func (f *memfd) trim(m *mapping, bytes int64) error {
	if err := unix.Ftruncate(m.file, bytes); err != nil {
		return fmt.Errorf("cut memfd to %d bytes: %w", bytes, err)
	}
	if err := seal(m.file, seals); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(m.file, &st); err != nil {
		return fmt.Errorf("size of memfd: %w", err)
	}
	if st.Blocks*blockBytes > bytes {
		return fmt.Errorf("%d bytes are held for a memfd cut to %d", st.Blocks*blockBytes, bytes) // a huge page was not split
	}
	if tail := m.mem[bytes:]; len(tail) > 0 {
		if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(tail)), uintptr(len(tail))); err != nil {
			return fmt.Errorf("unmap the end of a memfd: %w", err)
		}
	}
	m.mem, m.bytes = m.mem[:bytes:bytes], bytes
	return nil
}

func (f *memfd) mapFile(bytes int64, flags int, keepFile bool, seals int) (*mapping, error) {
	fd, err := unix.MemfdCreate("quire-host", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, fmt.Errorf("create memfd: %w", err)
	}
	mem, err := mapSealed(fd, bytes, seals)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if flags&unix.MFD_HUGETLB == 0 {
		f.advise(mem)
	}
	m := &mapping{mem: mem, bytes: bytes, file: fd}
	if !keepFile { // the mapping keeps the memory; a large tier would need many descriptors
		m.file = -1
		if err := unix.Close(fd); err != nil {
			return nil, errors.Join(fmt.Errorf("close memfd: %w", err), f.unmap(m))
		}
	}
	return m, nil
}

// seal fixes the size of a memfd as seals say.
func seal(fd, seals int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal memfd: %w", err)
	}
	return nil
}

// mapSealed gives fd its size, and maps it at a multiple of the huge page size.
func mapSealed(fd int, bytes int64, seals int) ([]byte, error) {
	if err := unix.Ftruncate(fd, bytes); err != nil {
		return nil, fmt.Errorf("size memfd to %d bytes: %w", bytes, err)
	}
	if err := seal(fd, seals); seals != 0 && err != nil {
		return nil, err
	}
	span := uintptr(bytes) + hugePageBytes
	at, err := unix.MmapPtr(-1, 0, nil, span, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of addresses: %w", span, err)
	}
	skip := -uintptr(at) & (hugePageBytes - 1)
	base := unsafe.Add(at, skip)
	if _, err := unix.MmapPtr(fd, 0, base, uintptr(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return nil, errors.Join(fmt.Errorf("map %d bytes: %w", bytes, err), unix.MunmapPtr(at, span))
	}
	if err := trim(at, skip, base, uintptr(bytes), span); err != nil {
		return nil, errors.Join(fmt.Errorf("trim reserved addresses: %w", err), unix.MunmapPtr(at, span))
	}
	return unsafe.Slice((*byte)(base), bytes), nil
}

// trim gives back the reserved addresses before and after the mapping.
func trim(at unsafe.Pointer, skip uintptr, base unsafe.Pointer, bytes, span uintptr) error {
	if skip > 0 {
		if err := unix.MunmapPtr(at, skip); err != nil {
			return err
		}
	}
	if tail := span - skip - bytes; tail > 0 {
		return unix.MunmapPtr(unsafe.Add(base, bytes), tail)
	}
	return nil
}

// advise asks for huge pages in whole ones only: one that reaches past the end would hold memory nobody counts.
func (f *memfd) advise(mem []byte) {
	whole := len(mem) &^ (hugePageBytes - 1)
	if f.small {
		whole = 0
	}
	if whole > 0 {
		_ = unix.Madvise(mem[:whole], unix.MADV_HUGEPAGE) // a kernel without them is not an error
	}
	if whole < len(mem) {
		_ = unix.Madvise(mem[whole:], unix.MADV_NOHUGEPAGE)
	}
}

func (f *memfd) populate(m *mapping, from, to int64) (huge int64, err error) {
	if m.hugetlb {
		return to - from, touch(m.mem[from:to])
	}
	for at := from; at < to; {
		next := min(to, (at+hugePageBytes)&^(hugePageBytes-1))
		part := m.mem[at:next]
		if begun(part) && !f.hugeTouch {
			at = next // writers are here: to copy what they wrote into a huge page would have the populator follow them for ever
			continue
		}
		if f.collapse(part) {
			huge += int64(len(part))
		} else if err := touch(part); err != nil {
			return huge, err
		}
		at = next
	}
	return huge, nil
}

// begun reports whether some of part is in memory.
func begun(part []byte) bool {
	var pages [hugePageBytes / smallPageBytes]byte
	n := (len(part) + os.Getpagesize() - 1) / os.Getpagesize()
	if n == 0 || n > len(pages) {
		return false
	}
	at, bytes, vec := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(len(part)), unsafe.Pointer(&pages)
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, at, bytes, uintptr(vec)); e != 0 {
		return false
	}
	for _, p := range pages[:n] {
		if p&1 != 0 {
			return true
		}
	}
	return false
}

// touch makes part resident and mapped without changing it.
func touch(part []byte) error {
	if err := unix.Madvise(part, unix.MADV_POPULATE_WRITE); err != nil {
		return fmt.Errorf("populate %d bytes: %w", len(part), err)
	}
	return nil
}

// collapse makes part resident as one huge page, or finds that it is one. The kernel clears the holes of a range and copies
// the rest, so it is given a range with one small page in it: none at all would be refused, and to fill it first would
// have all of it cleared page by page and then copied.
func (f *memfd) collapse(part []byte) bool {
	if f.small || len(part) != hugePageBytes || f.failures.Load() >= maxCollapseFailures {
		return false
	}
	if touch(part[:smallPageBytes]) != nil || unix.Madvise(part, unix.MADV_COLLAPSE) != nil || touch(part) != nil { // mapped at its full size
		f.failures.Add(1)
		return false
	}
	f.failures.Store(0)
	return true
}

func (f *memfd) unmap(m *mapping) error {
	var errs []error
	if m.export != nil {
		errs = append(errs, m.export.end(m))
		m.export = nil
	}
	if m.mem != nil {
		if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.mem)), uintptr(m.bytes)); err != nil {
			errs = append(errs, fmt.Errorf("unmap %d bytes: %w", m.bytes, err))
		}
		m.mem = nil
	}
	if m.file >= 0 {
		if err := unix.Close(m.file); err != nil {
			errs = append(errs, fmt.Errorf("close memfd: %w", err))
		}
		m.file = -1
	}
	return errors.Join(errs...)
}

func (f *memfd) hint() string {
	if f.small {
		return "they were asked for by configuration"
	}
	return fmt.Sprintf("write advise to %s (now %q), or reserve huge pages with sysctl vm.nr_hugepages", shmemHugePages, f.shmemMode)
}

// readLine is the first line of a file; "" when it cannot be read.
func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

// chosen picks the value in brackets of a sysfs choice: "always [never]" is never.
func chosen(line string) string {
	_, rest, ok := strings.Cut(line, "[")
	if !ok {
		return line
	}
	value, _, _ := strings.Cut(rest, "]")
	return value
}
