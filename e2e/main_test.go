// Package e2e drives real processes: the binary as a server, and clients that are killed.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// quire is the binary under test.
var quire string

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		os.Exit(clientMain())
	}
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "quire-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	quire = filepath.Join(dir, "quire")
	build := exec.Command("go", "build", "-o", quire, "../cmd/quire")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build quire:", err)
		return 1
	}
	return m.Run()
}
