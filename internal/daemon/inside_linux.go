package daemon

import (
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/tier"
)

// Store is the node's store, for what shares the process with it: the demo damages a page, tests count. It stays the
// daemon's.
func (d *Daemon) Store() *store.Store { return d.store }

// Host is the store's host tier, as Store.
func (d *Daemon) Host() tier.Driver { return d.host }
