package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// world is what a run may touch beside files and sockets: tests bring their own.
type world struct {
	in          io.Reader
	out, errOut io.Writer
	env         []string // as os.Environ gives it
	now         func() time.Time
}

// getenv is the value of the last variable called name.
func (w *world) getenv(name string) string {
	value := ""
	for _, pair := range w.env {
		if v, ok := strings.CutPrefix(pair, name+"="); ok {
			value = v
		}
	}
	return value
}

// app is one run of the command line.
type app struct {
	world
	started bool // a command began its work: errors before that are usage errors

	server, tokenFile string
	ca, cert, key     string
	insecure          bool
	timeout           time.Duration
	output            outputFormat
}

// run carries out one command line and answers the exit code. It never exits the process.
func run(ctx context.Context, args []string, w world) int {
	a := &app{world: w}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(w.in)
	root.SetOut(w.out)
	root.SetErr(w.errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	code := exitUsage
	if a.started {
		code = exitCode(err)
	}
	line := errorLine(err)
	if !a.started && !strings.HasSuffix(line, "?") {
		line += "; see '" + cmd.CommandPath() + " --help'"
	}
	if line != "" {
		fmt.Fprintln(w.errOut, "quire: "+line)
	}
	return code
}

// action makes a RunE of f that marks the end of usage errors.
func (a *app) action(f func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.started = true
		return f(cmd.Context(), args)
	}
}
