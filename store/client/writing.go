package client

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

const outcomeGranted = core.Granted

// writing is one publication: the grants of one Begin on their way to commit.
//
//	begun ──write──> sent ──StillMine, commit──> committed
//	   \________________\____________________________> aborted: its space is freed at once
type writing struct {
	p      *publish
	token  *quirev1.FencingToken
	ttl    time.Duration
	grants []granted
}

// write sends every grant on one stream and takes the server's word for each.
func (w *writing) write(ctx context.Context) error {
	if !slices.ContainsFunc(w.grants, func(g granted) bool { return !g.answered }) {
		return nil
	}
	var sent atomic.Uint64
	if w.ttl > 0 {
		defer w.p.s.c.keepAlive(ctx, w.ttl, &sent, w.renew)()
	}
	up, err := w.p.s.openUpload(ctx, &sent)
	if err != nil {
		return err
	}
	defer up.wait()
	up.head.Token, up.head.Namespace = w.token, w.p.s.ref
	for i := range w.grants {
		if g := &w.grants[i]; !g.answered {
			if err = w.p.send(up, g); err != nil {
				break
			}
		}
	}
	r, err := up.finish(err)
	if err != nil {
		return err
	}
	for i := range w.grants {
		g := &w.grants[i]
		if int(g.page) >= len(r.GetPages()) {
			continue
		}
		if st := resultOf(r.GetPages()[g.page]); !g.answered && st.Reason != reason.None {
			g.answered = true
			w.p.out[g.item] = PageResult{Outcome: Refused, Reason: st.Reason}
		}
	}
	return nil
}

func (w *writing) renew(ctx context.Context) {
	once(ctx, w.p.s.c, func(ctx context.Context, pc quirev1.PageServiceClient) (*quirev1.RenewLeaseResponse, error) {
		return pc.RenewLease(ctx, &quirev1.RenewLeaseRequest{
			Namespace: w.p.s.ref, Lease: &quirev1.RenewLeaseRequest_Token{Token: w.token}, Ttl: durationpb.New(w.ttl),
		})
	})
}

// commit asks each writer's fence and then makes visible what is still its page.
func (w *writing) commit(ctx context.Context) error {
	req := &quirev1.CommitPublishRequest{Token: w.token, Namespace: w.p.s.ref}
	var asked []*granted
	for i := range w.grants {
		g := &w.grants[i]
		if g.answered {
			continue
		}
		if mine := w.p.items[g.item].StillMine; mine != nil && !mine() {
			g.answered = true
			w.p.out[g.item] = PageResult{Outcome: Refused, Reason: reason.Aborted}
			continue
		}
		req.Pages = append(req.Pages, &quirev1.CommitPage{Page: g.page, Headers: g.headers})
		asked = append(asked, g)
	}
	if len(asked) == 0 {
		return nil
	}
	// The session's end cancels ctx a moment later, on a goroutine of its own: what ended before the fences were asked
	// must not slip through.
	if cause := context.Cause(w.p.s.ctx); cause != nil {
		return cause
	}
	r, err := repeated(ctx, w.p.s.c, func(ctx context.Context, pc quirev1.PageServiceClient) (*quirev1.CommitPublishResponse, error) {
		return pc.CommitPublish(ctx, req)
	})
	if err != nil {
		return err
	}
	w.p.opt.decided(true, r.GetDecidedAt())
	for k, g := range asked {
		res := PageResult{Outcome: Refused, Reason: reason.Unknown}
		if k < len(r.GetPages()) {
			res = resultOf(r.GetPages()[k])
		}
		w.committed(g, res)
	}
	return nil
}

func (w *writing) committed(g *granted, r PageResult) {
	if r.Outcome == Committed {
		for _, v := range g.views {
			w.p.s.c.stats.published.Add(page.PayloadBytes(v, w.p.geo.CellBytes))
		}
	}
	g.answered, w.p.out[g.item] = true, r
}

// fail gives what is not answered yet the reason of err.
func (w *writing) fail(err error) {
	for i := range w.grants {
		if g := &w.grants[i]; !g.answered {
			w.p.out[g.item] = PageResult{Outcome: Refused, Reason: reasonOf(err)}
		}
	}
}

// abortRest frees, beside the caller, what was granted and is not committed.
func (w *writing) abortRest() {
	req := &quirev1.AbortPublishRequest{Token: w.token, Namespace: w.p.s.ref}
	for i := range w.grants {
		if o := w.p.out[w.grants[i].item]; o.Outcome != Committed && o.Reason != reason.LostRace {
			req.Pages = append(req.Pages, w.grants[i].page)
		}
	}
	if len(req.Pages) > 0 {
		w.p.s.background(func(ctx context.Context) { w.p.s.c.link().pages.AbortPublish(ctx, req) })
	}
}

// reasonOf is the reason that an error has, Unknown if none.
func reasonOf(err error) reason.Reason {
	var e *rpc.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	if r := reason.None; errors.As(err, &r) {
		return r
	}
	return reason.Unknown
}
