// Package sysmem says how much memory this process may plan with, and reads and writes sizes with units.
//
// The machine gives a figure (MemAvailable of /proc/meminfo) and each control group from the process's own up to the
// root can give a smaller one: its limit less what is in use there, page cache that can be dropped not counted. The
// smallest counts. Control groups of version 1 and 2, and machines that have both, are understood.
package sysmem

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// maxFileBytes bounds what is read of any one file of the kernel.
const maxFileBytes = 1 << 20

// Available is the memory that can be taken now, and what limits it: the path of the file that says so. It works on
// Linux; elsewhere it fails, and sizes have to be configured.
func Available() (bytes uint64, source string, err error) { return AvailableIn(os.DirFS("/")) }

// AvailableIn is Available of a file system that holds proc and sys.
func AvailableIn(root fs.FS) (bytes uint64, source string, err error) {
	const meminfo = "proc/meminfo"
	bytes, err = machine(root, meminfo)
	if err != nil {
		return 0, "", fmt.Errorf("find out how much memory there is: %w", err)
	}
	source = "/" + meminfo
	groups, err := controlGroups(root)
	if err != nil {
		return 0, "", fmt.Errorf("find out what the control group allows: %w", err)
	}
	for _, g := range groups {
		for dir := g.dir; ; dir = path.Dir(dir) {
			if free, ok := g.headroom(root, dir); ok && free < bytes {
				bytes, source = free, "/"+path.Join(dir, g.files.limit)
			}
			if dir == g.mount || dir == "." {
				break
			}
		}
	}
	return bytes, source, nil
}

// machine reads MemAvailable, or MemFree where the kernel is too old to say.
func machine(root fs.FS, name string) (uint64, error) {
	b, err := readFile(root, name)
	if err != nil {
		return 0, err
	}
	for _, key := range []string{"MemAvailable", "MemFree"} {
		if kib, ok := field(b, key+":"); ok {
			if kib > 1<<54 {
				return 0, fmt.Errorf("%s: %s is %d KiB, which no machine has", name, key, kib)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("%s names neither MemAvailable nor MemFree", name)
}

// files are the names that one version of control groups has for a thing.
type files struct{ limit, usage, cacheKey string }

var (
	version1 = files{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
	version2 = files{"memory.max", "memory.current", "inactive_file"}
)

// group is this process's place in one hierarchy.
type group struct {
	files files
	mount string // of the hierarchy, without the leading slash
	dir   string // of the process, in or below mount
}

// headroom of one directory; not ok when it sets no limit.
func (g group) headroom(root fs.FS, dir string) (uint64, bool) {
	limit, ok := number(root, path.Join(dir, g.files.limit))
	if !ok {
		return 0, false
	}
	used, _ := number(root, path.Join(dir, g.files.usage))
	if stat, err := readFile(root, path.Join(dir, "memory.stat")); err == nil {
		cache, _ := field(stat, g.files.cacheKey)
		used -= min(used, cache)
	}
	return limit - min(limit, used), true
}

// controlGroups finds the hierarchies that account for this process's memory. None is not an error.
func controlGroups(root fs.FS) ([]group, error) {
	own, err := readFile(root, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	mounts, err := readFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var groups []group
	for line := range lines(own) {
		// hierarchy:controllers:path
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		v2 := parts[0] == "0" && parts[1] == ""
		if !v2 && !hasWord(parts[1], "memory") {
			continue
		}
		if g, ok := place(root, mounts, v2, parts[2]); ok {
			groups = append(groups, g)
		}
	}
	return groups, nil
}

// place finds where a hierarchy is mounted and the process's directory there. In a container the path can be that of
// the host, which is not to be seen: then it is the mount itself.
func place(root fs.FS, mounts []byte, v2 bool, own string) (group, bool) {
	for line := range lines(mounts) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 3 {
			continue
		}
		if v2 != (kind[0] == "cgroup2") || !v2 && (kind[0] != "cgroup" || !hasWord(kind[2], "memory")) {
			continue
		}
		g := group{files: version1, mount: clean(f[4])}
		if v2 {
			g.files = version2
		}
		g.dir = g.mount
		if below, ok := strings.CutPrefix(path.Clean(own), path.Clean(f[3])); ok {
			dir := path.Join(g.mount, path.Clean("/"+below))
			if st, err := fs.Stat(root, dir); err == nil && st.IsDir() {
				g.dir = dir
			}
		}
		return g, true
	}
	return group{}, false
}

// clean makes a path of fs.FS of an absolute one.
func clean(p string) string {
	if p = strings.TrimPrefix(path.Clean("/"+p), "/"); p == "" {
		return "."
	}
	return p
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// number reads a file with one number; "max" and what cannot be read are none.
func number(root fs.FS, name string) (uint64, bool) {
	b, err := readFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// field finds "key value" at the start of a line.
func field(b []byte, key string) (uint64, bool) {
	for line := range lines(b) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			n, err := strconv.ParseUint(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func lines(b []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		s := bufio.NewScanner(bytes.NewReader(b))
		for s.Scan() && yield(s.Text()) {
		}
	}
}

func readFile(root fs.FS, name string) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(f, maxFileBytes)); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b.Bytes(), nil
}
