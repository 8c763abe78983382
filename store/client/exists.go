package client

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/store/page"
)

// Presence says which pages of a run can be fetched. Bits and Unknown hold one bit a page, least significant first.
type Presence struct {
	Bits    []byte
	Unknown []byte // an owner did not answer: absent for the caller, never to be cached
	Leading int    // consecutive pages from the start
	Lease   *Lease // nil: none was asked for or none granted
	Leased  int    // leading pages that the lease pins
	// DecidedAt is what the server's clock showed when it took the lease; 0: none was asked for, or it does not say.
	DecidedAt time.Duration
}

// Has says whether page i is there.
func (p *Presence) Has(i int) bool { return i>>3 < len(p.Bits) && p.Bits[i>>3]>>(i&7)&1 == 1 }

// Exists asks for whole pages, so that all ranks get one answer. ttl 0 is a bare probe, which neither pins nor
// refreshes; else the longest prefix that fits the budgets is leased in the same call. An invalidated session answers
// that nothing is there.
func (s *Session) Exists(ctx context.Context, r Run, ttl time.Duration) (Presence, error) {
	ps, lease, err := s.Lookup(ctx, []Run{r}, page.View{}, ttl)
	if len(ps) == 0 {
		return Presence{}, err
	}
	ps[0].Lease = lease
	return ps[0], err
}

// Lookup is Exists for several runs (groups of a hybrid model, scopes) and any view, under one lease; presences are
// aligned with runs and do not name it.
func (s *Session) Lookup(ctx context.Context, runs []Run, v page.View, ttl time.Duration) ([]Presence, *Lease, error) {
	out := make([]Presence, len(runs))
	asks, err := s.lookups(runs, out)
	if err != nil {
		return nil, nil, err
	}
	ctx, leave, err := s.enter(ctx)
	if invalidated(err) {
		return out, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	lease := &Lease{s: s, ttl: ttl}
	for _, parts := range asks {
		if p := parts[0]; len(parts) == 1 && out[p.i].Leased < p.from {
			ttl = 0 // a lease covers prefixes, and this one has ended already
		}
		if err := s.lookup(ctx, parts, v, ttl, lease, out); err != nil {
			lease.drop()
			return nil, nil, s.why(err)
		}
	}
	if len(lease.parts) == 0 {
		return out, nil, nil
	}
	return out, lease, nil
}

// lookupPart is pages [from, to) of one run in one call.
type lookupPart struct {
	run      *Run
	i        int // of the run
	from, to int
}

// lookups cuts runs into calls of at most BatchKeys keys and makes room for the answers.
func (s *Session) lookups(runs []Run, out []Presence) (asks [][]lookupPart, err error) {
	room := 0
	for i := range runs {
		n, err := s.pagesOf(&runs[i])
		if err != nil {
			return nil, err
		}
		bits := make([]byte, 2*((n+7)/8))
		out[i].Bits, out[i].Unknown = bits[:(n+7)/8], bits[(n+7)/8:]
		for from := 0; from < n; {
			if room == 0 {
				asks, room = append(asks, nil), s.c.opt.BatchKeys
			}
			to := min(n, from+room)
			last := &asks[len(asks)-1]
			*last = append(*last, lookupPart{&runs[i], i, from, to})
			room -= to - from
			from = to
		}
	}
	return asks, nil
}

func (s *Session) lookup(ctx context.Context, parts []lookupPart, v page.View, ttl time.Duration, lease *Lease, out []Presence) error {
	req := &quirev1.BatchExistsRequest{Namespace: s.ref, Runs: make([]*quirev1.KeyRun, len(parts))}
	for k, p := range parts {
		req.Runs[k] = s.wire(p.run, p.from, p.to)
	}
	if v != (page.View{}) {
		req.View = wireView(v)
	}
	if ttl > 0 {
		req.Lease, req.SessionId = durationpb.New(ttl), s.sessionID()
	}
	sent := s.c.opt.Clock.Now()
	r, err := repeated(ctx, s.c, func(ctx context.Context, p quirev1.PageServiceClient) (*quirev1.BatchExistsResponse, error) {
		return p.BatchExists(ctx, req)
	})
	if err != nil {
		return err
	}
	at := 0
	for k, p := range parts {
		o, n := &out[p.i], p.to-p.from
		o.DecidedAt = time.Duration(r.GetDecidedAt())
		copyBits(o.Bits, p.from, r.GetPresent(), at, n)
		copyBits(o.Unknown, p.from, r.GetUnknown(), at, n)
		if k < len(r.GetLeading()) && o.Leading == p.from {
			o.Leading += min(n, int(r.GetLeading()[k]))
		}
		if c := r.GetLease().GetCovered(); k < len(c) && o.Leased == p.from {
			o.Leased += min(n, int(c[k]))
		}
		at += n
	}
	lease.add(r.GetLease(), sent)
	return nil
}

// copyBits copies n bits; what src does not hold is 0.
func copyBits(dst []byte, to int, src []byte, from, n int) {
	for i := range n {
		if b := from + i; b>>3 < len(src) && src[b>>3]>>(b&7)&1 == 1 {
			dst[(to+i)>>3] |= 1 << ((to + i) & 7)
		}
	}
}
