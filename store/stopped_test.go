package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/internal/memfs"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/storetest"
)

// stopped is a store whose disk answers nothing of what a gate holds: with one chain that is on disk only, and one in memory.
type stopped struct {
	*storetest.Fixture
	t          *testing.T
	gate       *memfs.Gate
	now        *clock.Manual // of the disk, which is patient
	cold, warm []byte
	fresh      int // chains that were made
}

const (
	coldPages = 24
	ownTime   = 300 * time.Millisecond // what a call is given
	mostTime  = 10 * time.Second       // what no call takes that has so little, or waits for nothing, however slow the machine
)

func newStopped(t *testing.T, holds func(errorfs.Op) bool) *stopped {
	t.Helper()
	s := &stopped{t: t, gate: memfs.NewGate(memfs.New()), now: clock.NewManual(time.Unix(1e9, 0)), cold: storetest.Chain("cold", coldPages), warm: storetest.Chain("warm", 8)}
	o := onDisk()
	o.NewPolicy = newLRU
	o.Disk.FS, o.Disk.Clock = s.gate, s.now
	s.Fixture = storetest.New(t, o)
	t.Cleanup(s.gate.Resume) // before the store is stopped
	mustPublishDurable(t, s.Fixture, s.cold)
	for range 40 { // more than memory holds
		mustPublish(t, s.Fixture, s.chain(8), whole)
		settle(t, s.Fixture)
	}
	for i := range coldPages {
		if in := s.tiers(s.cold[32*i:][:32]); len(in) != 1 || in[0] != evict.Disk {
			t.Fatalf("page %d is in %v", i, in)
		}
	}
	mustPublish(t, s.Fixture, s.warm, whole)
	settle(t, s.Fixture)
	s.gate.Stop(holds)
	return s
}

// chain is one that nobody has seen yet.
func (s *stopped) chain(pages int) []byte {
	s.fresh++
	return storetest.Chain(fmt.Sprint("fresh ", s.fresh), pages)
}

func (s *stopped) tiers(hash []byte) (in []evict.Tier) {
	for _, p := range s.Store.Explain(s.t.Context(), &page.Key{Family: s.Family(), Hash: mustHash(s.t, hash)}).Parts {
		in = append(in, p.Place.Tier)
	}
	return in
}

func (s *stopped) runs(chain []byte) []core.Run { return []core.Run{s.Run(chain)} }

// hold waits until the gate holds something.
func (s *stopped) hold() {
	s.t.Helper()
	await(s.t, "the disk is stopped", func() bool { return s.gate.Held() > 0 })
}

// await looks until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// within runs a call that is given so much time, and ends the test's patience with it when it does not return.
func within(t *testing.T, d time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if d > 0 {
		ctx, cancel = context.WithTimeout(ctx, d)
	}
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(mostTime + d):
		return errors.New("it does not return")
	}
}

// refusal is the first page that was not served, or why none was.
func refusal(rs []store.PageResult, why reason.Reason, err error) error {
	switch {
	case err != nil:
		return err
	case why != reason.None:
		return why
	}
	for _, r := range rs {
		if r.Outcome == core.Refused || r.Outcome == core.Miss {
			return r.Reason
		}
	}
	return nil
}

// need is what of a disk a call needs for its work.
type need uint8

const (
	changes need = 1 << iota
	reads
)

type stoppedCall struct {
	name  string
	needs need
	asks  need // and does without where that is not answered in time
	do    func(ctx context.Context) error
}

// calls is every call on the store, each on pages of its own where it changes some.
func (s *stopped) calls() []stoppedCall {
	st, c, ns := s.Store, s.Caller, s.Namespace.State
	publish := func(ctx context.Context, chain []byte) error {
		rs, err := s.Publish(ctx, c, chain, whole, 0)
		return refusal(rs, reason.None, err)
	}
	durable := func(ctx context.Context, chain []byte) error {
		rs, err := s.PublishDurable(ctx, c, chain, whole, 0)
		return refusal(rs, reason.None, err)
	}
	fetch := func(ctx context.Context, chain []byte) error {
		rs, _, err := s.Fetch(ctx, c, chain, whole, core.LeaseID{})
		return refusal(rs, reason.None, err)
	}
	memory, there, doomed := s.chain(4), s.chain(4), s.chain(4)
	return []stoppedCall{
		{"publish", 0, 0, func(ctx context.Context) error { return publish(ctx, memory) }},
		{"publish what is made durable next", 0, 0, func(ctx context.Context) error { return publish(ctx, there) }},
		{"publish what is deleted next", 0, 0, func(ctx context.Context) error { return publish(ctx, doomed) }},
		{"exists", 0, 0, func(context.Context) error {
			for _, chain := range [][]byte{s.cold, s.warm, memory} {
				if _, lead := exists(s.t, s.Fixture, chain, whole); lead != len(chain)/32 {
					return fmt.Errorf("%d of %d pages", lead, len(chain)/32)
				}
			}
			return nil
		}},
		{"lookup, renew, release", 0, 0, func(ctx context.Context) error {
			l, why, err := st.Lookup(ctx, c, []core.Run{s.Run(s.warm), s.Run(s.cold)}, whole, time.Second, evict.Hint{})
			if err := refusal(nil, why, err); err != nil {
				return err
			}
			_, why, err = st.Renew(ctx, c, ns.ID, ns.Epoch, l.Lease, core.Token{}, time.Second)
			st.Release(c, ns.ID, ns.Epoch, l.Lease, nil)
			return refusal(nil, why, err)
		}},
		{"touch", 0, 0, func(ctx context.Context) error {
			r, why, err := st.Touch(ctx, c, s.runs(s.cold), evict.Hint{}, false)
			return refusal(r.Pages, why, err)
		}},
		{"pin", 0, 0, func(ctx context.Context) error { return refusal(st.Pin(ctx, c, s.runs(s.warm), false)) }},
		{"unpin", 0, 0, func(ctx context.Context) error { return refusal(st.Pin(ctx, c, s.runs(s.warm), true)) }},
		{"fetch from memory", 0, 0, func(ctx context.Context) error { return fetch(ctx, s.warm) }},
		{"verify in memory", 0, 0, func(ctx context.Context) error { return refusal(st.Verify(ctx, c, s.Run(memory), nil)) }},
		{"publish what is on disk", 0, reads, func(ctx context.Context) error { return publish(ctx, s.cold) }},
		{"fetch from disk", reads, 0, func(ctx context.Context) error { return fetch(ctx, s.cold[:32*(coldPages-1)]) }},
		{"verify on disk", reads, 0, func(ctx context.Context) error { return refusal(st.Verify(ctx, c, s.Run(s.cold), nil)) }},
		{"commit again what is on disk", reads, 0, func(ctx context.Context) error {
			var again []store.CommitPage
			for i := range coldPages {
				hash, full := s.cold[32*i:][:32], s.Geometry.Full()
				again = append(again, store.CommitPage{Page: uint32(i), Headers: [][]byte{s.Header(hash, full, s.Payload(hash, full, 0))}})
			}
			r, why, err := st.Commit(ctx, c, ns.ID, ns.Epoch, core.Token{}, again)
			err = refusal(r.Pages, why, err)
			if errors.Is(err, reason.LostRace) { // the headers are other writers': they were compared
				return nil
			}
			return err
		}},
		{"explain", 0, reads, func(ctx context.Context) error {
			for _, hash := range [][]byte{s.cold[:32], s.warm[:32]} {
				if x := st.Explain(ctx, &page.Key{Family: s.Family(), Hash: mustHash(s.t, hash)}); len(x.Parts) == 0 {
					return errors.New("nothing is known of a page")
				}
			}
			return nil
		}},
		{"inspect", 0, 0, func(context.Context) error {
			st.Status()
			st.Usage(ns.ID, ns.Epoch)
			st.Leases(page.NamespaceID{}, 0)
			st.TenantUsage("nobody")
			if len(st.SameHash(mustHash(s.t, s.cold[:32]))) != 1 {
				return errors.New("the page is nowhere")
			}
			return nil
		}},
		{"sessions", 0, 0, func(context.Context) error { st.Detach(st.Attach(c.Principal)); return nil }},
		{"namespaces, tenants", 0, 0, func(context.Context) error {
			f := s.WithTenant("other")
			f.Namespace.State.Life = core.Retired
			st.SetNamespace(f.Namespace)
			return st.SetTenant("other", core.TenantQuota{})
		}},
		{"durable", changes, 0, func(ctx context.Context) error { return durable(ctx, s.chain(4)) }},
		{"durable, of what is in memory", changes, 0, func(ctx context.Context) error { return durable(ctx, there) }},
		{"delete from memory", changes, 0, func(ctx context.Context) error { return refusal(st.Delete(ctx, c, s.runs(doomed))) }},
		{"delete from disk", changes, 0, func(ctx context.Context) error {
			return refusal(st.Delete(ctx, c, s.runs(s.cold[32*(coldPages-1):])))
		}},
		{"scrub memory", 0, 0, func(ctx context.Context) error {
			return st.Scrub(ctx, evict.Host, 0, func(store.ScrubProgress) error { return nil })
		}},
		{"publish three times as much as memory holds", 0, 0, func(ctx context.Context) error {
			for range 3 * 16 << 20 / (32 * 64 << 10) {
				each, cancel := context.WithTimeout(context.WithoutCancel(ctx), mostTime)
				err := publish(each, s.chain(32))
				cancel()
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{"flush", changes, 0, st.Flush},
		{"scrub the disk", reads, 0, func(ctx context.Context) error {
			return st.Scrub(ctx, evict.Disk, 0, func(store.ScrubProgress) error { return nil })
		}},
	}
}

// A disk that answers neither with a word nor with an error: every call does its work from memory, or ends by its own
// deadline with a word for it. When the disk answers again all is as before.
func TestCase_C28_ADiskThatAnswersNothing(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name  string
		holds func(errorfs.Op) bool
		held  need
	}{
		{"changes", memfs.Changes, changes},
		{"reads", memfs.Reads, reads},
		{"all", func(errorfs.Op) bool { return true }, changes | reads},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := newStopped(t, x.holds)
			for _, c := range s.calls() {
				if c.needs == changes {
					s.hold()
				}
				given := mostTime
				if (c.needs|c.asks)&x.held != 0 {
					given = ownTime
				}
				err := within(t, given, c.do)
				refused := errors.Is(err, reason.Busy) || errors.Is(err, context.DeadlineExceeded)
				if c.needs&x.held != 0 && !refused || c.needs&x.held == 0 && err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			s.gate.Resume()
			settle(t, s.Fixture)
			wantPages(t, s.Fixture, s.cold[:32*(coldPages-1)], whole, nil)
			wantPages(t, s.Fixture, s.cold[32*(coldPages-1):], whole, allAbsent(1))
			mustPublishDurable(t, s.Fixture, s.chain(4))
		})
	}
}

// A disk that has answered nothing for some time takes nothing more, which is told; who waits is answered, without a
// deadline too. It comes back by itself.
func TestCase_C28_ADiskThatAnswersNothingIsGivenNothing(t *testing.T) {
	t.Parallel()
	s := newStopped(t, memfs.Changes)
	busy := func(what string, call func(context.Context) error) {
		t.Helper()
		if err := within(t, 0, call); !errors.Is(err, reason.Busy) {
			t.Errorf("%s: %v, want busy", what, err)
		}
	}
	c := s.calls()
	find := func(name string) func(context.Context) error {
		for i := range c {
			if c[i].name == name {
				return c[i].do
			}
		}
		t.Fatal(name)
		return nil
	}
	doomed := s.chain(4)
	mustPublish(t, s.Fixture, doomed, whole)
	s.hold()
	waiting := make(chan error, 2)
	go func() { waiting <- refusal(s.Store.Delete(t.Context(), s.Caller, s.runs(doomed))) }()
	go func() { waiting <- find("durable")(t.Context()) }()
	s.now.Advance(time.Minute)
	for range 2 {
		if err := within(t, 0, func(context.Context) error { return <-waiting }); !errors.Is(err, reason.Busy) {
			t.Errorf("who waited is told %v, want busy", err)
		}
	}
	disk := func() store.TierStatus { return s.Store.Status().Tiers[1] }
	await(t, "told", func() bool { return !disk().Writable && disk().Trouble != "" })
	for range 3 {
		for _, name := range []string{"durable", "delete from disk"} {
			busy(name, find(name))
		}
	}
	for _, name := range []string{"publish", "fetch from memory", "publish three times as much as memory holds", "flush", "fetch from disk"} {
		if err := within(t, 0, find(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.gate.Resume()
	await(t, "told again", func() bool { return disk().Writable })
	await(t, "durable again", func() bool { return find("durable")(t.Context()) == nil })
	if err := refusal(s.Store.Delete(t.Context(), s.Caller, s.runs(doomed))); !errors.Is(err, reason.Absent) {
		t.Errorf("the second delete: %v", err)
	}
	s.Restart(t)
	wantPages(t, s.Fixture, doomed, whole, allAbsent(4))
}

// Memory that the disk holds, which does not answer, makes no call wait for longer than its own time, however many pages it is
// of; the others go on.
func TestRoomThatADiskHolds(t *testing.T) {
	t.Parallel()
	s := newStopped(t, memfs.Changes)
	var inside sync.WaitGroup
	for range 16 << 20 / (8 * 64 << 10) {
		chain := s.chain(8)
		inside.Go(func() { // until the disk answers, or there is no room
			if _, err := s.PublishDurable(context.Background(), s.Caller, chain, whole, 0); err != nil {
				t.Error(err)
			}
		})
	}
	await(t, "memory is full of what is being written", func() bool {
		m := s.Store.Status().Tiers[0]
		return !m.Evictable && m.Live > m.Capacity/8*7
	})
	fetch := func(ctx context.Context) error {
		rs, _, err := s.Fetch(ctx, s.Caller, s.cold, whole, core.LeaseID{})
		return refusal(rs, reason.None, err)
	}
	publish := func(ctx context.Context) error {
		rs, err := s.Publish(ctx, s.Caller, s.chain(8), whole, 0)
		return refusal(rs, reason.None, err)
	}
	for what, call := range map[string]func(context.Context) error{"a fetch from disk": fetch, "a publication": publish} {
		if err := within(t, ownTime, call); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, reason.Busy) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.gate.Resume()
	inside.Wait()
	settle(t, s.Fixture)
	for what, call := range map[string]func(context.Context) error{"a fetch from disk": fetch, "a publication": publish} {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s, when the disk answers: %v", what, err)
		}
	}
}

// The same of reads: what is in memory is served on, what comes is refused at once.
func TestCase_C28_ADiskThatAnswersNoReadIsAskedNoMore(t *testing.T) {
	t.Parallel()
	s := newStopped(t, memfs.Reads)
	fetch := func(ctx context.Context, chain []byte) error {
		rs, _, err := s.Fetch(ctx, s.Caller, chain, whole, core.LeaseID{})
		return refusal(rs, reason.None, err)
	}
	if err := within(t, ownTime, func(ctx context.Context) error { return fetch(ctx, s.cold[:32*8]) }); !errors.Is(err, reason.Busy) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before it is known: %v", err)
	}
	s.now.Advance(time.Minute)
	await(t, "told", func() bool { return s.Store.Status().Tiers[1].Trouble != "" })
	for range 2 {
		if err := within(t, 0, func(ctx context.Context) error { return fetch(ctx, s.cold[32*8:]) }); !errors.Is(err, reason.Busy) {
			t.Errorf("%v, want busy", err)
		}
	}
	if err := within(t, 0, func(ctx context.Context) error { return fetch(ctx, s.warm) }); err != nil {
		t.Errorf("from memory: %v", err)
	}
	s.gate.Resume()
	await(t, "read again", func() bool { return fetch(t.Context(), s.cold) == nil })
	if trouble := s.Store.Status().Tiers[1].Trouble; trouble != "" {
		t.Error(trouble)
	}
}

// Who watches a disk that answers no read is told that there is more than was told, and holds nobody up.
func TestWatchersOfADiskThatAnswersNoRead(t *testing.T) {
	t.Parallel()
	s := newStopped(t, memfs.Reads)
	told := make(chan bool, 1)
	go s.Store.Watch(t.Context(), s.Namespace.State.ID, 1, func(_ []store.PageEvent, gap bool) error {
		select {
		case told <- gap:
		default:
		}
		return nil
	})
	<-told // that it watches
	for i := coldPages - 1; i > coldPages-9; i-- {
		chain := s.cold[32*i:][:32]
		if err := within(t, 0, func(ctx context.Context) error { return refusal(s.Store.Delete(ctx, s.Caller, s.runs(chain))) }); err != nil {
			t.Errorf("page %d: %v", i, err)
		}
	}
	select {
	case gap := <-told:
		if !gap {
			t.Error("an event was told that cannot be known")
		}
	case <-time.After(mostTime):
		t.Error("no gap was told")
	}
}

// Close ends by its deadline while the disk answers nothing, and says so; who is inside is answered when the disk does, and memory
// stays as long as the disk has some of it in hand.
func TestCloseOverADiskThatAnswersNothing(t *testing.T) {
	for _, inside := range []bool{true, false} {
		t.Run(fmt.Sprint("a call inside ", inside), func(t *testing.T) {
			t.Parallel()
			s := newStopped(t, func(errorfs.Op) bool { return true })
			done := make(chan error, 1)
			go func() {
				publish := s.Publish
				if inside {
					publish = s.PublishDurable
				}
				rs, err := publish(context.Background(), s.Caller, storetest.Chain("inside", 20), whole, 0)
				done <- refusal(rs, reason.None, err)
			}()
			s.hold()
			if err := within(t, ownTime, s.Store.Close); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("close: %v", err)
			}
			if _, _, err := s.Store.Touch(t.Context(), s.Caller, s.runs(s.warm), evict.Hint{}, false); !errors.Is(err, store.ErrClosed) {
				t.Errorf("touch: %v", err)
			}
			s.gate.Resume()
			if err := within(t, 0, s.Store.Close); err != nil {
				t.Errorf("close, when the disk answers: %v", err)
			}
			if err := <-done; err != nil && !errors.Is(err, store.ErrClosed) {
				t.Errorf("the publication: %v", err)
			}
		})
	}
}
