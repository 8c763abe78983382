package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// PageEvent is one change that a watcher is told.
type PageEvent struct {
	Removed bool
	Key     page.Key
	View    page.View
	Tier    evict.Tier
	Reason  reason.Reason // of a removal; None is eviction
}

// maxWatchQueue bounds the events that wait for a slow watcher; what comes beyond is a gap.
const maxWatchQueue = 1 << 14

// An event of a copy on disk needs its header from there, and whoever made the event waits for it: watchWait at most, and not
// again for watchBlind after it was in vain. Meanwhile events are gaps.
const (
	watchWait  = time.Second
	watchBlind = 10 * time.Second
)

type watchTable struct {
	mu   sync.RWMutex // guards all below
	m    map[spaceKey][]*watcher
	done bool

	blind atomic.Int64 // clock.Instant until which no header is read from a tier that answered too late
}

type watcher struct {
	mu     sync.Mutex // guards events and gap
	events []PageEvent
	gap    bool
	more   chan struct{} // one slot
	done   chan struct{} // closed with the store
}

// Watch calls each with events of a namespace epoch in order, until ctx ends or each fails. The first call has none: it
// says that what changes from now on is told. gap tells that events were dropped because each was slow: the queue of
// a watcher is bounded.
func (s *Store) Watch(ctx context.Context, id page.NamespaceID, e page.Epoch, each func(events []PageEvent, gap bool) error) error {
	w := &watcher{more: make(chan struct{}, 1), done: make(chan struct{})}
	k := spaceKey{id, e}
	if !s.watch.add(k, w) {
		return ErrClosed
	}
	defer s.watch.remove(k, w)
	if err := each(nil, false); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.done:
			return ErrClosed
		case <-w.more:
			events, gap := w.take()
			if err := each(events, gap); err != nil {
				return err
			}
		}
	}
}

func (t *watchTable) add(k spaceKey, w *watcher) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done {
		return false
	}
	if t.m == nil {
		t.m = map[spaceKey][]*watcher{}
	}
	t.m[k] = append(t.m[k], w)
	return true
}

func (t *watchTable) remove(k spaceKey, w *watcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := make([]*watcher, 0, len(t.m[k]))
	for _, x := range t.m[k] {
		if x != w {
			kept = append(kept, x)
		}
	}
	if t.m[k] = kept; len(kept) == 0 {
		delete(t.m, k)
	}
}

func (t *watchTable) of(k spaceKey) []*watcher {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[k]
}

func (t *watchTable) closeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done = true
	for _, ws := range t.m {
		for _, w := range ws {
			close(w.done)
		}
	}
}

func (w *watcher) put(e PageEvent) {
	w.mu.Lock()
	if len(w.events) < maxWatchQueue {
		w.events = append(w.events, e)
	} else {
		w.gap = true
	}
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// lose makes the watcher look again at what it knows.
func (w *watcher) lose() {
	w.mu.Lock()
	w.gap = true
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) take() ([]PageEvent, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	events, gap := w.events, w.gap
	w.events, w.gap = nil, false
	return events, gap
}

// announce passes a change on. The place of a removal still holds its header: Announce comes before Free.
// What is removed from disk is buried before its readers are done, so that it does not come back with a restart.
func (s *Store) announce(e core.Announce) {
	if e.Removed && e.Place.Tier == evict.Disk {
		if r, ok := s.region(e.Place); ok {
			s.disk.d.Bury(r)
		}
	}
	ws := s.watch.of(spaceKey{e.Family.Namespace, e.Family.Epoch})
	if len(ws) == 0 {
		return
	}
	r, ok := s.region(e.Place)
	if !ok {
		return
	}
	h, ok := s.announced(e, r)
	if !ok {
		for _, w := range ws {
			w.lose()
		}
		return
	}
	ev := PageEvent{Removed: e.Removed, Key: h.Key, View: e.View, Tier: e.Place.Tier, Reason: e.Why}
	for _, w := range ws {
		w.put(ev)
	}
}

// announced is the header of what an event is about.
func (s *Store) announced(e core.Announce, r tier.Region) (h page.Header, ok bool) {
	if r.Memory != nil {
		h, _, err := decodeRegion(r.Memory)
		return h, err == nil
	}
	if e.Why == reason.Corrupt { // it may not be readable, and who tells us may be the reader
		return h, false
	}
	if s.clock.Now() < clock.Instant(s.watch.blind.Load()) {
		return h, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), watchWait)
	defer cancel()
	h, _, _, why := s.peek(ctx, r, e.Place.Tier)
	if ctx.Err() != nil {
		s.watch.blind.Store(int64(s.clock.Now().Add(watchBlind)))
	}
	return h, why == reason.None
}
