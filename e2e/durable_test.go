package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/client"
	"github.com/quire-kv/quire/store/storetest"
)

var (
	kills = flag.Int("kills", 12, "how often TestKilledWhileDurable kills the server, at least")
	seed  = flag.Uint64("seed", 0, "of random tests; 0: another one each time")
)

// newRand says with what to repeat a failure.
func newRand(t *testing.T) *rand.Rand {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 1))
}

// ledger is what callers know about chains of eight pages, each of which is published once.
//
//	durable    acknowledged on disk and never deleted: must be served, for ever
//	deleted    its deletion was acknowledged: must never be served again
//	uncertain  everything else, which may be served or not, but never with a wrong byte
type ledger struct {
	mu        sync.Mutex // guards below
	next      int
	durable   []int
	deleted   []int
	uncertain []int
}

// Bounds of what is looked at again after each kill: the newest.
const (
	chainPages   = 8
	fewDurable   = 20 // from here on one is deleted, also where the machine is too slow for more
	maxDurable   = 200
	maxDeleted   = 400
	maxUncertain = 100
)

func chainOf(n int) []byte { return storetest.Chain(fmt.Sprint("durable", n), chainPages) }

func (l *ledger) name() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	return l.next
}

func (l *ledger) add(to *[]int, n, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *to = append(*to, n); len(*to) > most && to != &l.durable {
		*to = (*to)[1:]
	}
}

// enough says whether all kinds of chains were there. How many come about in a life is the machine's matter.
func (l *ledger) enough() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.durable) > 0 && len(l.deleted) > 0
}

// oldest takes out a durable chain that may be deleted now; while that is under way nothing is promised of it.
func (l *ledger) oldest() (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.durable); n <= fewDurable || n <= maxDurable && len(l.deleted) > 0 {
		return 0, false
	}
	n := l.durable[0]
	l.durable = l.durable[1:]
	return n, true
}

func (l *ledger) anyDurable(r *rand.Rand) (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.durable) == 0 {
		return 0, false
	}
	return l.durable[r.IntN(len(l.durable))], true
}

// work publishes, reads and deletes until the server is gone. An error is a broken promise.
func (l *ledger) work(ctx context.Context, s *client.Session, r *rand.Rand) error {
	for ctx.Err() == nil {
		n := l.name()
		if r.IntN(4) == 0 {
			l.add(&l.uncertain, n, maxUncertain)
			if _, err := publish(ctx, s, chainOf(n)); err != nil {
				return nil
			}
		} else if err := publishDurably(ctx, s, chainOf(n)); err != nil {
			l.add(&l.uncertain, n, maxUncertain)
			if errors.Is(err, reason.Busy) {
				continue
			}
			return nil
		} else {
			l.add(&l.durable, n, 0)
		}
		if n, ok := l.anyDurable(r); ok {
			rs, served, err := fetch(ctx, s, chainOf(n))
			switch {
			case errors.Is(err, errWrongBytes):
				return fmt.Errorf("chain %d: %w", n, err)
			case err == nil && served < chainPages && ctx.Err() == nil && l.still(n) && !gone(rs):
				return fmt.Errorf("chain %d is acknowledged on disk, and a running server has %d pages of it: %+v", n, served, rs)
			}
		}
		if n, ok := l.oldest(); ok {
			rs, err := s.Delete(ctx, run(s, chainOf(n)))
			if err != nil || client.GoodPrefix(rs) < chainPages {
				l.add(&l.uncertain, n, maxUncertain)
				return nil
			}
			l.add(&l.deleted, n, maxDeleted)
		}
	}
	return nil
}

// still says whether nobody began to delete chain n meanwhile.
func (l *ledger) still(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.durable {
		if x == n {
			return true
		}
	}
	return false
}

// gone says whether a page was not answered at all: the server is.
func gone(rs []client.PageResult) bool {
	for _, r := range rs {
		if r.Reason == reason.Unknown {
			return true
		}
	}
	return false
}

// check holds a server to what the ledger says.
func (l *ledger) check(t *testing.T, s *client.Session) {
	t.Helper()
	for _, n := range l.durable {
		rs, served, err := fetch(t.Context(), s, chainOf(n))
		if err != nil || served < chainPages {
			t.Fatalf("chain %d was acknowledged on disk: %d pages, %v, %+v", n, served, err, rs)
		}
	}
	for _, n := range l.deleted {
		if _, served, err := fetch(t.Context(), s, chainOf(n)); err != nil || served > 0 {
			t.Fatalf("chain %d was deleted: %d pages came back, %v", n, served, err)
		}
	}
	for _, n := range l.uncertain {
		hashes := chainOf(n)
		p, err := s.Exists(t.Context(), run(s, hashes), 0)
		if err != nil {
			t.Fatal(err)
		}
		rs, _, err := fetch(t.Context(), s, hashes)
		if err != nil {
			t.Fatalf("chain %d: %v", n, err)
		}
		for i, r := range rs {
			if p.Has(i) != (r.Outcome == client.OK) {
				t.Fatalf("chain %d page %d: listed %v, fetched %v (%v)", n, i, p.Has(i), r.Outcome, r.Reason)
			}
		}
	}
}

// diskArgs is a server whose memory is too small for what the test keeps, so that pages move between the tiers.
func diskArgs(dir string) []string {
	return []string{"--data", dir, "--memory", "32MiB", "--disk", "512MiB"}
}

// The server is killed again and again while it is written to, read from, deleted from, while pages move between the
// tiers, and while it starts.
func TestKilledWhileDurable(t *testing.T) {
	r := newRand(t)
	dir := t.TempDir()
	l := &ledger{}
	life := 0
	for ; life < *kills || life < 10**kills && !l.enough(); life++ {
		if r.IntN(6) == 0 { // killed before it serves
			s := spawnServer(t, diskArgs(dir)...)
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
			s.kill()
		}
		s := startServer(t, diskArgs(dir)...)
		c := dial(t, s.address)
		session := open(t, c, smallSpec(t))
		l.check(t, session)
		var workers sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			r := rand.New(rand.NewPCG(r.Uint64(), 2))
			workers.Go(func() {
				if err := l.work(ctx, session, r); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Duration(20+r.IntN(600)) * time.Millisecond)
		s.kill()
		cancel()
		workers.Wait()
		c.Close()
		if t.Failed() {
			t.Fatalf("in life %d:\n%s", life, s.logged())
		}
	}
	s := startServer(t, diskArgs(dir)...)
	l.check(t, open(t, dial(t, s.address), smallSpec(t)))
	t.Logf("%d kills: %d chains published, %d durable and %d deleted ones checked at the end", life, l.next, len(l.durable), len(l.deleted))
	if !l.enough() {
		t.Error("too little was done for the test to show anything")
	}
}

// A node is killed while pages that were acknowledged in memory are on their way to disk. What is listed afterwards
// can be fetched, whole and right, and what is not is published again.
func TestCase_C24_KilledBetweenTiers(t *testing.T) {
	r := newRand(t)
	dir := t.TempDir()
	back := 0
	for life := 0; life < 5 || life < 50 && back == 0; life++ { // how much is on disk by then is the machine's matter
		s := startServer(t, diskArgs(dir)...)
		c := dial(t, s.address)
		session := open(t, c, smallSpec(t))
		chain := func(life, i int) []byte { return storetest.Chain(fmt.Sprintf("between %d %d", life, i), chainPages) }
		for i := range 100 {
			if _, err := publish(t.Context(), session, chain(life, i)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
		s.kill()
		s = startServer(t, diskArgs(dir)...)
		session = open(t, dial(t, s.address), smallSpec(t))
		for i := range 100 {
			hashes := chain(life, i)
			p, err := session.Exists(t.Context(), run(session, hashes), 0)
			if err != nil {
				t.Fatal(err)
			}
			rs, served, err := fetch(t.Context(), session, hashes)
			if err != nil {
				t.Fatal(err)
			}
			for j := range rs {
				if p.Has(j) != (rs[j].Outcome == client.OK) {
					t.Fatalf("chain %d page %d: listed %v, fetched %v (%v)", i, j, p.Has(j), rs[j].Outcome, rs[j].Reason)
				}
			}
			back += served
			if _, err := publish(t.Context(), session, hashes); err != nil {
				t.Fatal(err)
			}
		}
		s.kill()
	}
	if back == 0 {
		t.Error("no page outlived its server: the test shows nothing")
	}
}

// The process that owned the bytes is killed and comes back: over no transport is a page listed that cannot be read,
// and a client that was connected before sees the new process, not old memory.
func TestCase_C58_OwnerKilled(t *testing.T) {
	eachTransport(t, func(t *testing.T, over client.Transport) {
		dir := t.TempDir()
		s := startServer(t, append(diskArgs(dir), "--write-behind=false")...)
		session := open(t, dialOver(t, s.address, over), smallSpec(t))
		onDisk, inMemory := storetest.Chain("on disk", chainPages), storetest.Chain("in memory", chainPages)
		if err := publishDurably(t.Context(), session, onDisk); err != nil {
			t.Fatal(err)
		}
		if _, err := publish(t.Context(), session, inMemory); err != nil {
			t.Fatal(err)
		}
		p, err := session.Exists(t.Context(), run(session, inMemory), time.Minute)
		if err != nil || p.Lease == nil {
			t.Fatal(p, err)
		}
		s.kill()
		if rs, n, err := fetch(t.Context(), session, inMemory); n != 0 || err == nil {
			t.Fatalf("%d pages of a dead process, %v, %+v", n, err, rs)
		}
		s = startServer(t, append(diskArgs(dir), "--write-behind=false")...)
		again := open(t, dialOver(t, s.address, over), smallSpec(t))
		for name, want := range map[string]struct {
			hashes []byte
			pages  int
		}{"on disk": {onDisk, chainPages}, "in memory": {inMemory, 0}} {
			p, err := again.Exists(t.Context(), run(again, want.hashes), 0)
			if err != nil || p.Leading != want.pages {
				t.Errorf("%s: %d pages listed, %v; want %d", name, p.Leading, err, want.pages)
			}
			if rs, n, err := fetch(t.Context(), again, want.hashes); err != nil || n != want.pages {
				t.Errorf("%s: %d pages fetched, %v, %+v; want %d", name, n, err, rs, want.pages)
			}
		}
	})
}
