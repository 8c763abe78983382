// Package record writes what is asked of a node into a file from which the traffic can be replayed, and from which
// nobody can tell what was asked: the names of pages are hashed with a key of the recording that is never stored.
// docs/formats/trace.md has the format.
//
//	calls ──Record──> queue (bounded, full: dropped and counted) ──one goroutine──> open requests ──> lines ──> file
package record

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/server"
)

// Options of a Recorder. Zero values are documented defaults.
type Options struct {
	Clock clock.Clock // default clock.System
	// Out takes the lines, whole ones at each call; one goroutine writes. The recorder closes it.
	Out io.WriteCloser // required
	// LimitBytes bounds what is written; default 1 GiB. The recording ends with the line that would pass it.
	LimitBytes int64
	// QueueBytes bounds what waits to be written; default 16 MiB: the keys of some hundred calls of the largest kind, and
	// of ten thousand common ones.
	QueueBytes int64
	// Window is how long after its first call a request takes in others; default 30 s: longer than an engine takes from
	// its lookup to the publication of the prompt.
	Window time.Duration
	// Ended is called once, from the writing goroutine, when the recording ends before Close: with ErrLimit, or what the
	// file said. Default: nobody is told.
	Ended func(why error)
}

// Bounds of what is kept.
const (
	defaultLimitBytes = 1 << 30
	defaultQueueBytes = 16 << 20
	defaultWindow     = 30 * time.Second
	maxQueued         = 16 << 10 // calls
	flushBytes        = 64 << 10
)

// ErrLimit ends a recording that is as long as it may be.
var ErrLimit = errors.New("the recording has reached its limit")

// Stats are counts since the start.
type Stats struct {
	Requests uint64 // written
	Bytes    uint64 // written, as given to Out
	Dropped  uint64 // calls that are not in the recording, since the queue was full or one request had too many pages
	Running  bool   // it has not ended
}

// Recorder is a server.Recorder. Safe for concurrent use.
type Recorder struct {
	o       Options
	start   clock.Instant
	queue   chan *call
	queued  atomic.Int64  // bytes
	calls   sync.Pool     // of *call
	wake    chan struct{} // holds one: look at the clock
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the goroutine has ended
	close   sync.Once

	ended                    atomic.Bool
	result                   error // of an end by Close, set before done is closed
	requests, bytes, dropped atomic.Uint64

	// Of the goroutine alone.
	open    *assembly
	buffer  []byte
	written int64 // and buffered
}

// call is an Access that waits, with bytes of its own.
type call struct {
	server.Access
	at     int64 // milliseconds since the start
	hashes []byte
}

// New starts a recording. The caller ends it by Close.
func New(o Options) (*Recorder, error) {
	if o.Out == nil || o.LimitBytes < 0 || o.QueueBytes < 0 || o.Window < 0 {
		return nil, errors.New("record: Out is required, and no bound may be negative")
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.LimitBytes == 0 {
		o.LimitBytes = defaultLimitBytes
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = defaultQueueBytes
	}
	if o.Window == 0 {
		o.Window = defaultWindow
	}
	if o.Ended == nil {
		o.Ended = func(error) {}
	}
	r := &Recorder{
		o: o, start: o.Clock.Now(), queue: make(chan *call, maxQueued), wake: make(chan struct{}, 1),
		closing: make(chan struct{}), done: make(chan struct{}),
	}
	r.calls.New = func() any { return new(call) }
	var key [32]byte
	rand.Read(key[:]) // never fails
	r.open = newAssembly(key, o.Window.Milliseconds())
	go r.run()
	return r, nil
}

// Record puts a call into the queue, or counts it as dropped.
func (r *Recorder) Record(a *server.Access) {
	if r.ended.Load() || len(a.Hashes) == 0 {
		return
	}
	n := int64(len(a.Hashes)) + callBytes
	if r.queued.Add(n) > r.o.QueueBytes {
		r.queued.Add(-n)
		r.dropped.Add(1)
		return
	}
	c := r.calls.Get().(*call)
	c.Access, c.at = *a, r.now()
	c.hashes = append(c.hashes[:0], a.Hashes...)
	c.Hashes = nil
	select {
	case r.queue <- c:
	default:
		r.queued.Add(-n)
		r.dropped.Add(1)
		r.calls.Put(c)
	}
}

// callBytes is what a call takes beside its hashes.
const callBytes = 512

func (r *Recorder) now() int64 { return r.o.Clock.Now().Sub(r.start).Milliseconds() }

// Stats counts now.
func (r *Recorder) Stats() Stats {
	return Stats{Requests: r.requests.Load(), Bytes: r.bytes.Load(), Dropped: r.dropped.Load(), Running: !r.ended.Load()}
}

// Close writes what waits, and closes the file. When ctx ends first, it answers that; the goroutine ends when the file
// has answered it. Idempotent: later calls wait too.
func (r *Recorder) Close(ctx context.Context) error {
	r.close.Do(func() {
		r.ended.Store(true)
		close(r.closing)
	})
	select {
	case <-r.done:
		return r.result
	case <-ctx.Done():
		return fmt.Errorf("record: the file does not take what was recorded: %w", ctx.Err())
	}
}

// run is the goroutine.
func (r *Recorder) run() {
	defer close(r.done)
	err := r.write()
	early := !r.ended.Swap(true)
	if closeErr := r.o.Out.Close(); err == nil {
		err = closeErr
	}
	if early {
		r.o.Ended(err)
	} else {
		r.result = err
	}
	r.drain()
}

// write answers why the recording ended: nil by Close.
func (r *Recorder) write() error {
	stop := r.wakeLater()
	defer func() { stop() }()
	for {
		select {
		case c := <-r.queue:
			if err := r.take(c); err != nil {
				return err
			}
		case <-r.wake:
			stop = r.wakeLater()
			if err := errors.Join(r.lines(r.open.until(r.now())), r.flush()); err != nil {
				return err
			}
		case <-r.closing:
			return r.finish()
		}
	}
}

// wakeLater has requests written that nobody adds to.
func (r *Recorder) wakeLater() (stop func() bool) {
	return r.o.Clock.AfterFunc(r.o.Window, func() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	})
}

func (r *Recorder) take(c *call) error {
	r.queued.Add(-int64(len(c.hashes)) - callBytes)
	if !r.open.take(c) {
		r.dropped.Add(1)
	}
	r.calls.Put(c)
	return r.lines(r.open.due)
}

// finish takes in what waits and writes all.
func (r *Recorder) finish() error {
	for {
		select {
		case c := <-r.queue:
			if err := r.take(c); err != nil {
				return err
			}
			continue
		default:
		}
		return errors.Join(r.lines(r.open.all()), r.flush())
	}
}

// drain lets go of calls that came while the recording ended.
func (r *Recorder) drain() {
	for {
		select {
		case <-r.queue:
		default:
			return
		}
	}
}

// lines writes requests. The slice is the assembly's, and empty afterwards.
func (r *Recorder) lines(due []*request) error {
	for _, q := range due {
		before := len(r.buffer)
		r.buffer = q.append(r.buffer)
		n := int64(len(r.buffer) - before)
		if r.written+n > r.o.LimitBytes {
			r.buffer = r.buffer[:before]
			return errors.Join(r.flush(), ErrLimit)
		}
		r.written += n
		r.requests.Add(1)
		if len(r.buffer) >= flushBytes {
			if err := r.flush(); err != nil {
				return err
			}
		}
	}
	r.open.due = r.open.due[:0]
	return nil
}

func (r *Recorder) flush() error {
	if len(r.buffer) == 0 {
		return nil
	}
	n, err := r.o.Out.Write(r.buffer)
	r.bytes.Add(uint64(n))
	r.buffer = r.buffer[:0]
	if err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	return nil
}

var _ server.Recorder = (*Recorder)(nil)

// link says what a publication knows of its first page.
func (c *call) root() bool { return c.Kind == server.AccessPublish && c.Link == core.LinkRoot }

func (c *call) parent() (page.Hash, bool) {
	return c.Parent, c.Kind == server.AccessPublish && c.Link == core.LinkHash
}
