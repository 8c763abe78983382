package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quire-kv/quire/internal/daemon"
)

// TestDoctor looks at a data directory while its server runs, afterwards, with a flipped bit of a page, and without its
// index.
func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	s := &shell{dir: dir}
	look := func(flags string, want int) (v doctorView) {
		t.Helper()
		out, errOut, code := s.raw(t, "quire doctor --data $DIR -o json"+flags)
		if code != want || errOut != "" {
			t.Errorf("exit %d, want %d: %s", code, want, errOut)
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return v
	}
	result := func(v doctorView, check string) string {
		for _, c := range v.Checks {
			if c.Check == check {
				return c.Result
			}
		}
		return ""
	}

	if v := look("", 0); result(v, "registry") != "skipped" || result(v, "disk tier") != "skipped" || v.Disk != nil {
		t.Errorf("an empty directory: %+v", v)
	}
	t.Run("served", func(t *testing.T) {
		server := served(t, func(c *daemon.Config) { c.DataDir, c.DiskBytes = dir, 64<<20 })
		server.run(t, "quire ns open example:smollm2-135m")
		if out := server.run(t, "quire page put $1 @hello --fill --root --durable"); !strings.Contains(out, "committed") {
			t.Error(out)
		}
		if v := look("", exitMismatch); result(v, "registry") != "in use" || result(v, "disk tier") != "skipped" {
			t.Errorf("while its server runs: %+v", v)
		}
	})
	v := look("", 0)
	if result(v, "registry") != "ok" || result(v, "disk tier") != "ok" || v.Disk == nil || v.Disk.Live != 1 || v.Disk.Faults != 0 {
		t.Errorf("after its server: %+v, disk %+v", v, v.Disk)
	}
	for _, c := range v.Checks {
		if c.Result == "" || c.Detail == "" {
			t.Errorf("%s: %q %q", c.Check, c.Result, c.Detail)
		}
	}

	segment := flipInPayload(t, dir)
	v = look("", exitMismatch)
	if result(v, "disk tier") != "damaged" || v.Disk == nil || v.Disk.Faults != 1 || len(v.Disk.First) != 1 {
		t.Fatalf("a flipped bit: %+v, disk %+v", v, v.Disk)
	}
	f := v.Disk.First[0]
	if f.File != segment || f.Offset == 0 || f.Expected == "" || f.Got == "" || f.Expected == f.Got || !strings.Contains(f.Cost, "miss") {
		t.Errorf("a flipped bit in %s: %+v", segment, f)
	}
	out := s.run(t, "quire doctor --data $DIR")
	for _, want := range []string{segment, "expected", f.Expected, "got", f.Got, "costs", "exit 4"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}

	if err := os.RemoveAll(filepath.Join(dir, "pages", "index")); err != nil {
		t.Fatal(err)
	}
	if v := look("", exitMismatch); v.Disk == nil || v.Disk.Faults == 0 || v.Disk.First[0].Part != "index" || !strings.Contains(v.Disk.First[0].Cost, "made anew") {
		t.Errorf("without an index: %+v", v.Disk)
	}
	if v := look(" --repair", 0); v.Disk == nil || !v.Disk.Repaired {
		t.Errorf("repaired: %+v", v.Disk)
	}
	if v := look("", 0); v.Disk == nil || v.Disk.Faults != 0 {
		t.Errorf("after a repair: %+v", v.Disk)
	}
}

// flipInPayload flips a bit in the middle of the one page on disk, and answers its file beneath dir.
func flipInPayload(t *testing.T, dir string) (name string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "pages", "*.seg"))
	if err != nil {
		t.Fatal(err)
	}
	const page = 368640 // bytes of one of the example's
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		end := len(bytes.TrimRight(b, "\x00"))
		if end < page {
			continue
		}
		b[end-page/2] ^= 4
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if name, err = filepath.Rel(dir, file); err != nil {
			t.Fatal(err)
		}
		return name
	}
	t.Fatal("no page on disk")
	return ""
}
