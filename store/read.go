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

	// Unverified says that the receiver verifies every byte after the last copy, and that Chunks need not: only a piece
	// that is cut is verified, whole, since nobody but the node can.
	Unverified bool

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
	rd := &Reading{s: s, sh: sh, caller: c, space: sp, ticket: t, family: r.Run.Family, geometry: geo, lease: r.Lease, unverified: r.Unverified}
	rd.pages = make([]readPage, len(reply.Results))
	for i, res := range reply.Results {
		p := &rd.pages[i]
		p.result = PageResult{Outcome: res.Outcome, Reason: res.Reason}
		p.hash, p.resume = hashAt(&r.Run, sp.State.HashBytes, i), r.Resume[i]
		for _, part := range res.Parts {
			p.parts = append(p.parts, readPart{Part: part})
		}
	}
	if r.anyView {
		rd.look(ctx)
		return rd, reason.None, nil
	}
	rd.load(ctx)
	for i := range rd.pages {
		if rd.pages[i].ready == nil {
			rd.open(i)
		}
	}
	return rd, reason.None, nil
}

// Reading is an open read of a batch. Not safe for concurrent use, save Close.
type Reading struct {
	s          *Store
	sh         *shard
	caller     Caller
	space      *space
	ticket     core.Ticket
	family     page.Family
	geometry   core.Geometry
	lease      core.LeaseID
	pages      []readPage
	unverified bool
	once       sync.Once

	// Of parts that are on their way into memory, see load.go. All unset when everything was there.
	mu      sync.Mutex           // guards loading, and of the pages that wait: parts, missing and failed
	loading map[uint32][]loadRef // by extent
	wait    context.Context
	endWait context.CancelFunc
}

type readPage struct {
	result PageResult
	hash   page.Hash
	resume []page.ExtentID // must come from these extents; nil: any
	parts  []readPart

	ready   chan struct{} // closed when missing is 0; nil: nothing to wait for
	missing int           // parts that are not in memory yet
	failed  reason.Reason
}

// readPart is one extent that serves a page: its region and its header, decoded in place.
type readPart struct {
	core.Part
	region  []byte // of a look: nothing behind the header where the CPU cannot address the tier
	header  page.Header
	rawLen  int
	payload []byte
}

// open resolves the parts of page i, which are in memory, and compares each header with what was asked for. Anything
// else than exactly that is a miss.
func (r *Reading) open(i int) {
	p := &r.pages[i]
	for x := range p.parts {
		reg, ok := r.s.region(p.parts[x].Place)
		why := reason.Absent
		if ok {
			why = r.openPart(&p.parts[x], reg.Memory, &p.hash)
		}
		if why != reason.None {
			p.miss(why)
			return
		}
		p.result.Stored = append(p.result.Stored, p.parts[x].header.Extent)
	}
	if p.resume != nil && p.result.Outcome == core.OK && !slices.Equal(p.resume, p.result.Stored) {
		p.miss(reason.Absent) // what the first half came from is gone: start over
	}
}

func (r *Reading) openPart(rp *readPart, mem []byte, hash *page.Hash) reason.Reason {
	var err error
	if rp.header, rp.rawLen, err = decodeRegion(mem); err != nil {
		r.s.corrupt(r.sh, rp.Extent, rp.Place)
		return reason.Corrupt
	}
	rp.region = mem
	if why := r.expect(rp, hash); why != reason.None {
		return why
	}
	rp.payload = mem[page.PayloadOffset(rp.rawLen):]
	return reason.None
}

// expect compares a part's header with what the core says is there.
func (r *Reading) expect(rp *readPart, hash *page.Hash) reason.Reason {
	if rp.header.Key.Hash != *hash || rp.header.Key.Family != r.family {
		return reason.Absent // two hashes with one fingerprint: the other page lives here
	}
	if rp.header.View != rp.View {
		r.s.corrupt(r.sh, rp.Extent, rp.Place)
		return reason.Corrupt
	}
	return reason.None
}

// look reads the headers of all parts, from wherever they are, and nothing more.
func (r *Reading) look(ctx context.Context) {
	for i := range r.pages {
		p := &r.pages[i]
		for x := range p.parts {
			if why := r.lookAt(ctx, &p.parts[x], &p.hash); why != reason.None {
				p.miss(why)
				break
			}
			p.result.Stored = append(p.result.Stored, p.parts[x].header.Extent)
		}
	}
}

func (r *Reading) lookAt(ctx context.Context, rp *readPart, hash *page.Hash) reason.Reason {
	reg, ok := r.s.region(rp.Place)
	if !ok {
		return reason.Absent
	}
	if reg.Memory != nil {
		return r.openPart(rp, reg.Memory, hash)
	}
	var why reason.Reason
	rp.header, rp.region, rp.rawLen, why = r.s.peek(ctx, reg, rp.Place.Tier)
	if why == reason.Corrupt {
		r.s.corrupt(r.sh, rp.Extent, rp.Place)
	}
	if why != reason.None {
		return why
	}
	return r.expect(rp, hash)
}

func (p *readPage) miss(why reason.Reason) {
	p.result, p.parts = PageResult{Outcome: core.Miss, Reason: why}, nil
}

// Pages is the number of pages asked for.
func (r *Reading) Pages() int { return len(r.pages) }

// Page is the outcome of page i before its bytes are read: OK or a miss with its reason. Stored is filled. It waits
// for what comes from disk, until the context of Read ends; ask for it before the other methods about page i.
func (r *Reading) Page(i int) PageResult {
	r.await(i)
	return r.pages[i].result
}

// Extents is the number of extents that serve page i.
func (r *Reading) Extents(i int) int { return len(r.pages[i].parts) }

// Header is the encoded header of extent x of page i: memory of the tier, valid until Close.
func (r *Reading) Header(i, x int) []byte {
	p := &r.pages[i].parts[x]
	return headerOf(p.region, p.rawLen)
}

// Chunk is a run of stored bytes of one extent, verified by the node unless the request said Unverified, valid until
// Close.
type Chunk struct {
	Offset  uint64 // within the extent's payload
	Bytes   []byte
	CutSums []uint64 // xxh3-64 of the pieces that Bytes covers only in part, in order
}

// Chunks appends the runs of extent x of page i that serve the view, in order, each at most maxBytes (at least one
// piece), after verifying the pieces that they touch. A piece that fails is reason.Corrupt: the extent is gone from
// then on and nothing of this page may be used.
func (r *Reading) Chunks(i, x int, maxBytes int, dst []Chunk) ([]Chunk, reason.Reason) {
	p := &r.pages[i].parts[x]
	before := len(dst)
	dst, ok := appendChunks(dst, &p.header, p.payload, p.Take, max(maxBytes, page.MaxPieceBytes), r.unverified)
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
		if r.endWait != nil {
			r.endWait()
			r.sh.rt.Lock()
			delete(r.sh.loads, r.ticket)
			r.sh.rt.Unlock()
		}
		r.s.leave()
	})
}
