//go:build !linux

package daemon

import "context"

// Daemon is a running server; there is none on this platform.
type Daemon struct{}

// Start answers ErrPlatform.
func Start(context.Context, Config, Deps) (*Daemon, error) { return nil, ErrPlatform }

// Wait answers at once.
func (*Daemon) Wait() error { return nil }

// Stop does nothing.
func (*Daemon) Stop(context.Context) error { return nil }

// GRPCAddress is empty.
func (*Daemon) GRPCAddress() string { return "" }

// AdminAddress is empty.
func (*Daemon) AdminAddress() string { return "" }
