package client

import (
	"context"
	"sync"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/page"
)

// reportCorrupt tells the server, beside the caller, that extents of a page (none: all of it) failed here: it looks
// itself, and only its own failure makes them go. pending is done when it has answered: who is told that a page is corrupt
// finds it absent from then on.
func (s *Session) reportCorrupt(r *Run, i int, extents []page.ExtentID, pending *sync.WaitGroup) {
	s.c.stats.corrupt.Add(1)
	req := &quirev1.ReportCorruptRequest{Namespace: s.ref, Run: s.wire(r, i, i+1)}
	req.Run.Hashes = append([]byte(nil), req.Run.Hashes...) // the caller's are his again when the fetch returns
	for _, id := range extents {
		req.ExtentIds = append(req.ExtentIds, id.AppendEncode(nil))
	}
	pending.Add(1)
	if !s.background(func(ctx context.Context) {
		defer pending.Done()
		if _, err := s.c.link().pages.ReportCorrupt(ctx, req); err == nil {
			s.c.stats.reported.Add(1)
		}
	}) {
		pending.Done()
	}
}
