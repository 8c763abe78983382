package store

import (
	"context"
	"errors"
	"time"

	"github.com/quire-kv/quire/evict"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/tier"
)

// Reads are served from memory. What a Read finds on disk only is copied into the host tier first, verified on the
// way, and pinned there by the same Read:
//
//	Read ──> parts on disk ──Promote──> Transfer ──> host place, disk read, sums ──TransferDone──> Landed
//	Page(i) waits for its own parts only, so that the first pages leave while later ones are on their way
//
// What is worth less than all that memory would have to drop for it is copied too, but does not stay: as much room as the
// Reads under way need serves one after the other.

// maxLoadWait bounds how long Page waits for a disk.
const maxLoadWait = 30 * time.Second

// loadRef is a part of a page that is on its way into memory.
type loadRef struct{ page, part int }

// load asks for host copies of all parts that are elsewhere.
func (r *Reading) load(ctx context.Context) {
	var extents []uint32
	for i := range r.pages {
		p := &r.pages[i]
		for x := range p.parts {
			part := &p.parts[x]
			if part.Place.Tier == evict.Host {
				continue
			}
			if r.loading == nil {
				r.loading = map[uint32][]loadRef{}
			}
			if r.loading[part.Extent] == nil {
				extents = append(extents, part.Extent)
			}
			r.loading[part.Extent] = append(r.loading[part.Extent], loadRef{i, x})
			if p.missing++; p.missing == 1 {
				p.ready = make(chan struct{})
			}
		}
	}
	if extents == nil {
		return
	}
	r.wait, r.endWait = context.WithTimeout(ctx, maxLoadWait)
	r.sh.rt.Lock()
	r.sh.loads[r.ticket] = r
	r.sh.rt.Unlock()
	var transfers []core.Transfer
	r.s.stepFor(r.sh, core.Promote{Ticket: r.ticket, Extents: extents}, 0, func(e core.Effect) {
		if t, ok := e.(core.Transfer); ok {
			transfers = append(transfers, t)
		}
	})
	r.s.promote(ctx, r.sh, transfers)
}

// promote finds room for transfers from another tier into Host, for which it waits no longer than ctx, and starts them.
func (s *Store) promote(ctx context.Context, sh *shard, transfers []core.Transfer) {
	waits := &patience{gone: ctx.Done()}
	var total uint64
	for i := range transfers {
		total += uint64(tier.RoundUp(transfers[i].From.Bytes))
	}
	var ops [evict.NumTiers][]tier.Op
	for _, t := range transfers {
		from, ok := s.region(t.From)
		if !ok {
			s.step(sh, core.TransferDone{ID: t.ID, Err: reason.Absent})
			continue
		}
		class, owner := s.classOf(t.Namespace, t.Epoch, from.Bytes), tier.Owner{Shard: sh.id, Extent: t.Into}
		who := seeker{tenant: s.tenantOf(t.Namespace, t.Epoch), judge: true, worth: t.Worth, patience: waits}
		to, err := s.allocOne(evict.Host, class, owner, total, &who)
		passing := errors.Is(err, errNotWorth)
		if passing { // it is read all the same, and what it displaces is room for the next such
			who.judge = false
			to, err = s.allocOne(evict.Host, class, owner, uint64(tier.RoundUp(from.Bytes)), &who)
		}
		if err != nil {
			s.step(sh, core.TransferDone{ID: t.ID, Err: allocReason(err)})
			continue
		}
		total -= uint64(tier.RoundUp(from.Bytes))
		s.calls.Add(1) // within a call: it cannot be the first of a closed store
		s.loads[t.From.Tier].begin(s.clock.Now())
		ops[t.From.Tier] = append(ops[t.From.Tier], tier.Op{Region: from, Memory: to.Memory, Done: func(err error) {
			defer s.leave()
			s.promoted(sh, t, to, passing, err)
		}})
	}
	for t, list := range ops {
		if list != nil {
			s.o.Tiers[t].Submit(list)
		}
	}
}

// promoted verifies what came and files it, or gives its place back.
func (s *Store) promoted(sh *shard, t core.Transfer, to tier.Region, passing bool, err error) {
	why := reason.None
	came := uint64(to.Bytes)
	if err != nil {
		came = 0
	}
	s.loaded(t.From.Tier, came)
	if err != nil {
		why = reason.Busy
		s.counts.readErrors.Add(1)
	} else if !soundExtent(to.Memory) {
		why = reason.Corrupt
	}
	if why == reason.None {
		s.counts.promoted.Add(uint64(to.Bytes))
		s.step(sh, core.TransferDone{ID: t.ID, To: placeOf(evict.Host, to), Passing: passing})
		return
	}
	s.o.Tiers[evict.Host].Free(to)
	if why == reason.Corrupt { // before the answer: who is told that it is corrupt finds it absent from then on
		s.corrupt(sh, t.Extent, t.From)
	}
	s.step(sh, core.TransferDone{ID: t.ID, Err: why})
}

// landed passes a copy on to the Reading that waits for it.
func (s *Store) landed(sh *shard, e core.Landed) {
	sh.rt.Lock()
	r := sh.loads[e.Ticket]
	sh.rt.Unlock()
	if r != nil {
		r.landed(e)
	}
}

func (r *Reading) landed(e core.Landed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.loading[e.Extent] {
		p := &r.pages[at.page]
		if e.Err != reason.None {
			p.failed = e.Err
		} else {
			p.parts[at.part].Extent, p.parts[at.part].Place = e.Copy, e.Place
		}
		if p.missing--; p.missing == 0 {
			close(p.ready)
		}
	}
	delete(r.loading, e.Extent)
}

// await waits until the parts of page i are in memory.
func (r *Reading) await(i int) {
	p := &r.pages[i]
	if p.ready == nil {
		return
	}
	select {
	case <-p.ready:
	case <-r.wait.Done():
	}
	r.mu.Lock()
	missing := p.missing > 0
	if missing {
		r.forget(i)
	}
	r.mu.Unlock() // from here on nothing lands in the page
	p.ready = nil
	switch {
	case missing:
		p.miss(reason.Busy)
	case p.failed != reason.None:
		p.miss(p.failed)
	default:
		r.open(i)
	}
}

// forget makes sure that nothing lands in page i any more. Under mu.
func (r *Reading) forget(i int) {
	for x, refs := range r.loading {
		kept := refs[:0]
		for _, at := range refs {
			if at.page != i {
				kept = append(kept, at)
			}
		}
		r.loading[x] = kept
	}
}

// peek reads the header of a region that is not in memory, for those who only want to know what it is; raw is its encoded
// length within head, the beginning of the region.
func (s *Store) peek(ctx context.Context, reg tier.Region, t evict.Tier) (h page.Header, head []byte, raw int, why reason.Reason) {
	head = make([]byte, min(reg.Bytes, tier.Align))
	if why = s.readRegion(ctx, t, reg, head); why != reason.None {
		return h, nil, 0, why
	}
	raw, err := page.HeaderBytes(head[page.HeadBytes:])
	n := page.PayloadOffset(raw)
	if err != nil || int64(n) > reg.Bytes {
		return h, nil, 0, reason.Corrupt
	}
	if n > len(head) {
		head = make([]byte, n)
		if why = s.readRegion(ctx, t, reg, head); why != reason.None {
			return h, nil, 0, why
		}
	}
	if page.DecodeHeader(&h, headerOf(head, raw)) != nil {
		return h, nil, 0, reason.Corrupt
	}
	return h, head, raw, reason.None
}

// readRegion reads the first len(dst) bytes of a region into memory that may be left to the tier when ctx ends.
func (s *Store) readRegion(ctx context.Context, t evict.Tier, reg tier.Region, dst []byte) reason.Reason {
	ctx, cancel := context.WithTimeout(ctx, maxLoadWait)
	defer cancel()
	read := make(chan error, 1)
	s.o.Tiers[t].Submit([]tier.Op{{Region: reg, Memory: dst, Done: func(err error) { read <- err }}})
	select {
	case err := <-read:
		if err != nil {
			s.counts.readErrors.Add(1)
			return reason.Busy
		}
		return reason.None
	case <-ctx.Done():
		return reason.Busy
	}
}
