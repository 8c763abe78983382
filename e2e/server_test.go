package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"os/exec"
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
	address string

	mu  sync.Mutex // guards log
	log strings.Builder
}

// startServer waits until it serves; the test ends it.
func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	s := &server{}
	s.cmd = exec.Command(quire, append([]string{"serve", "--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--memory", "128MiB", "--log-format", "json"}, args...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	errs, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	serving := make(chan string, 1)
	go s.read(bufio.NewScanner(errs), serving)
	t.Cleanup(func() { s.kill() })
	select {
	case s.address = <-serving:
	case <-time.After(30 * time.Second):
		t.Fatalf("the server does not serve:\n%s", s.logged())
	}
	if s.address == "" {
		t.Fatalf("the server ended:\n%s", s.logged())
	}
	return s
}

func (s *server) read(lines *bufio.Scanner, serving chan<- string) {
	for lines.Scan() {
		s.mu.Lock()
		s.log.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		var l struct{ Msg, GRPC string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving" {
			serving <- l.GRPC
		}
	}
	close(serving)
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
func smallSpec(t testing.TB) *namespace.Spec {
	text, ok := namespace.ExampleSpec("smollm2-135m")
	if !ok {
		t.Fatal("example spec is gone")
	}
	s, err := namespace.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s.Groups[0].Heads = 4
	s.Groups[0].Layers = s.Groups[0].Layers[:2]
	return s
}

func dial(t testing.TB, address string) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func open(t testing.TB, c *client.Client, s *namespace.Spec) *client.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	session, err := c.Open(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	return session
}
