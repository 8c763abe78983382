package store

import (
	"context"
	"sync"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/kernels"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// publication is the runtime's half of a publication lease: where its grants are and what was written to them.
//
//	open --Write*--> open --Commit--> sealed          a sealed grant takes no more bytes
//	  \--Revoke (lease end, abort, retire)--> dead    its memory may serve another page from then on
type publication struct {
	principal core.Principal
	family    page.Family
	geometry  core.Geometry
	prov      string // canonical
	durable   bool   // a commit is answered when its pages are on disk
	pages     []pubPage
}

type pubPage struct {
	hash   page.Hash
	grants []*grant
}

// grant is one rectangle being written.
type grant struct {
	view page.View

	mu      sync.Mutex // guards what follows; held while bytes are copied in
	state   grantState
	region  []byte         // whole; nil once dead
	payload kernels.Summer // fills the payload part of region
	sums    []uint64       // of payload's pieces
}

type grantState uint8

const (
	grantOpen grantState = iota
	grantSealed
	grantDead
)

// BeginRequest asks for the right to publish. A page without expiry gets the namespace's default.
type BeginRequest struct {
	Run         core.Run
	Pages       []core.BeginPage // aligned with Run
	TTL         time.Duration
	Durable     bool
	WriterGroup [16]byte
	Hint        evict.Hint // of all pages: advice
}

// BeginResult is what Begin answers. Token is zero when nothing was granted.
type BeginResult struct {
	Token core.Token
	TTL   time.Duration
	At    clock.Instant // when it was decided
	Pages []PageResult
}

// Begin grants exactly the rectangles that are neither stored nor being written. The caller must state its
// provenance.
func (s *Store) Begin(ctx context.Context, c Caller, r BeginRequest) (BeginResult, reason.Reason, error) {
	if c.Provenance == 0 {
		return BeginResult{}, reason.Provenance, nil
	}
	if r.Durable && s.disk == nil {
		return BeginResult{}, reason.Unsupported, nil
	}
	sp, sh, why, err := s.begin(c, &r.Run.Family)
	if err != nil || why != reason.None {
		return BeginResult{}, why, err
	}
	defer s.leave()
	geo, ok := sp.State.Groups[r.Run.Family.Group]
	if !ok {
		return BeginResult{}, reason.Absent, nil
	}
	s.fillExpiry(sp, r.Pages)
	prov := s.names.provenance(c.Provenance)
	t := s.ticket()
	reply, err := s.ask(ctx, sh, t, core.Begin{
		Ticket: t, Principal: c.Principal, Session: c.Session, Run: r.Run, Pages: r.Pages, TTL: r.TTL,
		Durable: r.Durable, Provenance: c.Provenance, ProvBytes: len(prov), WriterGroup: r.WriterGroup, Hint: r.Hint,
	}, func(r core.Reply) { s.step(sh, core.Abort{Token: r.Token}) })
	if err != nil || reply.Reason != reason.None {
		return BeginResult{}, reply.Reason, err
	}
	out := BeginResult{Token: reply.Token, TTL: reply.TTL, At: reply.At, Pages: resultsOf(reply.Results)}
	if reply.Token != (core.Token{}) {
		pub := &publication{principal: c.Principal, family: r.Run.Family, geometry: geo, prov: prov, durable: r.Durable}
		pub.pages = s.grants(sp, &r.Run, &geo, len(prov), reply.Results)
		sh.rt.Lock()
		sh.pubs[reply.Token] = pub
		sh.rt.Unlock()
		if !s.live(sh, reply.Token) { // it ended before we remembered it: its Revoke found nothing
			s.revoke(sh, core.Revoke{Token: reply.Token})
		}
	}
	if r.Durable {
		if err := s.persistPresent(ctx, sp, sh, &r, out.Pages); err != nil {
			s.Abort(c, r.Run.Family.Namespace, r.Run.Family.Epoch, reply.Token, nil)
			return BeginResult{}, reason.None, err
		}
	}
	s.fillStored(ctx, sp, sh, c, &r, out.Pages)
	return out, reason.None, nil
}

// persistPresent makes pages durable that a durable Begin found stored: Present promises what a commit would have. A
// page that the disk tier does not take is refused.
func (s *Store) persistPresent(ctx context.Context, sp *space, sh *shard, r *BeginRequest, pages []PageResult) error {
	var hashes []byte
	var at []int
	for i := range pages {
		if pages[i].Outcome == core.Present {
			hashes, at = append(hashes, pageRun(&r.Run, sp.State.HashBytes, i).Hashes...), append(at, i)
		}
	}
	return s.persistPages(ctx, sh, core.Run{Family: r.Run.Family, Hashes: hashes}, pages, at)
}

// persistPages persists a run whose pages are those at places at of out, and refuses there what failed.
func (s *Store) persistPages(ctx context.Context, sh *shard, run core.Run, out []PageResult, at []int) error {
	if len(at) == 0 {
		return nil
	}
	t := s.ticket()
	r, err := s.ask(ctx, sh, t, core.Persist{Ticket: t, Run: run}, nil)
	if err != nil {
		return err
	}
	for j, i := range at {
		why := r.Reason
		if why == reason.None && r.Results[j].Outcome != core.Committed {
			why = r.Results[j].Reason
		}
		if why != reason.None {
			out[i] = PageResult{Outcome: core.Refused, Reason: why}
		}
	}
	return nil
}

func (s *Store) fillExpiry(sp *space, pages []core.BeginPage) {
	if sp.DefaultExpiry <= 0 {
		return
	}
	at := s.clock.Wall() + clock.Wall(min(sp.DefaultExpiry/time.Second, 1<<31))
	for i := range pages {
		if pages[i].Expiry == 0 {
			pages[i].Expiry = at
		}
	}
}

func (s *Store) live(sh *shard, t core.Token) bool {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.core.Live(t)
}

// grants resolves the places of a Begin's reply to memory.
func (s *Store) grants(sp *space, run *core.Run, geo *core.Geometry, provBytes int, rs []core.Result) []pubPage {
	pages := make([]pubPage, len(rs))
	for i, r := range rs {
		pages[i].hash = hashAt(run, sp.State.HashBytes, i)
		for _, g := range r.Grants {
			pages[i].grants = append(pages[i].grants, s.openGrant(g, geo, provBytes))
		}
	}
	return pages
}

// openGrant resolves one place; a grant without memory is dead from the start.
func (s *Store) openGrant(g core.Grant, geo *core.Geometry, provBytes int) *grant {
	out := &grant{view: g.View, state: grantDead}
	reg, ok := s.region(g.Place)
	if !ok || reg.Memory == nil {
		return out
	}
	off := page.PayloadOffset(page.EncodedHeaderBytes(g.View, geo.CellBytes, provBytes))
	pieces := page.PiecesOf(int(g.View.L1-g.View.L0), int(geo.CellBytes))
	out.sums = make([]uint64, pieces.Count(int(g.View.H1-g.View.H0)))
	cut := kernels.Cut{UnitBytes: pieces.UnitBytes, PieceBytes: pieces.PieceBytes}
	if out.payload.Reset(reg.Memory[off:], cut, out.sums) == nil {
		out.state, out.region = grantOpen, reg.Memory
	}
	return out
}

// fillStored names the extents that pages answered Present already have, as far as they can be read before ctx ends.
func (s *Store) fillStored(ctx context.Context, sp *space, sh *shard, c Caller, r *BeginRequest, out []PageResult) {
	for i := range out {
		if out[i].Outcome == core.Present {
			v := r.Pages[i].View
			out[i].Stored, _ = s.storedOf(ctx, sh, c, pageRun(&r.Run, sp.State.HashBytes, i), v)
		}
	}
}

// Write copies p to offset off of a grant's payload, summing pieces while it copies. Chunks of one grant come in
// order and without holes; anything else, or a grant that is gone or committed, is a reason and changes nothing.
// Copies of one grant are serialised; grants are independent.
func (s *Store) Write(c Caller, id page.NamespaceID, e page.Epoch, t core.Token, pageIndex, grantIndex int, off uint64, p []byte) reason.Reason {
	pub := s.publication(c, s.shardOf(id, e), t)
	switch {
	case pub == nil:
		return reason.StaleToken
	case pageIndex < 0 || pageIndex >= len(pub.pages) || grantIndex < 0 || grantIndex >= len(pub.pages[pageIndex].grants):
		return reason.InvalidView
	}
	g := pub.pages[pageIndex].grants[grantIndex]
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.state != grantOpen:
		return reason.StaleToken
	case off != uint64(g.payload.Offset()):
		return reason.Truncated
	}
	if _, err := g.payload.Write(p); err != nil {
		return reason.SizeMismatch
	}
	s.counts.written.Add(uint64(len(p)))
	return reason.None
}

// publication finds a live publication of this principal.
func (s *Store) publication(c Caller, sh *shard, t core.Token) *publication {
	sh.rt.Lock()
	defer sh.rt.Unlock()
	if pub := sh.pubs[t]; pub != nil && pub.principal == c.Principal {
		return pub
	}
	return nil
}

// Abort gives up pages (nil: all) that are not committed.
func (s *Store) Abort(c Caller, id page.NamespaceID, e page.Epoch, t core.Token, pages []uint32) {
	sh := s.shardOf(id, e)
	if s.publication(c, sh, t) == nil || s.enter() != nil {
		return
	}
	defer s.leave()
	s.step(sh, core.Abort{Token: t, Pages: pages})
}

// revoke ends the writing of grants and waits for copies in flight: their places are freed next.
func (s *Store) revoke(sh *shard, e core.Revoke) {
	sh.rt.Lock()
	pub := sh.pubs[e.Token]
	if e.Pages == nil {
		delete(sh.pubs, e.Token)
	}
	sh.rt.Unlock()
	if pub == nil {
		return
	}
	if e.Pages == nil {
		for i := range pub.pages {
			pub.pages[i].end()
		}
	}
	for _, i := range e.Pages {
		pub.pages[i].end()
	}
}

func (p *pubPage) end() {
	for _, g := range p.grants {
		g.mu.Lock()
		g.state, g.region = grantDead, nil
		g.payload = kernels.Summer{}
		g.mu.Unlock()
	}
}
