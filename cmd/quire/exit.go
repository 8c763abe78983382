package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/quire-kv/quire/namespace"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/rpc"
)

// Exit codes, the contract with scripts.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitMismatch    = 4 // a difference was found, or a precondition does not hold
	exitUnavailable = 5 // the server did not answer, or has no room now: the same command may work later
)

// exitError ends a command with a code of its own. An empty text prints nothing: the output said it all.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Sprintf(format, args...)}
}

func notFoundf(format string, args ...any) error {
	return &exitError{exitNotFound, fmt.Sprintf(format, args...)}
}

// exitCode is the code of an error of a command that had begun its work.
func exitCode(err error) int {
	var own *exitError
	if errors.As(err, &own) {
		return own.code
	}
	var refused *rpc.Error
	if errors.As(err, &refused) {
		return refusedCode(refused)
	}
	var refusal *namespace.Refusal
	switch {
	case errors.As(err, &refusal):
		return reasonCode(refusal.Reason)
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable
	case errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	}
	return exitFailure
}

func refusedCode(e *rpc.Error) int {
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded:
		return exitUnavailable
	case codes.Unauthenticated:
		return exitFailure
	}
	return reasonCode(e.Reason)
}

// reasonCode sorts reasons by what a script would do next.
func reasonCode(r reason.Reason) int {
	switch r {
	case reason.Absent, reason.Incomplete, reason.Expired, reason.NotFound:
		return exitNotFound
	case reason.Busy, reason.Unknown, reason.Held, reason.QuotaExceeded:
		return exitUnavailable
	case reason.InvalidSpec, reason.InvalidView, reason.SizeMismatch, reason.BufferSize, reason.LimitExceeded:
		return exitUsage
	case reason.Unauthorized, reason.Corrupt, reason.Truncated, reason.Aborted, reason.Unsupported:
		return exitFailure
	}
	return exitMismatch
}

// errorLine is one line for people: what happened and, where it is known, what to do.
func errorLine(err error) string {
	var refused *rpc.Error
	if errors.As(err, &refused) {
		return refusedLine(refused)
	}
	var refusal *namespace.Refusal
	if errors.As(err, &refusal) {
		return refusedLine(&rpc.Error{Reason: refusal.Reason, Text: refusal.Text, Path: refusal.Path, Differences: refusal.Diff})
	}
	return strings.TrimSpace(err.Error())
}

func refusedLine(e *rpc.Error) string {
	var b strings.Builder
	b.WriteString(e.Reason.String())
	if e.Path != "" {
		b.WriteString(" at " + e.Path)
	}
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	for i, d := range e.Differences {
		if i == maxShownDifferences {
			fmt.Fprintf(&b, "; and %d more", len(e.Differences)-i)
			break
		}
		fmt.Fprintf(&b, "; %s: %s here, %s there", d.Path, orNone(d.A), orNone(d.B))
	}
	if e.Reason == reason.Unauthorized {
		b.WriteString("; give a token that may do this by --token-file or QUIRE_TOKEN_FILE")
	}
	return b.String()
}

// maxShownDifferences keeps an error in one readable line.
const maxShownDifferences = 4

func orNone(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
