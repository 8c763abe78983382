package server

import (
	"context"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/namespace"
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// GetCapabilities tells the limits in force.
func (s pageService) GetCapabilities(context.Context, *quirev1.GetCapabilitiesRequest) (*quirev1.GetCapabilitiesResponse, error) {
	return s.node.capabilities(), nil
}

// batch carries one call on whole runs to the store and answers per page. A stranger's pages are absent.
func (n *node) batch(ctx context.Context, ref *quirev1.NamespaceRef, right namespace.Right, runs []*quirev1.KeyRun, m *methodMetrics,
	do func(a *asked, runs []core.Run) ([]store.PageResult, reason.Reason, error)) ([]*quirev1.PageStatus, error) {
	a, err := n.admit(ctx, ref, right, nil)
	if err == errStranger {
		keys, err := n.limits.strangerKeys(runs)
		if err != nil {
			return nil, err
		}
		return missing(keys), nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := n.limits.countKeys(runs, a.space.hashBytes); err != nil {
		return nil, err
	}
	converted, err := a.runsOf(make([]core.Run, 0, len(runs)), runs)
	if err != nil {
		return nil, err
	}
	got, why, err := do(&a, converted)
	if err := answer(why, err); err != nil {
		return nil, err
	}
	return n.pageStatuses(m, got), nil
}

// BatchDelete hides pages at once. A grant to publish in another tenant's namespace does not allow it.
func (s pageService) BatchDelete(ctx context.Context, r *quirev1.BatchDeleteRequest) (*quirev1.BatchDeleteResponse, error) {
	n := s.node
	pages, err := n.batch(ctx, r.Namespace, namespace.RightManage, r.Runs, n.metrics.del,
		func(a *asked, runs []core.Run) ([]store.PageResult, reason.Reason, error) {
			return n.store.Delete(ctx, a.caller, runs)
		})
	return &quirev1.BatchDeleteResponse{Pages: pages}, err
}

// Touch refreshes recency, and passes on what the client knows of the future.
func (s pageService) Touch(ctx context.Context, r *quirev1.TouchRequest) (*quirev1.TouchResponse, error) {
	n := s.node
	var at clock.Instant
	pages, err := n.batch(ctx, r.Namespace, namespace.RightRead, r.Runs, n.metrics.touch,
		func(a *asked, runs []core.Run) ([]store.PageResult, reason.Reason, error) {
			h, err := a.hintOf(r.Hint)
			if err != nil {
				return nil, reason.None, err
			}
			got, why, err := n.store.Touch(ctx, a.caller, runs, h, r.HintOnly)
			if at = got.At; h.Answer != 0 && why == reason.None && err == nil {
				n.recordAnswer(a, h.Answer, runs)
			}
			return got.Pages, why, err
		})
	return &quirev1.TouchResponse{Pages: pages, DecidedAt: uint64(at)}, err
}

// Pin keeps pages from eviction. It outlives leases, so it takes the right to publish.
func (s pageService) Pin(ctx context.Context, r *quirev1.PinRequest) (*quirev1.PinResponse, error) {
	n := s.node
	pages, err := n.batch(ctx, r.Namespace, namespace.RightPublish, r.Runs, n.metrics.pin,
		func(a *asked, runs []core.Run) ([]store.PageResult, reason.Reason, error) {
			return n.store.Pin(ctx, a.caller, runs, r.Unpin)
		})
	return &quirev1.PinResponse{Pages: pages}, err
}

// ReportCorrupt makes the store verify again. A report that it cannot confirm is counted under the reporter's name
// and changes nothing. Verifying reads the pages, so it comes out of the reporter's fetch budget.
func (s pageService) ReportCorrupt(ctx context.Context, r *quirev1.ReportCorruptRequest) (*quirev1.ReportCorruptResponse, error) {
	n := s.node
	only, err := n.reported(r)
	if err != nil {
		return nil, err
	}
	pages, err := n.batch(ctx, r.Namespace, namespace.RightRead, []*quirev1.KeyRun{r.Run}, n.metrics.report,
		func(a *asked, runs []core.Run) ([]store.PageResult, reason.Reason, error) {
			bytes, err := n.readBytes(a, &runs[0], page.View{})
			if err != nil {
				return nil, reason.None, err
			}
			give, err := n.fetches.take(a.caller.Principal, bytes)
			if err != nil {
				return nil, reason.None, err
			}
			defer give()
			return n.store.Verify(ctx, a.caller, runs[0], only)
		})
	return &quirev1.ReportCorruptResponse{Pages: pages}, err
}

func (n *node) reported(r *quirev1.ReportCorruptRequest) ([]page.ExtentID, error) {
	if len(r.ExtentIds) == 0 {
		return nil, nil
	}
	if len(r.ExtentIds) > n.limits.MaxKeys {
		return nil, rpc.Errorf(reason.LimitExceeded, "more than %d extents in one call", n.limits.MaxKeys)
	}
	return extentIDsOf(r.ExtentIds)
}
