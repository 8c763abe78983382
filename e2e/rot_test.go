package e2e

import (
	"bytes"
	"context"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/storetest"
)

const rotChains = 12

func rotChain(i int) []byte { return storetest.Chain("rot"+string(rune('a'+i)), chainPages) }

// rotten is a data directory with pages on disk, of a server that was ended by a signal.
func rotten(t *testing.T, by syscall.Signal) string {
	t.Helper()
	dir := t.TempDir()
	s := startServer(t, diskArgs(dir)...)
	session := open(t, dial(t, s.address), smallSpec(t))
	for i := range rotChains {
		if err := publishDurably(t.Context(), session, rotChain(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.cmd.Process.Signal(by); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // a killed one says so
	return dir
}

// countServed fetches all pages; a wrong byte ends the test.
func countServed(t *testing.T, s *server) (served int) {
	t.Helper()
	session := open(t, dial(t, s.address), smallSpec(t))
	for i := range rotChains {
		_, n, err := fetch(t.Context(), session, rotChain(i))
		if err != nil {
			t.Fatal(err)
		}
		served += n
	}
	return served
}

// One bit of a page's bytes is flipped on disk: doctor names the file, the server starts and serves all other pages,
// answers a miss for that one, and takes it again.
func TestCase_C60_FlippedBitOfAPage(t *testing.T) {
	t.Run("stopped", func(t *testing.T) { flippedBitOfAPage(t, rotten(t, syscall.SIGTERM)) })
	t.Run("killed", func(t *testing.T) { flippedBitOfAPage(t, rotten(t, syscall.SIGKILL)) })
}

func flippedBitOfAPage(t *testing.T, dir string) {
	victim := rotChain(5)[3*32 : 4*32]
	info := smallSpec(t).Groups[0].Info()
	geo := client.Geometry{Heads: info.Heads, Layers: info.Layers, CellBytes: info.CellBytes, Tokens: info.PageTokens, Grade: info.Grade}
	file := flipWhere(t, dir, payload(geo, victim))
	out, code := doctor(t, dir)
	if code == 0 || !strings.Contains(out, filepath.Base(file)) || !strings.Contains(out, "expected") && !strings.Contains(out, "want") {
		t.Errorf("doctor, exit %d, of a damaged %s:\n%s", code, file, out)
	}
	s := startServer(t, diskArgs(dir)...)
	if n := countServed(t, s); n != rotChains*chainPages-1 {
		t.Errorf("%d of %d pages are served; one was damaged", n, rotChains*chainPages)
	}
	again := open(t, dial(t, s.address), smallSpec(t))
	p, err := again.Exists(t.Context(), run(again, victim), 0)
	if err != nil || p.Leading != 0 {
		t.Errorf("the damaged page is listed: %v", err)
	}
	if err := publishDurably(t.Context(), again, rotChain(5)); err != nil {
		t.Fatal(err)
	}
	if n := countServed(t, s); n != rotChains*chainPages {
		t.Errorf("%d pages after it was published again", n)
	}
}

// One bit anywhere in the data directory's pages: the server starts and serves no wrong byte, and what is missing is
// no more than what the bit touched.
func TestCase_C60_FlippedBitAnywhere(t *testing.T) {
	r := newRand(t)
	whole := rotten(t, syscall.SIGKILL)
	flips := 8
	if testing.Short() {
		flips = 3
	}
	for i := range flips {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
			t.Fatal(err)
		}
		file, at := flipAnywhere(t, filepath.Join(dir, "pages"), r, i%2 == 0)
		s := startServer(t, diskArgs(dir)...)
		n := countServed(t, s)
		t.Logf("%s, byte %d: %d of %d pages", file, at, n, rotChains*chainPages)
		if n < (rotChains-1)*chainPages {
			t.Errorf("%s, byte %d: %d of %d pages are left:\n%s", file, at, n, rotChains*chainPages, s.logged())
		}
		s.kill()
	}
}

// flipWhere flips one bit in the middle of content, wherever in dir's pages it is stored.
func flipWhere(t *testing.T, dir string, content []byte) (file string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, "pages"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if at := bytes.Index(b, content); at >= 0 {
			file = path
			flip(t, path, int64(at+len(content)/2), 3)
			return fs.SkipAll
		}
		return nil
	})
	if err != nil || file == "" {
		t.Fatalf("the page is nowhere on disk: %v", err)
	}
	return file
}

// flipAnywhere flips a random bit of a random file, of a segment or of any, among those bytes that are not zero: most
// of a segment is blank.
func flipAnywhere(t *testing.T, dir string, r *rand.Rand, segment bool) (file string, at int64) {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if segment && filepath.Ext(path) != ".seg" {
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && len(bytes.Trim(b, "\x00")) > 0 {
			files = append(files, path)
		}
		return nil
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("no file: %v", err)
	}
	file = files[r.IntN(len(files))]
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for at = r.Int64N(int64(len(b))); b[at] == 0; at = r.Int64N(int64(len(b))) {
	}
	flip(t, file, at, r.IntN(8))
	return file, at
}

func flip(t *testing.T, file string, at int64, bit int) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// doctor looks at a directory that no server has.
func doctor(t *testing.T, dir string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, quire, "doctor", "--data", dir)
	b, _ := cmd.CombinedOutput()
	return string(b), cmd.ProcessState.ExitCode()
}
