package store

import (
	"context"
	"slices"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// CommitPage is one page of a publication with the encoded header of each of its grants.
type CommitPage struct {
	Page    uint32
	Headers [][]byte
}

// CommitResult is what Commit answers.
type CommitResult struct {
	Pages []PageResult  // aligned with the request's
	At    clock.Instant // when pages were committed; 0: none was, now
}

// Commit verifies headers, lengths and sums against what was written and makes pages visible. Idempotent: digests committed before answer Committed, also under a token that is over. A page that fails
// is given up whole, so that it can be published again. Durable pages are answered when they are on disk; one that the
// disk tier does not take is refused, and stays in memory.
func (s *Store) Commit(ctx context.Context, c Caller, id page.NamespaceID, e page.Epoch, t core.Token, pages []CommitPage) (CommitResult, reason.Reason, error) {
	sp, sh, why, err := s.begin(c, &page.Family{Namespace: id, Epoch: e})
	if err != nil || why != reason.None {
		return CommitResult{}, why, err
	}
	defer s.leave()
	res := CommitResult{Pages: make([]PageResult, len(pages))}
	out := res.Pages
	var ready []uint32 // pages sealed and asked for, and their places in out
	var at []int
	durable := false
	if pub := s.publication(c, sh, t); pub != nil {
		durable = pub.durable
		var failed []uint32
		for i, p := range pages {
			switch why := pub.seal(p); why {
			case reason.None:
				ready, at = append(ready, p.Page), append(at, i)
			case reason.StaleToken: // ended or committed before: see what is stored
			default:
				out[i] = PageResult{Outcome: core.Refused, Reason: why}
				failed = append(failed, p.Page)
			}
		}
		if failed != nil {
			s.step(sh, core.Abort{Token: t, Pages: failed})
		}
	}
	if ready != nil {
		res.At = s.commitReady(sp, sh, c, t, ready, at, pages, out)
	}
	for i := range out {
		if out[i].Outcome == 0 {
			out[i] = s.committedBefore(ctx, sh, c, sp, pages[i])
		}
	}
	if err := s.persistCommitted(ctx, sh, durable, pages, out); err != nil {
		return CommitResult{}, reason.None, err
	}
	return res, reason.None, nil
}

// persistCommitted persists the committed pages of a durable publication; if its token is over, those whose headers say so.
func (s *Store) persistCommitted(ctx context.Context, sh *shard, durable bool, pages []CommitPage, out []PageResult) error {
	if s.disk == nil {
		return nil
	}
	var run core.Run
	var at []int
	for i := range out {
		var h page.Header
		if out[i].Outcome != core.Committed || page.DecodeHeader(&h, pages[i].Headers[0]) != nil || !durable && !h.Durable {
			continue
		}
		if run.Family = h.Key.Family; h.Key.Hash.Len() > 0 { // of one publication: one family
			run.Hashes, at = append(run.Hashes, h.Key.Hash.Bytes()...), append(at, i)
		}
	}
	return s.persistPages(ctx, sh, run, out, at)
}

// commitReady steps the commit and says when. It asks without a context: once sealed, the answer must be known.
func (s *Store) commitReady(sp *space, sh *shard, c Caller, t core.Token, ready []uint32, at []int, pages []CommitPage, out []PageResult) clock.Instant {
	k := s.ticket()
	r := s.now(sh, k, core.Commit{
		Ticket: k, Principal: c.Principal, Namespace: sp.State.ID, Epoch: sp.State.Epoch, Token: t, Pages: ready,
	})
	for j, i := range at {
		switch {
		case r.Reason == reason.StaleToken:
		case r.Reason != reason.None:
			out[i] = PageResult{Outcome: core.Refused, Reason: r.Reason}
		case r.Results[j].Outcome != core.Committed && r.Results[j].Reason == reason.StaleToken:
		default:
			out[i] = PageResult{Outcome: r.Results[j].Outcome, Reason: r.Results[j].Reason}
			if out[i].Outcome == core.Committed {
				out[i].Stored = extentsOf(pages[i].Headers)
			}
		}
	}
	sh.rt.Lock()
	pub := sh.pubs[t]
	sh.rt.Unlock()
	if pub == nil {
		return r.At
	}
	sp.wrote(s.clock.Wall(), pub.family)
	if pub.done() {
		sh.rt.Lock()
		delete(sh.pubs, t)
		sh.rt.Unlock()
	}
	return r.At
}

// committedBefore answers a commit whose token is over: the same digests stored are the same commit, others won.
func (s *Store) committedBefore(ctx context.Context, sh *shard, c Caller, sp *space, p CommitPage) PageResult {
	stale := PageResult{Outcome: core.Refused, Reason: reason.StaleToken}
	var ours, stored []page.ExtentID
	all := len(p.Headers) > 0
	for _, raw := range p.Headers {
		var h page.Header
		if err := page.DecodeHeader(&h, raw); err != nil || h.Key.Namespace != sp.State.ID || h.Key.Epoch != sp.State.Epoch {
			return stale
		}
		there, known := s.storedOf(ctx, sh, c, core.Run{Family: h.Key.Family, Hashes: h.Key.Hash.Bytes()}, h.View)
		if !known {
			return PageResult{Outcome: core.Refused, Reason: reason.Busy}
		}
		all = all && slices.Contains(there, h.Extent)
		ours, stored = append(ours, h.Extent), append(stored, there...)
	}
	switch {
	case all:
		return PageResult{Outcome: core.Committed, Stored: ours}
	case len(stored) > 0:
		s.counts.divergent.Add(1)
		return PageResult{Outcome: core.Refused, Reason: reason.LostRace, Stored: stored}
	}
	return stale
}

// extentsOf names the extents of headers that were checked.
func extentsOf(headers [][]byte) []page.ExtentID {
	ids := make([]page.ExtentID, 0, len(headers))
	for _, raw := range headers {
		var h page.Header
		if page.DecodeHeader(&h, raw) == nil {
			ids = append(ids, h.Extent)
		}
	}
	return ids
}

// seal checks every grant of a page against its header and closes them for writing, or none of them.
func (pub *publication) seal(p CommitPage) reason.Reason {
	if int(p.Page) >= len(pub.pages) {
		return reason.InvalidView
	}
	pp := &pub.pages[p.Page]
	if len(p.Headers) != len(pp.grants) || len(pp.grants) == 0 {
		return reason.Truncated
	}
	for _, g := range pp.grants {
		g.mu.Lock()
	}
	why := reason.None
	for i, g := range pp.grants {
		if why == reason.None {
			why = pub.checkGrant(pp, g, p.Headers[i])
		}
	}
	for i, g := range pp.grants {
		if why == reason.None {
			g.state = grantSealed
			n := copy(g.region[page.HeadBytes:], p.Headers[i])
			clear(g.region[page.HeadBytes+n : page.PayloadOffset(n)])
		}
		g.mu.Unlock()
	}
	return why
}

// checkGrant compares what a header says with what was granted and what was written.
func (pub *publication) checkGrant(pp *pubPage, g *grant, raw []byte) reason.Reason {
	if g.state != grantOpen {
		return reason.StaleToken
	}
	var h page.Header
	if err := page.DecodeHeader(&h, raw); err != nil {
		return reasonOfHeader(err)
	}
	geo := &pub.geometry
	switch {
	case h.Key.Family != pub.family || h.Key.Hash != pp.hash, h.Grade != geo.Grade,
		h.Heads != geo.Heads || h.Layers != geo.Layers || h.CellBytes != geo.CellBytes || h.Tokens != geo.Tokens:
		return reason.SizeMismatch
	case h.View != g.view:
		return reason.InvalidView
	case string(h.Provenance) != pub.prov:
		return reason.Provenance
	case !g.payload.Complete() || h.PayloadBytes != uint64(g.payload.Offset()):
		return reason.Truncated
	case !sumsEqual(h.SumsLE, g.sums):
		return reason.Corrupt
	case len(raw) != page.EncodedHeaderBytes(g.view, geo.CellBytes, len(pub.prov)):
		return reason.SizeMismatch
	}
	return reason.None
}

func sumsEqual(le []byte, sums []uint64) bool {
	if len(le) != 8*len(sums) {
		return false
	}
	for i, x := range sums {
		if page.SumAt(le, i) != x {
			return false
		}
	}
	return true
}

// done says that nothing of the publication can be written any more.
func (pub *publication) done() bool {
	for i := range pub.pages {
		for _, g := range pub.pages[i].grants {
			g.mu.Lock()
			open := g.state == grantOpen
			g.mu.Unlock()
			if open {
				return false
			}
		}
	}
	return true
}

// hashAt is the i-th hash of a run.
func hashAt(r *core.Run, hashBytes, i int) page.Hash {
	h, _ := page.MakeHash(r.Hashes[i*hashBytes : (i+1)*hashBytes])
	return h
}

// pageRun is the run of page i alone.
func pageRun(r *core.Run, hashBytes, i int) core.Run {
	return core.Run{Family: r.Family, Hashes: r.Hashes[i*hashBytes : (i+1)*hashBytes]}
}
