package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quire-kv/quire/internal/daemon"
)

// TestTopFindsAServerAgain: a server that stops is told of, and one that comes back at the same place is another.
func TestTopFindsAServerAgain(t *testing.T) {
	start := func(address string) *daemon.Daemon {
		c := daemon.Config{GRPCListen: address, AdminListen: "off", DataListen: "off", MemoryBytes: 64 << 20, DrainTimeout: 10 * time.Second}
		d, err := daemon.Start(t.Context(), c.Resolve(0), daemon.Deps{Version: "v0.0.0"})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	stop := func(d *daemon.Daemon) {
		if err := d.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	first := start("127.0.0.1:0")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	a := &app{server: first.GRPCAddress(), timeout: 10 * time.Second}
	news, ended := make(chan topNews), make(chan struct{})
	go func() {
		defer close(ended)
		a.watchTop(ctx, 10*time.Millisecond, news)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	m := newTopModel(a.server)
	until := func(what string, is func() bool) {
		for !is() {
			select {
			case n := <-news:
				m.learn(n, longAfter())
			case <-ctx.Done():
				t.Fatalf("%s: never", what)
			}
		}
	}
	until("two samples", func() bool { return len(m.trail) > 0 })
	boot := m.data.BootID
	stop(first)
	until("the loss", func() bool { return m.trouble != "" })
	if screen := screenText(m.view()); !strings.Contains(screen, "NO ANSWER") || !strings.Contains(screen, "trying again") {
		t.Errorf("the screen after the loss:\n%s", screen)
	}
	second := start(a.server)
	defer stop(second)
	until("the other server", func() bool { return m.trouble == "" && m.data.BootID != boot })
	if len(m.trail) > 0 {
		t.Error("curves join two servers")
	}
}

// TestTopOnADumbTerminal: nothing is drawn where no cursor moves.
func TestTopOnADumbTerminal(t *testing.T) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("there are no terminals: %v", err)
	}
	defer f.Close()
	for kind, want := range map[string]bool{"TERM=xterm": true, "TERM=dumb": false} {
		if a := (&app{world: world{in: f, out: f, env: []string{kind}}}); a.onTerminal() != want {
			t.Errorf("%s is a terminal to draw on: %v", kind, !want)
		}
	}
}

// TestTopOnce: off a terminal it prints what it saw, with rates, and ends.
func TestTopOnce(t *testing.T) {
	s := served(t, nil)
	s.run(t, "quire ns open example:smollm2-135m")
	s.run(t, "quire page put $1 @hello --fill --root")
	out, errOut, code := s.raw(t, "quire top --interval 100ms")
	for _, want := range []string{"quire top  127.0.0.1:", "host  [", "published 0 pages, 0 B/s", "1 pages", "namespaces\nNAMESPACE", "tenants\nTENANT"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in (exit %d, %s)\n%s", want, code, errOut, out)
		}
	}
	if strings.ContainsRune(out, '\x1b') {
		t.Errorf("colour off a terminal:\n%q", out)
	}
	out, _, _ = s.raw(t, "quire top --interval 100ms -o json")
	var v topView
	d := json.NewDecoder(bytes.NewReader([]byte(out)))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || v.Rates == nil || v.Counters.CommittedPages != 1 || len(v.Namespaces) != 1 || v.Namespaces[0].Pages != 1 {
		t.Errorf("%v\n%s", err, out)
	}
	for line, want := range map[string]int{"quire top --interval 1ms": exitUsage, "quire top --server 127.0.0.1:1": exitUnavailable} {
		if _, errOut, code := s.raw(t, line); code != want {
			t.Errorf("%s: exit %d, want %d: %s", line, code, want, errOut)
		}
	}
}
