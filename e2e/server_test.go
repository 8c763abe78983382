package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/store/client"
)

// server is `quire serve` in a process of its own.
type server struct {
	cmd     *exec.Cmd
	address string // of gRPC, once it serves
	serving chan string

	mu  sync.Mutex // guards log
	log strings.Builder
}

// startServer waits until it serves; the test ends it.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := spawnServer(t, args...)
	s.wait(t)
	return s
}

// spawnServer does not wait. Its socket is of its own: paths of tests are too long for one.
func spawnServer(t *testing.T, args ...string) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{serving: make(chan string, 1)}
	s.cmd = exec.Command(quire, append([]string{"serve", "--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--shm-socket", filepath.Join(dir, "s"), "--memory", "128MiB", "--log-format", "json"}, args...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	errs, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.read(bufio.NewScanner(errs))
	t.Cleanup(func() {
		s.kill()
		os.RemoveAll(dir)
	})
	return s
}

func (s *server) wait(t *testing.T) {
	t.Helper()
	select {
	case s.address = <-s.serving:
	case <-time.After(patience):
		t.Fatalf("the server does not serve:\n%s", s.logged())
	}
	if s.address == "" {
		t.Fatalf("the server ended:\n%s", s.logged())
	}
}

func (s *server) read(lines *bufio.Scanner) {
	for lines.Scan() {
		s.mu.Lock()
		s.log.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		var l struct{ Msg, GRPC string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving" {
			s.serving <- l.GRPC
		}
	}
	close(s.serving)
}

func (s *server) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// smallSpec is a real model's identity with a small shape: 32 KiB a page.
func smallSpec(t testing.TB) *namespace.Spec { return shapedSpec(t, 4, 2) }

// largeSpec is the same with pages of 512 KiB: copies of them take a while.
func largeSpec(t testing.TB) *namespace.Spec { return shapedSpec(t, 8, 16) }

func shapedSpec(t testing.TB, heads uint16, layers int) *namespace.Spec {
	text, ok := namespace.ExampleSpec("smollm2-135m")
	if !ok {
		t.Fatal("example spec is gone")
	}
	s, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s.Groups[0].Heads = heads
	s.Groups[0].Layers = s.Groups[0].Layers[:layers]
	return s
}

// transports are the ways to one server; a test of a protocol takes each.
var transports = []client.Transport{client.GRPC, client.Data, client.SharedMemory}

// eachTransport runs f as a subtest over each.
func eachTransport(t *testing.T, f func(t *testing.T, over client.Transport)) {
	for _, over := range transports {
		t.Run(string(over), func(t *testing.T) { f(t, over) })
	}
}

// patience is for what must happen: longer than a busy machine takes, and never waited for once it has.
const patience = time.Minute

// dial takes the best transport that can be had.
func dial(t testing.TB, address string) *client.Client { return dialOver(t, address, client.Auto) }

func dialOver(t testing.TB, address string, over client.Transport) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Address: address, Transport: over, CallTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func open(t testing.TB, c *client.Client, s *namespace.Spec) *client.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	session, err := c.Open(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return session
}
