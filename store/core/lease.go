package core

import (
	"encoding/binary"

	"github.com/quire-kv/quire/internal/clock"
	"github.com/quire-kv/quire/reason"
)

// lease is a read lease, or the pins of an operator (which has no end and is not among the tenures). It pins pages: a
// page that is deleted meanwhile leaves its extents in a goneSet, and the lease reads those.
type lease struct {
	tenure
	id    LeaseID
	pages []leasedPage // in order of taking; given back ones are blank
	at    map[pageKey]int32
}

// pageKey is the identity of a page in memory.
type pageKey struct {
	family uint32
	fp     fingerprint
}

type leasedPage struct {
	key pageKey
	ref PageRef // of the life that was pinned; zero: given back
}

// pin is what holds a page: how many leases, and who is charged. A page is charged once, to whoever pinned it first,
// until the last lets go.
type pin struct {
	leases uint32 // operators included
	payer  payer
	bytes  tierBytes // as charged
}

// goneSet is the end of a life that was pinned: extents that leases still read.
type goneSet struct {
	pin
	key     pageKey
	expiry  clock.Wall
	extents []uint32
}

// maxLeasedPages bounds the entries of all leases of a shard: 64 MiB of Go heap at most.
const maxLeasedPages = 1 << 20

// lookup takes a lease on the longest prefix of each run that is present and fits.
func (s *Shard) lookup(ev *Lookup) {
	r := Reply{Ticket: ev.Ticket, At: s.now, Leading: make([]uint32, len(ev.Runs)), Covered: make([]uint32, len(ev.Runs))}
	l := s.newLease(ev.Principal, ev.Session)
	full := false
	if len(ev.Runs) > 0 {
		f := &ev.Runs[0].Family
		if l.ep, r.Reason = s.epochs.open(f.Namespace, f.Epoch); r.Reason != reason.None {
			s.emit(r)
			return
		}
	}
	for n := range ev.Runs {
		results, covered, fits := s.lookupRun(ev, n, l)
		for r.Leading[n] = 0; int(r.Leading[n]) < len(results) && results[r.Leading[n]].Outcome == OK; {
			r.Leading[n]++
		}
		r.Covered[n] = covered
		r.Results = append(r.Results, results...)
		full = full || !fits
	}
	switch {
	case len(l.pages) > 0:
		l.seq = s.o.Ledger.next()
		l.id = s.leaseID(l.seq)
		s.leases[l.id] = l
		s.tenures.add(&l.tenure)
		l.asked = ev.TTL
		s.tenures.setEnd(&l.tenure, s.grantTTL(s.now, ev.TTL))
		r.Lease, r.Until, r.TTL = l.id, l.until, l.until.Sub(s.now)
	case full:
		r.Reason = reason.Busy
	}
	s.emit(r)
}

func (s *Shard) newLease(by Principal, session Session) *lease {
	l := &lease{at: map[pageKey]int32{}}
	l.tenure = tenure{principal: by, session: session, started: s.now, heapAt: -1, lease: l}
	return l
}

// leaseID is unique in the node and sorts by age.
func (s *Shard) leaseID(seq uint64) (id LeaseID) {
	binary.BigEndian.PutUint64(id[:8], seq)
	copy(id[8:], s.o.Boot[:8])
	return id
}

// lookupRun answers one run and pins its prefix. fits is false when a bound ended the prefix.
func (s *Shard) lookupRun(ev *Lookup, n int, l *lease) (results []Result, covered uint32, fits bool) {
	run := &ev.Runs[n]
	family, ep, why := s.resolve(&run.Family)
	if why == reason.None && (run.Family.Namespace != ev.Runs[0].Family.Namespace || run.Family.Epoch != ev.Runs[0].Family.Epoch) {
		why = reason.InvalidSpec
	}
	if why != reason.None {
		return missAll(run, ep, why), 0, true
	}
	geo := ep.state.Groups[run.Family.Group]
	v, why := viewIn(&geo, ev.View)
	if why == reason.None && hashCount(run, ep.state.HashBytes) == 0 {
		why = reason.InvalidSpec
	}
	if why != reason.None {
		return missAll(run, ep, why), 0, true
	}
	slots := s.slotsOf(run, family, ep.state.HashBytes)
	if ev.Link {
		s.linkRun(slots, &geo)
	}
	results = make([]Result, len(slots))
	leading, fits := true, true
	for j, i := range slots {
		results[j] = Result{Outcome: Miss, Reason: reason.Absent}
		if i != 0 {
			p := s.pages.At(i)
			if why := s.served(p, ep, v, s.wall); why == reason.None {
				results[j] = Result{Outcome: OK, Ref: p.ref(i)}
			} else {
				results[j].Reason = why
			}
		}
		leading = leading && results[j].Outcome == OK
		if fits = fits && (!leading || s.hold(l, i)); leading && fits {
			covered++
		}
	}
	s.touchRun(slots[:covered])
	s.adviseRun(slots[:covered], ev.Hint) // behind the use, which ends what was said before it
	return results, covered, fits
}

// missAll answers every hash of a run that cannot be looked at.
func missAll(run *Run, ep *epoch, why reason.Reason) []Result {
	if ep == nil { // the size of a hash is unknown, and so is their number
		return nil
	}
	results := make([]Result, len(run.Hashes)/max(ep.state.HashBytes, 1))
	for j := range results {
		results[j] = Result{Outcome: Miss, Reason: why}
	}
	return results
}

// linkRun names the predecessor as parent of each page of a chain that does not know its own.
func (s *Shard) linkRun(slots []uint32, g *Geometry) {
	if g.Parents == ParentNone {
		return
	}
	for j := 1; j < len(slots); j++ {
		i, to := slots[j], parentOf{slots[j-1], true}
		if i != 0 && to.slot != 0 && s.pages.At(i).has(flagUnknown) && s.linkable(i, to) {
			s.link(i, to)
			s.settle(i)
		}
	}
}

// hold pins the page at slot for l, charging it if it is the first. false: a bound is reached.
func (s *Shard) hold(l *lease, slot uint32) bool {
	p := s.pages.At(slot)
	key := pageKey{p.family, p.fp}
	if at, ok := l.at[key]; ok && l.pages[at].ref == p.ref(slot) {
		return true
	}
	if s.pinned >= maxLeasedPages || l.id == (LeaseID{}) && len(l.pages) == 0 && s.tenures.leases >= s.o.MaxLeases {
		return false
	}
	if !s.addPin(slot, payer{l.principal, l.session}) {
		return false
	}
	l.compact()
	l.at[key] = int32(len(l.pages))
	l.pages = append(l.pages, leasedPage{key, p.ref(slot)})
	s.families.retain(p.family)
	s.pinned++
	return true
}

// compact drops blank entries once they are most of the list.
func (l *lease) compact() {
	if len(l.pages) < 64+2*len(l.at) {
		return
	}
	kept := l.pages[:0]
	for _, e := range l.pages {
		if e.ref != (PageRef{}) {
			l.at[e.key] = int32(len(kept))
			kept = append(kept, e)
		}
	}
	l.pages = kept
}

func (s *Shard) addPin(slot uint32, by payer) bool {
	p := s.pages.At(slot)
	if have, ok := s.pins[slot]; ok {
		have.leases++
		s.pins[slot] = have
		return true
	}
	n := pin{leases: 1, payer: by, bytes: s.pageBytes(p)}
	if !s.o.Ledger.takePin(n.payer, s.epochOf(slot).account, n.bytes) {
		return false
	}
	s.pins[slot] = n
	s.epochOf(slot).pinned += n.bytes.sum()
	p.set(flagPinned, true)
	s.reconsider(slot)
	return true
}

// pageBytes is what a page holds of each tier.
func (s *Shard) pageBytes(p *pageRecord) (b tierBytes) {
	for i := p.extents; i != 0; i = s.extents.At(i).next {
		if x := s.extents.At(i); x.state() == extentCommitted {
			b[x.tier()] += x.held()
		}
	}
	return b
}

func (b tierBytes) sum() (n uint64) {
	for _, x := range b {
		n += x
	}
	return n
}

// letGo gives back entry at of a lease.
func (s *Shard) letGo(l *lease, at int32) {
	entry := l.pages[at]
	if entry.ref == (PageRef{}) {
		return
	}
	l.pages[at] = leasedPage{}
	delete(l.at, entry.key)
	s.pinned--
	s.dropPin(entry.key.family, entry.ref)
	s.families.release(entry.key.family)
}

// dropPin takes one lease off a page, or off what is left of it.
func (s *Shard) dropPin(family uint32, ref PageRef) {
	ep := s.families.at(family).ep
	if g := s.gone[ref]; g != nil {
		if g.leases--; g.leases > 0 {
			return
		}
		s.uncharge(ep, &g.pin)
		delete(s.gone, ref)
		for _, x := range g.extents {
			delete(s.goneOf, x)
			s.extents.At(x).setState(extentZombie)
			s.freeIfUnused(x)
		}
		return
	}
	n := s.pins[ref.Slot]
	if n.leases--; n.leases > 0 {
		s.pins[ref.Slot] = n
		return
	}
	s.uncharge(ep, &n)
	delete(s.pins, ref.Slot)
	s.pages.At(ref.Slot).set(flagPinned, false)
	s.settle(ref.Slot)
}

func (s *Shard) uncharge(ep *epoch, n *pin) {
	ep.pinned -= n.bytes.sum()
	s.o.Ledger.givePin(n.payer, ep.account, n.bytes)
}

// moveToGone takes the pin off a page whose life ends, into a goneSet that will take its extents.
func (s *Shard) moveToGone(slot uint32) *goneSet {
	p := s.pages.At(slot)
	g := &goneSet{pin: s.pins[slot], key: pageKey{p.family, p.fp}, expiry: p.expiry}
	s.gone[p.ref(slot)] = g
	delete(s.pins, slot)
	p.set(flagPinned, false)
	return g
}

// liveLease finds a lease for its owner.
func (s *Shard) liveLease(id LeaseID, by Principal) *lease {
	if l := s.leases[id]; l != nil && l.principal == by {
		return l
	}
	return nil
}

// endLease gives back all that a lease holds.
func (s *Shard) endLease(l *lease) {
	for at := range l.pages {
		s.letGo(l, int32(at))
	}
	delete(s.leases, l.id)
	s.tenures.remove(&l.tenure)
}

// release gives back a lease or pages of it. A lease with nothing left is over.
func (s *Shard) release(ev *Release) {
	l := s.liveLease(ev.Lease, ev.Principal)
	if l == nil {
		return
	}
	if ev.Runs == nil {
		s.endLease(l)
		return
	}
	for n := range ev.Runs {
		s.eachLeased(l, &ev.Runs[n], func(at int32) { s.letGo(l, at) })
	}
	if len(l.at) == 0 {
		s.endLease(l)
	}
}

// eachLeased calls f with the entries of l that a run names.
func (s *Shard) eachLeased(l *lease, run *Run, f func(at int32)) {
	family, ep, why := s.resolve(&run.Family)
	if why != reason.None || family == 0 {
		return
	}
	for i := range hashCount(run, ep.state.HashBytes) {
		fp := fingerprintOf(run.Hashes[i*ep.state.HashBytes:][:ep.state.HashBytes], s.o.FingerprintKey)
		if at, ok := l.at[pageKey{family, fp}]; ok {
			f(at)
		}
	}
}

// renew extends a lease or a publication.
func (s *Shard) renew(ev *Renew) {
	r := Reply{Ticket: ev.Ticket, Lease: ev.Lease, Token: ev.Token}
	var n *tenure
	if ev.Token != (Token{}) {
		r.Reason = reason.StaleToken
		if pub := s.livePublication(ev.Token, ev.Principal); pub != nil {
			n = &pub.tenure
		}
	} else {
		r.Reason = reason.LeaseExpired
		if l := s.liveLease(ev.Lease, ev.Principal); l != nil {
			n = &l.tenure
		}
	}
	if n != nil && s.renewTenure(n, ev.TTL) {
		r.Reason = reason.None
		r.Until, r.TTL = n.until, n.until.Sub(s.now)
	}
	s.emit(r)
}

func (s *Shard) sessionGone(ev *SessionGone) {
	if ev.Session != 0 {
		s.endTenures(func(n *tenure) bool { return n.session == ev.Session })
	}
}
