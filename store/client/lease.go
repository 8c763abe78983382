package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quire-kv/quire/internal/clock"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
)

// Lease pins the bytes of pages until Release, its time, or the end of its session, whichever comes first. It is
// renewed while a FetchInto that names it makes progress, and at no other time. Safe for concurrent use.
type Lease struct {
	s   *Session
	ttl time.Duration // as asked for

	mu    sync.Mutex // guards below
	parts []leasePart
}

// leasePart is what one call granted: a lookup of more than one batch has several.
type leasePart struct {
	id    []byte
	until clock.Instant // counted from when the request was sent
}

// Remaining is the time left, by this side's clock; not positive: over.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, least := l.s.c.opt.Clock.Now(), time.Duration(0)
	for i, p := range l.parts {
		if d := p.until.Sub(now); i == 0 || d < least {
			least = d
		}
	}
	return least
}

// Release gives back the whole lease. Errors need no handling: the lease ends by its time.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	parts := l.parts
	l.parts = nil
	l.mu.Unlock()
	return l.release(ctx, parts, nil)
}

// ReleasePages gives back the pages of r alone.
func (l *Lease) ReleasePages(ctx context.Context, r Run) error {
	n, err := l.s.pagesOf(&r)
	if err != nil {
		return err
	}
	for from := 0; from < n && err == nil; from += l.s.c.opt.BatchKeys {
		err = l.release(ctx, l.live(), l.s.wire(&r, from, min(n, from+l.s.c.opt.BatchKeys)))
	}
	return err
}

func (l *Lease) live() []leasePart {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]leasePart(nil), l.parts...)
}

func (l *Lease) release(ctx context.Context, parts []leasePart, run *quirev1.KeyRun) error {
	ctx, leave, err := l.s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for _, p := range parts {
		_, e := repeated(ctx, l.s.c, func(ctx context.Context, pc quirev1.PageServiceClient) (*quirev1.ReleaseLeaseResponse, error) {
			return pc.ReleaseLease(ctx, &quirev1.ReleaseLeaseRequest{Namespace: l.s.ref, LeaseId: p.id, Run: run})
		})
		if e != nil {
			err = e
		}
	}
	return err
}

// drop releases beside the caller what a failed lookup had taken.
func (l *Lease) drop() {
	for _, p := range l.live() {
		l.s.background(func(ctx context.Context) {
			l.s.c.link().pages.ReleaseLease(ctx, &quirev1.ReleaseLeaseRequest{Namespace: l.s.ref, LeaseId: p.id})
		})
	}
}

func (l *Lease) add(g *quirev1.LeaseGrant, sent clock.Instant) {
	if len(g.GetLeaseId()) == 0 {
		return
	}
	l.mu.Lock()
	l.parts = append(l.parts, leasePart{g.GetLeaseId(), sent.Add(g.GetTtl().AsDuration())})
	l.mu.Unlock()
}

// name is the lease id that a fetch is served under: only a lease of one part covers a whole fetch.
func (l *Lease) name() []byte {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.parts) != 1 {
		return nil
	}
	return l.parts[0].id
}

// renew extends every part.
func (l *Lease) renew(ctx context.Context) {
	for _, p := range l.live() {
		sent := l.s.c.opt.Clock.Now()
		r, err := once(ctx, l.s.c, func(ctx context.Context, pc quirev1.PageServiceClient) (*quirev1.RenewLeaseResponse, error) {
			return pc.RenewLease(ctx, &quirev1.RenewLeaseRequest{
				Namespace: l.s.ref, Lease: &quirev1.RenewLeaseRequest_LeaseId{LeaseId: p.id}, Ttl: durationpb.New(l.ttl),
			})
		})
		if err != nil {
			continue // it ends by its time; the fetch says so
		}
		l.mu.Lock()
		for i := range l.parts {
			if string(l.parts[i].id) == string(p.id) {
				l.parts[i].until = sent.Add(r.GetTtl().AsDuration())
			}
		}
		l.mu.Unlock()
	}
}
