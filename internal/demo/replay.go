package demo

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/quire-kv/quire/evict/replay"
	"github.com/quire-kv/quire/store/page"
)

// replay serves the requests of the trace in turn, by one engine and then the other, and counts into r.
func (w *world) replay(ctx context.Context, o *Options, r *Report) error {
	trace := replay.NewReader(o.Trace)
	h, err := newHasher()
	if err != nil {
		return err
	}
	t := newTotals()
	defer func() { r.count(t) }()
	for n := 0; o.Requests == 0 || n < o.Requests; n++ {
		q, err := trace.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		hashes, err := h.run(page.VLLMRequest{}, q.FullBlocks())
		if err != nil {
			return err
		}
		e := w.a
		if n%2 == 1 {
			e = w.b
		}
		hit, err := w.serve(ctx, e, hashes, t)
		if err != nil {
			return fmt.Errorf("request %d of %s: %w", n+1, e.name, err)
		}
		r.request(&q, hit)
		o.Progress()
	}
	return nil
}

// serve does for one prompt what an engine does: look up with a lease, fetch the prefix that is there, compute the
// rest (here: generate it) and publish it. hit is the number of pages that were loaded and right.
func (w *world) serve(ctx context.Context, e *engine, hashes []byte, t *totals) (hit int, err error) {
	tp := e.tp(e.served)
	e.served++
	if err := e.shape(tp, w.full()); err != nil || len(hashes) == 0 {
		return 0, err
	}
	pages := len(hashes) / hashBytes
	p, err := e.session.Exists(ctx, w.run(hashes), leaseTTL)
	if err != nil {
		return 0, fmt.Errorf("look up: %w", err)
	}
	for hit < p.Leased {
		n := min(windowPages, p.Leased-hit)
		good, err := e.fetch(ctx, w.run(hashes[hit*hashBytes:(hit+n)*hashBytes]), n, p.Lease, t)
		if err != nil {
			return 0, fmt.Errorf("fetch: %w", err)
		}
		if hit += good; good < n {
			break
		}
	}
	if p.Lease != nil {
		if err := p.Lease.Release(ctx); err != nil {
			return 0, fmt.Errorf("release the lease: %w", err)
		}
	}
	for at := hit; at < pages; at += windowPages {
		n := min(windowPages, pages-at)
		var parent page.Hash
		if at > 0 {
			if parent, err = page.MakeHash(hashes[(at-1)*hashBytes : at*hashBytes]); err != nil {
				return 0, err
			}
		}
		if err := e.publish(ctx, w.run(hashes[at*hashBytes:(at+n)*hashBytes]), n, parent, t); err != nil {
			return 0, fmt.Errorf("publish: %w", err)
		}
	}
	return hit, nil
}
