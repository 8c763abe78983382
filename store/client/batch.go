package client

import (
	"context"
	"math"
	"time"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
)

// Delete hides pages at once; leases that run finish. A page that is not there is a Miss.
func (s *Session) Delete(ctx context.Context, r Run) ([]PageResult, error) {
	return s.each(ctx, r, func(ctx context.Context, pc quirev1.PageServiceClient, run []*quirev1.KeyRun) ([]*quirev1.PageStatus, error) {
		a, err := pc.BatchDelete(ctx, &quirev1.BatchDeleteRequest{Namespace: s.ref, Runs: run})
		return a.GetPages(), err
	})
}

// Touch refreshes the recency of pages.
func (s *Session) Touch(ctx context.Context, r Run) ([]PageResult, error) {
	return s.each(ctx, r, func(ctx context.Context, pc quirev1.PageServiceClient, run []*quirev1.KeyRun) ([]*quirev1.PageStatus, error) {
		a, err := pc.Touch(ctx, &quirev1.TouchRequest{Namespace: s.ref, Runs: run})
		return a.GetPages(), err
	})
}

// Answered tells how many tokens the answer to the request for these pages had, once it has ended. It is no use of them. at is
// what the server's clock showed when it took that in for the first of them; 0: it does not say.
func (s *Session) Answered(ctx context.Context, r Run, tokens int) (at time.Duration, err error) {
	hint := &quirev1.Hint{AnswerTokens: uint32(min(max(tokens, 0), math.MaxUint32))}
	_, err = s.each(ctx, r, func(ctx context.Context, pc quirev1.PageServiceClient, run []*quirev1.KeyRun) ([]*quirev1.PageStatus, error) {
		a, err := pc.Touch(ctx, &quirev1.TouchRequest{Namespace: s.ref, Runs: run, Hint: hint, HintOnly: true})
		if at == 0 {
			at = time.Duration(a.GetDecidedAt())
		}
		return a.GetPages(), err
	})
	return at, err
}

// Pin keeps pages from eviction until Unpin, within the principal's budget.
func (s *Session) Pin(ctx context.Context, r Run) ([]PageResult, error) { return s.pin(ctx, r, false) }

// Unpin lets go of what Pin kept.
func (s *Session) Unpin(ctx context.Context, r Run) ([]PageResult, error) { return s.pin(ctx, r, true) }

func (s *Session) pin(ctx context.Context, r Run, unpin bool) ([]PageResult, error) {
	return s.each(ctx, r, func(ctx context.Context, pc quirev1.PageServiceClient, run []*quirev1.KeyRun) ([]*quirev1.PageStatus, error) {
		a, err := pc.Pin(ctx, &quirev1.PinRequest{Namespace: s.ref, Runs: run, Unpin: unpin})
		return a.GetPages(), err
	})
}

// each makes one repeatable call per batch of keys.
func (s *Session) each(ctx context.Context, r Run, f func(context.Context, quirev1.PageServiceClient, []*quirev1.KeyRun) ([]*quirev1.PageStatus, error)) ([]PageResult, error) {
	n, err := s.pagesOf(&r)
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.enter(ctx)
	if invalidated(err) {
		return all(n, Refused, reason.StaleEpoch), nil
	}
	out := all(n, Refused, reason.Unknown)
	if err != nil {
		return out, err
	}
	defer leave()
	for from := 0; from < n; from += s.c.opt.BatchKeys {
		to := min(n, from+s.c.opt.BatchKeys)
		pages, err := repeated(ctx, s.c, func(ctx context.Context, pc quirev1.PageServiceClient) ([]*quirev1.PageStatus, error) {
			return f(ctx, pc, []*quirev1.KeyRun{s.wire(&r, from, to)})
		})
		if err != nil {
			return out, s.why(err)
		}
		for k := range min(len(pages), to-from) {
			out[from+k] = resultOf(pages[k])
		}
	}
	return out, nil
}
