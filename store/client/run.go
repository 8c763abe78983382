package client

import (
	quirev1 "github.com/quire-kv/quire/proto/quire/v1"
	"github.com/quire-kv/quire/reason"
	"github.com/quire-kv/quire/store/core"
	"github.com/quire-kv/quire/store/page"
	"github.com/quire-kv/quire/store/rpc"
)

// Run names consecutive pages of one chain. Hashes is packed: n times the namespace's hash size. Not written to.
type Run struct {
	Group  page.GroupID
	Scope  page.Scope // zero for plain requests
	Hashes []byte
}

// Outcome is what happened to one page.
type Outcome = core.Outcome

// The outcomes.
const (
	OK        = core.OK        // fetched and verified; deleted, touched, pinned
	Present   = core.Present   // not published: it is stored already
	Committed = core.Committed // visible from now on, or already before by this same publication
	Miss      = core.Miss      // Reason says why; costs a recompute and nothing else
	Refused   = core.Refused   // Reason says why
)

// PageResult is one page's outcome, aligned with the request.
type PageResult struct {
	Outcome Outcome
	Reason  reason.Reason   // of Miss and Refused
	Extents []page.ExtentID // OK of a fetch, Present, Committed: the extents that are stored
	// Ancestor of a ParentMissing: the first absent one, so that it can be published.
	Ancestor page.Hash
	// Divergent: the page is stored already and its bytes are known to differ from those offered. The stored ones stay.
	Divergent bool
}

// GoodPrefix is the number of leading pages that may be used: OK, Present or Committed.
func GoodPrefix(results []PageResult) int {
	for i, r := range results {
		if r.Outcome != OK && r.Outcome != Present && r.Outcome != Committed {
			return i
		}
	}
	return len(results)
}

// pagesOf is the number of pages in r.
func (s *Session) pagesOf(r *Run) (int, error) {
	if len(r.Hashes)%s.hashBytes != 0 {
		return 0, rpc.Errorf(reason.InvalidSpec, "run of %d bytes of hashes; the namespace's are %d bytes each", len(r.Hashes), s.hashBytes)
	}
	return len(r.Hashes) / s.hashBytes, nil
}

// shape is the number of pages in r, their geometry, and v with the zero view made whole. Errors are *rpc.Error.
func (s *Session) shape(r *Run, v page.View) (n int, geo Geometry, view page.View, err error) {
	if n, err = s.pagesOf(r); err != nil {
		return 0, geo, v, err
	}
	geo, ok := s.groups[r.Group]
	if !ok {
		return 0, geo, v, rpc.Errorf(reason.Absent, "the namespace has no group %v", r.Group)
	}
	if v == (page.View{}) {
		v = geo.Full()
	}
	if v.Empty() || !geo.Grade.CanServe(geo.Full(), v) {
		return 0, geo, v, rpc.Errorf(reason.InvalidView, "%v of a page %v whose packing is %v", v, geo.Full(), geo.Grade)
	}
	return n, geo, v, nil
}

// First is the run of the first n pages.
func (s *Session) First(r Run, n int) Run {
	r.Hashes = r.Hashes[:n*s.hashBytes]
	return r
}

// Rest is the run without its first n pages.
func (s *Session) Rest(r Run, n int) Run {
	r.Hashes = r.Hashes[n*s.hashBytes:]
	return r
}

// wire is pages [from, to) of r.
func (s *Session) wire(r *Run, from, to int) *quirev1.KeyRun {
	k := &quirev1.KeyRun{Group: r.Group[:], Hashes: r.Hashes[from*s.hashBytes : to*s.hashBytes]}
	if r.Scope != (page.Scope{}) {
		k.Scope = r.Scope[:]
	}
	return k
}

// hash is the i-th of r.
func (s *Session) hash(r *Run, i int) page.Hash {
	h, _ := page.MakeHash(r.Hashes[i*s.hashBytes : (i+1)*s.hashBytes])
	return h
}

func wireView(v page.View) *quirev1.View {
	return &quirev1.View{H0: uint32(v.H0), H1: uint32(v.H1), L0: uint32(v.L0), L1: uint32(v.L1)}
}

// viewOf reads a rectangle off the wire; ok is false for what is not one, or not built yet.
func viewOf(v *quirev1.View) (_ page.View, ok bool) {
	w := page.View{H0: uint16(v.GetH0()), H1: uint16(v.GetH1()), L0: uint16(v.GetL0()), L1: uint16(v.GetL1())}
	ok = uint32(w.H0) == v.GetH0() && uint32(w.H1) == v.GetH1() && uint32(w.L0) == v.GetL0() && uint32(w.L1) == v.GetL1() &&
		v.GetTokenStart() == 0 && v.GetTokenStride() == 0 && v.GetTokenRun() == 0 && v.GetShard() == 0 && v.GetShards() == 0
	return w, ok && !w.Empty()
}

// resultOf reads a status off the wire; what cannot be read is no success.
func resultOf(st *quirev1.PageStatus) PageResult {
	r := PageResult{Outcome: rpc.OutcomeFromProto(st.GetOutcome()), Reason: rpc.FromProto(st.GetReason())}
	for _, b := range st.GetExtentIds() {
		id, err := page.DecodeExtentID(b)
		if err != nil {
			return PageResult{Outcome: Refused, Reason: reason.Unknown}
		}
		r.Extents = append(r.Extents, id)
	}
	if a := st.GetFirstAbsentAncestor(); len(a) > 0 {
		r.Ancestor, _ = page.MakeHash(a)
	}
	return r
}

// all is one answer for n pages.
func all(n int, o Outcome, why reason.Reason) []PageResult {
	out := make([]PageResult, n)
	for i := range out {
		out[i] = PageResult{Outcome: o, Reason: why}
	}
	return out
}
