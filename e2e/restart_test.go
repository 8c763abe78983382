package e2e

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/storetest"
)

func TestCase_C24_KilledAndStartedAgain(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, "--data", dir)
	c := dial(t, s.address)
	session := open(t, c, smallSpec(t))
	hashes := storetest.Chain("restart", 8)
	if _, err := publish(t.Context(), session, hashes); err != nil {
		t.Fatal(err)
	}
	id, epoch := session.ID(), session.Epoch()
	s.kill()
	s = startServer(t, "--data", dir)
	c = dial(t, s.address)
	session = open(t, c, smallSpec(t))
	if session.ID() != id || session.Epoch() != epoch {
		t.Errorf("the namespace is %v epoch %d, was %v epoch %d", session.ID(), session.Epoch(), id, epoch)
	}
	p, err := session.Exists(t.Context(), run(session, hashes), 0)
	if err != nil || p.Leading != 0 {
		t.Errorf("memory pages of a killed node are listed: %d, %v", p.Leading, err)
	}
	if _, err := publish(t.Context(), session, hashes); err != nil {
		t.Fatal(err)
	}
	if _, n, err := fetch(t.Context(), session, hashes); err != nil || n != 8 {
		t.Errorf("%d pages, %v", n, err)
	}
}

func TestCase_C67_RetiredThenOpenedAgain(t *testing.T) {
	for _, restart := range []bool{false, true} {
		dir := t.TempDir()
		s := startServer(t, "--data", dir)
		c := dial(t, s.address)
		session := open(t, c, smallSpec(t))
		hashes := storetest.Chain("retired", 4)
		if _, err := publish(t.Context(), session, hashes); err != nil {
			t.Fatal(err)
		}
		id := session.ID()
		if _, err := c.Namespaces().Drain(t.Context(), &quirev1.DrainRequest{Id: id[:]}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Namespaces().Retire(t.Context(), &quirev1.RetireRequest{Id: id[:]}); err != nil {
			t.Fatal(err)
		}
		rs, n, _ := fetch(t.Context(), session, hashes)
		if n != 0 {
			t.Fatalf("a retired page was served: %+v", rs)
		}
		if restart {
			s.kill()
			s = startServer(t, "--data", dir)
			c = dial(t, s.address)
		}
		again := open(t, c, smallSpec(t))
		if again.ID() != id || again.Epoch() <= session.Epoch() {
			t.Errorf("reopened as %v epoch %d, was %v epoch %d", again.ID(), again.Epoch(), id, session.Epoch())
		}
		if _, n, err := fetch(t.Context(), again, hashes); err != nil || n != 0 {
			t.Errorf("%d old pages are hits, %v", n, err)
		}
		if _, err := publish(t.Context(), again, hashes); err != nil {
			t.Fatal(err)
		}
		if _, n, err := fetch(t.Context(), again, hashes); err != nil || n != 4 {
			t.Errorf("%d fresh pages, %v", n, err)
		}
		s.kill()
	}
}

func TestTwoServersOnOneDirectory(t *testing.T) {
	dir := t.TempDir()
	first := startServer(t, diskArgs(dir)...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, quire, append([]string{"serve", "--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, diskArgs(dir)...)...)
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(text, dir) || !strings.Contains(text, "in use") || strings.Contains(text, "\n") {
		t.Errorf("exit %d, %v:\n%s", cmd.ProcessState.ExitCode(), err, out)
	}
	if err := publishDurably(t.Context(), open(t, dial(t, first.address), smallSpec(t)), storetest.Chain("still", 8)); err != nil {
		t.Errorf("the first server: %v", err)
	}
}

func TestGracefulStop(t *testing.T) {
	s := startServer(t)
	c := dial(t, s.address)
	session := open(t, c, smallSpec(t))
	if _, err := publish(t.Context(), session, storetest.Chain("stop", 8)); err != nil {
		t.Fatal(err)
	}
	session.Close()
	c.Close()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, s.logged())
	}
}

func TestServerGone(t *testing.T) {
	s := startServer(t)
	c := dial(t, s.address)
	session := open(t, c, smallSpec(t))
	hashes := storetest.Chain("gone", 4)
	if _, err := publish(t.Context(), session, hashes); err != nil {
		t.Fatal(err)
	}
	s.kill()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	start := time.Now()
	rs, n, err := fetch(ctx, session, hashes)
	if err == nil || n != 0 || time.Since(start) > patience/3 { // what does not know the deadline takes all of patience
		t.Errorf("%d pages, %v, after %v", n, err, time.Since(start))
	}
	for i, r := range rs {
		if r.Outcome != client.Miss || r.Reason != reason.Unknown {
			t.Errorf("page %d: %v %v, want an unknown", i, r.Outcome, r.Reason)
		}
	}
}
