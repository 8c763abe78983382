//go:build !linux

package daemon

import (
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/tier"
)

// Store is nil: there is no daemon on this platform.
func (*Daemon) Store() *store.Store { return nil }

// Host is nil: there is no daemon on this platform.
func (*Daemon) Host() tier.Driver { return nil }
