// Package pebblefuse keeps a process alive over a Pebble store whose disk fails. Pebble answers such a disk by ending the
// process, by panics, or by trying for ever. A fuse blows at the first error instead: from then on no change reaches the
// disk, and whoever waits for Pebble is answered.
package pebblefuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// Fuse belongs to one store, from before it is opened. Once blown it stays so: what Pebble left behind, goroutines, memory,
// open files, ends with the process.
type Fuse struct {
	broken error
	log    *slog.Logger

	once  sync.Once
	blown chan struct{}
	err   error // why, set before blown is closed

	failed atomic.Pointer[error]
}

// New makes a fuse whose error wraps broken. Pebble's own words go to log at debug; nil drops them.
func New(broken error, log *slog.Logger) *Fuse {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Fuse{broken: broken, log: log, blown: make(chan struct{})}
}

// Guard puts the fuse between o and what can fail: o.FS must be set.
func (f *Fuse) Guard(o *pebble.Options) {
	o.FS = guardedFS{o.FS, f}
	o.Logger = logger{f}
	o.EventListener = &pebble.EventListener{
		BackgroundError: f.park,
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			f.log.Debug("pebble found corrupt data", "path", i.Path, "error", i.Details)
		},
	}
}

// Blow ends all changes; the first reason counts.
func (f *Fuse) Blow(err error) {
	f.once.Do(func() {
		f.err = fmt.Errorf("%w: %w", f.broken, err)
		close(f.blown)
	})
}

// Blown is closed when the fuse has blown.
func (f *Fuse) Blown() <-chan struct{} { return f.blown }

// Err is nil, or why the fuse blew.
func (f *Fuse) Err() error {
	select {
	case <-f.blown:
		return f.err
	default:
		return nil
	}
}

// Failure is the first error of the file system, read or written, or nil: then what Pebble complains of is what it read.
func (f *Fuse) Failure() error {
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Run calls Pebble on a goroutine that Pebble may keep, and answers when it returns or the fuse blows. Then call may still
// be under way: what it uses is lost to the caller.
func (f *Fuse) Run(call func() error) error {
	if err := f.Err(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		var err error
		defer func() { done <- err }()
		defer catch(&err)
		err = call()
	}()
	select {
	case err := <-done:
		return err
	case <-f.blown:
		return f.err
	}
}

// park keeps a goroutine for ever: Pebble would go on with what cannot be, and ending it would run deferred unlocks of
// locks that it does not hold at the moment.
func (f *Fuse) park(why error) {
	f.Blow(why)
	select {}
}

// catch turns the error that Pebble panics with where its disk fails into err.
func catch(err *error) {
	switch x := recover().(type) {
	case nil:
	case runtime.Error:
		panic(x)
	case error:
		*err = x
	default:
		panic(x)
	}
}

// logger takes Pebble's words and its wish to end the process.
type logger struct{ fuse *Fuse }

func (l logger) Infof(format string, args ...any) { l.debug(format, args...) }

func (l logger) Errorf(format string, args ...any) { l.debug(format, args...) }

func (l logger) debug(format string, args ...any) {
	if l.fuse.log.Enabled(context.Background(), slog.LevelDebug) {
		l.fuse.log.Debug("pebble", "text", fmt.Sprintf(format, args...))
	}
}

// Fatalf blows the fuse and parks this goroutine instead of ending the process. An error among args stays to be found.
func (l logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok && !errors.Is(err, cause) {
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	l.fuse.park(err)
}
