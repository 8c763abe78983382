package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/storetest"
)

// A server that is stopped, and neither answers nor closes: each call ends by its deadline over each transport, and
// once the server goes on, so does the client.
func TestCase_C43_ServerStopped(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		s := startServer(t)
		session := open(t, dialOver(t, s.address, over), largeSpec(t))
		// What was sent to a stopped server may still be done later, when nobody waits for it: pages of their own.
		there, fresh, doomed := storetest.Chain("there", chainPages), storetest.Chain("fresh", chainPages), storetest.Chain("doomed", chainPages)
		if _, err := publish(t.Context(), session, there); err != nil {
			t.Fatal(err)
		}
		if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		waitStopped(t, s.cmd.Process.Pid)
		const deadline, most = 300 * time.Millisecond, patience / 3 // what does not know the deadline takes all of patience
		for name, call := range map[string]func(context.Context) error{
			"exists": func(ctx context.Context) error {
				_, err := session.Exists(ctx, run(session, there), time.Second)
				return err
			},
			"fetch":   func(ctx context.Context) error { _, _, err := fetch(ctx, session, there); return err },
			"publish": func(ctx context.Context) error { _, err := publish(ctx, session, fresh); return err },
			"delete":  func(ctx context.Context) error { _, err := session.Delete(ctx, run(session, doomed)); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			begun := time.Now()
			err := call(ctx)
			cancel()
			if took := time.Since(begun); err == nil || took > most {
				t.Errorf("%s ended after %v with %v; the deadline was %v", name, took, err, deadline)
			}
		}
		if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if _, n, err := fetch(t.Context(), session, there); err != nil || n != chainPages {
			t.Errorf("after it went on: %d pages, %v", n, err)
		}
		later := storetest.Chain("later", chainPages)
		if _, err := publish(t.Context(), session, later); err != nil {
			t.Error(err)
		}
		if _, n, err := fetch(t.Context(), session, later); err != nil || n != chainPages {
			t.Errorf("published after it went on: %d pages, %v", n, err)
		}
	})
}

// waitStopped returns when every thread of a process has stopped: the signal does not wait for that.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		running := len(stats) == 0
		for _, name := range stats {
			b, err := os.ReadFile(name)
			running = running || err == nil && !bytes.Contains(b, []byte(") T "))
		}
		if err == nil && !running {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d did not stop: %v", pid, err)
		}
	}
}
