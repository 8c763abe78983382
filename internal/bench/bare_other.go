//go:build !linux

package bench

import (
	"context"
	"errors"
)

// Bare says what a bare server gives out.
type Bare struct{ BlockBytes, ArenaBytes int }

var errBare = errors.New("the bare loop: Linux only")

type bareServer struct{ address string }

func serveBare(Bare) (*bareServer, error) { return nil, errBare }

func (*bareServer) stop() {}

type bareLoop struct{}

func dialBare(context.Context, *target, *Options, [][]byte) (*bareLoop, error) { return nil, errBare }

func (*bareLoop) call(context.Context, int) (int, error) { return 0, errBare }

func (*bareLoop) close() error { return nil }
