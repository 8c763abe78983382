package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModelDigest holds the output of model digest. Rewrite with: go test ./cmd/quire -run TestModelDigest -rewrite
func TestModelDigest(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	s.env = []string{"XDG_CACHE_HOME=" + filepath.Join(s.dir, "cache")}
	s.script(t, "testdata/model")
}

func TestModelDigestNeedsAPlaceForItsManifest(t *testing.T) {
	s := &shell{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.dir, "model.bin"), []byte("w"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errOut, code := s.raw(t, "quire model digest $DIR")
	if code != exitUsage || !strings.Contains(errOut, "give --manifest FILE") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if _, errOut, code = s.raw(t, "quire model digest $DIR --manifest $DIR/m.txt"); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut)
	}
	s.env = []string{"HOME=" + s.dir}
	if _, errOut, code = s.raw(t, "quire model digest $DIR"); code != exitOK {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if found, err := filepath.Glob(filepath.Join(s.dir, ".cache", "quire", "models", "*.json")); err != nil || len(found) != 1 {
		t.Errorf("manifests %v, %v", found, err)
	}
}
