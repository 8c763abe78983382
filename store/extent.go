package store

import (
	"context"
	"errors"
	"slices"

	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// decodeRegion reads the header of a region; raw is its encoded length.
func decodeRegion(mem []byte) (h page.Header, raw int, err error) {
	if len(mem) < page.HeadBytes {
		return h, 0, page.ErrTruncated
	}
	if raw, err = page.HeaderBytes(mem[page.HeadBytes:]); err != nil {
		return h, 0, err
	}
	if page.HeadBytes+raw > len(mem) {
		return h, 0, page.ErrTruncated
	}
	if err = page.DecodeHeader(&h, headerOf(mem, raw)); err != nil {
		return h, 0, err
	}
	if uint64(len(mem)) != uint64(page.PayloadOffset(raw))+h.PayloadBytes {
		return h, 0, page.ErrTruncated
	}
	return h, raw, nil
}

// headerOf is the encoded header of a region.
func headerOf(mem []byte, raw int) []byte { return mem[page.HeadBytes : page.HeadBytes+raw] }

// soundExtent verifies a whole region: header, then every piece.
func soundExtent(mem []byte) bool {
	h, raw, err := decodeRegion(mem)
	if err != nil {
		return false
	}
	return soundPieces(&h, mem[page.PayloadOffset(raw):], 0, len(h.SumsLE)/8)
}

// soundPieces verifies pieces [first, end) of a payload against the sums of its header.
func soundPieces(h *page.Header, payload []byte, first, end int) bool {
	pieces := h.Pieces()
	for i := first; i < end; i++ {
		off, n := pieces.Span(i)
		if kernels.Sum(payload[off:off+n]) != h.Sum(i) {
			return false
		}
	}
	return true
}

// appendChunks appends the runs of take within the payload of h, each at most maxBytes (at least one piece) and cut
// at the ends of pieces, after verifying every piece that they touch, once; with cutOnly, those alone that they cover
// in part.
func appendChunks(dst []Chunk, h *page.Header, payload []byte, take page.View, maxBytes int, cutOnly bool) ([]Chunk, bool) {
	pieces, runs := h.Pieces(), page.RunsOf(h.View, take, h.CellBytes)
	verified := 0 // pieces below are verified
	for k := range runs.N {
		off, _, n := runs.Run(k)
		first, end, cutsFirst, cutsLast := pieces.Touched(off, n)
		sound := true
		switch {
		case !cutOnly:
			sound = soundPieces(h, payload, max(first, verified), end)
		case cutsFirst || cutsLast:
			sound = soundPieces(h, payload, first, first+1) && soundPieces(h, payload, end-1, end)
		}
		if !sound {
			return dst, false
		}
		verified = end
		for n > 0 {
			c := chunkBytes(pieces, off, n, maxBytes)
			dst = append(dst, Chunk{Offset: uint64(off), Bytes: payload[off : off+c : off+c], CutSums: cutSums(pieces, payload, off, c)})
			off, n = off+c, n-c
		}
	}
	return dst, true
}

// chunkBytes is how much of a run of n bytes at off goes into one chunk: all, or up to the last end of a piece
// within maxBytes, so that no cut is made that the view does not need.
func chunkBytes(p page.Pieces, off, n, maxBytes int) int {
	if n <= maxBytes {
		return n
	}
	at, _ := p.Span(p.At(off + maxBytes))
	return at - off
}

// cutSums sums the parts of pieces that a chunk covers only in part: at most its first and its last.
func cutSums(p page.Pieces, payload []byte, off, n int) []uint64 {
	first, end, cutsFirst, cutsLast := p.Touched(off, n)
	if !cutsFirst && !cutsLast {
		return nil
	}
	sums := make([]uint64, 0, 2)
	if cutsFirst {
		at, bytes := p.Span(first)
		sums = append(sums, kernels.Sum(payload[off:min(at+bytes, off+n)]))
	}
	if cutsLast && end-1 > first {
		at, _ := p.Span(end - 1)
		sums = append(sums, kernels.Sum(payload[at:off+n]))
	}
	return sums
}

// reasonOfHeader is what a header that does not decode means to its writer.
func reasonOfHeader(err error) reason.Reason {
	switch {
	case errors.Is(err, page.ErrTruncated):
		return reason.Truncated
	case errors.Is(err, page.ErrVersion), errors.Is(err, page.ErrUnknownFlags), errors.Is(err, page.ErrUnsupported):
		return reason.Unsupported
	case errors.Is(err, page.ErrTooLong):
		return reason.LimitExceeded
	}
	return reason.Corrupt
}

// stat pins whatever is stored of one page and answers its parts, hidden ones too. Where a header cannot be read before ctx
// ends there are none. The caller closes the Reading.
func (s *Store) stat(ctx context.Context, sh *shard, c Caller, run core.Run, v page.View) *Reading {
	sp := s.spaces.get(run.Family.Namespace, run.Family.Epoch)
	if sp == nil || s.enter() != nil {
		return nil
	}
	rd, _, _ := s.read(ctx, sp, sh, c, ReadRequest{Run: run, View: v, anyView: true})
	if rd == nil {
		s.leave()
	}
	return rd
}

// storedOf names the accepted extents that hold any part of view v (zero: of the page). known is false where that could not
// be read.
func (s *Store) storedOf(ctx context.Context, sh *shard, c Caller, run core.Run, v page.View) (ids []page.ExtentID, known bool) {
	rd := s.stat(ctx, sh, c, run, v)
	if rd == nil {
		return nil, ctx.Err() == nil
	}
	defer rd.Close()
	for _, p := range rd.pages[0].parts {
		if p.Accepted {
			ids = append(ids, p.header.Extent)
		}
	}
	return ids, rd.pages[0].result.Reason != reason.Busy
}

// Verify re-reads the named pages and drops extents that fail (only: those; nil: all). OK: sound. Miss with Corrupt:
// confirmed and gone. A report that is not confirmed is counted under the caller's name.
func (s *Store) Verify(ctx context.Context, c Caller, run core.Run, only []page.ExtentID) ([]PageResult, reason.Reason, error) {
	rd, why, err := s.Read(ctx, c, ReadRequest{Run: run, anyView: true})
	if rd == nil {
		return nil, why, err
	}
	defer rd.Close()
	out := make([]PageResult, len(rd.pages))
	for i := range rd.pages {
		out[i] = rd.verify(ctx, i, only)
		if out[i].Reason == reason.Corrupt {
			s.counts.confirmed.Add(1)
		} else if out[i].Outcome == core.OK {
			s.counts.unconfirmedBy(s.names.principal(c.Principal))
		}
	}
	return out, reason.None, nil
}

func (r *Reading) verify(ctx context.Context, i int, only []page.ExtentID) PageResult {
	p := &r.pages[i]
	if p.result.Outcome != core.OK {
		return p.result
	}
	out := p.result
	for x := range p.parts {
		part := &p.parts[x]
		if len(only) > 0 && !slices.Contains(only, part.header.Extent) {
			continue
		}
		switch r.s.soundPlace(ctx, part.Place) {
		case reason.Corrupt:
			r.s.corrupt(r.sh, part.Extent, part.Place)
			out = PageResult{Outcome: core.Miss, Reason: reason.Corrupt}
		case reason.None:
		default:
			if out.Outcome == core.OK {
				out = PageResult{Outcome: core.Miss, Reason: reason.Busy}
			}
		}
	}
	return out
}

// soundPlace verifies what lies at a place that is pinned: None, Corrupt, or Busy when it could not be read.
func (s *Store) soundPlace(ctx context.Context, p core.Place) reason.Reason {
	reg, ok := s.region(p)
	if !ok {
		return reason.Busy
	}
	mem := reg.Memory
	if mem == nil {
		mem = make([]byte, reg.Bytes)
		if why := s.readRegion(ctx, p.Tier, reg, mem); why != reason.None {
			return why
		}
	}
	if !soundExtent(mem) {
		return reason.Corrupt
	}
	return reason.None
}
