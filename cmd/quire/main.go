// Command quire is the one binary of Quire: the server, and the tools of those who run it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	// The first signal asks to stop, the second ends the process as the system would.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], world{in: os.Stdin, out: os.Stdout, errOut: os.Stderr, env: os.Environ(), now: time.Now}))
}
