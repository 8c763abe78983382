package doctor

import (
	"strings"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

func TestMachine(t *testing.T) {
	r := &Report{}
	r.machine()
	for _, check := range []string{"memory", "huge pages", "open files", "locked memory", "congestion control"} {
		if f := r.finding(check); f.Result != OK && f.Result != Note || f.Detail == "" {
			t.Errorf("%s: %+v", check, f)
		}
	}
}

func TestHugePagesSaysWhatTheKernelSays(t *testing.T) {
	for mode, want := range map[string]string{
		"always within_size [advise] never deny force\n": "from its first use",
		"always within_size advise [never] deny force\n": "shmem_enabled is never, 0 reserved",
		"": "shmem_enabled is unknown",
	} {
		r := &Report{}
		r.hugePages(fstest.MapFS{shmemHugePages: file(mode), freeHugePages: file("0\n")})
		f := r.finding("huge pages")
		if !strings.Contains(f.Detail, want) && !strings.Contains(f.Detail, "made of reserved ones") {
			t.Errorf("%q: %+v, want %q", mode, f, want)
		}
		if f.Result == Note && !strings.Contains(f.Detail, "four fifths") {
			t.Errorf("%q: no cost in %+v", mode, f)
		}
	}
}

func TestMemoryOfAnUnknownKernel(t *testing.T) {
	r := &Report{}
	r.memory(fstest.MapFS{})
	if f := r.finding("memory"); f.Result != Note || !strings.Contains(f.Detail, "set memory") {
		t.Errorf("%+v", f)
	}
}
