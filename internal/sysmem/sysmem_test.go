package sysmem

import (
	"runtime"
	"strings"
	"testing"
	"testing/fstest"
)

// tree builds a file system of name, content pairs.
func tree(pairs ...string) fstest.MapFS {
	m := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return m
}

const (
	meminfo = "MemTotal:       16000000 kB\nMemFree:  1000000 kB\nMemAvailable:   8000000 kB\n"
	mount2  = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	mount1  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	host    = uint64(8000000 << 10)
)

func TestAvailable(t *testing.T) {
	for name, c := range map[string]struct {
		files  fstest.MapFS
		bytes  uint64
		source string
	}{
		"no control group": {tree("proc/meminfo", meminfo), host, "/proc/meminfo"},
		"old kernel":       {tree("proc/meminfo", "MemTotal: 9 kB\nMemFree: 7 kB\n"), 7 << 10, "/proc/meminfo"},
		"v2 without limit": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/a\n", "proc/self/mountinfo", mount2,
			"sys/fs/cgroup/a/memory.max", "max\n"), host, "/proc/meminfo"},
		"v2 limit": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/a/b\n", "proc/self/mountinfo", mount2,
			"sys/fs/cgroup/a/b/memory.max", "1000000\n", "sys/fs/cgroup/a/b/memory.current", "300000\n",
			"sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 100000\n"), 800_000, "/sys/fs/cgroup/a/b/memory.max"},
		"v2 parent is tighter": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/a/b\n", "proc/self/mountinfo", mount2,
			"sys/fs/cgroup/a/b/memory.max", "1000000\n", "sys/fs/cgroup/a/memory.max", "500000\n"), 500_000, "/sys/fs/cgroup/a/memory.max"},
		"v2 root of a container": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/\n", "proc/self/mountinfo", mount2,
			"sys/fs/cgroup/memory.max", "600000\n"), 600_000, "/sys/fs/cgroup/memory.max"},
		"v2 over its limit": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/\n", "proc/self/mountinfo", mount2,
			"sys/fs/cgroup/memory.max", "600000\n", "sys/fs/cgroup/memory.current", "700000\n"), 0, "/sys/fs/cgroup/memory.max"},
		"v2 with the host's path": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/docker/x\n",
			"proc/self/mountinfo", strings.Replace(mount2, " / /sys", " /docker/x /sys", 1),
			"sys/fs/cgroup/memory.max", "400000\n"), 400_000, "/sys/fs/cgroup/memory.max"},
		"v2 with an unseen path": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/not/here\n", "proc/self/mountinfo", mount2,
			"sys/fs/cgroup/memory.max", "400000\n"), 400_000, "/sys/fs/cgroup/memory.max"},
		"v1": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "5:cpu:/z\n4:memory:/a\n0::/\n", "proc/self/mountinfo", mount1,
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes", "900000\n", "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "200000\n",
			"sys/fs/cgroup/memory/a/memory.stat", "inactive_file 5\ntotal_inactive_file 50000\n"), 750_000, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"},
		"v1 and v2": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "4:cpu,memory:/\n0::/q\n",
			"proc/self/mountinfo", mount1+"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n", "sys/fs/cgroup/unified/q/memory.max", "800000\n"),
			800_000, "/sys/fs/cgroup/unified/q/memory.max"},
		"garbage": {tree("proc/meminfo", meminfo, "proc/self/cgroup", "\n:\n4:memory\n0::/\x00../..\n", "proc/self/mountinfo", "x - y\n - \n"+mount2,
			"sys/fs/cgroup/memory.max", "-5\n"), host, "/proc/meminfo"},
	} {
		bytes, source, err := AvailableIn(c.files)
		if err != nil || bytes != c.bytes || source != c.source {
			t.Errorf("%s: %d from %s, %v; want %d from %s", name, bytes, source, err, c.bytes, c.source)
		}
	}
}

func TestAvailableRefuses(t *testing.T) {
	for want, files := range map[string]fstest.MapFS{
		"proc/meminfo: file does not exist": tree(),
		"neither MemAvailable nor MemFree":  tree("proc/meminfo", "MemTotal: 5 kB\n"),
		"which no machine has":              tree("proc/meminfo", "MemAvailable: 18446744073709551615 kB\n"),
		"proc/self/mountinfo":               tree("proc/meminfo", meminfo, "proc/self/cgroup", "0::/\n"),
	} {
		if n, _, err := AvailableIn(files); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d, %v; want %q", n, err, want)
		}
	}
}

func TestAvailableHere(t *testing.T) {
	bytes, source, err := Available()
	if runtime.GOOS != "linux" {
		if err == nil {
			t.Errorf("%d bytes from %s, want an error", bytes, source)
		}
		return
	}
	if err != nil || bytes < 1<<20 || source == "" {
		t.Errorf("%d bytes from %q, %v", bytes, source, err)
	}
}

func FuzzAvailable(f *testing.F) {
	f.Add(meminfo, "4:memory:/a\n0::/q\n", mount1+mount2, "1000\n")
	f.Add("MemFree: 1", ":::", " - ", "max")
	f.Fuzz(func(t *testing.T, mem, own, mounts, limit string) {
		_, _, _ = AvailableIn(tree("proc/meminfo", mem, "proc/self/cgroup", own, "proc/self/mountinfo", mounts,
			"sys/fs/cgroup/memory.max", limit, "sys/fs/cgroup/memory/memory.limit_in_bytes", limit))
	})
}
