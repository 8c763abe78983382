package memfs

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Gate is a file system that can be stopped: an operation that it holds fails not, and does not return before Resume.
type Gate struct {
	vfs.FS

	mu    sync.Mutex // guards what follows
	holds func(errorfs.Op) bool
	open  chan struct{} // closed by Resume; nil: it is not stopped
	held  int           // operations that wait
}

// NewGate returns one over fs that is not stopped.
func NewGate(fs vfs.FS) *Gate {
	g := &Gate{}
	g.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(g.pass))
	return g
}

// Reads is for Stop: what reads a file that is open.
func Reads(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpFileReadAt
}

// Changes is for Stop: what makes, writes, syncs and removes files.
func Changes(op errorfs.Op) bool {
	return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose
}

// Stop holds from now on the operations that holds names; it is called by many goroutines.
func (g *Gate) Stop(holds func(errorfs.Op) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holds = holds; g.open == nil {
		g.open = make(chan struct{})
	}
}

// Resume lets all through, also those that wait. Idempotent.
func (g *Gate) Resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.let()
	g.open = nil
}

// Step lets through what waits, and holds what comes.
func (g *Gate) Step() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.let() {
		g.open = make(chan struct{})
	}
}

func (g *Gate) let() (stopped bool) {
	if g.open == nil {
		return false
	}
	close(g.open)
	g.held = 0
	return true
}

// Held is how many operations wait.
func (g *Gate) Held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held
}

func (g *Gate) pass(op errorfs.Op) error {
	g.mu.Lock()
	open := g.open
	if open == nil || !g.holds(op) {
		g.mu.Unlock()
		return nil
	}
	g.held++
	g.mu.Unlock()
	<-open
	return nil
}
