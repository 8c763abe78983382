package store

import (
	"context"
	"slices"
	"sync"

	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
)

// ReadRequest asks for pages of one run.
type ReadRequest struct {
	Run    core.Run
	View   page.View // zero: whole pages
	Lease  core.LeaseID
	Resume map[int][]page.ExtentID // pages that must come from these extents; nil: any

	anyView bool // whatever is stored of the view, hidden or not (stat, explain, verify)
}

// Read pins what can be served. Close the Reading exactly once: nothing pinned moves or is freed before.
func (s *Store) Read(ctx context.Context, c Caller, r ReadRequest) (*Reading, reason.Reason, error) {
	sp, sh, why, err := s.begin(c, &r.Run.Family)
	if err != nil || why != reason.None {
		return nil, why, err
	}
	rd, why, err := s.read(ctx, sp, sh, c, r)
	if rd == nil {
		s.leave()
	}
	return rd, why, err
}

func (s *Store) read(ctx context.Context, sp *space, sh *shard, c Caller, r ReadRequest) (*Reading, reason.Reason, error) {
	geo, ok := sp.State.Groups[r.Run.Family.Group]
	if !ok {
		return nil, reason.Absent, nil
	}
	t := s.ticket()
	reply, err := s.ask(ctx, sh, t, core.Read{
		Ticket: t, Principal: c.Principal, Run: r.Run, View: r.View, Lease: r.Lease, NoTouch: r.anyView, AnyView: r.anyView,
	}, func(core.Reply) { s.step(sh, core.ReadDone{Ticket: t}) })
	if err != nil {
		return nil, reason.None, err
	}
	if reply.Reason != reason.None {
		s.step(sh, core.ReadDone{Ticket: t})
		return nil, reply.Reason, nil
	}
	rd := &Reading{s: s, sh: sh, caller: c, space: sp, ticket: t, family: r.Run.Family, geometry: geo, lease: r.Lease}
	rd.pages = make([]readPage, len(reply.Results))
	for i, res := range reply.Results {
		rd.open(i, res, hashAt(&r.Run, sp.State.HashBytes, i), r.Resume[i])
	}
	return rd, reason.None, nil
}

// Reading is an open read of a batch. Not safe for concurrent use, save Close.
type Reading struct {
	s        *Store
	sh       *shard
	caller   Caller
	space    *space
	ticket   core.Ticket
	family   page.Family
	geometry core.Geometry
	lease    core.LeaseID
	pages    []readPage
	once     sync.Once
}

type readPage struct {
	result PageResult
	parts  []readPart
}

// readPart is one extent that serves a page: its region and its header, decoded in place.
type readPart struct {
	core.Part
	region  []byte
	header  page.Header
	rawLen  int
	payload []byte
}

// open resolves a page's parts and compares each header with what was asked for. Anything else than exactly that is
// a miss.
func (r *Reading) open(i int, res core.Result, hash page.Hash, resume []page.ExtentID) {
	p := &r.pages[i]
	p.result = PageResult{Outcome: res.Outcome, Reason: res.Reason}
	for _, part := range res.Parts {
		rp, why := r.openPart(part, &hash)
		if why != reason.None {
			p.miss(why)
			return
		}
		p.parts = append(p.parts, rp)
		p.result.Stored = append(p.result.Stored, rp.header.Extent)
	}
	if resume != nil && p.result.Outcome == core.OK && !slices.Equal(resume, p.result.Stored) {
		p.miss(reason.Absent) // what the first half came from is gone: start over
	}
}

func (r *Reading) openPart(part core.Part, hash *page.Hash) (readPart, reason.Reason) {
	reg, ok := r.s.region(part.Place)
	if !ok {
		return readPart{}, reason.Absent
	}
	rp := readPart{Part: part, region: reg.Memory}
	var err error
	if rp.header, rp.rawLen, err = decodeRegion(reg.Memory); err != nil {
		r.s.corrupt(r.sh, part.Extent, part.Place)
		return readPart{}, reason.Corrupt
	}
	if rp.header.Key.Hash != *hash || rp.header.Key.Family != r.family {
		return readPart{}, reason.Absent // two hashes with one fingerprint: the other page lives here
	}
	if rp.header.View != part.View {
		r.s.corrupt(r.sh, part.Extent, part.Place)
		return readPart{}, reason.Corrupt
	}
	rp.payload = reg.Memory[page.PayloadOffset(rp.rawLen):]
	return rp, reason.None
}

func (p *readPage) miss(why reason.Reason) {
	p.result, p.parts = PageResult{Outcome: core.Miss, Reason: why}, nil
}

// Pages is the number of pages asked for.
func (r *Reading) Pages() int { return len(r.pages) }

// Page is the outcome of page i before its bytes are read: OK or a miss with its reason. Stored is filled.
func (r *Reading) Page(i int) PageResult { return r.pages[i].result }

// Extents is the number of extents that serve page i.
func (r *Reading) Extents(i int) int { return len(r.pages[i].parts) }

// Header is the encoded header of extent x of page i: memory of the tier, valid until Close.
func (r *Reading) Header(i, x int) []byte {
	p := &r.pages[i].parts[x]
	return headerOf(p.region, p.rawLen)
}

// Chunk is a run of stored bytes of one extent, verified by the node, valid until Close.
type Chunk struct {
	Offset  uint64 // within the extent's payload
	Bytes   []byte
	CutSums []uint64 // xxh3-64 of the pieces that Bytes covers only in part, in order
}

// Chunks appends the runs of extent x of page i that serve the view, in order, each at most maxBytes (at least one
// piece), after verifying every piece that they touch. A piece that fails is reason.Corrupt: the extent is gone from
// then on and nothing of this page may be used.
func (r *Reading) Chunks(i, x int, maxBytes int, dst []Chunk) ([]Chunk, reason.Reason) {
	p := &r.pages[i].parts[x]
	before := len(dst)
	dst, ok := appendChunks(dst, &p.header, p.payload, p.Take, max(maxBytes, page.MaxPieceBytes))
	if !ok {
		r.s.corrupt(r.sh, p.Extent, p.Place)
		return dst[:before], reason.Corrupt
	}
	for _, c := range dst[before:] {
		r.s.counts.read.Add(uint64(len(c.Bytes)))
	}
	return dst, reason.None
}

// Trailer says, after the last byte of page i, whether it may be used: None, or why not (the namespace was retired,
// a waiver ended). Call it just before the OK trailer. It renews a named lease: the read makes progress.
func (r *Reading) Trailer(i int) reason.Reason {
	parts := r.pages[i].parts
	buf := make([]core.Part, 0, 8)
	for x := range parts {
		buf = append(buf, parts[x].Part)
	}
	r.sh.mu.RLock()
	why := r.sh.core.Servable(r.family.Namespace, r.family.Epoch, buf)
	r.sh.mu.RUnlock()
	if why == reason.None && r.lease != (core.LeaseID{}) {
		k := r.s.ticket() // a lease that ended meanwhile does not matter: the bytes were pinned by this read
		r.s.now(r.sh, k, core.Renew{Ticket: k, Principal: r.caller.Principal, Lease: r.lease})
	}
	return why
}

// Close unpins. Idempotent; safe from any goroutine.
func (r *Reading) Close() {
	r.once.Do(func() {
		r.s.step(r.sh, core.ReadDone{Ticket: r.ticket})
		r.s.leave()
	})
}
