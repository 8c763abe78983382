package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/daemon"
)

// served is a shell with a server of its own.
func served(t *testing.T, change func(*daemon.Config)) *shell {
	t.Helper()
	c := daemon.Config{GRPCListen: "127.0.0.1:0", AdminListen: "off", MemoryBytes: 64 << 20, DrainTimeout: 10 * time.Second}
	if change != nil {
		change(&c)
	}
	d, err := daemon.Start(t.Context(), c.Resolve(0), daemon.Deps{Version: "v0.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return &shell{dir: t.TempDir(), env: []string{"QUIRE_SERVER=" + d.GRPCAddress()}, admin: d.AdminAddress()}
}

// TestAgainstAServer is the tour of an operator, as a script. Rewrite with -rewrite.
func TestAgainstAServer(t *testing.T) {
	served(t, nil).script(t, "testdata/server")
}

// TestOverAUNIXSocket: a server without a port is reached by --server unix:/path.
func TestOverAUNIXSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quire.sock")
	s := served(t, func(c *daemon.Config) { c.GRPCListen = "unix:" + path })
	s.env = nil
	for _, address := range []string{"unix:" + path, "unix://" + path} {
		if out, errOut, code := s.raw(t, "quire status --server "+address); code != 0 {
			t.Errorf("%s: exit %d\n%s%s", address, code, out, errOut)
		}
	}
	for line, want := range map[string]int{
		"quire status --server unix:" + path + "x":               exitUnavailable,
		"quire status --server unix:quire.sock":                  exitUsage,
		"quire status --ca /dev/null --server unix:" + path + "": exitFailure,
	} {
		if out, errOut, code := s.raw(t, line); code != want {
			t.Errorf("%s: exit %d, want %d\n%s%s", line, code, want, out, errOut)
		}
	}
}

// TestWithADiskTier shows what an operator sees of one.
func TestWithADiskTier(t *testing.T) {
	served(t, func(c *daemon.Config) { c.DataDir, c.DiskBytes = t.TempDir(), 64<<20 }).script(t, "testdata/disk")
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	s := served(t, func(c *daemon.Config) { c.DataDir, c.Auth = dir, daemon.AuthToken })
	s.env = append(s.env, "QUIRE_TOKEN_FILE="+filepath.Join(dir, "operator.token"))
	s.script(t, "testdata/tokens")
}

// TestJSONParses: what -o json prints of each command that reads is one JSON value.
func TestJSONParses(t *testing.T) {
	s := served(t, nil)
	s.run(t, "quire ns open example:smollm2-135m")
	s.run(t, "quire page put $1 @hello --fill --root")
	for _, line := range []string{
		"quire ns open example:smollm2-135m", "quire ns open example:smollm2-135m --dry-run", "quire ns example", "quire ns list",
		"quire ns show $1", "quire ns diff $1 example:smollm2-135m", "quire ns diff $1 example:llama-3-8b",
		"quire page exists $1 @hello", "quire page get $1 @hello", "quire page explain $1 @hello", "quire page explain $1 @other",
		"quire page delete $1 @hello", "quire lease list", "quire token list", "quire status", "quire top --interval 100ms", "quire scrub", "quire version", "quire ns drain $1",
	} {
		if out, _, _ := s.raw(t, line+" -o json"); !json.Valid([]byte(out)) {
			t.Errorf("%s -o json is no JSON:\n%s", line, out)
		}
	}
}
