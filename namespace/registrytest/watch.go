package registrytest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/quire-kv/quire/namespace"
)

// watchesInOrder: what a watch adds up to is what a read answers, change by change, from any revision on.
func watchesInOrder(t *testing.T, b Backend) {
	const writers, each = 4, 25
	first := write(t, b, put("before", "1"))
	ctx, cancel := context.WithCancel(background())
	defer cancel()
	state := map[string]string{}
	last := first
	ended := make(chan error, 1)
	complete := make(chan struct{})
	go func() {
		ended <- b.Watch(ctx, first, func(records []namespace.Record) error {
			for _, r := range records {
				if r.Revision != last+1 {
					return fmt.Errorf("revision %d after %d", r.Revision, last)
				}
				if state[string(r.Key)] = string(r.Value); r.Value == nil {
					delete(state, string(r.Key))
				}
			}
			if last++; last == first+writers*each {
				close(complete)
			}
			return nil
		})
	}()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf("k%d", i%7)
				if i%5 == 4 {
					write(t, b, remove(key), put(fmt.Sprintf("w%d", w), fmt.Sprint(i)))
				} else {
					write(t, b, put(key, fmt.Sprint(w, i)))
				}
			}
		})
	}
	wg.Wait()
	select {
	case <-complete:
	case err := <-ended:
		t.Fatal(err)
	}
	cancel()
	wants(t, "watch", <-ended, context.Canceled)
	records, _, err := b.Read(background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	delete(state, "before")
	for _, r := range records {
		if string(r.Key) == "before" {
			continue
		}
		if state[string(r.Key)] != string(r.Value) {
			t.Errorf("%s is %q, the watch says %q", r.Key, r.Value, state[string(r.Key)])
		}
		delete(state, string(r.Key))
	}
	if len(state) > 0 {
		t.Errorf("the watch left %v", state)
	}
}

func watchEnds(t *testing.T, b Backend) {
	at := write(t, b, put("a", "1"))
	write(t, b, put("a", "2"))
	stop := errors.New("stop")
	calls := 0
	err := b.Watch(background(), at, func([]namespace.Record) error {
		calls++
		_, _, err := b.Read(background(), nil) // no lock is held
		return errors.Join(err, stop)
	})
	wants(t, "each's error", err, stop)
	equal(t, "calls after it", calls, 1)
	ctx, cancel := context.WithCancel(background())
	cancel()
	wants(t, "an ended context", b.Watch(ctx, at, func([]namespace.Record) error { return nil }), context.Canceled)
	ended := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		ended <- b.Watch(background(), at, func([]namespace.Record) error { close(started); return nil })
	}()
	<-started
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	wants(t, "a closed backend", <-ended, namespace.ErrClosed)
}

// watchForgetsLoudly: a watch from long ago gets everything since, or is told to read again; never a gap.
func watchForgetsLoudly(t *testing.T, b Backend) {
	const changes = 1500
	at := write(t, b, put("n", ""))
	for i := range changes {
		var err error
		if at, err = b.Write(background(), at, nil, []namespace.Record{put("n", fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	seen, done := 0, errors.New("done")
	err := b.Watch(background(), 1, func([]namespace.Record) error {
		if seen++; seen == changes {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) && !(errors.Is(err, namespace.ErrCompacted) && seen == 0) {
		t.Errorf("%d of %d changes, then %v", seen, changes, err)
	}
	_, err = b.Write(background(), 1, [][]byte{[]byte("other")}, nil)
	if err != nil && !errors.Is(err, namespace.ErrConflict) {
		t.Errorf("a check from long ago: %v", err)
	}
}

func closesForGood(t *testing.T, b Backend) {
	at := write(t, b, put("a", "1"))
	for range 2 {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	_, _, err := b.Read(background(), nil)
	wants(t, "read", err, namespace.ErrClosed)
	_, err = b.Write(background(), at, nil, []namespace.Record{put("a", "2")})
	wants(t, "write", err, namespace.ErrClosed)
	wants(t, "watch", b.Watch(background(), at, func([]namespace.Record) error { return nil }), namespace.ErrClosed)
}

func keepsWhatItAcknowledged(t *testing.T, b Backend) {
	if b.Reopen == nil {
		t.Skip("stores nothing")
	}
	write(t, b, put("a", "1"), put("b", "2"))
	at := write(t, b, put("a", "3"), remove("b"))
	before := contents(t, b, "")
	b = b.Reopen(t)
	equal(t, "after reopening", contents(t, b, ""), before)
	if next := write(t, b, put("c", "4")); next != at+1 {
		t.Errorf("revision %d after %d", next, at)
	}
	wants(t, "a watch from before", b.Watch(background(), 1, func([]namespace.Record) error { return nil }), namespace.ErrCompacted)
}
