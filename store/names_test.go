package store_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/storetest"
)

// TestProvenanceIsAcceptedOnceNumbered: whoever learns a provenance's number, first or not, finds it accepted where it
// is. Several streams of one new client ask at once.
func TestProvenanceIsAcceptedOnceNumbered(t *testing.T) {
	f := storetest.New(t, storetest.Options{})
	hashes := storetest.Chain("x", 1)
	for i := range 300 {
		canonical := []byte(fmt.Sprint("engine=", i))
		start, wg := make(chan struct{}), sync.WaitGroup{}
		for range 8 {
			wg.Go(func() {
				<-start
				c := store.Caller{Principal: f.Caller.Principal, Provenance: f.Store.Provenance(canonical)}
				why := f.Store.Exists(c, []core.Run{f.Run(hashes)}, whole, make([]byte, 1), make([]uint32, 1))
				if why != reason.None {
					t.Errorf("provenance %d: %v", i, why)
				}
			})
		}
		close(start)
		wg.Wait()
	}
}
